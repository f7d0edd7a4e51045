"""Windows: pools, their inverses, regions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.ops.convolution import FORMATS, window_pads
from flowrt.onnx.ops.sampling import corners_at
from flowrt.onnx.ops.shaping import padded
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, rank_of, shape_of


def _windows(node: Node, x: Value) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations, and pads before and after, with what ``ceil_mode`` adds behind."""
    kernel = list(node.get("kernel_shape"))
    spatial, sizes = len(kernel), shape_of(x)[2:]
    strides = list(node.get("strides", [1] * spatial))
    dilations = list(node.get("dilations", [1] * spatial))
    before, after = window_pads(node, sizes, kernel, strides, dilations)
    after = list(after)
    if node.get("ceil_mode", 0):
        for i, size in enumerate(sizes):
            span = (kernel[i] - 1) * dilations[i] + 1
            count = -(-(size + before[i] + after[i] - span) // strides[i]) + 1
            if (count - 1) * strides[i] >= size + before[i]:  # it would begin in what is behind
                count -= 1
            after[i] = max(after[i], (count - 1) * strides[i] + span - size - before[i])
    return kernel, strides, dilations, list(before), after


def window_stack(x: Value, kernel: Any, strides: Any, dilations: Any) -> Value:
    """All elements of each window of a padded ``x`` [n, c, ...]: [n, c, places..., elements]."""
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        size = shape_of(x)[i + 2]
        places = np.arange((size - (k - 1) * d - 1) // s + 1)[:, None] * s + np.arange(k) * d
        x = tf.gather(x, places, axis=i + 2)  # the window's elements behind its place: moved to the end
        order = [j for j in range(rank_of(x)) if j != i + 3] + [i + 3]
        x = tf.transpose(x, order)
    shape = shape_of(x)
    spatial = len(kernel)
    return tf.reshape(x, [*shape[: 2 + spatial], int(np.prod(kernel))])


@handles("MaxPool")
def max_pool(node: Node, x: Value) -> Value:
    kernel, strides, dilations, before, after = _windows(node, x)
    kind, spatial = dtype_of(x), len(kernel)
    fast = spatial in FORMATS and set(dilations) == {1} and not node.wants(1) and kind.kind == "f"
    lowest = np.asarray(-np.inf if kind.kind == "f" else np.iinfo(kind).min, kind)
    filled = padded(x, [0, 0, *before], [0, 0, *after], value=lowest)
    if fast:
        pool = tf.nn.max_pool if spatial == 2 else tf.nn.max_pool3d
        return pool(filled, [1, 1, *kernel], [1, 1, *strides], "VALID", data_format=FORMATS[spatial])
    stack = window_stack(filled, kernel, strides, dilations)
    found = tf.reduce_max(stack, -1)
    if not node.wants(1):
        return found
    n, channels, *sizes = shape_of(x)
    order: Any = "F" if node.get("storage_order", 0) else "C"
    numbers = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes, order=order)
    planes = np.arange(n * channels).reshape(n, channels, *[1] * spatial) * numbers.size
    placed = padded(np.broadcast_to(numbers, [1, 1, *sizes]), [0, 0, *before], [0, 0, *after])
    places = window_stack(placed, kernel, strides, dilations)
    best = tf.expand_dims(tf.argmax(stack, -1), -1)
    wide = tf.broadcast_to(places, [n, channels, *shape_of(places)[2:]])
    chosen = tf.squeeze(tf.batch_gather(wide, best), [-1])
    return found, tf.add(chosen, planes)


@handles("AveragePool")
def average_pool(node: Node, x: Value) -> Value:
    """The mean of what is there; padding counts with ``count_include_pad``, what ceil_mode adds never."""
    kernel, strides, dilations, before, after = _windows(node, x)
    if dtype_of(x).itemsize == 2:
        x, narrow = tf.cast(x, tf.float32), dtype_of(x)
    else:
        narrow = dtype_of(x)
    sizes = shape_of(x)[2:]
    ones = np.ones([1, 1, *sizes], dtype_of(x))
    if node.get("count_include_pad", 0):
        pads = window_pads(node, sizes, kernel, strides, dilations)
        ones = np.pad(ones, [(0, 0), (0, 0), *zip(*pads, strict=True)], constant_values=1)
        rest = [s + b + a - o for s, b, a, o in zip(sizes, before, after, ones.shape[2:], strict=True)]
        ones = np.pad(ones, [(0, 0), (0, 0), *((0, max(0, r)) for r in rest)])
    else:
        ones = np.pad(ones, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    counts = tf.reduce_sum(window_stack(ones, kernel, strides, dilations), -1)
    filled = padded(x, [0, 0, *before], [0, 0, *after])
    if len(kernel) in FORMATS and set(dilations) == {1}:
        pool = tf.nn.avg_pool if len(kernel) == 2 else tf.nn.avg_pool3d
        total = tf.multiply(
            pool(filled, [1, 1, *kernel], [1, 1, *strides], "VALID", data_format=FORMATS[len(kernel)]),
            np.asarray(math.prod(kernel), dtype_of(x)),
        )
    else:
        total = tf.reduce_sum(window_stack(filled, kernel, strides, dilations), -1)
    return tf.cast(tf.realdiv(total, counts), narrow)


@handles("LpPool")
def lp_pool(node: Node, x: Value) -> Value:
    kernel, strides, dilations, before, after = _windows(node, x)
    filled = padded(x, [0, 0, *before], [0, 0, *after])
    return _norm(window_stack(filled, kernel, strides, dilations), node.get("p", 2), [-1], False)


def _norm(x: Value, p: int, axes: Sequence[int], keep: bool) -> Value:
    kind = dtype_of(x)
    if p == 1:
        return tf.reduce_sum(tf.abs(x), axes, keep)
    if p == 2:
        return tf.sqrt(tf.reduce_sum(tf.square(x), axes, keep))
    total = tf.reduce_sum(tf.pow(tf.abs(x), kind.type(p)), axes, keep)
    return tf.pow(total, kind.type(1 / p))


@handles("LpNormalization")
def lp_normalization(node: Node, x: Value) -> Value:
    norm = _norm(x, node.get("p", 2), [node.get("axis", -1)], True)
    return tf.div_no_nan(x, norm)


@handles("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node, x: Value) -> Value:
    axes = list(range(2, rank_of(x)))
    if node.op == "GlobalLpPool":
        return _norm(x, node.get("p", 2), axes, True)
    return (tf.reduce_mean if node.op == "GlobalAveragePool" else tf.reduce_max)(x, axes, True)


@handles("MaxUnpool")
def max_unpool(node: Node, x: Value, places: Value, shape: Value = None) -> Value:
    """``x`` at ``places``, which count in the smallest array that the windows fit in; zeros elsewhere."""
    kernel = node.get("kernel_shape")
    spatial = len(kernel)
    strides, pads = node.get("strides", [1] * spatial), node.get("pads", [0] * 2 * spatial)
    n, channels, *sizes = shape_of(x)
    inferred = [
        (size - 1) * s - pads[i] - pads[i + spatial] + k
        for i, (size, s, k) in enumerate(zip(sizes, strides, kernel, strict=True))
    ]
    small = [n, channels, *inferred]
    whole = small if shape is None else node.integers(shape, "a shape")
    flat = tf.scatter_nd(tf.reshape(places, [-1, 1]), tf.reshape(x, [-1]), np.array([int(np.prod(small))]))
    found = tf.reshape(flat, small)
    return padded(found, [0] * len(small), [w - s for w, s in zip(whole, small, strict=True)])


@handles("MaxRoiPool")
def max_roi_pool(node: Node, x: Value, rois: Value) -> Value:
    """The largest of each bin of known regions [batch entry, x1, y1, x2, y2]."""
    height, width = node.get("pooled_shape")
    scale = node.get("spatial_scale", 1.0)
    rows = []
    image = tf.convert_to_tensor(x)
    for entry, *corners in node.known(rois, "regions"):
        x1, y1, x2, y2 = (math.floor(each * scale + 0.5) for each in corners)
        tall, wide = max(y2 - y1 + 1, 1) / height, max(x2 - x1 + 1, 1) / width
        bins = []
        for i in range(height):
            for j in range(width):
                top, bottom = (
                    min(max(v + y1, 0), shape_of(x)[2])
                    for v in (math.floor(i * tall), math.ceil((i + 1) * tall))
                )
                left, right = (
                    min(max(v + x1, 0), shape_of(x)[3])
                    for v in (math.floor(j * wide), math.ceil((j + 1) * wide))
                )
                empty = bottom <= top or right <= left
                part = image[int(entry), :, top:bottom, left:right]
                bins.append(
                    tf.zeros([shape_of(x)[1]], tf.as_dtype(dtype_of(x)))
                    if empty
                    else tf.reduce_max(part, [1, 2])
                )
        rows.append(tf.reshape(tf.stack(bins, 1), [shape_of(x)[1], height, width]))
    return tf.stack(rows)


@handles("RoiAlign")
def roi_align(node: Node, x: Value, rois: Value, entries: Value) -> Value:
    """Bilinear samples in bins of regions, their mean or largest (He et al., 2017)."""
    height, width = node.get("output_height", 1), node.get("output_width", 1)
    ratio, scale = node.get("sampling_ratio", 0), node.get("spatial_scale", 1.0)
    half = node.version >= 16 and node.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    _, channels, tall, wide = shape_of(x)
    image = tf.convert_to_tensor(x)
    kind = dtype_of(x)
    out = []
    for region, entry in zip(
        node.known(rois, "regions"), node.integers(entries, "batch entries"), strict=True
    ):
        x1, y1, x2, y2 = (float(each) * scale - 0.5 * half for each in region)
        span_y, span_x = (y2 - y1, x2 - x1) if half else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
        ny, nx = (ratio or math.ceil(span / bins) for span, bins in ((span_y, height), (span_x, width)))
        ys = y1 + (np.arange(height)[:, None] + (np.arange(ny) + 0.5) / ny) * span_y / height
        xs = x1 + (np.arange(width)[:, None] + (np.arange(nx) + 0.5) / nx) * span_x / width
        grid_y, grid_x = np.broadcast_arrays(ys[:, None, :, None], xs[None, :, None, :])
        outside = (grid_y < -1) | (grid_y > tall) | (grid_x < -1) | (grid_x > wide)
        at_y, at_x = np.clip(grid_y, 0, tall - 1), np.clip(grid_x, 0, wide - 1)
        places = [each.reshape(1, -1).astype(kind) for each in (at_y, at_x)]
        terms = corners_at(
            image[entry : entry + 1], places, lambda at, size: tf.minimum(at, kind.type(size - 1))
        )
        largest = node.get("mode", "avg") == "max"  # of the weighted elements, as the reference has it
        found = functools.reduce(tf.maximum if largest else tf.add, terms)
        found = tf.where_v2(outside.reshape(1, 1, -1), np.zeros((), kind), found)
        parts = tf.reshape(found, [channels, height, width, ny * nx])
        out.append((tf.reduce_max if largest else tf.reduce_mean)(parts, -1))
    return tf.stack(out) if out else np.zeros([0, channels, height, width], kind)
