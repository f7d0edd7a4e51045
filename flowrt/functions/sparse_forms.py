"""Sparse tensors from dense ones, merged, split, masked, and with other dimensions."""

from __future__ import annotations

import builtins
from typing import Any

from flowrt.dtypes import DTypeLike, float32, int32, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.functions.sparse_arithmetic import sparse_slice
from flowrt.functions.sparse_functions import as_sparse, sparse_reorder, sparse_tensor_to_dense
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather, gather_nd
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.array.sorting import setdiff1d
from flowrt.graph.ops.base.filling import ones, ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.arithmetic import minimum
from flowrt.graph.ops.elementwise.comparison import equal, greater, not_equal, select_v2, where
from flowrt.graph.ops.text.assertions import assert_equal, assert_less_equal
from flowrt.graph.ops.text.python_calls import with_dependencies
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike, TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "sparse_expand_dims", "sparse_eye", "sparse_from_dense", "sparse_mask", "sparse_merge",
    "sparse_reset_shape", "sparse_split", "sparse_to_indicator",
]  # fmt: skip


def sparse_from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """The values of ``tensor`` that are not 0 (empty, for strings).

    Example:
        >>> tf.sparse.from_dense([[0, 5], [7, 0]]).eval().values
        array([5, 7], dtype=int32)
    """
    with name_scope(name, "dense_to_sparse"):
        dense = convert_to_tensor(tensor)
        missing = b"" if dense.dtype is string else zeros_like(dense)
        places = where(not_equal(dense, missing))
        return SparseTensor(places, gather_nd(dense, places), cast(shape(dense), int64))


def sparse_expand_dims(sp_input: Any, axis: int | None = None, name: str | None = None) -> SparseTensor:
    """The tensor with a dimension of size 1 before ``axis`` (None: at the end). Raises `InvalidArgumentError`
    for a tensor of unknown rank or an axis that it has not.
    """
    sparse = as_sparse("sparse.expand_dims", sp_input)
    rank, at = sparse.shape.ndims, -1 if axis is None else axis
    if rank is None or not -rank - 1 <= at <= rank:
        raise misuse(
            f"sparse.expand_dims: expected a tensor of a known rank with the axis {at}; got rank {rank}",
            InvalidArgumentError,
        )
    at %= rank + 1
    with name_scope(name, "expand_dims", [sparse.values]):
        places, sizes = sparse.indices, sparse.dense_shape
        column = expand_dims(zeros_like(sparse.indices[:, 0]), 1)
        return SparseTensor(
            concat([places[:, :at], column, places[:, at:]], 1),
            sparse.values,
            concat([sizes[:at], convert_to_tensor([1], int64), sizes[at:]], 0),
        )


def sparse_eye(
    num_rows: NumericLike,
    num_columns: NumericLike | None = None,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> SparseTensor:
    """The identity matrix [num_rows, num_columns] (None: square)."""
    with name_scope(name, "eye"):
        rows = cast(convert_to_tensor(num_rows), int64)
        columns = rows if num_columns is None else cast(convert_to_tensor(num_columns), int64)
        least = minimum(rows, columns)
        numbers = cast(range(least), int64)
        return SparseTensor(
            stack([numbers, numbers], 1), ones(expand_dims(least, 0), dtype), stack([rows, columns])
        )


def sparse_mask(a: IndexedSlices, mask_indices: NumericLike, name: str | None = None) -> IndexedSlices:
    """The slices of ``a`` but for those with an index in ``mask_indices``.

    Example:
        >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([4, 5, 6]))
        >>> session.run(tf.sparse_mask(rows, [5]).values)
        array([[1.],
               [3.]], dtype=float32)
    """
    with name_scope(name, "sparse_mask", [a.values]):
        indices, kept = setdiff1d(a.indices, convert_to_tensor(mask_indices, a.indices.dtype))
        return IndexedSlices(gather(a.values, kept), indices, a.dense_shape)


def sparse_merge(
    sp_ids: Any, sp_values: Any, vocab_size: Any, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """``sp_values`` placed by ``sp_ids``: a value of the place ``[..., n]`` moves to ``[..., id]``, with the
    last dimension ``vocab_size``. With a list of ids, and of sizes, each adds a dimension.

    The places are in ascending order; they stay in that of ``sp_ids`` with ``already_sorted``. Raises
    `DTypeError` for ids that are not int32 or int64, `InvalidArgumentError` for lists of different lengths.

    Example:
        >>> ids = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [3, 0, 2], [2, 2])
        >>> weights = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [0.5, 1.0, 2.0], [2, 2])
        >>> tf.sparse_tensor_to_dense(tf.sparse_merge(ids, weights, 4)).eval()
        array([[0. , 0. , 0. , 0.5],
               [1. , 0. , 2. , 0. ]], dtype=float32)
    """
    given = [sp_ids] if isinstance(sp_ids, (SparseTensor, SparseTensorValue)) else list(sp_ids)
    sizes = list(vocab_size) if isinstance(vocab_size, (list, tuple)) else [vocab_size]
    if len(given) != len(sizes):
        raise misuse(f"sparse_merge: expected one vocab_size per ids; got {len(sizes)} for {len(given)}")
    ids, values = [as_sparse("sparse_merge", each) for each in given], as_sparse("sparse_merge", sp_values)
    for each in ids:
        if each.dtype not in (int32, int64):
            raise misuse(f"sparse_merge: expected ids of int32 or int64; got {each.dtype.name}", DTypeError)
    with name_scope(name, "SparseMerge", [values.values]):
        columns = [expand_dims(cast(each.values, int64), 1) for each in ids]
        dims = [expand_dims(cast(convert_to_tensor(each), int64), 0) for each in sizes]
        merged = SparseTensor(
            concat([ids[0].indices[:, :-1], *columns], 1),
            values.values,
            concat([ids[0].dense_shape[:-1], *dims], 0),
        )
        return merged if already_sorted else sparse_reorder(merged)


def sparse_to_indicator(sp_input: Any, vocab_size: NumericLike, name: str | None = None) -> Tensor:
    """A mark for each id that a row has: bool ``[..., vocab_size]`` for ids ``[..., n]`` of int32 or int64.

    A step raises `InvalidArgumentError` for an id that is not in [0, vocab_size).

    Example:
        >>> ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 0, 1], [2, 2])
        >>> tf.sparse_to_indicator(ids, 3).eval()
        array([[ True, False,  True],
               [False,  True, False]])
    """
    sparse = as_sparse("sparse_to_indicator", sp_input)
    with name_scope(name, "SparseToIndicator", [sparse.values]):
        there = SparseTensor(sparse.indices, ones_like(sparse.values, dtype=bool), sparse.dense_shape)
        merged = sparse_merge(sparse, there, vocab_size)
        return sparse_tensor_to_dense(merged, default_value=False, validate_indices=False)


def sparse_reset_shape(sp_input: Any, new_shape: ShapeTensorLike = None) -> SparseTensor:
    """The same values in ``new_shape``, which no dimension may make smaller, or in the smallest one that
    holds them. Raises `InvalidArgumentError` for a shape of another rank, a step for one that is too
    small.
    """
    sparse = as_sparse("sparse_reset_shape", sp_input)
    with name_scope(None, "SparseResetShape", [sparse.values]):
        if new_shape is None:
            none = expand_dims(zeros_like(sparse.dense_shape) - 1, 0)
            sizes = reduce_max(concat([none, sparse.indices], 0), 0) + 1
        else:
            sizes = cast(convert_to_tensor(new_shape), int64)
            if not sizes.shape.is_compatible_with(sparse.dense_shape.shape):
                raise misuse(
                    f"sparse_reset_shape: expected a new_shape of rank {sparse.shape.ndims}; got {new_shape}"
                )
            same_rank = assert_equal(shape(sizes), shape(sparse.dense_shape), message="the rank of new_shape")
            sizes = with_dependencies([same_rank], sizes)
            holds = assert_less_equal(sparse.dense_shape, sizes, message="new_shape must hold the tensor")
            sizes = with_dependencies([holds], sizes)
        return SparseTensor(sparse.indices, sparse.values, sizes)


def sparse_split(
    *,
    sp_input: Any = None,
    num_split: int | None = None,
    axis: NumericLike | None = None,
    name: str | None = None,
    split_dim: NumericLike | None = None,
) -> list[SparseTensor]:
    """``num_split`` parts along ``axis`` (``split_dim`` is its older name), the first ones larger by 1 if the
    size is no multiple. All arguments are given by name.

    Raises `InvalidArgumentError` without ``num_split`` or ``axis``; a step raises it for more parts than the
    dimension has elements.

    Example:
        >>> x = tf.SparseTensor([[0, 1], [0, 4]], [1, 2], [1, 5])
        >>> [part.eval().indices.tolist() for part in tf.sparse_split(sp_input=x, num_split=2, axis=1)]
        [[[0, 1]], [[0, 1]]]
    """
    sparse = as_sparse("sparse_split", sp_input)
    along = split_dim if axis is None else axis
    if along is None or num_split is None or num_split < 1:
        raise misuse(f"sparse_split: expected an axis and a num_split from 1 up; got {along} and {num_split}")
    with name_scope(name, "SparseSplit", [sparse.values]):
        rank, place = shape(sparse.dense_shape)[0], cast(convert_to_tensor(along), int32)
        is_cut = cast(equal(range(rank), select_v2(place < 0, place + rank, place)), int64)
        length = reduce_sum(is_cut * sparse.dense_shape)
        few = assert_less_equal(
            convert_to_tensor(num_split, int64), length, message="num_split must not exceed the dimension"
        )
        small = with_dependencies([few], length // num_split)
        larger = length % num_split
        parts = list[SparseTensor]()
        for i in builtins.range(num_split):
            start = small * i + minimum(larger, i)
            count = small + cast(greater(larger, i), int64)
            sizes = is_cut * count + (1 - is_cut) * sparse.dense_shape
            parts.append(sparse_slice(sparse, is_cut * start, sizes))
        return parts
