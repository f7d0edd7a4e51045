"""``out``: which kernels write into memory that they are given, of any layout, and of an input if the op is
elementwise (rule 4 of `flowrt.executor.buffers.buffer_assignment`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.dtypes import bfloat16
from flowrt.graph.construction.graph import Graph
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.op_def import Effect, OpDef, Sample, op_def, registered_ops
from flowrt.graph.ops.elementwise.comparison import MIN_WORDS
from flowrt.graph.ops.surface import all as all_ops  # noqa: F401  (defines every op)
from flowrt.graph.shapes import is_static
from tests.each import of_each_op
from tests.graph.evaluation import assert_equal, values_of
from tests.graph.test_all_ops import EXECUTOR_OPS, FUSED_OPS, build, feeds_of, flat_inputs

HANDED_ON = {
    "PyFunc", "PyFuncStateless",  # by Python
    "TensorListGetItem", "TensorListPopBack", "GetSessionTensor", "KeepGradients",  # it lies there
    "IteratorGetNext", "DealNext", "StagedNext", "TransferDequeue",
    "DecodeCSV",  # columns, as they are converted
    "ReaderNumRecordsProducedV2", "ReaderNumWorkUnitsCompletedV2",
    "QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2", "QueueSizeV2", "QueueIsClosedV2",
    "ResourceAccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "ResourceAccumulatorNumAccumulated",
    "ParameterShardBegin", "ParameterShardPush", "ParameterShardFetch", "ParameterShardInstall",
    "ParameterShardStatus", "ParameterShardStaleness",
    "AllReduce", "Reduce", "Broadcast", "AllGather", "Gather", "Scatter", "ReduceScatter", "AllToAll",
    "CoalescedAllGather", "CoalescedReduceScatter",
    "LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2",  # in a table
    "QuantileStreamsTake",  # as many as the numbers need
    "RestoreV2", "RestoreSlice", "Restore",  # in files
    "Barrier", "_GroupRecv", "_GroupWait",  # from other tasks
}  # fmt: skip
"""Kernels that give out what somebody else made: to copy it would only cost time."""


def computing_ops() -> list[OpDef]:
    """Those that have results and make them by a kernel."""
    names = EXECUTOR_OPS | FUSED_OPS
    return [op for op in registered_ops().values() if op.outputs and op.name not in names]


def memory_of(op: OpDef) -> str:
    """Where the results of ``op`` lie, from its facts."""
    if op.takes_out:
        return "in the memory that the kernel is given"
    if op.alias:
        return "in that of an input"
    if all(argument.dtype is not None and argument.dtype.name in OBJECTS for argument in op.outputs):
        return "in objects of Python"
    if is_counted(op):
        return "in memory of a size that only the kernel finds out"
    return "in memory that the kernel brings"


OBJECTS = {"string", "variant", "resource"}


def is_counted(op: OpDef) -> bool:
    """Whether a result's length depends on the values of the inputs: their shapes do not say it."""
    with Graph():
        operations = [build(op, sample)[0] for sample in op.samples(np.random.default_rng(0))]
    known = [o for o in operations if all(is_static(t.spec.shape) for t in o.inputs)]
    return any(not is_static(t.spec.shape) for o in known for t in o.outputs)


def test_every_kernel_that_computes_a_result_of_known_size_writes_into_given_memory() -> None:
    bring_it = {op.name for op in computing_ops() if memory_of(op) == "in memory that the kernel brings"}
    assert bring_it == HANDED_ON


def cases() -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{position}")
        for op in registered_ops().values()
        if op.takes_out and op.effect is Effect.PURE
        for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    ]


def called(op: OpDef, sample: Sample, values: list[Any], outs: list[Any] | None) -> Any:
    """What the kernel makes of ``values``, NumPy arrays, into ``outs`` or, without, its own memory."""
    with Graph(), np.errstate(all="ignore"):
        attrs = build(op, sample)[0].node.attrs
        given = {key: attrs[key] for key in op.kernel_attrs}
        several = outs is not None and (len(outs) != 1 or op.outputs[0].is_list)
        out = None if outs is None else tuple(outs) if several else outs[0]
        return op.kernel(np, *kernel_arguments(op, values, attrs), out=out, **given)


def results_of(op: OpDef, sample: Sample) -> tuple[list[Any], list[Any]]:
    """The sample's inputs as arrays, and what the kernel makes of them in its own memory."""
    with Graph():
        operation, flat = build(op, sample)
        values = [np.asarray(v) for v in flat_inputs(op, sample)]
        results = values_of(list(operation.outputs), feeds_of(flat, values))
        return values, [np.asarray(result) for result in results]


def poisoned(shape: Any, dtype: Any) -> Any:
    """What nobody computes: NaN, -1 or True."""
    found = np.full(shape, 1, dtype)
    if dtype.kind not in "bO":
        found.reshape(-1).view(np.uint8)[...] = 0xFF
    return found


def apart(value: Any) -> Any:
    """``value`` in every second element of an array, last dimension first."""
    wide = poisoned([2 * dim for dim in reversed(value.shape)], value.dtype)
    view = wide[(..., *(slice(None, None, 2),) * wide.ndim)].T
    view[...] = value
    return view


@of_each_op(cases())
def test_all_of_it_is_written(op: OpDef, sample: Sample) -> None:
    """Bit for bit as in memory of its own."""
    values, expected = results_of(op, sample)
    outs = [poisoned(e.shape, e.dtype) for e in expected]
    called(op, sample, values, outs)
    for out, e in zip(outs, expected, strict=True):
        assert out.tobytes() == np.ascontiguousarray(e).tobytes()


@of_each_op(cases())
def test_inputs_and_results_that_lie_apart(op: OpDef, sample: Sample) -> None:
    values, expected = results_of(op, sample)
    outs = [apart(poisoned(e.shape, e.dtype)) for e in expected]
    called(op, sample, [apart(v) for v in values], outs)
    for out, e in zip(outs, expected, strict=True):
        if e.dtype.kind in "fc":  # BLAS adds up in another order
            np.testing.assert_allclose(out, e, rtol=1e-5, atol=1e-12)
        else:
            assert_equal(out, e)


@of_each_op(case for case in cases() if case.values[0].elementwise)
def test_elementwise_kernels_write_over_any_input(op: OpDef, sample: Sample) -> None:
    values = [with_zero(np.asarray(v)) for v in flat_inputs(op, sample)]
    expected = np.asarray(called(op, sample, values, None))
    for position, value in enumerate(values):
        if (value.shape, value.dtype) == (expected.shape, expected.dtype) and value.ndim:
            copies = [np.array(v) for v in values]
            called(op, sample, copies, [copies[position]])
            np.testing.assert_array_equal(copies[position], expected, f"over input {position}")


def with_zero(value: Any) -> Any:
    """``value`` with a 0 among its floats, for those operations that look for one."""
    value = value.copy()
    if value.dtype.kind == "f" and value.ndim and value.size:
        value.reshape(-1)[0] = 0
    return value


# --- choosing by words

SHAPES = st.sampled_from([(2, -1), (-1,), (1,), (2, 1), ()])
"""Of an operand; -1 stands for the count."""


@pytest.mark.parametrize("count", [3, MIN_WORDS // 2 - 1, MIN_WORDS])
@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.float16, bfloat16.np, np.float32, np.float64, np.complex64, np.complex128]
)
@settings(max_examples=15)
@given(shapes=st.tuples(SHAPES, SHAPES), seed=st.integers(0, 9))
def test_choosing_keeps_every_bit(count: int, dtype: Any, shapes: Any, seed: int) -> None:
    """NaNs of any payload, operands that broadcast, and a result in its own memory or over any operand."""
    rng, kernel = np.random.default_rng(seed), op_def("SelectV2").kernel
    condition = rng.random((2, count)) < 0.5
    sizes = [[count if dim == -1 else dim for dim in shape] for shape in shapes]
    operands = [condition, *[any_bits(rng, size, np.dtype(dtype)) for size in sizes]]
    expected = np.where(*operands)
    assert_same_bits(kernel(np, *operands), expected)
    for position, operand in enumerate([np.empty_like(expected), *operands]):
        if (operand.shape, operand.dtype) == (expected.shape, expected.dtype):
            copies = [operand.copy(), *map(np.copy, operands)]
            kernel(np, *copies[1:], out=copies[position])
            assert_same_bits(copies[position], expected)


def any_bits(rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> Any:
    """Or a 0, for a scalar."""
    if not shape and rng.random() < 0.5:
        return np.zeros((), dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    words = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return np.frombuffer(words.tobytes(), dtype).reshape(shape).copy()


def assert_same_bits(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
