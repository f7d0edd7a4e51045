"""``out``: which kernels write into memory that they are given, of any layout, and of an input if the op is
elementwise (rule 4 of `flowrt.executor.places`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.dtypes import bfloat16
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.graph import Graph
from flowrt.graph.op_def import Effect, OpDef, Sample, op_def, registered_ops
from flowrt.graph.ops import all as all_ops  # noqa: F401  (defines every op)
from flowrt.graph.ops.comparison import MIN_WORDS
from tests.graph.evaluation import values_of
from tests.graph.test_all_ops import EXECUTOR_OPS, FUSED_OPS, build, feeds_of, flat_inputs

BY_LAPACK = {
    "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant", "Cholesky", "MatrixSolve",
    "MatrixTriangularSolve", "Qr", "Svd", "SelfAdjointEigV2", "Cross",
}  # fmt: skip
"""NumPy allocates what they return."""

DRAWN = {"RandomUniformIntAt", "RandomShuffleAt", "MultinomialAt", "RandomGammaAt", "RandomPoissonV2At"}
"""NumPy's generators, too."""

OF_A_LENGTH_BY_VALUES = {
    "Where", "Unique", "UniqueWithCounts", "ListDiff", "DynamicPartition", "SegmentSum", "SegmentMean",
    "SegmentProd", "SegmentMax", "SegmentMin", "Bincount",
}  # fmt: skip
"""Only the kernel finds out how long the result is."""

SHORT = {"Shape", "ShapeN", "Size", "Rank", "BroadcastArgs", "BroadcastGradientArgs"}
"""A few integers on the host."""

OTHERS = {
    "IdentityN": "hands its inputs on",
    "PyFuncStateless": "what Python returns",
    "HistogramFixedWidth": "counts for a summary",
    "InTopKV2": "booleans for a metric",
    "LowerBound": "positions, a search each",
    "UpperBound": "positions, a search each",
}


def without_out() -> set[str]:
    """Pure operations on numbers whose kernels bring their results' memory themselves, or are a view."""
    return {
        op.name
        for op in registered_ops().values()
        if op.effect is Effect.PURE and op.outputs and not op.takes_out and not op.alias
        if {"string", "variant"}.isdisjoint(kinds(op))
    }


def kinds(op: OpDef) -> set[str]:
    """The dtypes that the signature names."""
    return {argument.dtype.name for argument in (*op.inputs, *op.outputs) if argument.dtype is not None}


def test_every_other_kernel_writes_into_given_memory() -> None:
    named = BY_LAPACK | DRAWN | OF_A_LENGTH_BY_VALUES | SHORT | set(OTHERS)
    assert without_out() - EXECUTOR_OPS - FUSED_OPS == named


def cases() -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{position}")
        for op in registered_ops().values()
        if op.takes_out and op.effect is Effect.PURE and len(op.outputs) == 1 and not op.outputs[0].is_list
        for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    ]


def called(op: OpDef, sample: Sample, values: list[Any], out: Any) -> Any:
    """What the kernel makes of ``values``, NumPy arrays, into ``out`` or, without, its own memory."""
    with Graph(), np.errstate(all="ignore"):
        attrs = build(op, sample)[0].node.attrs
        given = {key: attrs[key] for key in op.kernel_attrs}
        return op.kernel(np, *kernel_arguments(op, values, attrs), out=out, **given)


def result_of(op: OpDef, sample: Sample) -> tuple[list[Any], Any]:
    """The sample's inputs as arrays, and what the kernel makes of them in its own memory."""
    with Graph():
        operation, flat = build(op, sample)
        values = [np.asarray(v) for v in flat_inputs(op, sample)]
        return values, np.asarray(values_of(list(operation.outputs), feeds_of(flat, values))[0])


@pytest.mark.parametrize(("op", "sample"), cases())
def test_memory_that_lies_apart(op: OpDef, sample: Sample) -> None:
    """Every second element of an array, last dimension first."""
    values, expected = result_of(op, sample)
    wide = np.full([2 * dim for dim in reversed(expected.shape)], 1, expected.dtype)
    out = wide[(..., *(slice(None, None, 2),) * wide.ndim)].T
    called(op, sample, values, out)
    if expected.dtype.kind in "fc":  # BLAS adds up in another order
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-12)
    else:
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("op", "sample"), [case for case in cases() if case.values[0].elementwise])
def test_elementwise_kernels_write_over_any_input(op: OpDef, sample: Sample) -> None:
    values = [with_zero(np.asarray(v)) for v in flat_inputs(op, sample)]
    expected = np.asarray(called(op, sample, values, None))
    for position, value in enumerate(values):
        if (value.shape, value.dtype) == (expected.shape, expected.dtype) and value.ndim:
            copies = [np.array(v) for v in values]
            called(op, sample, copies, copies[position])
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
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    words = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return np.frombuffer(words.tobytes(), dtype).reshape(shape).copy()


def assert_same_bits(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
