"""The axis of a batch, before the axes of one element: building blocks of batching rules, and some rules.

The rules are those of ops that read or write at indices: gathers, scatters, segments. An index into an
element becomes an index into the batch in one of three ways: unchanged, if all elements read one table; with
``batch_dims``, if the op pairs rows; or prefixed with the element's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.construction.batching_rules import BatchBuilder, Value, rank_of
from flowrt.graph.construction.build import constant_tensor
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, select_v2
from flowrt.graph.shapes import is_static

# --- the batch axis before the axes of one element


def moved_axes(axes: Tensor) -> Tensor:
    """`moved_axis` of each axis in a host tensor."""
    known = _known(axes)
    if known is not None:
        return constant_tensor(known + (known >= 0).astype(known.dtype))
    return add_v2(axes, cast(greater_equal(axes, 0), axes.dtype))


def behind(head: Any, dims: Tensor) -> Tensor:
    """A host vector, or matrix, with one more row ``head`` in front."""
    known = _known(dims)
    if known is not None and not isinstance(head, Tensor):
        return constant_tensor(np.concatenate([np.array([head], known.dtype), known]))
    first = cast(head, dims.dtype) if isinstance(head, Tensor) else np.array(head, dims.dtype.np)
    return concat([reshape(first, [1]) if isinstance(head, Tensor) else first[None], dims], 0)


def _known(tensor: Tensor) -> Any:
    """The value of a host tensor if all of it is known."""
    value = static_value(tensor)
    if value is None or not is_static(tensor.spec.shape):
        return None
    array = np.array(value, object).reshape(tensor.spec.shape)
    return None if None in array.ravel().tolist() else array.astype(tensor.dtype.np)


def dims_of(tensor: Tensor) -> Any:
    """The shape: a tuple where it is known, else a tensor."""
    dims = tensor.spec.shape
    return dims if is_static(dims) else shape(tensor)


def joined(*parts: Any) -> Any:
    """Dimensions, concatenated: a tuple if all are known, else a tensor."""
    if all(isinstance(part, tuple) for part in parts):
        return tuple(d for part in parts for d in part)
    return concat([np.array(p, np.int32) if isinstance(p, tuple) else p for p in parts if p != ()], 0)


def with_inner_axes(batch: Tensor, count: int) -> Tensor:
    """A batch with ``count`` axes of size 1 inserted after the batch axis."""
    if not count:
        return batch
    dims = dims_of(batch)
    return reshape(batch, joined(dims[:1], (1,) * count, dims[1:]))


def with_last_axes(tensor: Tensor, count: int) -> Tensor:
    """The tensor with ``count`` axes of size 1 appended."""
    return reshape(tensor, joined(dims_of(tensor), (1,) * count)) if count else tensor


def merged_axes(batch: Tensor) -> Tensor:
    """The batch with its own axis and the first one of its elements as one."""
    dims = dims_of(batch)
    both = (dims[0] * dims[1],) if isinstance(dims, tuple) else reshape(dims[0] * dims[1], [1])
    return reshape(batch, joined(both, dims[2:]))


def split_axis(merged: Tensor, like: Tensor) -> Tensor:
    """The merged axis of `merged_axes` split in two again: those of the batch ``like``."""
    return reshape(merged, joined(dims_of(like)[:2], dims_of(merged)[1:]))


# --- rules of ops that read or write at indices


def gather(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    params, indices, (axis, _) = values
    batch_dims = op.get_attr("batch_dims")
    if not params.is_batched and batch_dims == 0 and static_value(axis) == 0:
        return b.apply(op, [params.tensor, indices.tensor, axis])
    if not indices.is_batched and batch_dims == 0:
        return b.apply(op, [params.tensor, indices.tensor, moved_axes(axis)])
    rank = rank_of(op.inputs[1])
    if batch_dims < 0 and rank is None:
        return None
    batch_dims += (rank or 0) if batch_dims < 0 else 0
    return b.apply(op, [b.whole(params), b.whole(indices), moved_axes(axis)], batch_dims=batch_dims + 1)


def gather_of_variable(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    if op.get_attr("batch_dims") != 0:
        return None
    return b.apply(op, [value.tensor for value in values])


def gather_nd(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    params, indices = values
    if not params.is_batched:
        return b.apply(op, [params.tensor, indices.tensor])
    numbered = _numbered(b, op.inputs[1], indices)
    return None if numbered is None else b.apply(op, [params.tensor, numbered])


def scatter_nd(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    indices, updates, (dims, _) = values
    numbered = _numbered(b, op.inputs[0], indices)
    return None if numbered is None else b.apply(op, [numbered, b.whole(updates), behind(b.size, dims)])


def tensor_scatter(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    tensor, indices, updates = values
    numbered = _numbered(b, op.inputs[1], indices)
    return None if numbered is None else b.apply(op, [b.whole(tensor), numbered, b.whole(updates)])


def _numbered(b: BatchBuilder, template: Tensor, indices: Value) -> Tensor | None:
    """Indices ``[..., k]`` of elements as ``[batch, ..., 1 + k]``, the element's number first."""
    rank = rank_of(template)
    if rank is None:
        return None
    whole = b.whole(indices)
    numbers = with_last_axes(cast(range_(b.size), whole.dtype), rank)
    return concat([broadcast_to(numbers, joined(dims_of(whole)[:-1], (1,))), whole], -1)


def segments(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Case of ids shared by all elements: the batch axis becomes one of the rows' axes, after the ids."""
    data, (ids, differ), *count = values
    rank, ids_rank = rank_of(op.inputs[0]), rank_of(op.inputs[1])
    if differ:
        return _unsorted_segments(b, op, values) if count else None
    if rank is None or ids_rank is None:
        return None
    axes = range(ids_rank + 1, rank + 1)
    rows = transpose(data.tensor, [*range(1, ids_rank + 1), 0, *axes])
    (folded,) = b.apply(op, [rows, ids, *[c.tensor for c in count]])
    return [Value(transpose(folded.tensor, [1, 0, *range(2, rank - ids_rank + 2)]), True)]


def _unsorted_segments(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Each element gets its own ``count`` segments of one concatenated row. A negative id is still ignored,
    and an id beyond the last segment is out of range for all elements.
    """
    data, ids, (count, _) = values
    rank = rank_of(op.inputs[1])
    if rank is None:
        return None
    whole, kind = ids.tensor, ids.tensor.dtype
    segments, numbers = cast(count, kind), with_last_axes(cast(range_(b.size), kind), rank)
    beyond = multiply(segments, cast(b.size, kind))
    placed = select_v2(less(whole, segments), add_v2(whole, multiply(numbers, segments)), beyond)
    placed = select_v2(less(whole, 0), whole, placed)
    (folded,) = b.apply(op, [b.whole(data), placed, cast(beyond, count.dtype)])
    dims = dims_of(folded.tensor)[1:]
    head = joined((b.size,)) if isinstance(b.size, int) else reshape(b.size, [1])
    known = static_value(count)
    each = (known,) if known is not None else reshape(cast(count, "int32"), [1])
    return [Value(reshape(folded.tensor, joined(head, each, dims)), True)]
