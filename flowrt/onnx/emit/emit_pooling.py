"""Windows: the largest or the mean of each, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.ops.nn.windows import Axis, lay_windows, split_layout, steps_of
from flowrt.onnx.emit.call import Call, emits
from flowrt.onnx.emit.emit_convolution import channels_as_before, channels_first


def _spatial(c: Call, values: Sequence[Any]) -> list[Any]:
    return list(split_layout(values, c.attrs["data_format"])[1])


def _axes(c: Call, shape: Sequence[int | None]) -> list[Axis]:
    """The windows along each spatial dimension. Refuses unknown sizes, and windows over batch or channels."""
    batch, taps, channels = split_layout(c.attrs["ksize"], c.attrs["data_format"])
    steps = split_layout(steps_of({"dilations": (1,) * len(shape), **c.attrs}), c.attrs["data_format"])
    if (batch, channels) != (1, 1) or (steps[0].stride, steps[2].stride) != (1, 1):
        c.refuse("ONNX has windows over height and width only: transpose the input")
    sizes = _spatial(c, shape)
    if None in sizes:
        c.refuse("expected pictures of known sizes: give the inputs sizes")
    return [lay_windows(*each) for each in zip(sizes, taps, steps[1], strict=True)]


def _windows(axes: Sequence[Axis]) -> dict[str, Any]:
    behind = [a.padded - a.before - a.length for a in axes]
    return {
        "kernel_shape": [a.taps for a in axes], "strides": [a.stride for a in axes],
        "pads": [a.before for a in axes] + behind,
    }  # fmt: skip


def _pooled(c: Call, x: str, op: str, **attrs: Any) -> str:
    shape = c.dims(0)
    if None in _spatial(c, shape) and c.attrs["padding"] != "EXPLICIT":
        kind = {"SAME": "SAME_UPPER"}.get(c.attrs["padding"], "VALID")
        windows: dict[str, Any] = {
            "kernel_shape": _spatial(c, c.attrs["ksize"]), "strides": _spatial(c, c.attrs["strides"]),
            "auto_pad": kind,
        }  # fmt: skip
    else:
        windows = _windows(_axes(c, shape))
    found = c.add(op, channels_first(c, x, len(shape)), **windows, **attrs)
    return channels_as_before(c, found, len(shape))


@emits("MaxPool", "MaxPool3D")
def max_pool(c: Call, x: str) -> str:
    return _pooled(c, x, "MaxPool")


@emits("AvgPool", "AvgPool3D")
def average_pool(c: Call, x: str) -> str:
    return _pooled(c, x, "AveragePool", count_include_pad=0)


def _places(c: Call, x: str, axes: Sequence[Axis]) -> str:
    """The flat place of the largest element of each window, in an input with channels first."""
    return c.several("MaxPool", 2, x, **_windows(axes))[1]


@emits("MaxPoolGrad", "MaxPool3DGrad")
def max_pool_gradient(c: Call, x: str, y: str, dy: str) -> str:
    shape = c.shape()
    rank = len(shape)
    first = channels_first(c, x, rank)
    places = c.reshape(_places(c, first, _axes(c, shape)), [-1])
    zeros = c.constant(np.zeros(int(np.prod(shape)), c.dtype()))
    flat = c.reshape(channels_first(c, dy, rank), [-1])
    found = c.add("ScatterElements", zeros, places, flat, reduction="add")
    batch, spatial, channels = split_layout(shape, c.attrs["data_format"])
    return channels_as_before(c, c.reshape(found, [batch, channels, *spatial]), rank)


@emits("MaxPoolGradGrad", "MaxPool3DGradGrad")
def second_max_pool_gradient(c: Call, x: str, y: str, gradient: str) -> str:
    shape = c.shape()
    rank = len(shape)
    places = _places(c, channels_first(c, x, rank), _axes(c, shape))
    flat = c.reshape(channels_first(c, gradient, rank), [-1])
    return channels_as_before(c, c.add("Gather", flat, places), rank)


@emits("AvgPoolGrad", "AvgPool3DGrad")
def average_pool_gradient(c: Call, sizes: str, dy: str) -> str:
    """A transposed convolution, of each channel by itself, of the parts that each element has."""
    shape = c.result_shape()
    rank, axes = len(shape), _axes(c, shape)
    counts: Any = np.ones(())
    for a in axes:
        inside = [sum(0 <= i * a.stride + t - a.before < a.length for t in range(a.taps))
                  for i in range(a.outputs)]  # fmt: skip
        counts = np.multiply.outer(counts, np.array(inside))
    channels = split_layout(shape, c.attrs["data_format"])[2]
    parts = c.add("Div", channels_first(c, dy, rank), c.constant(counts.astype(c.dtype(1))))
    ones = c.constant(np.ones((channels, 1, *(a.taps for a in axes)), c.dtype(1)))
    behind = [(a.outputs - 1) * a.stride + a.taps - a.before - a.length for a in axes]
    found = c.add(
        "ConvTranspose", parts, ones, group=channels, strides=[a.stride for a in axes],
        pads=[a.before for a in axes] + [max(0, b) for b in behind],
    )  # fmt: skip
    short = [max(0, -b) for b in behind]
    if any(short):
        found = c.add("Pad", found, c.ints([0] * (rank + 2) + short), c.number(0, c.dtype(1)))
    return channels_as_before(c, found, rank)
