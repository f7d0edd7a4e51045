"""Sums, extremes, softmax and parts of sparse tensors, composed of operations on their three parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.dtypes import int32, int64
from flowrt.errors import InvalidArgumentError
from flowrt.functions.sparse_functions import as_sparse, sparse_reorder
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather, scatter_nd
from flowrt.graph.ops.array.reductions import reduce_all, reduce_max, reduce_sum
from flowrt.graph.ops.array.scans import cumprod, cumsum
from flowrt.graph.ops.array.segments import unsorted_segment_max, unsorted_segment_sum
from flowrt.graph.ops.array.selection import boolean_mask
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, logical_and, not_equal
from flowrt.graph.ops.elementwise.math import abs_op as magnitude
from flowrt.graph.ops.elementwise.math import exp
from flowrt.graph.ops.text.assertions import assert_equal
from flowrt.graph.ops.text.python_calls import with_dependencies
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "sparse_add", "sparse_concat", "sparse_maximum", "sparse_minimum", "sparse_slice", "sparse_softmax",
]  # fmt: skip

_SIZES = "the sizes of the sparse tensors"


def sparse_add(
    a: Any, b: Any, threshold: TensorLike | None = None, thresh: TensorLike | None = None
) -> SparseTensor | Tensor:
    """The sum of two sparse tensors of one shape, with its places in ascending order, or of a sparse and a
    dense one, which is dense. Sums of two sparse ones that are smaller than ``thresh`` (an older name of
    ``threshold``) in magnitude are left out.

    Example:
        >>> a = tf.SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], [3, 2])
        >>> tf.sparse_add(a, tf.SparseTensor([[0, 0], [2, 0]], [5.0, 7.0], [3, 2])).eval().values
        array([5., 1., 9.], dtype=float32)
    """
    least = threshold if thresh is None else thresh
    if not isinstance(a, (SparseTensor, SparseTensorValue)):
        a, b = b, a
    first = as_sparse("sparse_add", a)
    if not isinstance(b, (SparseTensor, SparseTensorValue)):
        return scatter_nd(first.indices, first.values, first.dense_shape) + b
    total = _joined("SparseAdd", first, as_sparse("sparse_add", b), lambda x, y: x + y)
    if least is None:
        return total
    limit = convert_to_tensor(least, magnitude(total.values).dtype)
    is_kept = greater_equal(magnitude(total.values), limit)
    return SparseTensor(
        boolean_mask(total.indices, is_kept), boolean_mask(total.values, is_kept), total.dense_shape
    )


def sparse_maximum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The larger value at each place of either tensor; 0 stands for a missing one."""
    both = as_sparse("sparse_maximum", sp_a), as_sparse("sparse_maximum", sp_b)
    return _joined(name or "SparseSparseMaximum", *both, maximum)


def sparse_minimum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """The smaller value at each place of either tensor; 0 stands for a missing one."""
    both = as_sparse("sparse_minimum", sp_a), as_sparse("sparse_minimum", sp_b)
    return _joined(name or "SparseSparseMinimum", *both, minimum)


def _joined(
    name: str, a: SparseTensor, b: SparseTensor, function: Callable[[Tensor, Tensor], Tensor]
) -> SparseTensor:
    """``function`` of the values of both at each place of either, the places in ascending order."""
    with name_scope(None, name, [a.values, b.values]):
        values = [
            concat([a.values, zeros_like(b.values)], 0), concat([zeros_like(a.values), b.values], 0),
        ]  # fmt: skip
        places = concat([a.indices, b.indices], 0)
        sizes = with_dependencies([assert_equal(a.dense_shape, b.dense_shape, message=_SIZES)], a.dense_shape)
        ordered = sparse_reorder(SparseTensor(places, cumsum(ones_like(places[:, 0])) - 1, sizes))
        flat = flat_places(ordered.indices, sizes)
        is_new = concat([ones_like(flat[:1], dtype=bool), not_equal(flat[1:], flat[:-1])], 0)
        kept = boolean_mask(ordered.indices, is_new)
        group = cumsum(cast(is_new, int32)) - 1
        sums = [unsorted_segment_sum(gather(each, ordered.values), group, shape(kept)[0]) for each in values]
        return SparseTensor(kept, function(*sums), sizes)


def flat_places(indices: Tensor, sizes: Tensor) -> Tensor:
    """The number of each place in the dense tensor."""
    return reduce_sum(indices * cumprod(sizes, exclusive=True, reverse=True), 1)


def sparse_softmax(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The softmax of the values that are there in each row of the last dimension; missing ones stay so."""
    sparse = as_sparse("sparse_softmax", sp_input)
    with name_scope(name, "SparseSoftmax", [sparse.values]):
        _, rows = unique(flat_places(sparse.indices[:, :-1], sparse.dense_shape[:-1]))
        count = reduce_max(concat([[-1], rows], 0)) + 1
        highest = stop_gradient(unsorted_segment_max(sparse.values, rows, count))
        weights = exp(sparse.values - gather(highest, rows))
        totals = gather(unsorted_segment_sum(weights, rows, count), rows)
        return SparseTensor(sparse.indices, weights / totals, sparse.dense_shape)


def sparse_concat(
    axis: int,
    sp_inputs: Sequence[Any],
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """The tensors one after the other along ``axis``, places in ascending order. Their other sizes are those
    of the first, or, with ``expand_nonconcat_dims``, the largest ones.
    """
    parts = [as_sparse("sparse_concat", each) for each in sp_inputs]
    along = axis if concat_dim is None else concat_dim
    is_expanded = expand_nonconcat_dim if expand_nonconcat_dims is None else expand_nonconcat_dims
    rank = next((each.shape.ndims for each in parts if each.shape.ndims is not None), None)
    if rank is None or not -rank <= along < rank:
        raise misuse(
            f"sparse_concat: expected tensors of a known rank with the axis {along}; got rank {rank}",
            InvalidArgumentError,
        )
    along %= rank
    with name_scope(name, "SparseConcat", [each.values for each in parts]):
        largest = parts[0].dense_shape
        for each in parts[1:]:
            if is_expanded:
                largest = maximum(largest, each.dense_shape)
            else:
                others = [i for i in range(rank) if i != along]
                fits = assert_equal(gather(largest, others), gather(each.dense_shape, others), message=_SIZES)
                largest = with_dependencies([fits], largest)
        places, before = [], convert_to_tensor(0, int64)
        for each in parts:
            places.append(each.indices + before * [int(i == along) for i in range(rank)])
            before += each.dense_shape[along]
        sizes = concat([largest[:along], expand_dims(before, 0), largest[along + 1 :]], 0)
        return sparse_reorder(SparseTensor(concat(places, 0), concat([p.values for p in parts], 0), sizes))


def sparse_slice(
    sp_input: Any, start: NumericLike, size: NumericLike, name: str | None = None
) -> SparseTensor:
    """The part of ``size``, or up to the tensor's end, that begins at ``start``."""
    sparse = as_sparse("sparse_slice", sp_input)
    with name_scope(name, "SparseSlice", [sparse.values]):
        begin, length = convert_to_tensor(start, int64), convert_to_tensor(size, int64)
        end = minimum(begin + length, sparse.dense_shape)
        inside = reduce_all(logical_and(greater_equal(sparse.indices, begin), less(sparse.indices, end)), 1)
        return SparseTensor(
            boolean_mask(sparse.indices, inside) - begin, boolean_mask(sparse.values, inside),
            maximum(end - begin, 0),
        )  # fmt: skip
