"""Segment reductions: rows that share an id, reduced to one row each.

Rules of this file: 16-bit floats are reduced in float32; an id beyond the last segment is an error, and on a
GPU its row is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import BY_VJP, LINEAR, OpDef, Rule, Sample, ShapeContext, define_op, op_def, sample
from flowrt.graph.op_facets import Kernel, Vjp
from flowrt.graph.ops.array import batch_axis
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.array.parts import checked_op, segment_sum_at_op
from flowrt.graph.ops.array.scatter_rows import fold_rows
from flowrt.graph.ops.base.filling import fill, ones, ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, static_value, with_layout_of
from flowrt.graph.ops.base.indexing import along_rows, check_range
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import rank, reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import conjugated, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, greater, greater_equal, select_v2
from flowrt.graph.ops.elementwise.division import divide, truediv, truncate_divide
from flowrt.graph.ops.elementwise.math import sqrt
from flowrt.graph.shapes import Shape, format_shape, merge
from flowrt.graph.typing import NumericLike

__all__ = [
    "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum", "unsorted_segment_max",
    "unsorted_segment_mean", "unsorted_segment_min", "unsorted_segment_prod", "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
]  # fmt: skip

Limit = Callable[[Any], Any]
"""Value of a segment without rows, by NumPy dtype."""


def _folded(xp: Any, ufunc: str, data: Any, ids: Any, count: int, empty: Limit, out: Any = None) -> Any:
    """The rows of ``data`` with equal ids folded: ``[count, *row]`` in the accumulator's dtype, in ``out`` if
    that can be.
    """
    dtype, row = np.dtype(accumulator(data)), data.shape[ids.ndim :]
    is_direct = out is not None and out.dtype == dtype and out.flags.c_contiguous
    target, width = out if is_direct else xp.empty((count, *row), dtype), math.prod(row)
    target[...] = empty(data.dtype)
    fold_rows(xp, ufunc, target.reshape(count, width), ids.reshape(-1), data.reshape(ids.size, width))
    return target


# --- ids in ascending order


def _sorted_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, ids = s.shapes[0], merge(s.shapes[1], (None,))
    if dims is None or ids is None:
        return [None]
    merge(dims[:1], ids)
    return [(None, *dims[1:])]


def _check_sorted(ids: Any, rows: int) -> int:
    """Check the ids; returns the number of segments."""
    if ids.shape != (rows,):
        raise InvalidArgumentError(f"segment_ids: expected {rows}, one per row; got {ids.size}")
    if ids.size and (ids[0] < 0 or (ids[1:] < ids[:-1]).any()):
        found = ids.tolist()
        raise InvalidArgumentError(f"segment_ids: expected ids of at least 0 in ascending order; got {found}")
    return int(ids[-1]) + 1 if ids.size else 0


def _sorted_kernel(ufunc: str, start: Limit) -> Kernel:
    """``start`` is the initial value and that of segments without rows: 0 for a maximum or minimum."""

    def kernel(xp: Any, data: Any, segment_ids: Any) -> Any:
        count = _check_sorted(segment_ids, len(data))
        result = _folded(xp, ufunc, data, segment_ids, count, start)
        if start is not _zero and start is not _one:
            present = xp.zeros(count, bool)
            present[segment_ids] = True
            result[~present] = 0
        return result.astype(data.dtype, copy=False)

    return kernel


def _segment_mean(xp: Any, data: Any, segment_ids: Any) -> Any:
    """Integers are summed in 64 bits, and their means cut towards zero, as TensorFlow's C++ divides."""
    count = _check_sorted(segment_ids, len(data))
    is_integer = data.dtype.kind in "iu"
    terms = data.astype(np.int64 if data.dtype.kind == "i" else np.uint64) if is_integer else data
    total = _folded(xp, "add", terms, segment_ids, count, _zero)
    sizes = xp.maximum(xp.bincount(segment_ids, minlength=count), 1).astype(total.dtype)
    rows = along_rows(sizes, total)
    mean = truncate_divide(xp, total, rows) if is_integer else total / rows
    return mean.astype(data.dtype, copy=False)


# --- ids in any order, negative ones left out


def _unsorted_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, ids, count = s.shapes[0], s.shapes[1], s.value(2)
    if count is not None and count < 0:
        raise InvalidArgumentError(f"num_segments: expected at least 0; got {count}")
    if dims is None or ids is None:
        return [None]
    if len(ids) > len(dims):
        raise InvalidArgumentError("segment_ids: expected a prefix of the shape of data")
    merge(dims[: len(ids)], ids)
    return [(count, *dims[len(ids) :])]


def _unsorted_kernel(ufunc: str, empty: Limit) -> Kernel:
    def kernel(xp: Any, data: Any, segment_ids: Any, num_segments: int, out: Any = None) -> Any:
        if data.shape[: segment_ids.ndim] != segment_ids.shape:
            wanted, got = format_shape(data.shape), format_shape(segment_ids.shape)
            raise InvalidArgumentError(f"segment_ids: expected a prefix of {wanted}; got {got}")
        if xp is np and not (kept := segment_ids >= 0).all():
            data, segment_ids = data[kept], segment_ids[kept]
        check_range(xp, "segment_ids", segment_ids, num_segments)
        folded = _folded(xp, ufunc, data, segment_ids, num_segments, empty, out)
        return delivered(xp, folded, data.dtype, out)

    return kernel


def _zero(dtype: Any) -> Any:
    return 0


def _one(dtype: Any) -> Any:
    return 1


# --- gradients


def _like(op: Operation, name: str, data: Tensor) -> Tensor:
    """Another reduction of ``data`` along the same ids."""
    family = "UnsortedSegment" if op.type.startswith("Unsorted") else "Segment"
    return op_def(family + name)(data, *op.inputs[1:])


def _spread(op: Operation, rows: Tensor) -> Tensor:
    """Each segment's row for each of its data rows, zeros for rows that belong to none."""
    gather, ids = op_def("GatherV2"), op.inputs[1]
    if not op.type.startswith("Unsorted"):
        return gather(rows, ids, 0)
    taken = gather(rows, maximum(ids, np.array(0, ids.dtype.np)), 0)
    kept = greater_equal(ids, np.array(0, ids.dtype.np))
    return select_v2(_with_rank_of(op.inputs[0], kept), taken, np.array(0, rows.dtype.np))


def _with_rank_of(data: Tensor, ids: Tensor) -> Tensor:
    """``ids`` with dimensions of 1 appended, up to data's rank."""
    dims, own = data.spec.shape, ids.spec.shape
    if dims is not None and own is not None and len(dims) == len(own):
        return ids
    if dims is not None and own is not None and own.count(None) <= 1:
        return reshape(ids, [-1 if d is None else d for d in own] + [1] * (len(dims) - len(own)))
    more = fill(reshape(subtract(rank(data), rank(ids)), [1]), 1)
    return reshape(ids, concat_op([shape(ids), more], 0))


def _others(op: Operation) -> list[None]:
    return [None] * (len(op.inputs) - 1)


def _mean_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    data, ids = op.inputs
    counts = segment_sum(ones_like(ids, dtype=data.dtype), ids)
    rows = _with_rank_of(data, maximum(counts, np.array(1, data.dtype.np)))
    return [_spread(op, divide(dy, rows)), None]


def _extreme_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """Rows that tie for the extreme share the gradient equally."""
    data = op.inputs[0]
    chosen = equal(data, _spread(op, op.outputs[0]))
    ties = maximum(_like(op, "Sum", cast(chosen, data.dtype)), np.array(1, data.dtype.np))
    return [select_v2(chosen, _spread(op, divide(dy, ties)), np.array(0, data.dtype.np)), *_others(op)]


def _prod_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """Each element's factor is the product of the others, right where elements are 0 too."""
    data = op.inputs[0]
    zero, one = (np.array(v, data.dtype.np) for v in (0, 1))
    is_zero = equal(data, zero)
    filled = select_v2(is_zero, one, data)
    several = greater(_like(op, "Sum", cast(is_zero, dtypes.int32)), 1)
    dy = select_v2(several, zeros_like(dy), dy)
    alone = _spread(op, _like(op, "Prod", filled))
    factor = select_v2(is_zero, alone, divide(_spread(op, op.outputs[0]), filled))
    return [multiply(_spread(op, dy), conjugated(factor)), *_others(op)]


# --- definitions


def _sorted_samples(low: float) -> Callable[[np.random.Generator], Iterable[Sample]]:
    ids = np.array([0, 0, 2, 2, 2], np.int32)
    return lambda rng: (
        sample(rng.uniform(low, 3, (5, 2)), ids),
        sample(rng.uniform(low, 3, 5), ids.astype(np.int64)),
        sample(rng.integers(1, 5, (5, 1), np.int32), ids),
        sample(rng.uniform(low, 3, 5).astype(np.float16), ids),
        sample(np.zeros((0, 2), np.float32), np.zeros(0, np.int32)),
    )


def _unsorted_samples(low: float) -> Callable[[np.random.Generator], Iterable[Sample]]:
    return lambda rng: (
        sample(rng.uniform(low, 3, (5, 2)), np.array([2, 0, 2, -1, 1], np.int32), np.int32(3)),
        sample(rng.uniform(low, 3, (2, 2, 3)), np.array([[1, 0], [1, 1]]), np.int64(2)),
        sample(rng.uniform(low, 3, 3), np.array([1, 1, 0], np.int32), np.int32(2)),
        sample(rng.integers(1, 5, 3), np.array([1, 1, 0], np.int32), np.int32(3)),
        sample(np.zeros((0, 2), np.float32), np.zeros(0, np.int32), np.int32(2)),
    )


_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}


class _Fold(NamedTuple):
    """The fold that the ops of a family do to rows."""

    ufunc: str
    types: str
    vjp: Vjp
    jvp: Rule = BY_VJP
    low: float = -3
    """The samples are above it."""
    empty: Limit = _zero
    """The value that the fold begins with."""


_SUM = _Fold("add", "NUMERIC", lambda op, dy: [_spread(op, dy), *_others(op)], LINEAR)
_PROD = _Fold("multiply", "NUMERIC", _prod_vjp, low=1, empty=_one)
_MAX = _Fold("maximum", "REAL", _extreme_vjp, empty=lambda dtype: dtypes.as_dtype(dtype).min)
_MIN = _Fold("minimum", "REAL", _extreme_vjp, empty=lambda dtype: dtypes.as_dtype(dtype).max)


def _sorted_op(name: str, fold: _Fold, doc: str, kernel: Kernel | None = None) -> OpDef[Tensor]:
    return define_op(
        name,
        f"data: T in {fold.types}, segment_ids: Tindices in INDEX -> T",
        shape=_sorted_shape,
        kernel=kernel or _sorted_kernel(fold.ufunc, fold.empty),
        vjp=fold.vjp,
        jvp=fold.jvp,
        samples=_sorted_samples(fold.low),
        batch=batch_axis.segments,
        doc=doc + " Ids ascend; the result has one row for each id up to the last.",
    )


def _sharded_sum(op: Operation) -> Sequence[Tensor] | None:
    """The sums as rows in parts: of the segments with the numbers in the layout that ``op`` names."""
    data, ids, count = op.inputs
    total = static_value(count)
    if total is None:
        return None
    wanted = cast(ids, dtypes.int64)
    zero = np.array(0, np.int64)
    inside = checked_op(maximum(wanted, zero), limit=total, what="segment_ids")
    known = select_v2(greater_equal(wanted, zero), inside, wanted)  # rows with a negative id are left out
    return [segment_sum_at_op(data, known, with_layout_of(op, constant(np.arange(total))))]


def _unsorted_op(name: str, fold: _Fold, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        f"data: T in {fold.types}, segment_ids: Tindices in INDEX, num_segments: host Tnumsegments in INDEX"
        " -> T",
        shape=_unsorted_shape,
        kernel=_unsorted_kernel(fold.ufunc, fold.empty),
        vjp=fold.vjp,
        jvp=fold.jvp,
        samples=_unsorted_samples(fold.low),
        batch=batch_axis.segments,
        axes=f"..i|{_REDUCTIONS[fold.ufunc]} ..a, ..i -> v! ..a",
        sharded=_sharded_sum if fold is _SUM else None,
        doc=doc + " Rows with a negative id are left out; on a GPU also those with an id too large.",
    )


segment_sum = _sorted_op("SegmentSum", _SUM, "The sum of each segment's rows, 0 if empty.")
segment_mean = _sorted_op(
    "SegmentMean",
    _SUM._replace(vjp=_mean_vjp),
    "The mean of each segment's rows, 0 if empty; rounded towards zero for integers.",
    _segment_mean,
)
segment_prod = _sorted_op("SegmentProd", _PROD, "The product of each segment's rows, 1 if empty.")
segment_max = _sorted_op("SegmentMax", _MAX, "The maximum of each segment, 0 if empty.")
segment_min = _sorted_op("SegmentMin", _MIN, "The minimum of each segment, 0 if empty.")
unsorted_segment_sum = _unsorted_op("UnsortedSegmentSum", _SUM, "The sum of each segment's rows, 0 if empty.")
unsorted_segment_prod = _unsorted_op(
    "UnsortedSegmentProd", _PROD, "The product of each segment's rows, 1 if empty."
)
unsorted_segment_max = _unsorted_op(
    "UnsortedSegmentMax", _MAX, "The maximum of each segment, the dtype's lowest value if empty."
)
unsorted_segment_min = _unsorted_op(
    "UnsortedSegmentMin", _MIN, "The minimum of each segment, the dtype's highest value if empty."
)


def unsorted_segment_mean(
    data: Any, segment_ids: NumericLike, num_segments: NumericLike, name: str | None = None
) -> Tensor:
    """The mean of each segment's rows, 0 without rows; integers give float64. Negative ids are ignored."""
    return _over(lambda sizes: sizes, data, segment_ids, num_segments, name or "UnsortedSegmentMean")


def unsorted_segment_sqrt_n(
    data: Any, segment_ids: NumericLike, num_segments: NumericLike, name: str | None = None
) -> Tensor:
    """The sum of each segment's rows over the square root of their number. Negative ids are left out."""
    return _over(sqrt, data, segment_ids, num_segments, name or "UnsortedSegmentSqrtN")


def _over(divisor: Callable[[Tensor], Tensor], data: Any, ids: Any, num_segments: Any, name: str) -> Tensor:
    """The sum of each segment's rows over the ``divisor`` of their number, which counts as at least 1."""
    with get_default_graph().name_scope(name):
        data, ids = convert_to_tensor(data), convert_to_tensor(ids)
        total = unsorted_segment_sum(data, ids, num_segments)
        counts = unsorted_segment_sum(ones(shape(ids), data.dtype), ids, num_segments)
        sizes = maximum(counts, np.array(1, data.dtype.np))
        dims, own = data.spec.shape, ids.spec.shape
        if dims is None or own is None:
            raise InvalidArgumentError(
                f"expected data and segment_ids of known rank; got {data!r} and {ids!r}"
            )
        return truediv(total, divisor(reshape(sizes, [-1] + [1] * (len(dims) - len(own)))))
