"""Shapes, and where elements are."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.emit.call import Call, emits

END = np.iinfo(np.int64).max


@emits("Shape", "ShapeN")
def shapes(c: Call, *inputs: str) -> list[str]:
    return [c.add("Shape", x) for x in inputs]


@emits("Size")
def size(c: Call, x: str) -> str:
    return c.add("Size", x)


@emits("Rank")
def rank(c: Call, x: str) -> str:
    return c.constant(np.array(c.rank(), np.int32))


@emits("Reshape")
def reshape(c: Call, x: str, sizes: str) -> str:
    shape = c.node.outputs[0].shape
    if shape is not None and sum(each is None for each in shape) <= (0 not in shape):
        return c.reshape(x, [-1 if each is None else each for each in shape])
    return c.add("Reshape", x, c.host_ints(1), allowzero=1)


@emits("ExpandDims")
def expand_dims(c: Call, x: str, axis: str) -> str:
    return c.unsqueeze(x, c.integers(1, "an axis"))


@emits("Squeeze")
def squeeze(c: Call, x: str) -> str:
    axes = list(c.attrs["squeeze_dims"]) or [i for i, size in enumerate(c.shape()) if size == 1]
    return c.squeeze(x, axes)


@emits("Transpose")
def transpose(c: Call, x: str, perm: str) -> str:
    return c.transpose(x, c.integers(1, "a permutation"))


@emits("InvertPermutation")
def inverted(c: Call, x: str) -> str:
    return c.several("TopK", 2, c.cast(x, np.int64), c.size_of(x, 0), largest=0, dtype=np.int64)[1]


@emits("Fill")
def fill(c: Call, sizes: str, value: str) -> str:
    return c.add("Expand", value, c.host_ints(0))


@emits("ZerosLike", "OnesLike")
def filled_like(c: Call, x: str) -> str:
    value: Any = b"" if c.dtype().kind == "O" else int(c.op == "OnesLike")
    return c.add("Expand", c.constant(np.array(value, c.dtype())), c.add("Shape", x))


@emits("BroadcastTo")
def broadcast(c: Call, x: str, sizes: str) -> str:
    return c.add("Expand", x, c.host_ints(1))


@emits("BroadcastArgs")
def broadcast_shapes(c: Call, a: str, b: str) -> str:
    """The larger of two sizes, of shapes of one length."""
    if c.dims(0) != c.dims(1) or None in c.dims(0):
        c.refuse("expected shapes of one rank: give the inputs sizes")
    return c.add("Max", c.host_ints(0), c.host_ints(1))


@emits("BroadcastGradientArgs")
def broadcast_axes(c: Call, a: str, b: str) -> str:
    return c.refuse("expected shapes that are known before the graph runs: give the inputs sizes")


# --- slices


@emits("Slice")
def slice_(c: Call, x: str, begin: str, size: str) -> str:
    axes = list(range(c.rank()))
    if not axes:
        return x
    if c.known[1] is not None and c.known[2] is not None:
        begins, sizes = c.integers(1, "begins"), c.integers(2, "sizes")
        ends = [END if s < 0 else b + s for b, s in zip(begins, sizes, strict=True)]
        return c.slice(x, begins, ends, axes)
    begins_name, sizes_name = c.host_ints(1), c.host_ints(2)
    is_rest = c.add("Less", sizes_name, c.ints([0]))
    ends_name = c.add("Where", is_rest, c.ints([END]), c.add("Add", begins_name, sizes_name))
    return c.add("Slice", x, begins_name, ends_name, c.ints(axes))


@emits("StridedSlice")
def strided_slice(c: Call, x: str, begin: str, end: str, strides: str) -> str:
    """A slice, then the removal of dimensions, then new ones."""
    steps = c.integers(3, "strides")
    entries = _entries(c, len(steps))
    axes = [(i, axis) for i, axis, kind in entries if kind in ("slice", "shrink")]
    shrunk = [axis for _, axis, kind in entries if kind == "shrink"]
    found = _sliced(c, x, axes, steps, set(shrunk))
    added, place = [], 0
    for _, _, kind in entries:
        if kind == "new":
            added.append(place)
        place += kind != "shrink"
    return c.unsqueeze(c.squeeze(found, shrunk), added)


def _entries(c: Call, count: int) -> list[tuple[int, int, str]]:
    """(position in begin, axis of the input, what to do) of each entry, the dimensions of an ellipsis
    included.
    """

    def has(mask: str, i: int) -> bool:
        return bool(c.attrs[f"{mask}_mask"] >> i & 1)

    news = sum(has("new_axis", i) and not has("ellipsis", i) for i in range(count))
    ellipses = [i for i in range(count) if has("ellipsis", i)]
    rest = c.rank() - (count - news - len(ellipses))
    found, axis = [], 0
    for i in range(count):
        if i in ellipses:
            found += [(i, axis + k, "all") for k in range(rest)]
            axis += rest
        elif has("new_axis", i):
            found.append((i, axis, "new"))
        else:
            found.append((i, axis, "shrink" if has("shrink_axis", i) else "slice"))
            axis += 1
    return found + [(count, k, "all") for k in range(axis, c.rank())]


def _sliced(c: Call, x: str, axes: list[tuple[int, int]], steps: list[int], shrunk: set[int]) -> str:
    if not axes:
        return x
    places = [i for i, _ in axes]
    along = [axis for _, axis in axes]
    taken = [1 if axis in shrunk else steps[i] for i, axis in axes]
    open_begin = [bool(c.attrs["begin_mask"] >> i & 1) and axis not in shrunk for i, axis in axes]
    open_end = [bool(c.attrs["end_mask"] >> i & 1) and axis not in shrunk for i, axis in axes]
    first = [0 if step > 0 else END for step in taken]
    last = [END if step > 0 else -END for step in taken]
    if c.known[1] is not None and (c.known[2] is not None or all(axis in shrunk for axis in along)):
        begins = c.integers(1, "begins")
        ends = c.integers(2, "ends") if c.known[2] is not None else begins
        starts = [first[k] if open_begin[k] else begins[i] for k, i in enumerate(places)]
        stops = [last[k] if open_end[k] else ends[i] for k, i in enumerate(places)]
        for k, axis in enumerate(along):
            if axis in shrunk:
                stops[k] = starts[k] + 1 or END
        if all((s, e, t) == (0, END, 1) for s, e, t in zip(starts, stops, taken, strict=True)):
            return x
        return c.slice(x, starts, stops, along, taken)
    gathered = [c.add("Gather", c.host_ints(k), c.ints(places)) for k in (1, 2)]
    flags = [np.array(each) for each in (open_begin, open_end, [a in shrunk for a in along])]
    starts_name = c.add("Where", c.constant(flags[0]), c.ints(first), gathered[0])
    behind = c.add("Add", starts_name, c.ints([1]))
    behind = c.add("Where", c.add("Equal", behind, c.ints([0])), c.ints([END]), behind)
    stops_name = c.add("Where", c.constant(flags[1]), c.ints(last), gathered[1])
    stops_name = c.add("Where", c.constant(flags[2]), behind, stops_name)
    return c.add("Slice", x, starts_name, stops_name, c.ints(along), c.ints(taken))


@emits("StridedSliceGrad")
def strided_slice_gradient(c: Call, sizes: str, begin: str, end: str, strides: str, dy: str) -> str:
    """The gradient at the places of the slice, 0 elsewhere."""
    shape = c.result_shape()
    index: list[Any] = []
    begins, ends, steps = (c.integers(i, "bounds of the slice") for i in (1, 2, 3))
    for i, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
        mask = {name: c.attrs[f"{name}_mask"] >> i & 1 for name in _MASKS}
        if mask["ellipsis"]:
            index.append(...)
        elif mask["new_axis"]:
            index.append(None)
        elif mask["shrink_axis"]:
            index.append(b)
        else:
            index.append(slice(None if mask["begin"] else b, None if mask["end"] else e, s))
    places = np.arange(int(np.prod(shape))).reshape(shape)[tuple(index)].reshape(-1)
    return _put(c, dy, places, shape)


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _put(c: Call, values: str, places: Any, shape: tuple[int, ...]) -> str:
    """Zeros of ``shape`` with ``values`` at flat ``places``; those of one place are added."""
    zeros = c.constant(np.zeros(int(np.prod(shape)), c.node.outputs[0].dtype.np))
    flat = c.reshape(values, [-1] if places.size else [0])
    found = c.add("ScatterElements", zeros, c.constant(places.astype(np.int64)), flat, reduction="add")
    return c.reshape(found, shape)


# --- joining and cutting


@emits("ConcatV2")
def concat(c: Call, *inputs: str) -> str:
    axis = c.integers(len(inputs) - 1, "an axis")[0]
    return inputs[0] if len(inputs) == 2 else c.add("Concat", *inputs[:-1], axis=axis)


@emits("Split")
def split(c: Call, axis: str, x: str) -> list[str]:
    count = c.attrs["num_split"]
    if count == 1:
        return [x]
    return c.several("Split", count, x, axis=c.integers(0, "an axis")[0], num_outputs=count)


@emits("SplitV")
def split_by_sizes(c: Call, x: str, sizes: str, axis: str) -> list[str]:
    along = c.integers(2, "an axis")[0]
    shapes = [each.shape for each in c.node.outputs]
    found = [None if shape is None else shape[along] for shape in shapes]
    vector = c.host_ints(1) if None in found else c.ints([each or 0 for each in found])
    return c.several("Split", c.attrs["num_split"], x, vector, axis=along)


@emits("Pack")
def stack(c: Call, *inputs: str) -> str:
    axis = c.attrs["axis"]
    return c.add("Concat", *(c.unsqueeze(x, [axis]) for x in inputs), axis=axis)


@emits("Unpack")
def unstack(c: Call, x: str) -> list[str]:
    axis, count = c.attrs["axis"], c.attrs["num"]
    parts = [x] if count == 1 else c.several("Split", count, x, axis=axis, num_outputs=count)
    return [c.squeeze(part, [axis]) for part in parts]


@emits("Tile")
def tile(c: Call, x: str, multiples: str) -> str:
    return c.add("Tile", x, c.host_ints(1))


# --- padding


@emits("Pad")
def pad(c: Call, x: str, paddings: str) -> str:
    return padded(c, x, c.number(b"" if c.dtype().kind == "O" else 0))


@emits("PadV2")
def pad_with(c: Call, x: str, paddings: str, value: str) -> str:
    return padded(c, x, value)


def padded(c: Call, x: str, value: str) -> str:
    """Pads are all of the begins, then all of the ends."""
    if c.known[1] is not None:
        pads = c.ints(np.asarray(c.known[1]).T.reshape(-1).tolist())
    else:
        pads = c.reshape(c.transpose(c.cast(c.names[1], np.int64), [1, 0]), [-1])
    return c.add("Pad", x, pads, value)


def _mirrored(c: Call, sizes: tuple[int, ...]) -> list[Any]:
    """The places in each dimension of these sizes that the padded one has."""
    pads = np.asarray(c.integers(1, "paddings")).reshape(-1, 2)
    mode: Any = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[c.attrs["mode"]]
    return [np.pad(np.arange(size), tuple(each), mode) for size, each in zip(sizes, pads, strict=True)]


@emits("MirrorPad")
def mirror_pad(c: Call, x: str, paddings: str) -> str:
    for axis, places in enumerate(_mirrored(c, c.shape())):
        if len(places) != c.shape()[axis]:
            x = c.add("Gather", x, c.ints(places), axis=axis)
    return x


@emits("MirrorPadGrad")
def mirror_pad_gradient(c: Call, dy: str, paddings: str) -> str:
    shape = c.result_shape()
    places = np.arange(int(np.prod(shape))).reshape(shape)
    for axis, along in enumerate(_mirrored(c, shape)):
        places = np.take(places, along, axis)
    return _put(c, dy, places.reshape(-1), shape)


# --- order


@emits("ReverseV2")
def reverse(c: Call, x: str, axes: str) -> str:
    along = c.integers(1, "axes")
    if not along:
        return x
    count = len(along)
    return c.slice(x, [-1] * count, [-END] * count, along, [-1] * count)


@emits("ReverseSequence")
def reverse_sequence(c: Call, x: str, lengths: str) -> str:
    """ONNX has time and batch as the first two dimensions."""
    time, batch = (axis % c.rank() for axis in (c.attrs["seq_dim"], c.attrs["batch_dim"]))
    order = [batch, time, *(i for i in range(c.rank()) if i not in (batch, time))]
    moved = c.transpose(x, order)
    found = c.add("ReverseSequence", moved, c.cast(lengths, np.int64), batch_axis=0, time_axis=1)
    return c.transpose(found, np.argsort(order).tolist())


@emits("Roll")
def roll(c: Call, x: str, shift: str, axis: str) -> str:
    for by, along in zip(c.integers(1, "shifts"), c.integers(2, "axes"), strict=True):
        size = c.shape()[along]
        if size and by % size:
            cut = size - by % size
            parts = c.slice(x, [cut], [END], [along]), c.slice(x, [0], [cut], [along])
            x = c.add("Concat", *parts, axis=along)
    return x


@emits("SpaceToDepth", "DepthToSpace")
def blocks(c: Call, x: str) -> str:
    is_last = c.attrs["data_format"] == "NHWC"
    found = c.add(c.op, c.transpose(x, [0, 3, 1, 2]) if is_last else x, blocksize=c.attrs["block_size"])
    return c.transpose(found, [0, 2, 3, 1]) if is_last else found


# --- ranges


@emits("Range")
def range_(c: Call, start: str, limit: str, delta: str) -> str:
    bounds = [each if c.rank(i) == 0 else c.reshape(each, []) for i, each in enumerate((start, limit, delta))]
    return c.add("Range", *bounds)


@emits("LinSpace")
def lin_space(c: Call, start: str, stop: str, count: str) -> str:
    steps = c.integers(2, "a number")[0]
    parts = c.constant((np.arange(steps) / max(1, steps - 1)).astype(c.dtype()))
    return c.add("Add", start, c.add("Mul", parts, c.add("Sub", stop, start)))


@emits("OneHot")
def one_hot(c: Call, indices: str, depth: str, on: str, off: str) -> str:
    """A comparison, so that an index outside has no element: ONNX's own counts negative ones from the end."""
    count, axis = c.integers(1, "a depth")[0], c.attrs["axis"]
    rank = c.rank() + 1
    axis = axis % rank
    column = [count if i == axis else 1 for i in range(rank)]
    numbers = c.reshape(c.constant(np.arange(count)), column)
    found = c.add("Equal", c.unsqueeze(c.cast(indices, np.int64), [axis]), numbers)
    return c.add("Where", found, on, off)
