"""Convolutions and their derivatives.

ONNX has channels first, filters ``[f, c, ...]``, and the padding in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.ops.nn.conv import spatial_steps
from flowrt.graph.ops.nn.windows import Axis, lay_windows, split_layout
from flowrt.onnx.emit.call import Call, emits


def channels_first(c: Call, x: str, rank: int) -> str:
    return x if _is_first(c) else c.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def channels_as_before(c: Call, x: str, rank: int) -> str:
    return x if _is_first(c) else c.transpose(x, [0, *range(2, rank), 1])


def _is_first(c: Call) -> bool:
    return str(c.attrs["data_format"]).startswith("NC")


def _axes(c: Call, shape: Sequence[int | None], taps: Sequence[int]) -> list[Axis]:
    """The windows along each spatial dimension of an input of this shape. Refuses unknown sizes."""
    sizes = split_layout(shape, c.attrs["data_format"])[1]
    if None in sizes:
        c.refuse("expected pictures of known sizes for this padding: give the inputs sizes")
    return [lay_windows(*each) for each in zip(sizes, taps, spatial_steps(c.attrs), strict=True)]


def _pads(axes: Sequence[Axis]) -> list[int]:
    return [each.before for each in axes] + [each.padded - each.before - each.length for each in axes]


def _geometry(c: Call, shape: Sequence[int | None], taps: Sequence[int]) -> dict[str, Any]:
    """The attributes of a convolution."""
    steps = spatial_steps(c.attrs)
    found: dict[str, Any] = {
        "strides": [each.stride for each in steps], "dilations": [each.dilation for each in steps],
    }  # fmt: skip
    sizes = split_layout(shape, c.attrs["data_format"])[1]
    if None not in sizes:
        found["pads"] = _pads(_axes(c, shape, taps))
    elif c.attrs["padding"] == "SAME":
        found["auto_pad"] = "SAME_UPPER"
    else:
        found["pads"] = [each.explicit[0] for each in steps] + [each.explicit[1] for each in steps]
    return found


def _filter_first(c: Call, filter: str, shape: Sequence[int]) -> str:
    """``[f, c, ...]`` of ``[..., c, f]``; a depthwise one, ``[..., c, m]``, is ``[c * m, 1, ...]``."""
    rank = len(shape)
    taps = range(rank - 2)
    if not _is_depthwise(c):
        return c.transpose(filter, [rank - 1, rank - 2, *taps])
    turned = c.transpose(filter, [rank - 2, rank - 1, *taps])
    return c.reshape(turned, [shape[-2] * shape[-1], 1, *shape[:-2]])


def _is_depthwise(c: Call) -> bool:
    return c.op.startswith("Depthwise")


def _groups(c: Call, channels: int | None, shape: Sequence[int]) -> int:
    if channels is None:
        c.refuse("expected a known number of channels: give the inputs sizes")
    return channels if _is_depthwise(c) else channels // max(1, shape[-2])


def _channels(c: Call, shape: Sequence[int | None]) -> int | None:
    return split_layout(shape, c.attrs["data_format"])[2]


@emits("Conv2D", "Conv3D", "DepthwiseConv2dNative")
def convolution(c: Call, x: str, filter: str) -> str:
    shape, rank = c.shape(1), c.rank(0)
    group = _groups(c, _channels(c, c.dims(0)), shape)
    geometry = _geometry(c, c.dims(0), shape[:-2])
    found = c.add("Conv", channels_first(c, x, rank), _filter_first(c, filter, shape), group=group,
                  kernel_shape=list(shape[:-2]), **geometry)  # fmt: skip
    return channels_as_before(c, found, rank)


@emits("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def gradient_of_input(c: Call, sizes: str, filter: str, dy: str) -> str:
    """A transposed convolution: what its windows do not reach is padding."""
    shape, wanted = c.shape(1), c.result_shape()
    rank = len(wanted)
    axes = _axes(c, wanted, shape[:-2])
    whole = [(a.outputs - 1) * a.stride + (a.taps - 1) * a.dilation + 1 for a in axes]
    behind = [w - a.before - a.length for w, a in zip(whole, axes, strict=True)]
    found = c.add(
        "ConvTranspose", channels_first(c, dy, rank), _filter_first(c, filter, shape),
        group=_groups(c, _channels(c, wanted), shape), kernel_shape=list(shape[:-2]),
        strides=[a.stride for a in axes], dilations=[a.dilation for a in axes],
        pads=[a.before for a in axes] + [max(0, b) for b in behind],
    )  # fmt: skip
    short = [max(0, -b) for b in behind]
    if any(short):  # elements at the end that no window has
        found = c.add("Pad", found, c.ints([0] * (rank + 2) + short), c.number(0, c.dtype(1)))
    return channels_as_before(c, found, rank)


@emits("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def gradient_of_filter(c: Call, x: str, sizes: str, dy: str) -> str:
    """A convolution of the input by the output's gradient, with the batch as channels, and strides and
    dilations exchanged.
    """
    shape, wanted = c.shape(0), c.result_shape()
    rank, spatial = len(wanted), list(range(2, len(wanted)))
    batch, channels = shape[0], _channels(c, shape)
    group = _groups(c, channels, wanted)
    each = (channels or 0) // group
    axes = _axes(c, shape, wanted[:-2])
    lengths = [a.length for a in axes]
    apart = c.reshape(channels_first(c, x, rank), [batch, group, each, *lengths])
    turned = c.transpose(apart, [2, 1, 0, *(i + 1 for i in spatial)])
    left = c.reshape(turned, [each, group * batch, *lengths])
    right = c.transpose(channels_first(c, dy, rank), [1, 0, *spatial])
    spans = [(a.taps - 1) * a.dilation + (a.outputs - 1) * a.stride + 1 for a in axes]
    behind = [s - a.length - a.before for s, a in zip(spans, axes, strict=True)]
    found = c.add(
        "Conv", left, right, group=group, strides=[a.dilation for a in axes],
        dilations=[a.stride for a in axes], kernel_shape=[a.outputs for a in axes],
        pads=[a.before for a in axes] + [max(0, b) for b in behind],
    )  # fmt: skip
    taps = [a.taps for a in axes]
    found = c.slice(found, [0] * len(taps), taps, spatial)  # without windows of elements that have none
    return c.reshape(c.transpose(found, [*spatial, 0, 1]), wanted)
