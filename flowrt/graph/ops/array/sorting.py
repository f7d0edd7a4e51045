"""Sorting: top_k, sort, argsort, searchsorted, and the distinct elements of a vector.

Rule of this file: among equal elements the one with the lower index precedes, ascending and descending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading, merged
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Kernel
from flowrt.graph.ops.array.ranges import range_op
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import (
    expand_dims,
    reshape,
    shape,
    size,
    swapped_with_last,
    transpose,
)
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.bitwise import invert
from flowrt.graph.ops.elementwise.math import neg
from flowrt.graph.shapes import Shape, format_shape, merge
from flowrt.graph.typing import TensorLike

# --- top_k


class TopKV2(NamedTuple):
    """The ``k`` largest elements of each row in descending order, and their indices in the row."""

    values: Tensor
    indices: Tensor


def _top_k_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, k = s.shapes[0], s.value(1)
    if dims is None:
        return [None, None]
    if not dims:
        raise InvalidArgumentError("input: expected at least one dimension; got a scalar")
    if k is not None and (k < 0 or (dims[-1] is not None and k > dims[-1])):
        raise InvalidArgumentError(f"k: expected a number in [0, {dims[-1]}], the last dimension; got {k}")
    return [(*dims[:-1], k)] * 2


LONG, FEW = 1024, 8
"""Elements of a row that is not sorted whole, and how many times as many these are as k: the 100 largest of
1.3 million floats take 3 ms, and 170 by a sort.
"""


def _descending(x: Any) -> Any:
    """Keys that sort ascending as x does descending: the complement of integers, which cannot overflow."""
    if x.dtype.kind in "iu":
        return ~x
    return -x if x.dtype.itemsize > 2 else -x.astype(np.float32)  # NumPy's 16-bit sorts are slow


def _top_k(xp: Any, input: Any, k: int, index_type: Any, out: Any = (None, None)) -> Any:
    if not 0 <= k <= input.shape[-1]:
        raise InvalidArgumentError(
            f"k: expected a number in [0, {input.shape[-1]}], the last dimension; got {k}"
        )
    keys = _descending(input)
    if xp is np and k > 0 and max(FEW * k, LONG) <= input.shape[-1]:
        order = np.apply_along_axis(_first, -1, keys, k)
    else:
        order = xp.argsort(keys, axis=-1, kind="stable")[..., :k]
    values = delivered(xp, xp.take_along_axis(input, order, axis=-1), input.dtype, out[0])
    return values, delivered(xp, order, index_type.np, out[1])


def _first(keys: Any, k: int) -> Any:
    """The places of the ``k`` smallest of a vector, of equal ones the first, in order; NaN is the largest."""
    limit = np.partition(keys, k - 1)[k - 1]
    places = np.flatnonzero(keys <= limit) if limit == limit else np.arange(len(keys))
    return places[np.argsort(keys[places], kind="stable")[:k]]


def _top_k_vjp(op: Operation, dy: Tensor | None, _: None) -> list[Tensor | None]:
    """The gradient flows to the position of each value, counted through all rows: segments of one element."""
    x, indices = op.inputs[0], op.outputs[1]
    if dy is None:
        return [None, None]
    rows, length = getitem(shape(x), slice(-1)), getitem(shape(x), -1)
    starts = reshape(multiply(range_op(0, reduce_prod(rows), 1), length), rows)
    places = add(indices, cast(expand_dims(starts, -1), indices.dtype))
    flat = unsorted_segment_sum(dy, places, size(x))
    return [reshape(flat, shape(x)), None]


top_k_op: OpDef[list[Tensor]] = define_op(
    "TopKV2",
    "input: T in REAL, k: host Tk in int32 | int64 | int16 -> values: T, indices: index_type in INDEX",
    attrs="sorted: bool = True, index_type: type = int32",
    shape=_top_k_shape,
    kernel=_top_k,
    vjp=_top_k_vjp,
    samples=lambda rng: (
        sample(rng.permutation(np.arange(12.0)).reshape(2, 2, 3), np.int32(2)),
        sample(rng.permutation(np.arange(4.0)), np.int32(4)),
        sample(np.array([3, 250, 3, 0], np.uint8), np.int32(3)),
        sample(np.array([[1, 2]], np.float16), np.int64(0), index_type=dtypes.int64),
        sample(rng.standard_normal((2, 2)), np.int32(0)),
        sample(rng.standard_normal((2, 0)), np.int32(0)),
    ),
    batch=leading,
    axes="..a n! -> ..a k, ..a k",
    doc="The k largest elements along the last dimension, in descending order, and their indices.",
)


def top_k(input: TensorLike, k: TensorLike = 1, sorted: bool = True, name: str | None = None) -> TopKV2:
    """The ``k`` largest elements along the last dimension and their indices there, as ``(values, indices)``.

    They are in descending order, with ``sorted=False`` too. Raises `InvalidArgumentError` for a k above the
    dimension.

    Example:
        >>> values, indices = tf.nn.top_k([1.0, 5.0, 3.0], k=2)
        >>> values.eval(), indices.eval()
        (array([5., 3.], dtype=float32), array([1, 2], dtype=int32))
    """
    return TopKV2(*top_k_op(input, k, sorted=sorted, name=name))


# --- sort


def sort(values: Any, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor:
    """``values`` sorted along ``axis``, NaN last.

    Raises `InvalidArgumentError` for an unknown direction.

    Example:
        >>> tf.sort([3, 1, 2], direction='DESCENDING').eval()
        array([3, 2, 1], dtype=int32)
    """
    with get_default_graph().name_scope(name or "sort"):
        tensor = convert_to_tensor(values, name="values")
        return _along(axis, tensor, lambda x: _sorted_rows(x, direction).values)


def argsort(
    values: Any, axis: int = -1, direction: str = "ASCENDING", stable: bool = False, name: str | None = None
) -> Tensor:
    """The indices (int32) that sort ``values`` along ``axis``; equal elements keep their order."""
    with get_default_graph().name_scope(name or "argsort"):
        tensor = convert_to_tensor(values, name="values")
        return _along(axis, tensor, lambda x: _sorted_rows(x, direction).indices)


def _sorted_rows(x: Tensor, direction: str) -> TopKV2:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise InvalidArgumentError(f"direction: expected 'ASCENDING' or 'DESCENDING'; got {direction!r}")
    length = getitem(shape(x), -1)
    if direction == "DESCENDING":
        return top_k(x, length)
    reverse = invert if x.dtype.is_integer else neg
    found = top_k(reverse(x), length)
    return TopKV2(reverse(found.values), found.indices)


def _along(axis: int, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """``function``, which works on the last axis, applied along ``axis``."""
    swap = swapped_with_last(x, axis, "a tensor")
    return function(x) if swap is None else transpose(function(transpose(x, swap)), swap)


# --- searchsorted


def _bound_shape(s: ShapeContext) -> Sequence[Shape]:
    rows, values = (merge(dims, (None, None)) for dims in s.shapes)
    assert rows is not None
    assert values is not None
    merge(rows[:1], values[:1])
    return [values]


def _bound(side: str) -> Kernel:
    def kernel(xp: Any, sorted_inputs: Any, values: Any, out_type: Any, out: Any = None) -> Any:
        found = xp.empty(values.shape, out_type.np) if out is None else out
        for target, row, wanted in zip(found, sorted_inputs, values, strict=True):
            target[...] = xp.searchsorted(row, wanted, side=side)
        return found

    return kernel


def _bound_op(name: str, side: str, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        "sorted_inputs: T in REAL, values: T -> out_type in INDEX",
        attrs="out_type: type = int32",
        shape=_bound_shape,
        kernel=_bound(side),
        samples=lambda rng: (
            sample(np.array([[1.0, 2, 2], [0, 5, 6]]), np.array([[2.0, 0], [9, 5]])),
            sample(np.array([[1, 3]], np.int32), np.zeros((1, 0), np.int32), out_type=dtypes.int64),
        ),
        batch=merged(0, 1),
        axes="n m!, n k -> n k",
        doc=doc,
    )


lower_bound = _bound_op(
    "LowerBound", "left", "For each value the first place in its sorted row that keeps the order."
)
upper_bound = _bound_op(
    "UpperBound", "right", "For each value the last place in its sorted row that keeps the order."
)


def searchsorted(
    sorted_sequence: TensorLike,
    values: Any,
    side: str = "left",
    out_type: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The insertion index of each of ``values`` ``[*s, m]`` in its row of ``sorted_sequence``.

    The rows have shape ``[*s, n]``. ``side`` selects the first ("left") or the last ("right") valid index.
    Raises `InvalidArgumentError`.
    """
    if side not in ("left", "right"):
        raise InvalidArgumentError(f"side: expected 'left' or 'right'; got {side!r}")
    with get_default_graph().name_scope(name or "searchsorted"):
        rows = convert_to_tensor(sorted_sequence)
        wanted = convert_to_tensor(values, rows.dtype)
        dims, count = shape(rows), getitem(shape(wanted), -1)
        every, width = (
            reduce_prod(getitem(dims, slice(None, -1))),
            getitem(dims, -1),
        )  # -1 has no size if count is 0
        bound = lower_bound if side == "left" else upper_bound
        found = bound(
            reshape(rows, [every, width]), reshape(wanted, [every, count]), out_type=as_dtype(out_type)
        )
        return reshape(found, shape(wanted))


# --- distinct elements


class Unique(NamedTuple):
    """The distinct elements ``y`` of a vector, and for each element its place ``idx`` in y."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The distinct elements ``y`` of a vector, each element's place ``idx`` in y, and each of y's count."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # the name is TensorFlow's; it hides tuple.count


class ListDiff(NamedTuple):
    """The elements ``out`` of one vector that another lacks, and their indices ``idx``."""

    out: Tensor
    idx: Tensor


def _vector(dims: Shape) -> tuple[int | None, ...]:
    if dims is not None and len(dims) != 1:
        raise InvalidArgumentError(f"expected a vector; got shape {format_shape(dims)}")
    return (None,) if dims is None else dims


def _distinct(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """The distinct elements of x in order of first occurrence, each element's place, and the counts."""
    key = x if x.dtype.itemsize > 2 or x.dtype.kind in "iub" else x.astype(np.float32)
    _, first, place, counts = xp.unique(
        key, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    order = xp.argsort(first)
    rank_of = xp.empty_like(order)
    rank_of[order] = xp.arange(len(order))
    return x[first[order]], rank_of[place.reshape(-1)], counts[order]


def _unique_with_counts(xp: Any, x: Any, out_idx: Any) -> Any:
    y, place, counts = _distinct(xp, x)
    return y, place.astype(out_idx.np), counts.astype(out_idx.np)


def _list_diff(xp: Any, x: Any, y: Any, out_idx: Any) -> Any:
    places = xp.flatnonzero(~xp.isin(x, y))
    return x[places], places.astype(out_idx.np)


_COMPARABLE = dtypes.REAL | {dtypes.bool_, dtypes.string}
_DISTINCT: dict[str, Any] = {
    "types": {"T": _COMPARABLE, "out_idx": dtypes.INDEX},
    "attrs": "out_idx: type = int32",
    "vjp": NONDIFFERENTIABLE,
}
_REPEATING = (
    sample(np.array([3, 1, 3, 2, 1], np.int64)),
    sample(np.array([1.5, 1.5, -1], np.float16), out_idx=dtypes.int64),
    sample(np.array([b"b", b"a", b"b"], object)),
    sample(np.zeros(0, np.float32)),
)

unique_op: OpDef[list[Tensor]] = define_op(
    "Unique",
    "x: T -> y: T, idx: out_idx",
    shape=lambda s: [(None,), _vector(s.shapes[0])],
    kernel=lambda xp, x, out_idx: _unique_with_counts(xp, x, out_idx)[:2],
    samples=lambda rng: _REPEATING,
    doc="The distinct elements of a vector in order of first occurrence, and each element's place there.",
    **_DISTINCT,
)

unique_with_counts_op: OpDef[list[Tensor]] = define_op(
    "UniqueWithCounts",
    "x: T -> y: T, idx: out_idx, count: out_idx",
    shape=lambda s: [(None,), _vector(s.shapes[0]), (None,)],
    kernel=_unique_with_counts,
    samples=lambda rng: _REPEATING,
    doc="Like Unique, with the number of occurrences of each distinct element.",
    **_DISTINCT,
)

list_diff_op: OpDef[list[Tensor]] = define_op(
    "ListDiff",
    "x: T, y: T -> out: T, idx: out_idx",
    shape=lambda s: [(None,) for _ in (_vector(s.shapes[0]), _vector(s.shapes[1]))],
    kernel=_list_diff,
    samples=lambda rng: (
        sample(np.array([1, 2, 3, 2], np.int32), np.array([2], np.int32)),
        sample(np.array([b"a", b"b"], object), np.array([b"b"], object), out_idx=dtypes.int64),
        sample(np.zeros(0), np.ones(1)),
    ),
    doc="The elements of x that y lacks, in their order, and their indices in x.",
    **_DISTINCT,
)


def unique(x: TensorLike, out_idx: Any = dtypes.int32, name: str | None = None) -> Unique:
    """The distinct elements of the vector ``x`` in the order in which they first occur, as ``(y, idx)``.

    Example:
        >>> values, positions = tf.unique([7, 5, 7])
        >>> values.eval(), positions.eval()
        (array([7, 5], dtype=int32), array([0, 1, 0], dtype=int32))
    """
    return Unique(*unique_op(x, out_idx=out_idx, name=name))


def unique_with_counts(
    x: TensorLike, out_idx: Any = dtypes.int32, name: str | None = None
) -> UniqueWithCounts:
    """The distinct elements of the vector ``x`` and how often each occurs, as ``(y, idx, count)``."""
    return UniqueWithCounts(*unique_with_counts_op(x, out_idx=out_idx, name=name))


def setdiff1d(
    x: TensorLike, y: TensorLike, index_dtype: DTypeLike = dtypes.int32, name: str | None = None
) -> ListDiff:
    """The elements of the vector ``x`` that ``y`` lacks, in their order, as ``(out, idx)``."""
    return ListDiff(*list_diff_op(x, y, out_idx=index_dtype, name=name))
