"""Ops that know which part of a dimension they have: the pieces of sharded forms.

An op has no coordinate: its position in a cut dimension is an input, the numbers of the dimension's indices,
which is cut like the dimension. So the rules of these ops hold for any cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import int64
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import static_shape
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.array.scatter_rows import fold_rows
from flowrt.graph.ops.base.axes import factors, input_rank
from flowrt.graph.ops.base.identities import cast, static_value, unchanged
from flowrt.graph.ops.base.indexing import check_range, is_within, take_slices
from flowrt.graph.ops.base.kernel_output import accumulator, copied, delivered
from flowrt.graph.shapes import Shape, normalize_axis


def _along(s: ShapeContext) -> str | None:
    rank = input_rank(s, 1)
    if rank is None:
        return None
    axis = s.attrs["axis"]
    others = " ".join("c" if i == axis else f"d{i}~" for i in range(rank))
    return f"c, {others} -> c"


cut_as_op: OpDef[Tensor] = define_op(
    "CutAs",
    "numbers: N in INDEX, like: T in ANY -> N",
    attrs="axis: int",
    shape=unchanged,
    kernel=lambda xp, numbers, like: numbers,
    alias=True,
    samples=lambda rng: [
        sample(np.arange(4), rng.standard_normal((2, 4)), axis=1),
        sample(np.arange(3, dtype=np.int32), rng.standard_normal((3, 2)), axis=0),
    ],
    axes=_along,
    doc="The numbers, one for each index of ``axis`` of like, cut as that dimension is.",
)


def positions(x: Tensor, axis: int) -> Tensor:
    """The indices of dimension ``axis`` of ``x``, of static shape, cut as it is."""
    return cut_as_op(constant(np.arange(static_shape(x.spec)[axis])), x, axis=axis)


def _checked(xp: Any, indices: Any, limit: int, what: str, out: Any = None) -> Any:
    check_range(xp, what, indices, limit)
    return copied(xp, indices, out)  # a view would be made once, not in each step


checked_op: OpDef[Tensor] = define_op(
    "CheckedIndices",
    "indices: T in INDEX -> T",
    attrs="limit: int, what: string = 'indices'",
    shape=unchanged,
    kernel=_checked,
    samples=lambda rng: [sample(np.array([[2, 0], [1, 1]]), limit=3)],
    axes="..a -> ..a",
    doc="The indices as they are; on the host one outside [0, limit) is an error.",
)


# --- gather


def _rows_shape(s: ShapeContext) -> Sequence[Shape]:
    params, ids, axis, batch = s.shapes[0], s.shapes[2], s.attrs["axis"], s.attrs["batch_dims"]
    if params is None or ids is None:
        return [None]
    return [(*params[:axis], *ids[batch:], *params[axis + 1 :])]


def _rows(
    xp: Any, params: Any, positions: Any, indices: Any, axis: int, batch_dims: int, out: Any = None
) -> Any:
    ids = indices.shape
    shape = (*params.shape[:axis], *ids[batch_dims:], *params.shape[axis + 1 :])
    if not positions.size:
        return delivered(xp, xp.zeros(shape, params.dtype), params.dtype, out)
    own = indices - positions[:1].reshape(())
    inside = is_within(own, positions.size)
    found = take_slices(xp, params, xp.where(inside, own, 0), axis, batch_dims)
    ones = (1,) * (axis - batch_dims), (1,) * (params.ndim - axis - 1)
    mask = inside.reshape(*ids[:batch_dims], *ones[0], *ids[batch_dims:], *ones[1])
    return delivered(xp, xp.where(mask, found, params.dtype.type(0)), params.dtype, out)


def _rows_axes(s: ShapeContext) -> str | None:
    rank, indices, axis, batch = input_rank(s), input_rank(s, 2), s.attrs["axis"], s.attrs["batch_dims"]
    if rank is None or indices is None:
        return None
    names = factors(rank).split()
    rows = [*names[:batch], *[f"i{k}" for k in range(batch, indices)]]
    before, behind = " ".join(names[:axis]), " ".join(names[axis + 1 :])
    return f"{before} v {behind}, v, {' '.join(rows)} -> {before} {' '.join(rows[batch:])} {behind}"


def _rows_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 4, 2))
    yield sample(x, np.arange(3), np.array([2, 0, 2]), axis=0)
    yield sample(x, np.arange(3) + 1, np.array([2, 0, 2]), axis=0)
    yield sample(x, np.arange(4), np.array([[3, 1], [0, 0], [2, 2]]), axis=1, batch_dims=1)
    yield sample(x, np.arange(2), np.array([[3, 1], [0, 0], [2, 2]]), axis=2, batch_dims=1)
    yield sample(x, np.arange(2), np.array(1), axis=2)


gather_at_op: OpDef[Tensor] = define_op(
    "GatherAt",
    "params: T in NUMERIC, positions: int64, indices: int64 -> T",
    attrs="axis: int, batch_dims: int = 0",
    shape=_rows_shape,
    kernel=_rows,
    vjp=NONDIFFERENTIABLE,
    samples=_rows_samples,
    axes=_rows_axes,
    doc="The slices of params along ``axis`` at the positions ``indices``; 0 for one that is not there.",
)


def sharded_gather(op: Operation) -> Sequence[Tensor] | None:
    """The form of GatherV2: each part gives the slices that it has, and zeros for others."""
    params, indices, _ = op.inputs
    if params.dtype not in gather_at_op.types["T"]:
        return None
    sizes, batch = static_shape(params.spec), op.get_attr("batch_dims")
    axis = normalize_axis(static_value(op.inputs[2]), len(sizes))
    wanted = checked_op(cast(indices, int64), limit=sizes[axis])
    batch += len(static_shape(indices.spec)) if batch < 0 else 0
    return [gather_at_op(params, positions(params, axis), wanted, axis=axis, batch_dims=batch)]


# --- sums of rows


def _sums(xp: Any, data: Any, ids: Any, numbers: Any, out: Any = None) -> Any:
    row = data.shape[ids.ndim :]
    total = xp.zeros((numbers.size, math.prod(row)), accumulator(data))
    if numbers.size:
        own = ids.reshape(-1) - numbers[:1].reshape(())
        inside = is_within(own, numbers.size)
        fold_rows(xp, "add", total, own[inside], data.reshape(ids.size, math.prod(row))[inside])
    return delivered(xp, total.reshape(numbers.size, *row), data.dtype, out)


segment_sum_at_op: OpDef[Tensor] = define_op(
    "SegmentSumAt",
    "data: T in NUMERIC, ids: int64, numbers: int64 -> T",
    shape=lambda s: [
        None if None in s.shapes else (*(s.shapes[2] or ()), *(s.shapes[0] or ())[len(s.shapes[1] or ()) :])
    ],
    kernel=_sums,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(rng.standard_normal((4, 2)), np.array([2, 0, -1, 2]), np.arange(3)),
        sample(rng.standard_normal((4, 2)), np.array([2, 0, 1, 2]), np.arange(2) + 1),
        sample(rng.standard_normal((2, 2)), np.array([[1, 0], [1, 1]]), np.arange(2)),
    ],
    axes="..i ..a, ..i, v -> v ..a",
    doc="The sum of the rows of data with each of the ascending ``numbers`` as their id.",
)
