"""Every kernel that a GPU may get, on an array module that is not NumPy.

With CuPy's rules (`tests.graph.pretend_device`): the same results as on NumPy, with and without ``out``, and
outputs in the memory that the signature names. With array-api-strict: no kernel mixes devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.graph import Graph
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, OpDef, Rule, Sample, registered_ops
from flowrt.graph.ops import state, training
from flowrt.graph.ops.folding import fold_rows
from flowrt.graph.passes.place import supports
from flowrt.graph.resources import VariableResource
from tests.graph.pretend_device import PretendArray, pretend, waits
from tests.graph.test_all_ops import build, cases, flat_inputs

FOR_THE_CPU = """
    AsString Assert CheckNumerics DecodeRaw HistogramSummary ImageSummary MergeSummary Print PrintV2 PyFunc
    PyFuncStateless ReduceJoin ScalarSummary StaticRegexReplace StringFormat StringJoin StringLength
    StringLower StringStrip StringToNumber StringUpper Substr TensorSummaryV2 Timestamp
"""
"""Ops that no GPU runs, whatever their dtypes: strings, Python, the world outside. (`_Send`, which
takes tensors there, comes after placement.)
"""

WAITING = """
    Bincount Div DynamicPartition DynamicStitch FloorDiv FloorMod GatherNd GatherV2 HistogramFixedWidth
    InvertPermutation ListDiff Multinomial RandomGamma RandomPoissonV2 RandomUniformInt ResourceCountUpTo
    ResourceGather ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin
    ResourceScatterMul ResourceScatterSub ResourceScatterUpdate ResourceSparseApplyAdadelta
    ResourceSparseApplyAdagrad ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl
    ResourceSparseApplyMomentum ResourceSparseApplyRMSProp ReverseSequence ScatterNd SegmentMax SegmentMean
    SegmentMin SegmentProd SegmentSum SparseSoftmaxCrossEntropyWithLogits SparseToDense TensorScatterAdd
    TensorScatterSub TensorScatterUpdate TruncateDiv TruncateMod Unique UniqueWithCounts UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum Where
"""
"""Ops on a GPU whose kernel has the host wait for the device: they check values before they use them, or the
shape of their result depends on values. A step with one of them cannot be captured.
"""


def node_of(op: OpDef, sample: Sample) -> Node:
    """The node of a call; a random op's with seeds, so that it draws the same twice."""
    with Graph():
        operation, _ = build(op, sample)
    seeds = {key: 7 for key in ("seed", "seed2") if key in op.attrs}
    return operation.node.replace(attrs={**operation.node.attrs, **seeds})


def gpu_cases() -> list[Any]:
    """Calls that may be placed on a GPU, of ops that return something."""
    found = []
    for case in cases():
        op, sample = case.values
        if op.outputs and not isinstance(op.kernel, Rule) and supports(node := node_of(op, sample), "GPU"):
            found.append(pytest.param(node, [np.asarray(v) for v in flat_inputs(op, sample)], id=case.id))
    return found


GPU_CASES = gpu_cases()


def run(xp: Any, node: Node, values: list[Any], out: Any = None) -> list[Any]:
    op = node.op
    options = {key: node.attrs[key] for key in op.kernel_attrs}
    if op.state is not None:
        options["state"] = op.state(node)
    if out is not None:
        options["out"] = out
    with np.errstate(all="ignore"):
        result = op.kernel(xp, *kernel_arguments(op, values, node.attrs), **options)
    several = len(node.outputs) != 1 or op.outputs[0].is_list
    return list(result) if several else [result]


def moved(node: Node, values: list[Any], to_device: Callable[[Any], Any]) -> list[Any]:
    """The inputs with those on the device that do not stay in host memory."""
    arguments = [a for a in node.op.inputs for _ in range(a.length(node.attrs))]
    return [v if a.on_host else to_device(v) for v, a in zip(values, arguments, strict=True)]


def outs(node: Node, expected: list[Any]) -> Iterator[Any]:
    """What to pass as ``out``: nothing, and if the kernel takes it, arrays of the device."""
    yield None
    if node.op.takes_out:
        made = tuple(pretend.full(e.shape, 1, e.dtype) for e in expected)
        yield made if len(made) != 1 or node.op.outputs[0].is_list else made[0]


@pytest.mark.parametrize(("node", "values"), GPU_CASES)
def test_kernel_gives_on_the_device_what_it_gives_on_the_host(node: Node, values: list[Any]) -> None:
    expected = [np.asarray(e) for e in run(np, node, values)]
    in_host_memory = [a.on_host for a in node.op.outputs for _ in range(a.length(node.attrs))]
    for out in outs(node, expected):
        results = run(pretend, node, moved(node, values, pretend.asarray), out)
        for result, e, stays, spec in zip(results, expected, in_host_memory, node.outputs, strict=True):
            assert isinstance(result, np.ndarray if stays else PretendArray), spec
            array = result if stays else result.get()
            assert array.dtype == spec.dtype.np
            np.testing.assert_allclose(array, e, rtol=1e-6, atol=1e-12)


# --- variables


def variable_ops() -> list[Any]:
    """Each op that reads or writes variables, with its flags as they are by default, and the other way."""
    modules = (state.__name__, training.__name__)
    ops = [
        o for o in registered_ops().values()
        if o.effect in (Effect.READ, Effect.WRITE) and o.kernel.__module__ in modules
    ]  # fmt: skip
    return [pytest.param(op, flipped, id=f"{op.name}-{flipped}") for op in ops for flipped in (False, True)]


def update(xp: Any, op: OpDef, flipped: bool) -> list[Any]:
    """The results of one call of ``op`` on variables of ``xp``, and what is in these afterwards."""
    rng = np.random.default_rng(0)
    names = [a.name for a in op.inputs]
    options = {
        key: not op.attrs[key].default if flipped and op.attrs[key].kind == "bool" else op.attrs[key].default
        for key in op.kernel_attrs
    }
    counts = "limit" in op.kernel_attrs
    if counts:
        options["limit"] = 5
    variables, arguments = [], []
    for argument in op.inputs:
        if argument.dtype is dtypes.resource:
            least = 10 if argument.name == "ms" else 1  # a mean of squares, above the square of the mean
            value = np.zeros((), np.int32) if counts else rng.random((4, 3), np.float32) + least
            variables.append(VariableResource(argument.name, dtypes.float32, value.shape))
            variables[-1].assign(xp, xp.asarray(value))
            arguments.append(variables[-1])
        elif argument.name == "indices":
            arguments.append(xp.asarray(np.array([2, 0, 2], np.int32)))
        elif argument.name in ("grad", "value", "updates"):
            arguments.append(xp.asarray(rng.random((3 if "indices" in names else 4, 3), np.float32) + 1))
        else:
            arguments.append(xp.asarray(np.float32(0.5)))
    result = op.kernel(xp, *arguments, **options)
    return [*([] if result is None else [result]), *(v.array for v in variables)]


@pytest.mark.parametrize(("op", "flipped"), variable_ops())
def test_variables_of_the_device_are_updated_as_those_of_the_host_are(op: OpDef, flipped: bool) -> None:
    for there, here in zip(update(pretend, op, flipped), update(np, op, flipped), strict=True):
        assert isinstance(there, PretendArray)
        np.testing.assert_allclose(there.get(), here, rtol=2e-6)


@given(
    ufunc=st.sampled_from(["add", "subtract", "multiply", "divide", "minimum", "maximum"]),
    dtype=st.sampled_from([np.int8, np.int64, np.float32, np.float64]),
    ids=st.lists(st.integers(0, 4), max_size=40),
    width=st.integers(0, 3),
)
def test_rows_fold_into_place_as_ufunc_at_does(ufunc: str, dtype: Any, ids: list[int], width: int) -> None:
    if ufunc == "divide" and np.issubdtype(dtype, np.integer):
        return
    rng = np.random.default_rng(len(ids))
    target, rows = ((1 + rng.random((n, width)) * 3).astype(dtype) for n in (5, len(ids)))
    there = pretend.asarray(target)
    places = np.array(ids, np.int32)
    fold_rows(pretend, ufunc, there, pretend.asarray(places), pretend.asarray(rows))
    getattr(np, ufunc).at(target, places, rows)
    np.testing.assert_allclose(there.get(), target, rtol=1e-4)


# --- which ops a GPU gets, and at what price


def test_the_list_of_ops_for_the_cpu_is_closed() -> None:
    nodes = [Node(o.name, o, (), (), {}, "", None, ()) for o in registered_ops().values()]
    found = [node.name for node in nodes if not supports(node, "GPU")]
    assert sorted(set(found) - {"_Send"}) == FOR_THE_CPU.split()


def test_the_list_of_ops_that_wait_for_the_device_is_closed() -> None:
    found = set()
    for case in GPU_CASES:
        node, values = case.values
        waits.clear()
        run(pretend, node, moved(node, values, pretend.asarray))
        if waits:
            found.add(node.op.name)
    for case in variable_ops():
        waits.clear()
        update(pretend, *case.values)
        if waits:
            found.add(case.values[0].name)
    assert sorted(found) == WAITING.split()


# --- array-api-strict

DEVICE = array_api_strict.Device("device1")
CREATION = {"arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros"}


class StandardModule:
    """array-api-strict with ``device1`` as current device, NumPy's dtypes, and ``out`` while it is None."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(array_api_strict, name)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*args: Any, **options: Any) -> Any:
            if options.get("out", 0) is None:
                del options["out"]
            if name in CREATION:
                options["device"] = DEVICE
            given = args[:-1] if args and args[-1] is None else args
            return value(*map(standard, given), **{key: standard(v) for key, v in options.items()})

        return call


def standard(value: Any) -> Any:
    """A dtype of NumPy's as the standard's; anything else as it is."""
    if isinstance(value, (np.dtype, type)):
        return getattr(array_api_strict, np.dtype(value).name)
    return value


@pytest.mark.filterwarnings("ignore:You are comparing a array_api_strict dtype")
def test_no_kernel_that_keeps_to_the_standard_mixes_devices() -> None:
    outcome: dict[str, str] = {}
    for case in GPU_CASES:
        node, values = case.values
        if node.op.effect is Effect.RANDOM:
            continue  # draws on the host, by NumPy
        try:
            there = moved(node, values, lambda v: array_api_strict.asarray(v, device=DEVICE))
            results = run(StandardModule(), node, there)
        except (AttributeError, TypeError, IndexError, InvalidArgumentError) as error:
            outcome.setdefault(node.op.name, f"not in the standard: {error}")
            continue
        outcome[node.op.name] = "runs"
        for argument, result in zip(node.op.outputs, results, strict=False):
            assert argument.on_host or result.device == DEVICE, node
    print("\n".join(f"{name}: {how}" for name, how in sorted(outcome.items())))
    assert sum(how == "runs" for how in outcome.values()) >= 70
