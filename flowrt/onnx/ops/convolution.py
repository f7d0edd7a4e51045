"""Convolutions: NCHW in ONNX, kept so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.ops.sampling import linear_at
from flowrt.onnx.ops.shaping import padded
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, rank_of, shape_of

FORMATS = {2: "NCHW", 3: "NCDHW"}


def window_pads(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Elements before and after each spatial dimension."""
    count = len(kernel)
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        return (small, large) if mode == "SAME_UPPER" else (large, small)
    pads = [0] * (2 * count) if mode == "VALID" else list(node.get("pads", [0] * (2 * count)))
    return pads[:count], pads[count:]


@handles("Conv")
def conv(node: Node, x: Value, w: Value, bias: Value = None) -> Value:
    spatial = rank_of(x) - 2
    kernel = shape_of(w)[2:]
    strides = node.get("strides", [1] * spatial)
    dilations = node.get("dilations", [1] * spatial)
    before, after = window_pads(node, shape_of(x)[2:], kernel, strides, dilations)
    return convolve(x, w, strides, dilations, before, after, node.get("group", 1), bias)


def _channels(bias: Value, spatial: int) -> Value:
    return tf.reshape(bias, [1, -1, *[1] * spatial])


def convolve(
    x: Value,
    w: Value,
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    groups: int,
    bias: Value = None,
) -> Value:
    """``x`` [n, c, ...] with ``w`` [out, c / groups, ...], and a bias for each channel."""
    kind = dtype_of(x)
    if kind.itemsize == 2:
        x, w = tf.cast(x, tf.float32), tf.cast(w, tf.float32)
        found = tf.cast(convolve(x, w, strides, dilations, before, after, groups), kind)
        return _biased(found, bias)
    spatial = rank_of(x) - 2
    if spatial == 1:  # in two dimensions, of which the first is one
        found = convolve(
            tf.expand_dims(x, 2), tf.expand_dims(w, 2), [1, *strides], [1, *dilations], [0, *before],
            [0, *after], groups, bias,
        )  # fmt: skip
        return tf.squeeze(found, [2])
    if spatial not in FORMATS:
        raise NotImplementedError(f"a convolution over {spatial} dimensions")
    is_depthwise = spatial == 2 and shape_of(w)[1] == 1 and len(set(strides)) == 1
    if groups > 1 and (spatial == 3 or is_depthwise):
        return _biased(_grouped(x, w, strides, dilations, before, after, groups), bias)
    filters = tf.transpose(w, [*range(2, spatial + 2), 1, 0])
    return _biased(_convolution(x, filters, strides, dilations, before, after), bias)


def _biased(x: Value, bias: Value) -> Value:
    if bias is None:
        return x
    spatial = rank_of(x) - 2
    if spatial == 2:
        return tf.nn.bias_add(x, bias, data_format="NCHW")
    return tf.add(x, _channels(bias, spatial))


def _convolution(x: Value, filters: Value, strides: Any, dilations: Any, before: Any, after: Any) -> Value:
    spatial = rank_of(x) - 2
    if spatial == 2:
        padding = [[0, 0], [0, 0], *map(list, zip(before, after, strict=True))]
        return tf.nn.conv2d(
            x,
            filters,
            strides=[1, 1, *strides],
            padding=padding,
            data_format="NCHW",
            dilations=[1, 1, *dilations],
        )
    x = padded(x, [0, 0, *before], [0, 0, *after])
    return tf.nn.conv3d(
        x, filters, [1, 1, *strides], "VALID", data_format="NCDHW", dilations=[1, 1, *dilations]
    )


def _grouped(x: Value, w: Value, strides: Any, dilations: Any, before: Any, after: Any, groups: int) -> Value:
    """Depthwise, if each group has one channel; otherwise group by group."""
    spatial = rank_of(x) - 2
    if spatial == 2:
        outs = shape_of(w)[0]
        filters = tf.reshape(tf.transpose(w, [2, 3, 0, 1]), [*shape_of(w)[2:], groups, outs // groups])
        padding = [[0, 0], [0, 0], *map(list, zip(before, after, strict=True))]
        return tf.nn.depthwise_conv2d(
            x, filters, [1, 1, *strides], padding, data_format="NCHW", dilations=list(dilations)
        )
    parts = [
        convolve(a, b, strides, dilations, before, after, 1)
        for a, b in zip(tf.split(x, groups, 1), tf.split(w, groups, 0), strict=True)
    ]
    return tf.concat(parts, 1)


@handles("ConvTranspose")
def conv_transpose(node: Node, x: Value, w: Value, bias: Value = None) -> Value:
    """One convolution, which has the filters of each phase of the output as channels, and their results
    interleaved: no zeros are multiplied ("sub-pixel convolution", Shi et al., 2016).

    Along a dimension, y[s p + r] is the sum of x[p - j] w[s j + r] over j, for stride s and phase r < s.
    """
    spatial, groups = rank_of(x) - 2, node.get("group", 1)
    kernel, sizes = shape_of(w)[2:], shape_of(x)[2:]
    strides = node.get("strides", [1] * spatial)
    dilations = node.get("dilations", [1] * spatial)
    extra = node.get("output_padding", [0] * spatial)
    before, after = _transposed_pads(node, sizes, kernel, strides, dilations, extra)
    whole = [
        s * (n - 1) + (k - 1) * d + 1 + e
        for s, n, k, d, e in zip(strides, sizes, kernel, dilations, extra, strict=True)
    ]
    end = [size - a for size, a in zip(whole, after, strict=True)]
    steps = [1 if s > 1 else d for s, d in zip(strides, dilations, strict=True)]
    w = _spread(w, [d // step for d, step in zip(dilations, steps, strict=True)])
    filters = _filters_of_phases(w, strides, groups)
    first = [b // s for b, s in zip(before, strides, strict=True)]
    last = [-(-e // s) for e, s in zip(end, strides, strict=True)]
    spans = [(m - 1) * step for m, step in zip(shape_of(filters)[2:], steps, strict=True)]
    lower = [span - p for span, p in zip(spans, first, strict=True)]
    upper = [p - n for p, n in zip(last, sizes, strict=True)]
    x = padded(x, [0, 0, *[min(v, 0) for v in lower]], [0, 0, *[min(v, 0) for v in upper]])
    if bias is not None:
        bias = tf.reshape(tf.tile(tf.reshape(bias, [groups, 1, -1]), [1, math.prod(strides), 1]), [-1])
    pads = [max(v, 0) for v in lower], [max(v, 0) for v in upper]
    y = _interleaved(convolve(x, filters, [1] * spatial, steps, *pads, groups, bias), strides, groups)
    early = [p * s - b for p, s, b in zip(first, strides, before, strict=True)]
    late = [e - p * s for p, s, e in zip(last, strides, end, strict=True)]
    return padded(y, [0, 0, *early], [0, 0, *late])


def _filters_of_phases(w: Value, strides: Sequence[int], groups: int) -> Value:
    """Filters [groups * phases * out / groups, c / groups, ...] of ``w`` [c, out / groups, ...]."""
    spatial = len(strides)
    channels, outs, *kernel = shape_of(w)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    missing = [m * s - k for m, s, k in zip(taps, strides, kernel, strict=True)]
    by_phase = [size for m, s in zip(taps, strides, strict=True) for size in (m, s)]
    w = tf.reshape(padded(w, [0] * (2 + spatial), [0, 0, *missing]), [channels, outs, *by_phase])
    taps_at, phases_at = range(2, 2 + 2 * spatial, 2), range(3, 3 + 2 * spatial, 2)
    turned = tf.transpose(tf.reverse(w, list(taps_at)), [*phases_at, 1, 0, *taps_at])
    parts = tf.split(turned, groups, spatial + 1)
    flat = [tf.reshape(part, [math.prod(strides) * outs, channels // groups, *taps]) for part in parts]
    return flat[0] if groups == 1 else tf.concat(flat, 0)


def _interleaved(y: Value, strides: Sequence[int], groups: int) -> Value:
    """[n, groups * phases * c, ...] with the phases beside each other. It is done with the channels last, as
    a library leaves them.
    """
    if math.prod(strides) == 1:
        return y
    spatial = len(strides)
    n, width, *sizes = shape_of(y)
    channels = width // math.prod(strides)
    to_last = [0, *range(2, 2 + spatial), 1]
    phases = tf.reshape(tf.transpose(y, to_last), [n, *sizes, groups, *strides, channels // groups])
    sides = [axis for i in range(spatial) for axis in (1 + i, 2 + spatial + i)]
    order = [0, *sides, 1 + spatial, 2 + 2 * spatial]
    wide = [size * s for size, s in zip(sizes, strides, strict=True)]
    last = tf.reshape(tf.transpose(phases, order), [n, *wide, channels])
    return tf.transpose(last, [0, 1 + spatial, *range(1, 1 + spatial)])


def _transposed_pads(
    node: Node, sizes: Any, kernel: Any, strides: Any, dilations: Any, extra: Any
) -> tuple[list[int], list[int]]:
    """The elements that are cut before and after each spatial dimension."""
    mode = node.get("auto_pad", "NOTSET")
    wanted = node.get("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * s for size, s in zip(sizes, strides, strict=True)]
    if wanted is None:
        pads = [0] * (2 * len(kernel)) if mode == "VALID" else node.get("pads", [0] * (2 * len(kernel)))
        return list(pads[: len(kernel)]), list(pads[len(kernel) :])
    wanted = wanted[-len(kernel) :]
    total = [
        s * (size - 1) + e + (k - 1) * d + 1 - out
        for s, size, e, k, d, out in zip(strides, sizes, extra, kernel, dilations, wanted, strict=True)
    ]
    half = [t // 2 for t in total]
    rest = [t - h for t, h in zip(total, half, strict=True)]
    return (half, rest) if mode == "SAME_UPPER" else (rest, half)


def _spread(x: Value, strides: Sequence[int]) -> Value:
    """``x`` with zeros between its elements along the spatial dimensions."""
    for i, stride in enumerate(strides):
        if stride == 1:
            continue
        axis = i + 2
        sizes = shape_of(x)
        wide = padded(
            tf.expand_dims(x, axis + 1),
            [0] * (len(sizes) + 1),
            [stride - 1 if j == axis + 1 else 0 for j in range(len(sizes) + 1)],
        )
        flat = tf.reshape(wide, [*sizes[:axis], sizes[axis] * stride, *sizes[axis + 1 :]])
        x = padded(flat, [0] * len(sizes), [1 - stride if j == axis else 0 for j in range(len(sizes))])
    return x


@handles("DeformConv")
def deform_conv(
    node: Node, x: Value, w: Value, offset: Value, bias: Value = None, mask: Value = None
) -> Value:
    """Columns by bilinear samples at displaced places, then one product (Dai et al., 2017)."""
    n, channels, height, width = shape_of(x)
    outs, per_group, kh, kw = shape_of(w)
    strides, dilations = node.get("strides", [1, 1]), node.get("dilations", [1, 1])
    pads = node.get("pads", [0] * 4)
    groups, offset_groups = node.get("group", 1), node.get("offset_group", 1)
    oh, ow = shape_of(offset)[2:]
    base_y = (
        np.arange(oh)[None, None, :, None] * strides[0]
        - pads[0]
        + (np.arange(kh) * dilations[0])[:, None, None, None]
    )
    base_x = (
        np.arange(ow)[None, None, None, :] * strides[1]
        - pads[1]
        + (np.arange(kw) * dilations[1])[None, :, None, None]
    )
    kind = dtype_of(x)
    shifts = tf.reshape(offset, [n, offset_groups, kh, kw, 2, oh, ow])
    ys = tf.add(shifts[:, :, :, :, 0], base_y.astype(kind))
    xs = tf.add(shifts[:, :, :, :, 1], base_x.astype(kind))
    planes = tf.reshape(x, [n * offset_groups, channels // offset_groups, height, width])
    places = [tf.reshape(each, [n * offset_groups, -1]) for each in (ys, xs)]
    found = linear_at(planes, places)  # [n * offset_groups, channels / offset_groups, kh * kw * oh * ow]
    found = tf.reshape(found, [n, offset_groups, channels // offset_groups, kh, kw, oh, ow])
    if mask is not None:
        found = tf.multiply(found, tf.reshape(mask, [n, offset_groups, 1, kh, kw, oh, ow]))
    columns = tf.reshape(found, [n, groups, per_group * kh * kw, oh * ow])
    filters = tf.reshape(w, [1, groups, outs // groups, per_group * kh * kw])
    result = tf.reshape(
        tf.matmul(tf.broadcast_to(filters, [n, groups, outs // groups, per_group * kh * kw]), columns),
        [n, outs, oh, ow],
    )
    return result if bias is None else tf.add(result, _channels(bias, 2))


@handles("Col2Im")
def col2im(node: Node, x: Value, image: Value, block: Value) -> Value:
    """Columns of blocks back to an image, where they overlap added up: a segment sum over their places."""
    sizes, kernel = node.integers(image, "an image's shape"), node.integers(block, "a block's shape")
    spatial = len(sizes)
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    pads = node.get("pads", [0] * 2 * spatial)
    whole = [size + pads[i] + pads[i + spatial] for i, size in enumerate(sizes)]
    counts = [
        (w - (k - 1) * d - 1) // s + 1 for w, k, d, s in zip(whole, kernel, dilations, strides, strict=True)
    ]
    n, rows, _ = shape_of(x)
    channels = rows // int(np.prod(kernel))
    places = np.zeros([*kernel, *counts], np.int64)
    for i in range(spatial):
        along = np.arange(kernel[i]) * dilations[i]
        starts = np.arange(counts[i]) * strides[i]
        grid = along.reshape([-1 if j == i else 1 for j in range(2 * spatial)]) + starts.reshape(
            [-1 if j == i + spatial else 1 for j in range(2 * spatial)]
        )
        places = places + grid * int(np.prod(whole[i + 1 :], dtype=np.int64))
    columns = tf.reshape(x, [n * channels, places.size])
    flat = tf.unsorted_segment_sum(tf.transpose(columns), places.reshape(-1), int(np.prod(whole)))
    found = tf.reshape(tf.transpose(flat), [n, channels, *whole])
    cut = [-pads[i] for i in range(spatial)], [-pads[i + spatial] for i in range(spatial)]
    return padded(found, [0, 0, *cut[0]], [0, 0, *cut[1]])
