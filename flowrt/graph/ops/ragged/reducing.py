"""Sums, means and extremes of ragged tensors along dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import int32
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array import reductions
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.segments import (
    unsorted_segment_max,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sum,
)
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import logical_not
from flowrt.graph.ops.ragged.elementwise import map_flat_values
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.source import misuse

Reduce = Callable[..., Any]


def _reduced(dense: Reduce, segments: Reduce, rows: Any, axis: Any, keepdims: Any) -> Any:
    """``rows`` reduced along ``axis``: by ``dense``, or by ``segments`` where a dimension is ragged."""
    if not isinstance(rows, RaggedTensor):
        return dense(rows, axis, keepdims=bool(keepdims))
    if axis is None:
        return dense(rows.flat_values, None)
    axes = [axis] if not isinstance(axis, (list, tuple)) else list(axis)
    rank = rows.shape.ndims
    if rank is None and any(place < 0 for place in axes):
        raise misuse(f"expected axes from 0 on, for an unknown rank; got {axes}")
    places = sorted({place + (rank or 0) if place < 0 else place for place in axes}, reverse=True)
    found: Any = rows
    for place in places:
        found = _along(dense, segments, found, place)
        if keepdims:
            found = expand_dims(found, place)
    return found


def _along(dense: Reduce, segments: Reduce, rows: Any, axis: int) -> Any:
    if not isinstance(rows, RaggedTensor):
        return dense(rows, axis)
    if axis > 1:
        return rows.with_values(_along(dense, segments, rows.values, axis - 1))
    if axis == 1:
        return _by_segments(segments, rows.values, rows.value_rowids(), rows.nrows())
    lengths = rows.row_lengths()
    width = reductions.reduce_max(concat([0 * rows.row_splits[:1], lengths], 0))
    return _by_segments(segments, rows.values, rows.columns(), width)


def _by_segments(segments: Reduce, data: Any, ids: Tensor, count: Tensor) -> Any:
    """The rows of ``data`` with the same id as one row: ragged ones element by element."""
    if not isinstance(data, RaggedTensor):
        return segments(data, ids, cast(count, int32))
    lengths = maximum(unsorted_segment_max(data.row_lengths(), ids, cast(count, int32)), 0)
    found = RaggedTensor.from_row_lengths(data.columns()[:0], lengths, validate=False)
    places = gather(found.row_starts(), gather(ids, data.value_rowids())) + data.columns()
    total = found.row_splits[-1]
    return found.with_values(_by_segments(segments, data.values, places, total))


def _reducer(name: str, segments: Reduce) -> Reduce:
    dense = getattr(reductions, name)

    def reduce(
        input_tensor: Any, axis: Any = None, keepdims: Any = None, name: str | None = None,
        reduction_indices: Any = None, keep_dims: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        with get_default_graph().name_scope(name or "RaggedReduce"):
            along = reduction_indices if axis is None else axis
            return _reduced(dense, segments, input_tensor, along, keep_dims if keepdims is None else keepdims)

    return reduce


_sum = _reducer("reduce_sum", unsorted_segment_sum)


def _mean(
    input_tensor: Any, axis: Any = None, keepdims: Any = None, name: str | None = None, **others: Any
) -> Any:
    with get_default_graph().name_scope(name or "RaggedReduceMean"):
        total = _sum(input_tensor, axis, keepdims, **others)
        count = _sum(map_flat_values(ones_like, input_tensor), axis, keepdims, **others)
        if isinstance(total, RaggedTensor):
            return total.with_flat_values(total.flat_values / count.flat_values)
        return total / count


def _any(
    input_tensor: Any, axis: Any = None, keepdims: Any = None, name: str | None = None, **others: Any
) -> Any:
    with get_default_graph().name_scope(name or "RaggedReduceAny"):
        total = _sum(map_flat_values(cast, input_tensor, dtype=int32), axis, keepdims, **others)
        return map_flat_values(lambda n: n > 0, total)


def _all(
    input_tensor: Any, axis: Any = None, keepdims: Any = None, name: str | None = None, **others: Any
) -> Any:
    with get_default_graph().name_scope(name or "RaggedReduceAll"):
        found = _any(map_flat_values(logical_not, input_tensor), axis, keepdims, **others)
        return map_flat_values(logical_not, found)


RaggedTensor.own_functions.update({
    "reduce_sum": _sum, "reduce_mean": _mean, "reduce_any": _any, "reduce_all": _all,
    "reduce_prod": _reducer("reduce_prod", unsorted_segment_prod),
    "reduce_max": _reducer("reduce_max", unsorted_segment_max),
    "reduce_min": _reducer("reduce_min", unsorted_segment_min),
})  # fmt: skip
