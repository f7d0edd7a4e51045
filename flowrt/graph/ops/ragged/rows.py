"""Rows of ragged tensors: picked, joined, repeated and masked."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from flowrt.dtypes import DTypeLike, int32, int64
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant as dense_constant
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array import selection
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import range as dense_range
from flowrt.graph.ops.array.reductions import reduce_all, reduce_prod, reduce_sum
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.base.identities import cast, identity, static_value
from flowrt.graph.ops.base.shape_manipulation import expand_dims, rank, reshape, shape, size, transpose
from flowrt.graph.ops.elementwise import comparison
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import equal, less, not_equal, where_v2
from flowrt.graph.ops.elementwise.division import floordiv
from flowrt.graph.ops.elementwise.math import ceil
from flowrt.graph.ops.ragged.elementwise import map_flat_values, same_rows
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.ops.ragged.values import RaggedTensorValue, nested_value
from flowrt.graph.ops.text.assertions import Assert
from flowrt.graph.source import misuse


def constant(
    pylist: Any,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: Sequence[int] | None = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = int64,
) -> Any:
    """The ragged tensor of nested lists, of which the innermost ``inner_shape`` dimensions are dense.

    Raises `InvalidArgumentError` for elements at several depths, and rows that do not fit.

    Example:
        >>> tf.ragged.constant([[1, 2], [], [3]]).eval().to_list()
        [[1, 2], [], [3]]
    """
    with get_default_graph().name_scope(name or "RaggedConstant"):
        return _constants(nested_value(pylist, dtype, ragged_rank, inner_shape, row_splits_dtype))


def constant_value(
    pylist: Any,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: Sequence[int] | None = None,
    row_splits_dtype: DTypeLike = int64,
) -> Any:
    """Nested lists as a `RaggedTensorValue`, to feed."""
    return nested_value(pylist, dtype, ragged_rank, inner_shape, row_splits_dtype)


def _constants(value: Any) -> Any:
    if isinstance(value, RaggedTensorValue):
        return RaggedTensor(_constants(value.values), dense_constant(value.row_splits))
    return dense_constant(value)


def as_ragged(value: Any) -> Any:
    """A ragged tensor, or the tensor of ``value``."""
    if isinstance(value, RaggedTensorValue):
        return _constants(value)
    return value if isinstance(value, RaggedTensor) else convert_to_tensor(value)


def range(
    starts: Any,
    limits: Any = None,
    deltas: Any = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = int64,
) -> RaggedTensor:
    """Row i counts from ``starts[i]`` to before ``limits[i]`` by ``deltas[i]``; each of them may be a scalar.

    With one argument rows count from 0 up to it. A step raises `InvalidArgumentError` for a delta of 0.

    Example:
        >>> tf.ragged.range([1, 5], [3, 5]).eval().to_list()
        [[1, 2], []]
    """
    with get_default_graph().name_scope(name or "RaggedRange"):
        if limits is None:
            starts, limits = 0, starts
        tensors = [convert_to_tensor(value, dtype) for value in (starts, limits, deltas)]
        kind = next((t.dtype for t in tensors if t.dtype.is_floating), tensors[1].dtype)
        begins, ends, steps = (reshape(cast(t, kind), [-1]) for t in tensors)
        check = Assert(
            reduce_all(not_equal(steps, 0)), ["ragged.range: expected deltas other than 0; got", steps]
        )
        with get_default_graph().control_dependencies([check]):
            steps = identity(steps)
        distance = ends - begins + 0 * steps  # one for each row
        counts = cast(ceil(distance / steps), int64) if kind.is_floating else -floordiv(-distance, steps)
        lengths = maximum(cast(counts, row_splits_dtype), 0)
        rows = RaggedTensor.from_row_lengths(dense_range(reduce_sum(lengths)), lengths, validate=False)
        ids, columns = rows.value_rowids(), cast(rows.columns(), kind)
        first, step = (gather(value + 0 * distance, ids) for value in (begins, steps))
        return rows.with_values(first + columns * step)


# --- picked


def _gather(
    params: Any, indices: Any, validate_indices: bool | None = None, name: str | None = None,
    axis: Any = None, batch_dims: int = 0,
) -> Any:  # fmt: skip
    """The rows of ``params`` at ``indices``, of which one, or both, are ragged."""
    if axis not in (None, 0) or batch_dims:
        raise misuse(
            f"gather of ragged tensors: expected axis 0 and no batch_dims; got {axis}, {batch_dims}",
            UnimplementedError,
        )
    with get_default_graph().name_scope(name or "RaggedGather"):
        params, indices = as_ragged(params), as_ragged(indices)
        if isinstance(indices, RaggedTensor):
            return indices.with_values(_gather(params, indices.values))
        if not isinstance(params, RaggedTensor):
            return gather(params, indices)
        if indices.shape.ndims == 0:
            return params[indices]
        found = _rows_at(params, reshape(indices, [-1]))
        sizes = shape(indices, out_type=found.row_splits.dtype)
        for i in builtins.range((indices.shape.ndims or 1) - 1, 0, -1):
            found = RaggedTensor(found, dense_range(reduce_prod(sizes[:i]) + 1) * sizes[i])
        return found


def _rows_at(rows: RaggedTensor, places: Tensor) -> RaggedTensor:
    """The rows at the vector ``places``."""
    starts, limits = (gather(ends, places) for ends in (rows.row_starts(), rows.row_limits()))
    found = range(starts, limits, row_splits_dtype=rows.row_splits.dtype)
    return found.with_values(_gather(rows.values, found.values))


def _item(self: RaggedTensor, key: Any) -> Any:
    """Row ``key``; rows of a slice; in a tuple what comes next is for the rows' own dimensions, where the
    first is a slice, and for the row else.
    """
    first, *others = key if isinstance(key, tuple) else (key,)
    if first is Ellipsis or first is None:
        raise misuse(f"RaggedTensor: expected numbers and slices as places; got {key!r}", UnimplementedError)
    if not isinstance(first, slice):
        place = cast(convert_to_tensor(first), self.row_splits.dtype)
        place = where_v2(less(place, 0), place + self.nrows(), place)
        start, limit = gather(self.row_starts(), place), gather(self.row_limits(), place)
        row = self.values[start:limit]
        return row[tuple(others)] if others else row
    found = self if first == slice(None) else _rows_at(self, dense_range(self.nrows())[first])
    return _inner(found, others)


def _inner(rows: RaggedTensor, key: Sequence[Any]) -> RaggedTensor:
    """Each row at ``key``."""
    if not key:
        return rows
    first, *others = key
    if not isinstance(first, slice) or first.step not in (None, 1):
        raise misuse(
            f"RaggedTensor: expected a slice without steps for a ragged dimension; got {first!r}",
            UnimplementedError,
        )
    values = rows.values
    if others:
        values = (
            _inner(values, others) if isinstance(values, RaggedTensor) else values[(slice(None), *others)]
        )
    rows = rows.with_values(values)
    if first == slice(None):
        return rows
    lengths = rows.row_lengths()
    start, stop = (
        _within(end, lengths, default) for end, default in ((first.start, 0 * lengths), (first.stop, lengths))
    )
    begins = rows.row_starts()
    found = range(begins + start, begins + maximum(start, stop), row_splits_dtype=lengths.dtype)
    return found.with_values(_gather(values, found.values))


def _within(end: Any, lengths: Tensor, default: Tensor) -> Tensor:
    """An end of a slice as a place in each row."""
    if end is None:
        return default
    place = cast(convert_to_tensor(end), lengths.dtype) + 0 * lengths
    return minimum(maximum(where_v2(less(place, 0), place + lengths, place), 0), lengths)


# --- joined


def _expand_dims(
    input: RaggedTensor, axis: Any = None, name: str | None = None, dim: Any = None
) -> RaggedTensor:
    """A dimension of 1 at ``axis``; those up to the first ragged one become dimensions of rows."""
    place = _axis(input, dim if axis is None else axis, 1)
    if place == 0:
        return RaggedTensor(input, stack([0 * input.nrows(), input.nrows()]))
    if place == 1:
        return RaggedTensor(input, dense_range(input.nrows() + 1))
    inner = input.values
    return RaggedTensor(
        _expand_dims(inner, place - 1) if isinstance(inner, RaggedTensor) else expand_dims(inner, place - 1),
        input.row_splits,
    )


def _axis(rows: RaggedTensor, axis: Any, more: int = 0) -> int:
    rank = rows.shape.ndims
    if axis is None or (axis < 0 and rank is None):
        raise misuse(f"expected an axis from 0 on; got {axis}")
    return int(axis) + (rank or 0) + more if axis < 0 else int(axis)


def _concat(values: Any, axis: Any, name: str = "concat") -> Any:
    """Ragged tensors joined along ``axis``; dense ones among them are taken for ragged."""
    values = values if isinstance(values, (list, tuple)) else [values]
    with get_default_graph().name_scope(name or "RaggedConcat"):
        rank = max((v.ragged_rank for v in values if isinstance(v, RaggedTensor)), default=1)
        parts = [_of_rank(as_ragged(value), rank) for value in values]
        place = _axis(parts[0], axis)
        if place == 0:
            return _one_after_another(parts)
        if place == 1:
            return _side_by_side(parts)
        inner = [part.values for part in parts]
        joined = _concat(inner, place - 1) if rank > 1 else concat(inner, place - 1)
        with get_default_graph().control_dependencies(same_rows(parts)):
            return parts[0].with_values(joined if rank > 1 else identity(joined))


def _of_rank(value: Any, ragged_rank: int) -> RaggedTensor:
    if not isinstance(value, RaggedTensor):
        return RaggedTensor.from_tensor(value, ragged_rank=ragged_rank)
    if value.ragged_rank < ragged_rank:
        return value.with_values(_of_rank(value.values, ragged_rank - 1))
    return value


def _one_after_another(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    inner = [part.values for part in parts]
    values = _one_after_another(inner) if isinstance(inner[0], RaggedTensor) else concat(inner, 0)
    return RaggedTensor.from_row_lengths(
        values, concat([part.row_lengths() for part in parts], 0), validate=False
    )


def _side_by_side(parts: Sequence[RaggedTensor]) -> RaggedTensor:
    """Row i of all parts as one row."""
    count = parts[0].nrows()
    checks = [
        Assert(
            equal(count, part.nrows()), ["concat: expected as many rows in each; got", count, part.nrows()]
        )
        for part in parts[1:]
    ]
    with get_default_graph().control_dependencies(checks):
        count = identity(count)
    # all rows of the first part, then all of the second ...: row i of each is `count` behind the one before
    places = reshape(transpose(reshape(dense_range(count * len(parts)), [len(parts), -1])), [-1])
    rows = _rows_at(_one_after_another(parts), places)
    return RaggedTensor(rows.values, rows.row_splits[:: len(parts)])


def stack_rows(values: Sequence[Any], axis: int = 0, name: str = "stack") -> Any:
    """Ragged tensors along a new ``axis``.

    Example:
        >>> tf.ragged.stack([tf.constant([1, 2]), tf.constant([3])]).eval().to_list()
        [[1, 2], [3]]
    """
    values = values if isinstance(values, (list, tuple)) else [values]
    with get_default_graph().name_scope(name or "RaggedStack"):
        parts = [as_ragged(value) for value in values]
        if all(not isinstance(part, RaggedTensor) and part.shape.ndims == 1 for part in parts):
            rows = concat(parts, 0)
            lengths = stack([size(part) for part in parts])
            if axis == 0:
                return RaggedTensor.from_row_lengths(rows, lengths, validate=False)
        rank = max((part.ragged_rank for part in parts if isinstance(part, RaggedTensor)), default=1)
        parts = [_of_rank(part, rank) for part in parts]
        place = _axis(parts[0], axis, 1)
        return _concat([_expand_dims(part, place) for part in parts], place)


def _tile(input: RaggedTensor, multiples: Any, name: str | None = None) -> RaggedTensor:
    """``input`` repeated along each dimension, by numbers that are known while the graph is built."""
    counts = static_value(convert_to_tensor(multiples))
    if counts is None:
        raise misuse("tile of ragged tensors: expected constant multiples", UnimplementedError)
    found = input
    for axis, count in enumerate(counts):
        if count != 1:
            found = _concat([found] * count, axis)
    return found


# --- masked


def boolean_mask(data: Any, mask: Any, name: str | None = None) -> Any:
    """The elements of ``data`` where ``mask`` is true, in the rows of ``mask``: of which one has as many
    dimensions less as ``mask`` has more than one. Both have the same rows.

    Example:
        >>> rows = tf.ragged.constant([[1, 2], [3]])
        >>> tf.ragged.boolean_mask(rows, tf.ragged.constant([[True, False], [True]])).eval().to_list()
        [[1], [3]]
    """
    with get_default_graph().name_scope(name or "RaggedMask"):
        data, mask = as_ragged(data), as_ragged(mask)
        if not isinstance(mask, RaggedTensor) and (mask.shape.ndims or 1) > 1:
            mask = RaggedTensor.from_tensor(mask, ragged_rank=mask.shape.ndims - 1)
        if not isinstance(mask, RaggedTensor):
            if isinstance(data, RaggedTensor):
                return _rows_at(data, cast(comparison.where(mask)[:, 0], data.row_splits.dtype))
            return selection.boolean_mask(data, mask)
        data = _of_rank(data, mask.ragged_rank)
        with get_default_graph().control_dependencies(
            same_rows([data.with_values(mask.row_splits), mask.with_values(mask.row_splits)])
        ):
            ids = identity(mask.value_rowids())
        kept = boolean_mask(data.values, mask.values)
        if isinstance(mask.values, RaggedTensor):
            return mask.with_values(kept)
        lengths = unsorted_segment_sum(cast(mask.values, mask.row_splits.dtype), ids, mask.nrows())
        return RaggedTensor.from_row_lengths(kept, lengths, validate=False)


def _boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: Any = None) -> Any:
    if axis not in (None, 0):
        raise misuse(f"boolean_mask of ragged tensors: expected axis 0; got {axis}", UnimplementedError)
    return boolean_mask(tensor, mask, name=name)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """x where ``condition`` holds, else y, all of the same rows; without x and y the places of the true
    elements, [n, rank].
    """
    with get_default_graph().name_scope(name or "RaggedWhere"):
        condition = as_ragged(condition)
        if (x is None) != (y is None):
            raise misuse("where: expected x and y, or neither; got one of them")
        if x is None:
            if not isinstance(condition, RaggedTensor):
                return comparison.where(condition)
            return selection.boolean_mask(condition.coordinates(), condition.flat_values)
        if isinstance(condition, RaggedTensor):
            return map_flat_values(comparison.where, condition, as_ragged(x), as_ragged(y))
        rows = _one_after_another([_of_rank(as_ragged(v), 1) for v in (x, y)])
        count = rows.nrows() // 2
        return _rows_at(rows, where_v2(condition, dense_range(count), dense_range(count) + count))


def _size(input: RaggedTensor, name: str | None = None, out_type: DTypeLike = int32) -> Tensor:
    return size(input.flat_values, name, out_type)


def _rank(input: RaggedTensor, name: str | None = None) -> Tensor:
    return rank(input.flat_values) + input.ragged_rank


RaggedTensor.own_functions.update({
    "__getitem__": _item, "gather": _gather, "expand_dims": _expand_dims, "concat": _concat,
    "stack": stack_rows, "Tile": _tile,
    "boolean_mask": _boolean_mask, "where": where, "where_v2": where, "size": _size, "rank": _rank,
})  # fmt: skip
