"""Compositions of reductions (variance, logsumexp, norms, counts), and the positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import on_axes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.reductions import (
    reduce,
    reduce_max,
    reduce_mean,
    reduce_sum,
    reduction_op,
    reduction_samples,
    with_kept_dims,
)
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import not_equal, where_v2
from flowrt.graph.ops.elementwise.complex_parts import complex_abs
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import exp, is_finite, log, sqrt, square
from flowrt.graph.shapes import Shape, format_shape, normalize_axis
from flowrt.graph.tf1_signatures import tf1_names


def _euclidean_norm(xp: Any, input: Any, reduction_indices: Any, keep_dims: bool, out: Any = None) -> Any:
    squares = xp.square(xp.abs(input))
    norm = xp.sqrt(squares.sum(axis=reduction_indices, dtype=accumulator(squares), keepdims=keep_dims))
    return delivered(xp, norm, input.dtype, out)


def _norm_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    scale = realdiv(dy, op.outputs[0])
    return [multiply(op.inputs[0], with_kept_dims(op, scale)), None]


euclidean_norm_op = reduction_op(
    "EuclideanNorm",
    _euclidean_norm,
    "INEXACT",
    reduction_samples(0.5, np.complex64),
    vjp=_norm_vjp,
    doc="The square root of the sum of squared magnitudes along axes.",
)


def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the sum of squared magnitudes along ``axis``."""
    return reduce(euclidean_norm_op, input_tensor, axis, keepdims, name)


@tf1_names(axis="reduction_indices", keepdims="keep_dims")
def reduce_logsumexp(
    input_tensor: Any, axis: Any = None, keepdims: bool | None = None, name: str | None = None
) -> Tensor:
    """log(sum(exp(x))) along ``axis``, without overflow: the largest element is taken out of the sum."""
    with get_default_graph().name_scope(name or "ReduceLogSumExp"):
        x = convert_to_tensor(input_tensor)
        largest = reduce_max(x, axis, keepdims=True)
        offset = stop_gradient(where_v2(is_finite(largest), largest, np.zeros((), x.dtype.np)))
        total = log(reduce_sum(exp(subtract(x, offset)), axis, keepdims=keepdims))
        return add_v2(total, offset if keepdims else reshape(offset, shape(total)))


def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The mean squared distance from the mean along ``axis`` (of magnitudes, if complex)."""
    with get_default_graph().name_scope(name or "reduce_variance"):
        x = convert_to_tensor(input_tensor)
        deviation = subtract(x, reduce_mean(x, axis, keepdims=True))
        if x.dtype.is_complex:
            deviation = complex_abs(deviation, Tout=x.dtype.real_dtype)
        return reduce_mean(square(deviation), axis, keepdims=keepdims)


def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of `reduce_variance`."""
    with get_default_graph().name_scope(name or "reduce_std"):
        return sqrt(reduce_variance(input_tensor, axis, keepdims))


@tf1_names(axis="reduction_indices", keepdims="keep_dims", input_tensor="input")
def count_nonzero(
    input_tensor: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """The number of nonzero elements (or nonempty strings) along ``axis``, as ``dtype``."""
    with get_default_graph().name_scope(name or "count_nonzero"):
        x = convert_to_tensor(input_tensor)
        zero = np.array(b"" if x.dtype is dtypes.string else 0, x.dtype.np)
        counted = cast(not_equal(x, zero), dtypes.int64)
        total = reduce_sum(counted, axis, keepdims)
        return cast(total, dtype)


# --- positions of extremes


def _position_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, axis = s.shapes[0], s.value(1)
    if dims is None:
        return [None]
    if isinstance(axis, tuple):
        (axis,) = axis
    if axis is None:
        return [(None,) * (len(dims) - 1)]
    axis = normalize_axis(axis, len(dims))
    if dims[axis] == 0:
        raise InvalidArgumentError(f"expected elements along axis {axis}; got shape {format_shape(dims)}")
    return [(*dims[:axis], *dims[axis + 1 :])]


def _position(name: str, method: str, doc: str) -> OpDef[Tensor]:
    def kernel(xp: Any, input: Any, dimension: Any, output_type: DType, out: Any = None) -> Any:
        find = getattr(xp, method)
        if out is not None and output_type is dtypes.int64:
            return find(input, dimension, out=out)
        return delivered(xp, find(input, dimension), output_type.np, out)

    return define_op(
        name,
        "input: T in REAL | bool, dimension: host Tidx in INDEX -> output_type in INTEGER",
        attrs="output_type: type = int64",
        shape=_position_shape,
        kernel=kernel,
        samples=lambda rng: (
            sample(rng.standard_normal((2, 3)), np.array(-1, np.int32)),
            sample(
                rng.standard_normal(3).astype(dtypes.bfloat16.np),
                np.array(0, np.int64),
                output_type=dtypes.int32,
            ),
            sample(np.zeros((0, 2), np.int8), np.array(1, np.int32)),
            sample(np.array([False, True, True]), np.array(0, np.int32), output_type=dtypes.uint16),
        ),
        batch=on_axes(),
        doc=doc,
    )


argmax_op = _position(
    "ArgMax", "argmax", "The index of the largest element along an axis, the first of equals."
)
argmin_op = _position(
    "ArgMin", "argmin", "The index of the smallest element along an axis, the first of equals."
)


@tf1_names("output_type", axis="dimension")
def argmax(input: Any, axis: Any = None, name: str | None = None, output_type: Any = dtypes.int64) -> Tensor:
    """The index of the largest element along ``axis`` (default 0), the first of equals, as ``output_type``.

    Raises `InvalidArgumentError` for an axis out of range or without elements.
    """
    return argmax_op(input, 0 if axis is None else axis, output_type=output_type, name=name)


@tf1_names("output_type", axis="dimension")
def argmin(input: Any, axis: Any = None, name: str | None = None, output_type: Any = dtypes.int64) -> Tensor:
    """The index of the smallest element along ``axis`` (0 by default), the first of equals: see `argmax`."""
    return argmin_op(input, 0 if axis is None else axis, output_type=output_type, name=name)
