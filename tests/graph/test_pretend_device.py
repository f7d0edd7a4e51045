"""Every kernel that a GPU may get, on an array module that is not NumPy.

With CuPy's rules (`tests.graph.pretend_device`): the same results as on NumPy, with and without ``out``, and
outputs in the memory that the signature names; what the host refuses is left out, without a wait. With
array-api-strict: no kernel mixes devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Graph
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, OpDef, Rule, Sample, op_def, registered_ops, sample
from flowrt.graph.ops.array.scatter_rows import fold_rows, folded_by_id
from flowrt.graph.ops.base.indexing import put_rows, take
from flowrt.graph.ops.state import optimizer_updates, variable_ops
from flowrt.graph.passes.placement.place import supports
from flowrt.graph.resources.variables import VariableResource
from tests.each import of_each_op
from tests.graph.pretend_device import PretendArray, pretend, waits
from tests.graph.test_all_ops import build, cases, flat_inputs

FOR_THE_CPU = """
    AllGather AllReduce AllToAll AsString Assert AudioSummaryV2 Barrier Broadcast CheckNumerics
    CoalescedAllGather CoalescedReduceScatter DecodeBase64 DecodeBmp DecodeCSV DecodeGif DecodeImage
    DecodeJpeg DecodePng DecodeRaw DecodeWav DropWords EncodeBase64 EncodeJpeg EncodePng EncodeWav ExpectData
    Gather HistogramSummary ImageSummary InitializeTableFromTextFileV2 IteratorFromStringHandleV2
    IteratorToStringHandle MatchingFiles MergeSummary MergeV2Checkpoints ParseExample ParseSingleExample
    Print PrintV2 PyFunc PyFuncStateless ReadFile ReaderReadUpToV2 ReaderReadV2 Reduce ReduceJoin
    ReduceScatter Restore RestoreSlice RestoreV2 Save SaveSlices SaveV2 ScalarSummary Scatter SequenceSteps
    ShardedFilename ShardedFilespec SplitStrings StaticRegexFullMatch StaticRegexReplace StringFormat
    StringJoin StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
    StringToHashBucketFast StringToNumber StringUpper Substr TensorSummaryV2 Timestamp WriteFile _GroupAgree
    _GroupRecv _GroupSend _GroupStart _GroupWait _TaggedRecv _TaggedSend
"""
"""Ops that no GPU runs, whatever their dtypes: strings, files in memory, Python, the world outside, ranks
of other graphs among it. Collectives are expanded before placement. (`_Send`, which takes tensors there, and
`_Contribute` come after it.)
"""

WAITING = """
    Betainc BoostedTreesContributions BoostedTreesGrowLayer BoostedTreesLayerStatistics BoostedTreesLogits
    BoostedTreesMoveBias BoostedTreesTrainingLogits
    CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss
    CombinedNonMaxSuppression CountNgrams CropAndResizeGradBoxes CropAndResizeGradImage DenseBincount
    DrawBoundingBoxesV2 DynamicPartition DynamicStitch EditDistance ForestPredict LinearRecurrence ListDiff
    MatrixLogarithm Multinomial MultinomialAt
    NonMaxSuppressionByClass NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4
    NonMaxSuppressionV5 Polygamma QuantileBuckets RandomGamma RandomGammaAt RandomPoissonV2
    RandomPoissonV2At
    RandomUniformInt RandomUniformIntAt ResourceCountUpTo SegmentMax SegmentMean SegmentMin SegmentProd
    SegmentSum SegmentSumAt SetSize SparseCross SparseFillEmptyRows SparseReshape SparseToSparseSetOperation
    StatelessMultinomial Unique UniqueWithCounts Where Zeta
"""
"""Ops on a GPU whose kernel has the host wait for the device: the shape of their result depends on values,
they draw from values, they look for overflow (a long ``LinearRecurrence``), or they are there to raise
(``ResourceCountUpTo``). A step with one cannot be captured.
"""


def node_of(op: OpDef, sample: Sample) -> Node:
    """The node of a call; a random op's with seeds, so that it draws the same twice."""
    with Graph():
        operation, _ = build(op, sample)
    seeds = {key: 7 for key in ("seed", "seed2") if key in op.attrs}
    return operation.node.replace(attrs={**operation.node.attrs, **seeds})


def gpu_cases() -> list[Any]:
    """Calls that may be placed on a GPU, of ops that return something; but for bfloat16, of which the pretend
    device knows no rules: `test_a_gpu_computes_in_bfloat16_as_the_host_does` runs those on a real one.
    """
    found = []
    for case in cases():
        op, sample = case.values
        if op.outputs and not isinstance(op.kernel, Rule) and supports(node := node_of(op, sample), "GPU"):
            values = [np.asarray(v) for v in flat_inputs(op, sample)]
            used = {*(value.dtype for value in values), *(spec.dtype.np for spec in node.outputs)}
            if dtypes.bfloat16.np not in used:
                found.append(pytest.param(node, values, id=case.id))
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
    if node.op.takes_out and not any(argument.on_host for argument in node.op.outputs):
        made = tuple(pretend.full(e.shape, 1, e.dtype) for e in expected)
        yield made if len(made) != 1 or node.op.outputs[0].is_list else made[0]


@of_each_op(GPU_CASES)
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


def ops_of_variables() -> list[Any]:
    """Each op that reads or writes variables, with its flags as they are by default, and the other way."""
    modules = (variable_ops.__name__, optimizer_updates.__name__)
    ops = [
        o for o in registered_ops().values()
        if o.effect in (Effect.READ, Effect.WRITE) and o.kernel.__module__ in modules
    ]  # fmt: skip
    return [pytest.param(op, flipped, id=f"{op.name}-{flipped}") for op in ops for flipped in (False, True)]


INDICES = np.array([2, -1, 0, 4, 2], np.int32)
WITHIN = [0, 2, 4]
BACKWARDS = {"begin": (-1,), "end": (-5,), "strides": (-1,)}
"""The four rows of a variable, the last first."""


def update(xp: Any, op: OpDef, flipped: bool, taken: Sequence[int] = WITHIN) -> list[Any]:
    """The results of one call of ``op`` on variables of ``xp``, and what is in these afterwards.

    The call names rows of the variables by those of `INDICES` that are at ``taken``.
    """
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
            arguments.append(xp.asarray(INDICES[list(taken)]))
        elif argument.name in ("grad", "value", "updates"):
            rows = rng.random((len(INDICES), 3), np.float32) + 1
            arguments.append(xp.asarray(rows[list(taken)] if "indices" in names else rows[:4]))
        elif argument.name in BACKWARDS:
            arguments.append(BACKWARDS[argument.name])
        else:
            arguments.append(xp.asarray(np.float32(0.5)))
    with np.errstate(all="ignore"):
        result = op.kernel(xp, *arguments, **options)
    return [*([] if result is None else [result]), *(v.array for v in variables)]


@pytest.mark.parametrize(("op", "flipped"), ops_of_variables())
def test_variables_of_the_device_are_updated_as_those_of_the_host_are(op: OpDef, flipped: bool) -> None:
    for there, here in zip(update(pretend, op, flipped), update(np, op, flipped), strict=True):
        assert isinstance(there, PretendArray)
        np.testing.assert_allclose(there.get(), here, rtol=2e-6)


IDS = st.lists(st.integers(-2, 6), max_size=40)
"""Of the rows of small tables, and some that these have not."""


@given(
    ufunc=st.sampled_from(["add", "subtract", "multiply", "divide", "minimum", "maximum"]),
    dtype=st.sampled_from([np.int8, np.int64, np.float32, np.float64]),
    ids=IDS,
    count=st.integers(0, 5),
    width=st.integers(0, 3),
)
def test_rows_fold_into_place_as_ufunc_at_does(
    ufunc: str, dtype: Any, ids: list[int], count: int, width: int
) -> None:
    if ufunc == "divide" and np.issubdtype(dtype, np.integer):
        return
    rng = np.random.default_rng(len(ids))
    target, rows = ((1 + rng.random((n, width)) * 3).astype(dtype) for n in (count, len(ids)))
    there = pretend.asarray(target)
    places = np.array(ids, np.int32)
    fold_rows(pretend, ufunc, there, pretend.asarray(places), pretend.asarray(rows))
    kept = (places >= 0) & (places < count)
    getattr(np, ufunc).at(target, places[kept], rows[kept])
    np.testing.assert_allclose(there.get(), target, rtol=1e-4)


@given(ids=IDS.filter(len), width=st.integers(1, 3))
def test_rows_folded_by_id_may_be_written_in_any_order(ids: list[int], width: int) -> None:
    places, rows = np.array(ids, np.int32), np.random.default_rng(0).random((len(ids), width))
    folded = folded_by_id(pretend, "add", pretend.asarray(places), pretend.asarray(rows))
    ascending, totals = (a.get() for a in folded)
    np.testing.assert_array_equal(ascending, np.sort(places))
    for i, total in zip(ascending, totals, strict=True):
        np.testing.assert_allclose(total, rows[places == i].sum(axis=0))


# --- indices out of range


@given(ids=IDS, dims=st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)))
def test_what_is_taken_out_of_range_is_zero(ids: list[int], dims: tuple[int, int, int]) -> None:
    table, places = np.arange(1.0, 1 + np.prod(dims)).reshape(dims), np.array(ids, np.int32)
    expected = np.zeros((dims[0], len(ids), dims[2]))
    kept = (places >= 0) & (places < dims[1])
    expected[:, kept] = table[:, places[kept]]
    found = take(pretend, pretend.asarray(table), pretend.asarray(places), axis=1)
    np.testing.assert_array_equal(found.get(), expected)


@given(ids=IDS, count=st.integers(0, 5), width=st.integers(0, 3))
def test_what_is_put_out_of_range_is_left_out(ids: list[int], count: int, width: int) -> None:
    table, places = np.zeros((count, width)), np.array(ids, np.int32)
    rows = np.arange(1.0, 1 + len(ids) * width).reshape(len(ids), width)
    there = pretend.asarray(table)
    put_rows(pretend, there, pretend.asarray(places), pretend.asarray(rows))
    kept = (places >= 0) & (places < count)
    table[places[kept]] = rows[kept]
    np.testing.assert_array_equal(there.get(), table)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


X, ROW, NAN = np.array([[1.0, 2], [3, 4]]), np.array([1.0, 2, 3]), math.nan
COLUMN, PAIRS = ints(-1, 2, 3)[:, None], ints(1, 2, -1, 0).reshape(2, 2)
OUT_OF_RANGE = [
    ("GatherV2", sample(ROW, ints(2, 0, 7, -1), 0), [[3, 1, 0, 0]]),
    ("GatherV2", sample(X, ints(1, 2), 1), [[[2, 0], [4, 0]]]),
    ("GatherV2", sample(X[:, None], PAIRS, 2, batch_dims=1), [[[[2, 0]], [[0, 3]]]]),
    ("GatherV2", sample(np.zeros((0, 2)), ints(0), 0), [[[0, 0]]]),
    ("GatherNd", sample(X, ints(1, 1, 0, 2, -1, 3, 2, 0).reshape(4, 2)), [[4, 0, 0, 0]]),
    ("GatherNd", sample(np.zeros((0, 2)), ints(0, 0)), [0]),
    ("ScatterNd", sample(COLUMN, ROW, ints(3)), [[0, 0, 2]]),
    ("ScatterNd", sample(COLUMN, ROW == 2, ints(3)), [[False, False, True]]),
    ("TensorScatterUpdate", sample(ROW, COLUMN, ROW + 6), [[1, 2, 8]]),
    ("TensorScatterUpdate", sample(ROW, COLUMN[::2], ROW[:2] + 6), [[1, 2, 3]]),
    ("TensorScatterAdd", sample(ROW, COLUMN, ROW + 6), [[1, 2, 11]]),
    ("TensorScatterSub", sample(ROW, COLUMN, ROW + 6), [[1, 2, -5]]),
    ("UnsortedSegmentSum", sample(ROW, ints(0, 2, -1), 2), [[1, 0]]),
    ("UnsortedSegmentSum", sample(ROW, ints(0, 2, -1), 0), [[]]),
    ("UnsortedSegmentProd", sample(ROW, ints(0, 2, -1), 2), [[1, 1]]),
    ("UnsortedSegmentMax", sample(-ROW, ints(2, 0, -1), 1), [[-2]]),
    ("UnsortedSegmentMin", sample(ROW, ints(2, 0, -1), 1), [[2]]),
    ("SparseToDense", sample(PAIRS, ints(2, 2), ROW[:2], 9.0), [[[9, 9], [9, 9]]]),
    ("SparseToDense", sample(ints(0, 2), ints(2), ROW[:2], 9.0), [[1, 9]]),
    ("DynamicPartition", sample(ROW, ints(1, 2, -1), num_partitions=2), [[], [1]]),
    ("DynamicStitch", sample((ints(0, -1),), (X,)), [[[1, 2]]]),
    ("Bincount", sample(ints(1, 4, -1, 1), np.int32(2), np.zeros(0)), [[0, 2]]),
    ("InvertPermutation", sample(ints(1, 0, 3)), [[1, 0, -1]]),
    ("ReverseSequence", sample(X, ints(3, -1), seq_dim=1), [[[2, 1], [3, 4]]]),
    (
        "SparseSoftmaxCrossEntropyWithLogits",
        sample(np.zeros((3, 2)), ints(1, 2, -1)),
        [[math.log(2), NAN, NAN], [[0.5, -0.5], [NAN, NAN], [NAN, NAN]]],
    ),
]
"""Calls with an index or a label out of range, and what a device gives, where nobody looks."""


@pytest.mark.parametrize(("name", "call", "expected"), OUT_OF_RANGE)
def test_what_the_host_refuses_a_device_leaves_out(name: str, call: Sample, expected: list[Any]) -> None:
    op = op_def(name)
    node, values = node_of(op, call), [np.asarray(v) for v in flat_inputs(op, call)]
    with pytest.raises(InvalidArgumentError, match="expected"):
        run(np, node, values)
    waits.clear()
    results = run(pretend, node, moved(node, values, pretend.asarray))
    assert not waits or name in WAITING.split()
    for result, e in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.get(), np.array(e, result.dtype), strict=True)


def test_integers_are_divided_by_zero_without_a_wait() -> None:
    one = np.ones(2, np.int32)
    for name in ("Div", "FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod"):
        node = node_of(op_def(name), sample(one, one))
        with pytest.raises(InvalidArgumentError, match="division by zero"):
            run(np, node, [one, ints(1, 0)])
        waits.clear()
        (result,) = run(pretend, node, [pretend.asarray(one), pretend.asarray(ints(1, 0))])
        assert not waits
        assert result.get()[0] == ("Div" in name), name


@pytest.mark.parametrize(
    ("op", "flipped"), [c for c in ops_of_variables() if "indices" in [a.name for a in c.values[0].inputs]]
)
def test_rows_that_a_variable_has_not_are_left_out(op: OpDef, flipped: bool) -> None:
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\]: expected an index in \[0, 4\); got -1"):
        update(np, op, flipped, range(len(INDICES)))
    waits.clear()
    there, here = update(pretend, op, flipped, range(len(INDICES))), update(np, op, flipped, WITHIN)
    assert not waits
    if op is variable_ops.resource_gather:
        read = there[0].get()
        assert not np.delete(read, WITHIN, axis=0).any()
        there[0] = pretend.asarray(read[WITHIN])
    for device_array, host_array in zip(there, here, strict=True):
        np.testing.assert_allclose(device_array.get(), host_array, rtol=2e-6)


def test_rows_of_a_variable_are_read_in_step_with_its_first_dimensions() -> None:
    variable = VariableResource("v", dtypes.float64, X.shape)
    variable.assign(pretend, pretend.asarray(X))
    found = variable_ops.resource_gather.kernel(
        pretend, variable, pretend.asarray(ints(1, 2)[:, None]), batch_dims=1
    )
    np.testing.assert_array_equal(found.get(), [[2], [0]])


# --- which ops a GPU gets, and at what price


def test_the_list_of_ops_for_the_cpu_is_closed() -> None:
    nodes = [Node(o.name, o, (), (), {}, "", None, ()) for o in registered_ops().values()]
    found = [node.name for node in nodes if not supports(node, "GPU")]
    assert sorted(set(found) - {"_Send", "_Contribute"}) == FOR_THE_CPU.split()


def test_the_list_of_ops_that_wait_for_the_device_is_closed() -> None:
    found = set()
    for case in GPU_CASES:
        node, values = case.values
        waits.clear()
        run(pretend, node, moved(node, values, pretend.asarray))
        if waits:
            found.add(node.op.name)
    for case in ops_of_variables():
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
        if node.op.effect is Effect.RANDOM or node.op.name in WAITING.split():
            continue  # draws on the host, by NumPy, or asks the host
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
