"""Sliding windows: where convolution and pooling look, and copying what they see to where a matrix product can reach it.

An `Axis` says how windows lie along one axis; kernels and shape rules share it, so they cannot disagree. The array part
works on channels-last arrays ``[n, *spatial, c]`` in blocks of images (or of rows of one image), each small enough that
the copied patches are still in the cache when they are multiplied: measured for ``[64, 14, 14, 32]`` by 5x5x32x64, the
whole convolution then costs what the matrix product of all patches at once costs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.shapes import Shape, format_shape

WORKSPACE = 4 << 20
"""Bytes of patches made at once. From 1 to 8 MiB the time is the same within 5 %; above it the cache is left."""


class Axis(NamedTuple):
    """Windows along one axis of ``length`` elements: ``outputs`` of them, ``stride`` apart, of ``taps`` elements each that are
    ``dilation`` apart; the first begins ``before`` elements ahead of the axis.
    """

    length: int
    taps: int
    stride: int
    dilation: int
    before: int
    outputs: int

    @property
    def padded(self) -> int:
        """The length with as much padding as the windows touch."""
        span = (self.outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1
        return max(self.before + self.length, span)

    @property
    def inner(self) -> slice:
        """The axis itself within the padded one."""
        return slice(self.before, self.before + self.length)

    def at(self, tap: int) -> slice:
        """Element ``tap`` of every window, in the padded axis."""
        start = tap * self.dilation
        return slice(start, start + max(0, (self.outputs - 1) * self.stride + 1), self.stride)


def lay_windows(
    length: int, taps: int, stride: int, dilation: int, padding: str, explicit: tuple[int, int] = (0, 0)
) -> Axis:
    """The windows of TensorFlow's ``padding``: VALID (inside only), SAME (``ceil(length / stride)`` of them, the odd
    element of padding behind), EXPLICIT (``explicit`` elements before and after).

    Raises `InvalidArgumentError` when the window is larger than the padded axis by a stride or more.
    """
    extent = (taps - 1) * dilation + 1
    if padding == "SAME":
        outputs = -(-length // stride)
        return Axis(length, taps, stride, dilation, max(0, (outputs - 1) * stride + extent - length) // 2, outputs)
    before, after = explicit if padding == "EXPLICIT" else (0, 0)
    room = length + before + after - extent + stride
    if room <= -stride:
        raise InvalidArgumentError(
            f"expected a window of at most {length + before + after} elements (the input's {length} and its padding);"
            f" got {extent}"
        )
    return Axis(length, taps, stride, dilation, before, max(0, room) // stride)


def output_shape(
    lengths: Sequence[int | None], taps: Sequence[int | None], strides: Sequence[int], dilations: Sequence[int],
    padding: str, explicit: Sequence[tuple[int, int]],
) -> tuple[int | None, ...]:  # fmt: skip
    """How many windows there are along each axis, as far as it is known."""
    return tuple(
        None if length is None or tap is None else lay_windows(length, tap, *rest).outputs
        for length, tap, *rest in zip(lengths, taps, strides, dilations, [padding] * len(strides), explicit, strict=True)
    )


# --- attributes and layouts

PADDINGS = ("SAME", "VALID", "EXPLICIT")


def channels_first(data_format: str) -> bool:
    return data_format.startswith("NC")


def channels_last(xp: Any, array: Any, data_format: str) -> Any:
    """A view of ``array`` as ``[n, *spatial, c]``."""
    return xp.moveaxis(array, 1, -1) if channels_first(data_format) else array


def split_shape(shape: Sequence[Any], data_format: str) -> tuple[Any, tuple[Any, ...], Any]:
    """(batch, spatial dimensions, channels) of a shape, or of strides and dilations, in the order of ``data_format``."""
    if channels_first(data_format):
        return shape[0], tuple(shape[2:]), shape[1]
    return shape[0], tuple(shape[1:-1]), shape[-1]


def join_shape(batch: Any, spatial: Sequence[Any], channels: Any, data_format: str) -> tuple[Any, ...]:
    """The inverse of `split_shape`."""
    return (batch, channels, *spatial) if channels_first(data_format) else (batch, *spatial, channels)


def explicit_pairs(padding: str, explicit_paddings: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """The attribute ``explicit_paddings`` as (before, after) an axis. Raises `InvalidArgumentError`."""
    if padding not in PADDINGS:
        raise InvalidArgumentError(f"padding: expected one of {', '.join(PADDINGS)}; got {padding!r}")
    if padding != "EXPLICIT":
        return [(0, 0)] * rank
    if len(explicit_paddings) != 2 * rank or min(explicit_paddings) < 0:
        message = f"explicit_paddings: expected {2 * rank} numbers of at least 0; got {list(explicit_paddings)}"
        raise InvalidArgumentError(message)
    return list(zip(explicit_paddings[::2], explicit_paddings[1::2], strict=True))


def check_steps(name: str, values: Sequence[int], rank: int) -> None:
    """Raise `InvalidArgumentError` unless ``values`` (strides, dilations, window sizes) are ``rank`` positive numbers."""
    if len(values) != rank or min(values) < 1:
        raise InvalidArgumentError(f"{name}: expected {rank} numbers of at least 1; got {list(values)}")


def of_rank(name: str, shape: Shape, rank: int) -> tuple[int | None, ...]:
    """``shape`` with ``rank`` dimensions, unknown ones if it is unknown. Raises `InvalidArgumentError`."""
    if shape is not None and len(shape) != rank:
        raise InvalidArgumentError(f"{name}: expected rank {rank}; got shape {format_shape(shape)}")
    return (None,) * rank if shape is None else shape


# --- arrays


def pad(xp: Any, x: Any, axes: Sequence[Axis], dtype: Any, value: Any = 0) -> Any:
    """``x`` with each of ``axes`` (its dimensions from 1 on; the rest have no windows) padded with ``value``.

    Returns ``x`` itself where there is nothing to pad or convert.
    """
    if x.dtype == dtype and all(a.padded == a.length for a in axes):
        return x
    padded = xp.full((x.shape[0], *(a.padded for a in axes), *x.shape[1 + len(axes) :]), value, dtype)
    padded[(slice(None), *(a.inner for a in axes))] = x
    return padded


def image_blocks(images: int, nbytes: int) -> Iterator[slice]:
    """All images in blocks of at most `WORKSPACE` bytes, at ``nbytes`` each (and of at least one image)."""
    step = max(1, WORKSPACE // max(1, nbytes))
    for start in range(0, images, step):
        yield slice(start, min(start + step, images))


def taps_of(axes: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each tap of the window, in row-major order, and where all windows have it in the padded axes."""
    for tap in product(*(range(a.taps) for a in axes)):
        yield tap, tuple(a.at(t) for a, t in zip(axes, tap, strict=True))


def patches(xp: Any, x: Any, axes: Sequence[Axis], dtype: Any) -> Iterator[tuple[tuple[slice, slice], Any]]:
    """The windows of ``x`` (channels last) as matrices ``[windows, taps * c]`` of ``dtype``, block by block ("im2col").

    Yields ((images, rows of the first spatial axis), matrix); the matrix is overwritten by the next one.
    """
    images, channels = x.shape[0], x.shape[-1]
    outputs, taps = [a.outputs for a in axes], [a.taps for a in axes]
    everything = slice(0, images), slice(0, outputs[0])
    if all(a.taps == a.stride == 1 and a.padded == a.length for a in axes):
        yield everything, xp.ascontiguousarray(x, dtype).reshape(-1, channels)  # 1x1: the input is the matrix
        return
    width = math.prod(taps) * channels
    row = math.prod(outputs[1:]) * width * dtype.itemsize
    buffer = None
    for block in image_blocks(images, row * outputs[0]):
        source = pad(xp, x[block], axes, dtype)
        seen = _windows(xp, source, axes)
        step = outputs[0] if block.stop - block.start > 1 else max(1, min(outputs[0], WORKSPACE // max(1, row)))
        for start in range(0, outputs[0], step):
            rows = slice(start, min(start + step, outputs[0]))
            view = seen[:, rows]
            if buffer is None:
                buffer = xp.empty(view.size, dtype)
            matrix = buffer[: view.size]
            xp.copyto(matrix.reshape(view.shape), view)
            yield (block, rows), matrix.reshape(-1, width)


def _windows(xp: Any, x: Any, axes: Sequence[Axis]) -> Any:
    """A view ``[n, *outputs, *taps, c]`` of the padded ``x``."""
    first, *spatial, last = x.strides
    return xp.lib.stride_tricks.as_strided(
        x,
        (x.shape[0], *(a.outputs for a in axes), *(a.taps for a in axes), x.shape[-1]),
        (
            first,
            *(step * a.stride for step, a in zip(spatial, axes, strict=True)),
            *(step * a.dilation for step, a in zip(spatial, axes, strict=True)),
            last,
        ),
    )
