"""Reductions of sparse tensors to dense and sparse ones, and of chosen rows by segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import int32, int64
from flowrt.functions.sparse_arithmetic import flat_places
from flowrt.functions.sparse_functions import as_sparse, sparse_reorder
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather, scatter_nd
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.reductions import reduce_any
from flowrt.graph.ops.array.scans import cumprod
from flowrt.graph.ops.array.segments import (
    segment_mean,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_sum,
)
from flowrt.graph.ops.array.selection import boolean_mask
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.filling import ones_like, zeros
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal, logical_not, logical_or, select_v2
from flowrt.graph.ops.elementwise.math import sqrt
from flowrt.graph.ops.text.assertions import assert_less_equal
from flowrt.graph.ops.text.python_calls import with_dependencies
from flowrt.graph.typing import NumericLike, TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "sparse_reduce_max", "sparse_reduce_max_sparse", "sparse_reduce_sum_sparse", "sparse_segment_mean",
    "sparse_segment_sqrt_n", "sparse_segment_sum",
]  # fmt: skip

_Fold = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of values, the group of each, and the number of groups."""


def sparse_reduce_max(
    sp_input: Any,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The greatest value along ``axis`` (None: of all) as a dense tensor, 0 without values. Places without
    a value do not count.

    Example:
        >>> x = tf.SparseTensor([[0, 0], [0, 2], [2, 1]], [-3.0, -1.0, 5.0], [3, 3])
        >>> tf.sparse_reduce_max(x, 1).eval()
        array([-1.,  0.,  5.], dtype=float32)
    """
    sparse = as_sparse("sparse_reduce_max", sp_input)
    with name_scope(None, "SparseReduceMax", [sparse.values]):
        places, values, sizes, kept = _reduced(
            sparse, unsorted_segment_max, reduction_axes if axis is None else axis
        )
        dense = scatter_nd(places, values, sizes)
        return dense if keepdims or keep_dims else reshape(dense, gather(sizes, kept))


def sparse_reduce_max_sparse(
    sp_input: Any,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The greatest value that is there along ``axis`` (None: in all), where there is one."""
    kept = bool(keepdims if keep_dims is None else keep_dims)
    axes = reduction_axes if axis is None else axis
    return _sparse("SparseReduceMaxSparse", sp_input, unsorted_segment_max, axes, kept)


def sparse_reduce_sum_sparse(
    sp_input: Any,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """The sum of the values along ``axis`` (None: of all), where there is one."""
    kept = bool(keepdims if keep_dims is None else keep_dims)
    axes = reduction_axes if axis is None else axis
    return _sparse("SparseReduceSumSparse", sp_input, unsorted_segment_sum, axes, kept)


def _sparse(name: str, sp_input: Any, fold: _Fold, axes: Any, keepdims: bool) -> SparseTensor:
    sparse = as_sparse(name, sp_input)
    with name_scope(None, name, [sparse.values]):
        places, values, sizes, kept = _reduced(sparse, fold, axes)
        found = sparse_reorder(SparseTensor(places, values, sizes))
        if keepdims:
            return found
        return SparseTensor(gather(found.indices, kept, axis=1), found.values, gather(sizes, kept))


def _reduced(sparse: SparseTensor, fold: _Fold, axes: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The places, values and sizes of the reduced tensor with its dimensions kept at size 1, in no order, and
    which dimensions were not reduced.
    """
    rank = size(sparse.dense_shape)
    numbers = range(rank)
    if axes is None:
        is_reduced = equal(numbers, numbers)
    else:
        asked = reshape(cast(convert_to_tensor(axes), int32), [1, -1])
        each = expand_dims(numbers, 1)
        is_reduced = reduce_any(logical_or(equal(each, asked), equal(each - rank, asked)), 1)
    sizes = select_v2(is_reduced, ones_like(sparse.dense_shape), sparse.dense_shape)
    flat, group = unique(flat_places(sparse.indices * cast(logical_not(is_reduced), int64), sizes))
    strides = cumprod(sizes, exclusive=True, reverse=True)
    places = expand_dims(flat, 1) // maximum(strides, 1) % maximum(sizes, 1)
    values = fold(sparse.values, group, size(flat))
    return places, values, sizes, boolean_mask(numbers, logical_not(is_reduced))


def sparse_segment_sum(
    data: TensorLike,
    indices: NumericLike,
    segment_ids: NumericLike,
    name: str | None = None,
    num_segments: NumericLike | None = None,
) -> Tensor:
    """The sum of the rows ``indices`` of ``data`` of each segment, 0 without rows.

    ``segment_ids`` must not decrease. There are ``num_segments`` segments; if None, as many as
    ``segment_ids`` names. A step raises `InvalidArgumentError` for ids that decrease or are not below
    ``num_segments``.

    Example:
        >>> tf.sparse_segment_sum([[1, 2], [3, 4], [5, 6]], [2, 0, 0], [0, 0, 1]).eval()
        array([[6, 8],
               [1, 2]], dtype=int32)
    """
    with get_default_graph().name_scope(name or "SparseSegmentSum"):
        return _up_to(num_segments, segment_ids, segment_sum(gather(data, indices), segment_ids))


def sparse_segment_mean(
    data: TensorLike,
    indices: NumericLike,
    segment_ids: NumericLike,
    name: str | None = None,
    num_segments: NumericLike | None = None,
) -> Tensor:
    """The mean of the rows ``indices`` of ``data`` of each segment: see `sparse_segment_sum`."""
    with get_default_graph().name_scope(name or "SparseSegmentMean"):
        return _up_to(num_segments, segment_ids, segment_mean(gather(data, indices), segment_ids))


def sparse_segment_sqrt_n(
    data: TensorLike,
    indices: NumericLike,
    segment_ids: NumericLike,
    name: str | None = None,
    num_segments: NumericLike | None = None,
) -> Tensor:
    """The sum of the rows ``indices`` of ``data`` of each segment, over the square root of their number: see
    `sparse_segment_sum`.
    """
    with get_default_graph().name_scope(name or "SparseSegmentSqrtN"):
        rows = gather(data, indices)
        counts = segment_sum(ones_like(segment_ids, dtype=rows.dtype), segment_ids)
        along = concat([shape(counts), ones_like(shape(rows)[1:])], 0)
        scales = sqrt(maximum(counts, convert_to_tensor(1, rows.dtype)))
        return _up_to(num_segments, segment_ids, segment_sum(rows, segment_ids) / reshape(scales, along))


def _up_to(num_segments: NumericLike | None, segment_ids: NumericLike, rows: Tensor) -> Tensor:
    """``rows``, with zeros after them up to ``num_segments``."""
    if num_segments is None:
        return rows
    count, named = cast(convert_to_tensor(num_segments), int32), shape(rows)[0]
    fits = assert_less_equal(named, count, message="segment_ids must be below num_segments")
    missing = with_dependencies([fits], maximum(count - named, 0))
    others = zeros(stack([size(shape(rows)) - 1, 2]), int32)
    return pad(rows, concat([[[0, missing]], others], 0))
