"""Gathers, scatters, segments, and choices by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.emit.call import Call, emits


@emits("GatherV2", "ResourceGather")
def gather(c: Call, params: str, indices: str, axis: str = "") -> str:
    """A Gather; with dimensions in common a GatherND, which takes coordinates."""
    along = c.integers(2, "an axis")[0] if axis else 0
    rank, batch = len(_shape_of_params(c)), int(c.attrs.get("batch_dims", 0))
    along, batch = along % max(rank, 1), batch % max(c.rank(1), 1) if batch < 0 else batch
    if not batch:
        return c.add("Gather", params, c.cast(indices, np.int64), axis=along)
    order = [*range(batch), along, *(i for i in range(batch, rank) if i != along)]
    coordinates = c.unsqueeze(c.cast(indices, np.int64), [-1])
    found = c.add("GatherND", c.transpose(params, order), coordinates, batch_dims=batch)
    own = c.rank(1) - batch  # dimensions of the indices alone, which now come first
    before = along - batch
    moved = [*range(batch), *(batch + own + i for i in range(before)), *range(batch, batch + own)]
    return c.transpose(found, [*moved, *range(batch + own + before, c.rank(1) + rank - batch - 1)])


def _shape_of_params(c: Call) -> Any:
    value = c.value(0)
    return c.dims(0) if value is None else value.shape


@emits("GatherNd")
def gather_nd(c: Call, params: str, indices: str) -> str:
    if c.dims(1)[-1] == 0:
        shape = c.add("Concat", c.ints(c.shape(1)[:-1]), c.ints(c.shape(0)), axis=0)
        return c.add("Expand", params, shape)
    return c.add("GatherND", params, c.cast(indices, np.int64))


@emits("ScatterNd")
def scatter_nd(c: Call, indices: str, updates: str, shape: str) -> str:
    zeros = c.add("Expand", c.number(0, c.dtype(1)), c.host_ints(2))
    return c.add("ScatterND", zeros, c.cast(indices, np.int64), updates, reduction="add")


@emits("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub")
def tensor_scatter(c: Call, x: str, indices: str, updates: str) -> str:
    updates = c.add("Neg", updates) if c.op == "TensorScatterSub" else updates
    how = {} if c.op == "TensorScatterUpdate" else {"reduction": "add"}
    return c.add("ScatterND", x, c.cast(indices, np.int64), updates, **how)


@emits("SparseToDense")
def sparse_to_dense(c: Call, indices: str, shape: str, values: str, default: str) -> str:
    size = c.shape(0)
    rows = c.reshape(c.cast(indices, np.int64), [size[0] if size else 1, size[1] if len(size) == 2 else 1])
    spread = c.add("Expand", values, c.ints([size[0] if size else 1]))
    return c.add("ScatterND", c.add("Expand", default, c.host_ints(1)), rows, spread)


@emits("Bincount")
def bin_count(c: Call, x: str, size: str, weights: str) -> str:
    """Numbers from ``size`` on count for a bin that is cut off."""
    count = c.integers(1, "a size")[0]
    flat = c.reshape(c.cast(x, np.int64), [-1])
    places = c.add("Min", flat, c.ints([count]))
    kind = c.dtype(2)
    one = c.add("Expand", c.number(1, kind), c.add("Shape", flat))
    counted = c.reshape(weights, [-1]) if 0 not in c.shape(2) or 0 in c.shape(0) else one
    zeros = c.constant(np.zeros(count + 1, kind))
    found = c.add("ScatterElements", zeros, places, counted, reduction="add")
    return c.slice(found, [0], [count], [0])


# --- segments

_REDUCTIONS = {"Sum": "add", "Prod": "mul", "Max": "max", "Min": "min", "Mean": "add"}


def _first(kind: str, dtype: np.dtype[Any]) -> Any:
    """The value of a segment without elements."""
    if kind in ("Sum", "Mean"):
        return 0
    if kind == "Prod":
        return 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if kind == "Max" else np.iinfo(dtype).max
    import ml_dtypes

    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return limits.min if kind == "Max" else limits.max


def _segments(c: Call, data: str, ids: str, kind: str, count: str, first: Any) -> str:
    """Rows of ``count`` segments, a vector of one number; rows with negative numbers are in none."""
    inner = c.dims(0)[c.rank(1) :]
    wide = c.cast(ids, np.int64)
    outside = c.add("Less", wide, c.constant(np.array(0)))
    places = c.add("Where", outside, c.reshape(count, []), wide)
    rest = c.add("Shape", data, start=c.rank(1))
    one_more = c.add("Add", count, c.ints([1]))
    shape = c.add("Concat", one_more, rest, axis=0) if inner else one_more
    start = c.add("Expand", c.number(first), shape)
    coordinates = c.unsqueeze(places, [-1])
    found = c.add("ScatterND", start, coordinates, data, reduction=_REDUCTIONS[kind])
    return c.add("Slice", found, c.ints([0]), count, c.ints([0]))


@emits("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted_segments(c: Call, data: str, ids: str, count: str) -> str:
    kind = c.op.removeprefix("UnsortedSegment")
    return _segments(c, data, ids, kind, c.reshape(c.host_ints(2), [1]), _first(kind, c.dtype()))


@emits("SegmentSum", "SegmentProd", "SegmentMax", "SegmentMin", "SegmentMean")
def segments(c: Call, data: str, ids: str) -> str:
    """Segments up to the last number; 0 for one without elements, 1 for a product."""
    kind = c.op.removeprefix("Segment")
    if c.dims(1) == (0,):
        return data
    last = c.slice(c.cast(ids, np.int64), [-1], [np.iinfo(np.int64).max], [0])
    count = c.add("Add", last, c.ints([1]))
    found = _segments(c, data, ids, kind, count, _first(kind, c.dtype()))
    if kind in ("Sum", "Prod"):
        return found
    column = [-1, *[1] * (c.rank() - 1)]
    ones = c.add("Expand", c.constant(np.array(1)), c.add("Shape", ids))
    zeros = c.add("Expand", c.constant(np.array(0)), count)
    numbers = c.unsqueeze(c.cast(ids, np.int64), [-1])
    sizes = c.reshape(c.add("ScatterND", zeros, numbers, ones, reduction="add"), column)
    if kind == "Mean":
        return c.add("Div", found, c.cast(c.add("Max", sizes, c.constant(np.array(1))), c.dtype()))
    return c.add("Where", c.add("Equal", sizes, c.constant(np.array(0))), c.number(0), found)


# --- by value


@emits("Where")
def where(c: Call, x: str) -> str:
    if c.rank() == 0:
        return c.refuse("ONNX has no coordinates of a scalar: reshape it to a vector")
    return c.transpose(c.add("NonZero", x, dtype=np.int64), [1, 0])


@emits("DynamicPartition")
def partition(c: Call, data: str, numbers: str) -> list[str]:
    rest = c.rank(0) - c.rank(1)
    flat = c.reshape(numbers, [-1])
    whole = c.add("Concat", c.ints([-1]), c.add("Shape", data, start=c.rank(1)), axis=0) if rest else None
    rows = c.reshape(data, [-1]) if whole is None else c.add("Reshape", data, whole)
    found = []
    for number in range(c.attrs["num_partitions"]):
        chosen = c.add("Equal", flat, c.constant(np.array(number, np.int32)))
        found.append(c.add("Compress", rows, chosen, axis=0))
    return found


@emits("TopKV2")
def top_k(c: Call, x: str, k: str) -> list[str]:
    return _top(c, x, c.reshape(c.host_ints(1), [1]))


def _top(c: Call, x: str, count: str) -> list[str]:
    values, places = c.several("TopK", 2, x, count, axis=-1)
    return [values, c.writer.typed(places, np.int64)]


@emits("InTopKV2")
def in_top_k(c: Call, predictions: str, targets: str, k: str) -> str:
    """True where the target is a class, all predictions are finite, and fewer than k are above its own."""
    classes = c.dims()[1]
    if classes is None:
        c.refuse("expected a known number of classes: give the inputs sizes")
    wide = c.cast(targets, np.int64)
    column = c.unsqueeze(wide, [1])
    is_own = c.add("Equal", column, c.ints(range(classes)))
    own = c.reduce("ReduceMax", c.add("Where", is_own, predictions, c.number(-np.inf)), [1], keep=True)
    above = c.cast(c.add("Greater", predictions, own), np.int64)
    fewer = c.add("Less", c.reduce("ReduceSum", above, [1]), c.host_ints(2))
    odd = c.cast(c.add("Or", c.add("IsNaN", predictions), c.add("IsInf", predictions)), np.int32)
    is_finite = c.add("Equal", c.reduce("ReduceSum", odd, [1]), c.number(0, np.int32))
    is_class = c.add(
        "And", c.add("GreaterOrEqual", wide, c.ints([0])), c.add("Less", wide, c.ints([classes]))
    )
    return c.add("And", c.add("And", fewer, is_finite), is_class)


@emits("LowerBound", "UpperBound")
def bound(c: Call, rows: str, values: str) -> str:
    """The number of elements of a row that are smaller (or equal)."""
    op = "Less" if c.op == "LowerBound" else "LessOrEqual"
    smaller = c.add(op, c.unsqueeze(rows, [1]), c.unsqueeze(values, [2]))
    return c.reduce("ReduceSum", c.cast(smaller, np.int64), [2])


@emits("Unique", "UniqueWithCounts")
def unique(c: Call, x: str) -> list[str]:
    values, _, places, counts = c.several("Unique", 4, x, sorted=0)
    found = [values, c.writer.typed(places, np.int64), c.writer.typed(counts, np.int64)]
    return found if c.op == "UniqueWithCounts" else found[:2]


# --- boxes


@emits("NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5")
def suppressed(c: Call, boxes: str, scores: str, most: str, *thresholds: str) -> list[str]:
    if c.attrs.get("pad_to_max_output_size"):
        c.refuse("ONNX does not pad the boxes: pad them behind the model")
    if len(thresholds) == 3 and (c.value(5) is None or float(c.value(5))):
        c.refuse("ONNX has no soft suppression: use a soft_nms_sigma of 0")
    given = [c.unsqueeze(c.cast(boxes, np.float32), [0]), c.unsqueeze(c.cast(scores, np.float32), [0, 1])]
    limits = [c.reshape(c.cast(each, np.float32), [1]) for each in thresholds[:2]]
    found = c.add("NonMaxSuppression", *given, c.reshape(c.host_ints(2), [1]), *limits, dtype=np.int64)
    places = c.squeeze(c.slice(found, [2], [3], [1]), [1])
    if c.op in ("NonMaxSuppressionV2", "NonMaxSuppressionV3"):
        return [places]
    count = c.add("Size", places)
    return (
        [places, count] if c.op == "NonMaxSuppressionV4" else [places, c.add("Gather", scores, places), count]
    )


@emits("NonMaxSuppressionByClass")
def suppressed_by_class(c: Call, boxes: str, scores: str, most: str, overlap: str, least: str) -> str:
    limits = [c.reshape(each, [1]) for each in (overlap, least)]
    return c.add("NonMaxSuppression", boxes, scores, c.reshape(c.host_ints(2), [1]), *limits, dtype=np.int64,
                 center_point_box=int(c.attrs["center_point_box"]))  # fmt: skip
