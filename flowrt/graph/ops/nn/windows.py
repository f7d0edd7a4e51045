"""Sliding windows of convolution and pooling, and copying them to patches for a matrix product.

An `Axis` describes the windows along one axis; kernels and shape rules share it, so they cannot disagree. The
array part works on channels-last arrays ``[n, *spatial, c]`` in blocks of images (or of rows of one image),
each so small that the copied patches are still in the cache when they are multiplied: measured for ``[64, 14,
14, 32]`` by 5x5x32x64, a whole convolution then costs what one matrix product over all patches costs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.shapes import Shape, format_shape

WORKSPACE = 4 << 20
"""Size in bytes of the patches made at once. From 1 to 8 MiB the time is equal within 10 %; above, it
doubles.
"""


class Step(NamedTuple):
    """Spacing of windows along one axis: ``stride`` elements apart, their own elements ``dilation`` apart.

    ``padding`` is TensorFlow's: VALID (inside only), SAME (``ceil(length / stride)`` windows, the odd element
    of padding at the end), EXPLICIT (``explicit`` elements before and after).
    """

    stride: int
    dilation: int = 1
    padding: str = "VALID"
    explicit: tuple[int, int] = (0, 0)


class Axis(NamedTuple):
    """Windows along one axis of ``length`` elements: ``outputs`` of them, ``stride`` apart, of ``taps``
    elements each that are ``dilation`` apart; the first begins ``before`` elements before the axis.
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

    def inside(self, tap: int) -> tuple[slice, slice]:
        """(the windows that have element ``tap`` within the axis, where that is)."""
        first = tap * self.dilation - self.before
        begin = max(0, -(first // self.stride))
        end = min(self.outputs, (self.length - 1 - first) // self.stride + 1)
        if end <= begin:
            return slice(0), slice(0)
        start, last = (i * self.stride + first for i in (begin, end - 1))
        return slice(begin, end), slice(start, last + 1, self.stride)


def lay_windows(length: int, taps: int, step: Step) -> Axis:
    """The windows of ``taps`` elements along an axis of ``length``.

    Raises `InvalidArgumentError` when the window is larger than the padded axis. TensorFlow rejects that if
    the length is static, and may compute an empty result otherwise.
    """
    stride, dilation, padding, explicit = step
    extent = (taps - 1) * dilation + 1
    if padding == "SAME":
        outputs = -(-length // stride)
        before = max(0, (outputs - 1) * stride + extent - length) // 2
        return Axis(length, taps, stride, dilation, before, outputs)
    before, after = explicit if padding == "EXPLICIT" else (0, 0)
    padded = length + before + after
    if padded < extent > 1:  # a window of one element along an empty axis has no outputs, without error
        raise InvalidArgumentError(
            f"Negative dimension size caused by subtracting {extent} from {padded}: expected a window of at"
            f" most {padded} elements, the input's {length} and its padding; got {extent}"
        )
    return Axis(length, taps, stride, dilation, before, max(0, padded - extent + stride) // stride)


def output_lengths(
    lengths: Sequence[int | None], taps: Sequence[int | None], steps: Sequence[Step]
) -> tuple[int | None, ...]:
    """Number of windows along each axis, as far as it is known."""
    return tuple(
        None if length is None or tap is None else lay_windows(length, tap, step).outputs
        for length, tap, step in zip(lengths, taps, steps, strict=True)
    )


# --- attributes and layouts

PADDINGS = ("SAME", "VALID", "EXPLICIT")


def steps_of(attrs: Mapping[str, Any]) -> list[Step]:
    """The attributes ``strides``, ``dilations``, ``padding`` and ``explicit_paddings`` as one `Step` per
    axis.

    Raises `InvalidArgumentError` for steps that are not positive, and for an unknown or incomplete padding.
    """
    strides, padding = attrs["strides"], attrs["padding"]
    rank = len(strides)
    dilations = attrs.get("dilations", (1,) * rank)
    explicit = attrs.get("explicit_paddings", ())
    check_positive("strides", strides, rank)
    check_positive("dilations", dilations, rank)
    if padding not in PADDINGS:
        raise InvalidArgumentError(f"padding: expected one of {', '.join(PADDINGS)}; got {padding!r}")
    if padding != "EXPLICIT":
        return [Step(s, d, padding) for s, d in zip(strides, dilations, strict=True)]
    if len(explicit) != 2 * rank or min(explicit) < 0:
        raise InvalidArgumentError(
            f"explicit_paddings: expected {2 * rank} numbers of at least 0; got {list(explicit)}"
        )
    pairs = zip(explicit[::2], explicit[1::2], strict=True)
    return [Step(s, d, padding, pair) for s, d, pair in zip(strides, dilations, pairs, strict=True)]


def check_positive(name: str, values: Sequence[int], rank: int) -> None:
    """Raise `InvalidArgumentError` unless ``values`` are ``rank`` positive numbers."""
    if len(values) != rank or min(values) < 1:
        raise InvalidArgumentError(f"{name}: expected {rank} numbers of at least 1; got {list(values)}")


def channels_first(data_format: str) -> bool:
    return data_format.startswith("NC")


def channels_last(xp: Any, array: Any, data_format: str) -> Any:
    """A view of ``array`` as ``[n, *spatial, c]``."""
    return xp.moveaxis(array, 1, -1) if channels_first(data_format) else array


def split_layout(values: Sequence[Any], data_format: str) -> tuple[Any, tuple[Any, ...], Any]:
    """Split one value per axis into (batch, spatial axes, channels)."""
    if channels_first(data_format):
        return values[0], tuple(values[2:]), values[1]
    return values[0], tuple(values[1:-1]), values[-1]


def join_layout(batch: Any, spatial: Sequence[Any], channels: Any, data_format: str) -> tuple[Any, ...]:
    """The inverse of `split_layout`."""
    return (batch, channels, *spatial) if channels_first(data_format) else (batch, *spatial, channels)


def every_axis(name: str, value: Any, spatial: int, data_format: str) -> tuple[int, ...]:
    """``strides`` or ``ksize`` as users write them (an int, one per spatial axis, or one per axis) as one per
    axis.

    Raises `InvalidArgumentError` for another count.
    """
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if len(values) == spatial + 2:
        return values
    if len(values) not in (1, spatial):
        raise InvalidArgumentError(
            f"{name}: expected 1, {spatial} or {spatial + 2} numbers; got {list(values)}"
        )
    return join_layout(1, values * (spatial // len(values)), 1, data_format)


def padding_attrs(padding: Any) -> dict[str, Any]:
    """``padding`` as users write it (a name, or a pair per axis) as attrs."""
    if isinstance(padding, str):
        return {"padding": padding}
    return {"padding": "EXPLICIT", "explicit_paddings": [amount for pair in padding for amount in pair]}


def of_rank(name: str, shape: Shape, rank: int) -> tuple[int | None, ...]:
    """``shape``, with ``rank`` unknown dimensions if it is unknown. Raises `InvalidArgumentError` for
    another rank.
    """
    if shape is not None and len(shape) != rank:
        raise InvalidArgumentError(f"{name}: expected rank {rank}; got shape {format_shape(shape)}")
    return (None,) * rank if shape is None else shape


# --- arrays

Tap: TypeAlias = tuple[tuple[slice, ...], tuple[slice, ...]]
"""(the windows that have a tap within the input, where that is)."""

New: TypeAlias = Callable[[tuple[int, ...], Any], Any]
"""``new(shape, dtype)`` is an array with any elements, for as long as the kernel runs."""


def begin(xp: Any, workspace: Any) -> New:
    """The allocator of a kernel: its ``workspace``, or new arrays if it is None."""
    return xp.empty if workspace is None else workspace.begin()


def pad(x: Any, axes: Sequence[Axis], dtype: Any, value: Any, new: New) -> Any:
    """``x``, with dimensions ``axes``, padded with ``value``; ``x`` itself if there is nothing to pad or
    convert.
    """
    if x.dtype == dtype and all(a.padded == a.length for a in axes):
        return x
    padded = new(tuple([a.padded for a in axes]), dtype)
    inner = tuple([a.inner for a in axes])
    fill_outside(padded, inner, value)
    padded[inner] = x
    return padded


def fill_outside(array: Any, inner: Sequence[slice], value: Any) -> None:
    """``value`` for all elements but those at ``inner``."""
    for d, here in enumerate(inner):
        for outside in (slice(0, here.start), slice(here.stop, None)):
            array[(*inner[:d], outside)] = value


def image_blocks(images: int, nbytes: int) -> Iterator[slice]:
    """All images in blocks of at most `WORKSPACE` bytes, at ``nbytes`` each (and of at least one image)."""
    step = max(1, WORKSPACE // max(1, nbytes))
    for start in range(0, images, step):
        yield slice(start, min(start + step, images))


class Parts:
    """``parts[index]`` is ``x[index]`` in C order as ``dtype``: a view, or a copy that the next one
    overwrites. The first is the largest.
    """

    def __init__(self, x: Any, dtype: Any, new: New) -> None:
        self._x, self._dtype, self._new = x, dtype, new
        self._room: Any = None

    def __getitem__(self, index: Any) -> Any:
        part = self._x[index]
        if part.dtype == self._dtype and part.flags.c_contiguous:
            return part
        if self._room is None:
            self._room = self._new((part.size,), self._dtype)
        copy = self._room[: part.size].reshape(part.shape)
        copy[...] = part
        return copy


def padded_blocks(
    x: Any, axes: Sequence[Axis], dtype: Any, nbytes: int, new: New
) -> Iterator[tuple[slice, Any]]:
    """The `image_blocks` of ``x`` (channels last), each with zeros as padding; the next overwrites it."""
    room = None
    for block in image_blocks(x.shape[0], nbytes):
        images = x[block]
        if images.dtype != dtype or any(a.padded != a.length for a in axes):
            if room is None:
                room = new((len(images), *(a.padded for a in axes), x.shape[-1]), dtype)
                room[...] = 0
            room[(slice(len(images)), *(a.inner for a in axes))] = images
            images = room[: len(images)]
        yield block, images


def taps_of(axes: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each tap of the window, in row-major order, and where all windows have it in the padded axes."""
    for tap in product(*(range(a.taps) for a in axes)):
        yield tap, tuple(a.at(t) for a, t in zip(axes, tap, strict=True))


def taps_inside(axes: Sequence[Axis]) -> list[Tap]:
    """Each tap of the window, in row-major order."""
    along = [[a.inside(tap) for tap in range(a.taps)] for a in axes]
    windows, elements = (product(*[[pair[i] for pair in pairs] for pairs in along]) for i in (0, 1))
    return list(zip(windows, elements, strict=True))


def ranked_elements(ranks: Any, axes: Sequence[Axis], new: New) -> Any:
    """Row-major index of the element that is a window's tap of its rank (the last has 1, the one before 2),
    for each window, on the host; the number of elements for rank 0. The windows have no dilation.
    """
    steps = [math.prod([a.length for a in axes[d + 1 :]]) for d in range(len(axes))]
    offsets = reduce(np.add.outer, [np.arange(a.taps) * step for a, step in zip(axes, steps, strict=True)])
    by_rank = np.append(offsets.reshape(-1), 0)[::-1]
    index, elements = new(ranks.shape, np.intp), new(ranks.shape, np.intp)
    index[...] = ranks
    np.take(by_rank, index, 0, elements, mode="clip")  # in range; "raise" would copy the output
    for d, (a, step) in enumerate(zip(axes, steps, strict=True)):
        starts = (np.arange(a.outputs) * a.stride - a.before) * step
        elements += starts.reshape((-1,) + (1,) * (len(axes) - d - 1))
    np.copyto(
        elements,
        math.prod([a.length for a in axes]),
        where=np.equal(ranks, 0, out=new(ranks.shape, np.bool_)),
    )
    return elements


def patches(
    xp: Any, x: Any, axes: Sequence[Axis], dtype: Any, new: New
) -> Iterator[tuple[tuple[slice, slice], Any]]:
    """The windows of ``x`` (channels last) as matrices ``[windows, taps * c]``, block by block ("im2col"), of
    which the first is the largest.

    Yields ((images, rows of the first spatial axis), matrix); the matrix is overwritten by the next one.
    """
    channels = x.shape[-1]
    outputs, taps = [a.outputs for a in axes], [a.taps for a in axes]
    everything = slice(0, x.shape[0]), slice(0, outputs[0])
    if all(a.taps == a.stride == 1 and a.padded == a.length == a.outputs for a in axes):
        yield everything, Parts(x, dtype, new)[...].reshape(-1, channels)  # 1x1: the input is the matrix
        return
    width = math.prod(taps) * channels
    row = math.prod(outputs[1:]) * width * dtype.itemsize
    buffer = None
    for block, source in padded_blocks(x, axes, dtype, row * outputs[0], new):
        seen = _windows(xp, source, axes)
        step = outputs[0] if block.stop - block.start > 1 else max(1, WORKSPACE // max(1, row))
        for start in range(0, outputs[0], step):
            rows = slice(start, min(start + step, outputs[0]))
            view = seen[:, rows]
            if buffer is None:
                buffer = new((view.size,), dtype)
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
