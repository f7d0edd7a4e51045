"""Shapes, and where elements are."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import (
    MAX_FOLDED,
    Value,
    axes_of,
    axis_of,
    dtype_of,
    has_static_shape,
    is_known,
    rank_of,
    shape_of,
)


@handles("Shape")
def shape(node: Node, x: Value) -> Value:
    if not has_static_shape(x):
        sizes: Any = tf.shape(x, out_type=tf.int64)
        return sizes[
            _bound(node.get("start", 0), rank_of(x)) : _bound(node.get("end", rank_of(x)), rank_of(x))
        ]
    sizes = shape_of(x)
    start, end = (_bound(node.get(n, d), len(sizes)) for n, d in (("start", 0), ("end", len(sizes))))
    return np.array(sizes[start:end], np.int64)


def _bound(position: int, rank: int) -> int:
    return min(max(axis_of(position, rank), 0), rank)


@handles("Size")
def size(node: Node, x: Value) -> Value:
    if not has_static_shape(x):
        return tf.size(x, out_type=tf.int64)
    return np.array(np.prod(shape_of(x), dtype=np.int64))


@handles("Reshape")
def reshape(node: Node, x: Value, sizes: Value) -> Value:
    """A 0 stands for the size that is there, unless ``allowzero``."""
    if not is_known(sizes) and node.get("allowzero", 0):
        return tf.reshape(x, sizes)
    wanted = node.integers(sizes, "a shape")
    if not node.get("allowzero", 0):
        for i, each in enumerate(wanted):
            if each == 0:
                wanted[i] = shape_of(x)[i]
    return tf.reshape(x, wanted)


@handles("Flatten")
def flatten(node: Node, x: Value) -> Value:
    sizes = shape_of(x)
    axis = axis_of(node.get("axis", 1), len(sizes))
    return tf.reshape(x, [int(np.prod(sizes[:axis])), int(np.prod(sizes[axis:]))])


@handles("Squeeze")
def squeeze_by_attribute(node: Node, x: Value) -> Value:
    return squeeze(node, x, np.array(node.get("axes")) if "axes" in node.attrs else None)


@handles("Squeeze", since=13)
def squeeze(node: Node, x: Value, axes: Value = None) -> Value:
    if axes is None:
        return tf.squeeze(x)
    return tf.squeeze(x, axes_of(node.integers(axes, "axes"), rank_of(x)))


@handles("Unsqueeze")
def unsqueeze_by_attribute(node: Node, x: Value) -> Value:
    return unsqueeze(node, x, np.array(node.get("axes")))


@handles("Unsqueeze", since=13)
def unsqueeze(node: Node, x: Value, axes: Value) -> Value:
    found = node.integers(axes, "axes")
    for axis in sorted(axes_of(found, rank_of(x) + len(found))):
        x = tf.expand_dims(x, axis)
    return x


@handles("Transpose")
def transpose(node: Node, x: Value) -> Value:
    return tf.transpose(x, node.get("perm") or list(reversed(range(rank_of(x)))))


@handles("Concat")
def concat(node: Node, *inputs: Value) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(inputs[0]))
    return inputs[0] if len(inputs) == 1 else tf.concat(list(inputs), axis)


@handles("Split")
def split_by_attribute(node: Node, x: Value) -> Value:
    return split(node, x, np.array(node.get("split")) if "split" in node.attrs else None)


@handles("Split", since=13)
def split(node: Node, x: Value, sizes: Value = None) -> Value:
    """Parts of these sizes, or as many equal ones as outputs, of which the last may be smaller."""
    axis = axis_of(node.get("axis", 0), rank_of(x))
    if sizes is None:
        parts, whole = node.get("num_outputs", len(node.outputs)), shape_of(x)[axis]
        each = -(-whole // parts)
        found = [each] * (parts - 1) + [whole - each * (parts - 1)]
    else:
        found = node.integers(sizes, "sizes")
    return tuple(tf.split(x, found, axis)) if len(found) > 1 else (x,)


@handles("Slice")
def slice_by_attributes(node: Node, x: Value) -> Value:
    axes = node.get("axes")
    return slice_(
        node,
        x,
        np.array(node.get("starts")),
        np.array(node.get("ends")),
        None if axes is None else np.array(axes),
    )


@handles("Slice", since=10)
def slice_(
    node: Node, x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None
) -> Value:
    """Bounds beyond the ends are the ends, as Python's."""
    if not (is_known(starts) and is_known(ends)):
        return _sliced_at_run_time(node, x, starts, ends, axes, steps)
    begins = node.integers(starts, "starts")
    stops = node.integers(ends, "ends")
    along = range(len(begins)) if axes is None else axes_of(node.integers(axes, "axes"), rank_of(x))
    strides = [1] * len(begins) if steps is None else node.integers(steps, "steps")
    index: list[Any] = [slice(None)] * rank_of(x)
    for axis, begin, stop, stride in zip(along, begins, stops, strides, strict=True):
        size = shape_of(x)[axis]
        begin, stop, stride = slice(begin, stop, stride).indices(size)
        index[axis] = slice(begin, None if stop < 0 else stop, stride)
    return tf.convert_to_tensor(x)[tuple(index)]


def _sliced_at_run_time(node: Node, x: Value, starts: Value, ends: Value, axes: Value, steps: Value) -> Value:
    """The slice with bounds that are known when the graph runs."""
    count = shape_of(starts)[0]
    along = range(count) if axes is None else axes_of(node.integers(axes, "axes"), rank_of(x))
    strides = [1] * count if steps is None else node.integers(steps, "steps")
    bounds = [tf.convert_to_tensor(each) for each in (starts, ends)]
    index: list[Any] = [slice(None)] * rank_of(x)
    for i, axis in enumerate(along):
        index[axis] = slice(bounds[0][i], bounds[1][i], strides[i])
    return tf.convert_to_tensor(x)[tuple(index)]


@handles("Expand")
def expand(node: Node, x: Value, sizes: Value) -> Value:
    wanted = np.broadcast_shapes(tuple(shape_of(x)), tuple(node.integers(sizes, "a shape")))
    return tf.broadcast_to(x, list(wanted))


@handles("Tile")
def tile(node: Node, x: Value, repeats: Value) -> Value:
    return tf.tile(x, node.integers(repeats, "repeats"))


@handles("ConstantOfShape")
def constant_of_shape(node: Node, sizes: Value) -> Value:
    value = node.get("value", np.zeros(1, np.float32)).reshape(())
    return tf.fill(node.integers(sizes, "a shape"), value)


@handles("Constant")
def constant(node: Node) -> Value:
    for name, value in node.attrs.items():
        match name:
            case "value":
                return value
            case "value_int" | "value_ints":
                return np.array(value, np.int64)
            case "value_float" | "value_floats":
                return np.array(value, np.float32)
            case "value_string":
                return np.array(value.encode(), object)
            case "value_strings":
                return np.array([*[each.encode() for each in value], None], object)[:-1]
    return node.refuse(f"expected a dense value; got {sorted(node.attrs)}")


@handles("EyeLike")
def eye_like(node: Node, x: Value) -> Value:
    rows, columns = shape_of(x)
    kind = dtype_of_element(node.get("dtype")) if "dtype" in node.attrs else dtype_of(x)
    return np.eye(rows, columns, node.get("k", 0)).astype(kind)


@handles("Range")
def range_(node: Node, start: Value, limit: Value, delta: Value) -> Value:
    if is_known(start) and is_known(limit) and is_known(delta):
        bounds: Any = [np.reshape(each, ())[()] for each in (start, limit, delta)]
        if abs((float(bounds[1]) - float(bounds[0])) / float(bounds[2])) > MAX_FOLDED:
            return tf.range(*bounds)
        return np.arange(*bounds).astype(dtype_of(start))
    return tf.range(*(tf.reshape(each, []) for each in (start, limit, delta)))


@handles("Trilu")
def trilu(node: Node, x: Value, k: Value = None) -> Value:
    offset = 0 if k is None else node.integers(k, "k")[0]
    rows, columns = shape_of(x)[-2:]
    below = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    keep = below >= offset if node.get("upper", 1) else below <= offset
    return tf.where_v2(keep, x, np.zeros((), dtype_of(x)))


@handles("DepthToSpace")
def depth_to_space(node: Node, x: Value) -> Value:
    n, c, h, w = shape_of(x)
    block = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        parts = tf.transpose(tf.reshape(x, [n, c // block**2, block, block, h, w]), [0, 1, 4, 2, 5, 3])
    else:
        parts = tf.transpose(tf.reshape(x, [n, block, block, c // block**2, h, w]), [0, 3, 4, 1, 5, 2])
    return tf.reshape(parts, [n, c // block**2, h * block, w * block])


@handles("SpaceToDepth")
def space_to_depth(node: Node, x: Value) -> Value:
    n, c, h, w = shape_of(x)
    block = node.get("blocksize")
    parts = tf.reshape(x, [n, c, h // block, block, w // block, block])
    order = [0, 1, 3, 5, 2, 4] if node.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return tf.reshape(tf.transpose(parts, order), [n, c * block**2, h // block, w // block])


@handles("Pad")
def pad_by_attributes(node: Node, x: Value) -> Value:
    value = np.asarray(node.get("value", 0.0), dtype_of(x))
    return pad(node, x, np.array(node.get("pads", node.get("paddings"))), value)


@handles("Pad", since=11)
def pad(node: Node, x: Value, pads: Value, value: Value = None, axes: Value = None) -> Value:
    """Along ``axes``, all by default; negative ones cut."""
    rank = rank_of(x)
    along = range(rank) if axes is None else axes_of(node.integers(axes, "axes"), rank)
    given = node.integers(pads, "pads")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(along):
        before[axis], after[axis] = given[i], given[len(given) // 2 + i]
    return padded(x, before, after, node.get("mode", "constant"), value)


def padded(
    x: Value, before: list[int], after: list[int], mode: str = "constant", value: Value = None
) -> Value:
    """``x`` with elements before and after each dimension, or cut where they are negative."""
    sizes = shape_of(x)
    if any(n < 0 for n in (*before, *after)):
        index = tuple(slice(max(0, -b), s - max(0, -a)) for b, a, s in zip(before, after, sizes, strict=True))
        x = tf.convert_to_tensor(x)[index]
        before, after = [max(0, b) for b in before], [max(0, a) for a in after]
    if not any((*before, *after)):
        return x
    if mode == "constant":
        fill = np.zeros((), dtype_of(x)) if value is None else value
        return tf.pad(x, list(zip(before, after, strict=True)), constant_values=tf.reshape(fill, []))
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b or a:  # by places: any number of elements, with NumPy's rule
            rule: Any = mode
            places = np.pad(np.arange(shape_of(x)[axis]), (b, a), rule)
            x = tf.gather(x, places, axis=axis)
    return x


@handles("ReverseSequence")
def reverse_sequence(node: Node, x: Value, lengths: Value) -> Value:
    return tf.reverse_sequence(
        x, lengths, seq_axis=node.get("time_axis", 0), batch_axis=node.get("batch_axis", 1)
    )
