"""Host kernels as compiled loops: the maximum over windows, and its gradient.

Each tap of the windows is a strided view of the image, so the maximum is an elementwise program over one view
per tap, and the gradient one over the windows that contain an element: each passes over the memory once, on
several threads. Results equal those of the operation's own kernel, which handles unsupported cases: 16-bit
floats, gradients of integers, windows of more than `MAX_TAPS` elements. Small images are padded in the
workspace, so that one program covers all windows; in large ones only the borders are padded.

oneDNN has these too, but ignores NaNs, returns -3.4e38 for the maximum of -inf, and recomputes the maximum
for the gradient. It sums in the same order, so both agree bit for bit. Milliseconds of these loops (2 cores,
AVX-512), compared with fully padded copies and one pass per tap:

                                   maximum         gradient
    [32, 56, 56, 64]  by 3x3 / 2   1.50  4.88      2.95  17.0
    [32, 56, 56, 64]  by 3x3 / 1   2.95  7.85      18.5  37.7
    [8, 112, 112, 64] by 3x3 / 2   1.08  3.61      2.70  12.6
    [8, 28, 28, 192]  by 3x3 / 1   0.56  0.89      1.60  2.81
    [128, 24, 24, 32] by 2x2 / 2   0.14  0.21      0.39  0.41
    [1, 7, 7, 8]      by 3x3 / 1   0.04  0.07      0.13  0.25
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.executor.kernels.loop_layout import Layout, call_on, layout_of
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.nn.pooling import (
    lowest,
    max_pool3d_grad_op,
    max_pool3d_op,
    max_pool_grad_op,
    max_pool_op,
    pool_axes,
)
from flowrt.graph.ops.nn.windows import Axis, New, begin, fill_outside, pad, taps_of
from flowrt.loops.loop_program import LoopBuilder, LoopProgram, LoopValue

Array: TypeAlias = np.ndarray[Any, Any]
Kernel: TypeAlias = Callable[..., Any]
Axes: TypeAlias = tuple[Axis, ...]
Where: TypeAlias = tuple[slice, ...]
"""A part of an array, one slice per axis."""
Attributes: TypeAlias = tuple[tuple[str, Any], ...]

MAX_TAPS = 9
"""Maximum number of views in one loop; the gradient has twice as many."""

FLOATS = ("float32", "float64")
DTYPES = (*FLOATS, "int32", "int64")
"""Gradients are for floats: integers have no NaN as padding."""

CUT_SAVES = 1 << 18
"""Minimum saving, in elements not copied. 1 MiB takes 0.15 ms, as do 4 extra loops for border windows."""


def _max_pool(op: OpDef, xp: Any, input: Array, out: Any = None, workspace: Any = None, **attrs: Any) -> Any:
    axes = _axes(input.shape, (), tuple(attrs.items()))
    out = np.empty([a.outputs for a in axes], input.dtype) if out is None else out
    if not _is_for_loops(DTYPES, axes, input, out):
        return op.kernel(xp, input, out=out, workspace=workspace, **attrs)
    new = begin(np, workspace)
    for windows, elements, part, taps in _pieces(axes):
        x = pad(input[elements], part, input.dtype, lowest(input.dtype), new)
        _run(_maximum, (input.dtype.name, len(taps)), [*[x[tap] for tap in taps], out[windows]])
    return out


def _max_pool_grad(
    op: OpDef, xp: Any, orig_input: Array, orig_output: Array, grad: Array, out: Any = None,
    workspace: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    x, y, dy = orig_input, orig_output, grad
    axes = _axes(x.shape, (y.shape, dy.shape), tuple(attrs.items()))
    out = np.empty(x.shape, dy.dtype) if out is None else out
    if not _is_for_loops(FLOATS, axes, x, y, dy, out):
        return op.kernel(xp, x, y, dy, out=out, workspace=workspace, **attrs)
    is_apart = all(a.stride >= a.taps for a in axes)  # no element is in two windows
    (_write_gradients if is_apart else _add_gradients)(axes, x, y, dy, out, begin(np, workspace))
    return out


def _write_gradients(axes: Axes, x: Array, y: Array, dy: Array, dx: Array, new: New) -> None:
    if any((a.outputs - 1) * a.stride + a.taps < a.before + a.length or a.stride > a.taps for a in axes):
        dx[...] = 0  # some element is in no window
    for windows, elements, part, taps in _pieces(axes):
        seen, given = _padded(x[elements], part, new), _room(dx[elements], part, new)
        arrays = [y[windows], dy[windows], *[array[tap] for array in (seen, given) for tap in taps]]
        _run(_gradients, (dy.dtype.name, len(taps)), arrays)
        _leave(given, part, dx[elements])


def _add_gradients(axes: Axes, x: Array, y: Array, dy: Array, dx: Array, new: New) -> None:
    """Sum, for each element, the gradients of the windows in which it is the first maximum, in order."""
    shape, inner, periods, behind, seen_as = _gathering(axes)
    first, gradient = new(shape, np.int32), new(shape, dy.dtype)
    fill_outside(first, inner, -1)  # where no tap is the first, gradients do not matter
    for windows, elements, part, taps in _pieces(axes):
        seen = _padded(x[elements], part, new)
        arrays = [y[windows], dy[windows], *[seen[tap] for tap in taps]]
        results = [first[inner][windows], gradient[inner][windows]]
        _run(_first_maximum, (dy.dtype.name, len(taps)), [*arrays, *results])
    if any(a.stride > a.taps for a in axes):
        dx[...] = 0  # some element is in no window
    for windows, elements, part, phases in periods:
        given = _room(dx[elements], part, new)
        read = [array[_moved(windows, offset)] for offset in behind for array in (first, gradient)]
        kind = (dy.dtype.name, len(behind), seen_as)
        _run(_sums, kind, [*read, *[given[phase] for phase in phases]])
        _leave(given, part, dx[elements])


def _padded(x: Array, axes: Axes, new: New) -> Array:
    """``x`` padded with NaNs, which are equal to no maximum."""
    return pad(x, axes, x.dtype, np.nan, new)


def _room(array: Array, axes: Axes, new: New) -> Array:
    """Zeroed memory for ``array`` and its padding; ``array`` itself if there is none."""
    if not _has_padding(axes):
        return array
    room: Array = new(tuple([a.padded for a in axes]), array.dtype)
    room[...] = 0
    return room


def _leave(room: Array, axes: Axes, array: Array) -> None:
    """Copy the contents of the `_room` to ``array``."""
    if _has_padding(axes):
        array[...] = room[tuple([a.inner for a in axes])]


# --- geometry


class Piece(NamedTuple):
    """Windows that are read together."""

    windows: Where
    elements: Where
    """Elements of the input from the first to the last that the windows cover."""
    axes: Axes
    """The windows along those elements."""
    taps: tuple[Where, ...]
    """Slices of the padded ``elements``."""


class Gathering(NamedTuple):
    """Index tables for summing, for each element, over the windows that contain it.

    Period q of an axis extends from the start of window q to that of the next; its element of phase p is tap
    ``m * stride + p`` of window q - m. Windows are stored with a margin on each side, so that all elements of
    a phase are in the same number of windows.
    """

    room: tuple[int, ...]
    """Shape including the margin."""
    inner: Where
    """The windows there are, in the room."""
    periods: tuple[Piece, ...]
    """All elements; as taps the phases that are in windows. Where period 0 begins in the room."""
    behind: tuple[tuple[int, ...], ...]
    """Offsets of the windows that contain elements of period 0, in row-major order."""
    seen_as: tuple[tuple[tuple[int, int], ...], ...]
    """Pairs (index into ``behind``, tap) for each phase."""


@lru_cache(maxsize=256)
def _axes(x_shape: tuple[int, ...], y_shapes: tuple[tuple[int, ...], ...], attrs: Attributes) -> Axes:
    return tuple(pool_axes(x_shape, *y_shapes, **dict(attrs)))


@lru_cache(maxsize=256)
def _pieces(axes: Axes) -> tuple[Piece, ...]:
    """All windows, in one piece; or, if that saves much padding, interior windows separately from those at
    both ends of each axis.
    """
    spans = [range(a.outputs) for a in axes]
    whole = _piece(axes, spans)
    found = []
    for d, a in enumerate(axes):
        begin = min(a.outputs, -(-a.before // a.stride))
        end = max(begin, min(a.outputs, (a.before + a.length - a.taps) // a.stride + 1))
        ends = range(begin), range(end, a.outputs)
        found += [_piece(axes, [*spans[:d], span, *spans[d + 1 :]]) for span in ends]
        spans[d] = range(begin, end)
    found = [piece for piece in (*found, _piece(axes, spans)) if _size(piece.windows)]
    return tuple(found) if _copied([whole]) - _copied(found) > CUT_SAVES else (whole,)


def _piece(axes: Axes, spans: Sequence[range]) -> Piece:
    """The windows of these numbers."""
    elements, part = [], []
    for a, span in zip(axes, spans, strict=True):
        start = span.start * a.stride - a.before
        begin = min(max(start, 0), a.length)
        end = min(max(start + (len(span) - 1) * a.stride + a.taps, begin), a.length)
        elements.append(slice(begin, end))
        part.append(a._replace(length=end - begin, before=max(0, begin - start), outputs=len(span)))
    windows = tuple([slice(span.start, span.stop) for span in spans])
    return Piece(windows, tuple(elements), tuple(part), tuple([where for _, where in taps_of(part)]))


def _copied(pieces: Sequence[Piece]) -> int:
    """Number of elements copied to pad the pieces."""
    return sum(_size(piece.elements) for piece in pieces if _has_padding(piece.axes))


def _has_padding(axes: Axes) -> bool:
    return any(a.padded != a.length for a in axes)


def _size(where: Where) -> int:
    return math.prod([s.stop - s.start for s in where])


@lru_cache(maxsize=256)
def _gathering(axes: Axes) -> Gathering:
    shape, inner, periods, steps = [], [], [], []
    for a in axes:
        reach = (a.taps - 1) // a.stride
        first, last = a.before // a.stride, (a.before + a.length - 1) // a.stride
        start = min(0, first - reach)  # the window at the begin of the room
        shape.append(max(a.outputs, last + 1) - start)
        inner.append(slice(-start, a.outputs - start))
        periods.append(
            Axis(a.length, min(a.stride, a.taps), a.stride, 1, a.before % a.stride, last + 1 - first)
        )
        steps.append([(m, first - m - start) for m in range(reach, -1, -1)])
    behind = list(product(*steps))
    sizes = [a.taps for a in axes]
    seen_as = []
    for phase in product(*[range(p.taps) for p in periods]):
        taps = [[m * a.stride + p for (m, _), a, p in zip(ms, axes, phase, strict=True)] for ms in behind]
        seen = [(i, _number(tap, sizes)) for i, tap in enumerate(taps) if all(map(int.__lt__, tap, sizes))]
        seen_as.append(tuple(seen))
    begins = tuple([tuple([begin for _, begin in offsets]) for offsets in behind])
    return Gathering(tuple(shape), tuple(inner), _pieces(tuple(periods)), begins, tuple(seen_as))


def _moved(where: Where, offset: Sequence[int]) -> Where:
    return tuple([slice(s.start + o, s.stop + o) for s, o in zip(where, offset, strict=True)])


def _number(place: Sequence[int], sizes: Sequence[int]) -> int:
    """Row-major index of a position in an array of these sizes."""
    number = 0
    for index, size in zip(place, sizes, strict=True):
        number = number * size + index
    return number


# --- loops


def _is_for_loops(dtypes: Sequence[str], axes: Axes, *arrays: Array) -> bool:
    return math.prod([a.taps for a in axes]) <= MAX_TAPS and all(
        a.dtype.name in dtypes and a.dtype == arrays[0].dtype and a.size and a.flags.aligned for a in arrays
    )


def _run(program: Callable[..., LoopProgram], kind: tuple[Any, ...], arrays: Sequence[Array]) -> None:
    """The loop of an elementwise ``program(*kind)`` over ``arrays``, all of one shape."""
    strides = [tuple([stride // a.itemsize for stride in a.strides]) for a in arrays]
    call = call_on(_layout(program, kind, arrays[0].shape, tuple(strides)), arrays)
    function, arguments = call.bound()
    function(*arguments)


@lru_cache(maxsize=1024)
def _layout(
    program: Callable[..., LoopProgram], kind: tuple[Any, ...], shape: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
) -> Layout:  # fmt: skip
    return layout_of(program(*kind), shape, strides)


# --- programs


def _maximum(dtype: str, n_taps: int) -> LoopProgram:
    """Program with operands: the taps, and the result."""
    b = LoopBuilder()
    taps = [b.load(b.operand(dtype)) for _ in range(n_taps)]
    b.put(_largest(b, taps), b.operand(dtype))
    return b.build()


def _largest(b: LoopBuilder, values: Sequence[LoopValue]) -> LoopValue:
    """The maximum; NaN if one is. Checking for NaNs separately takes 0.7 to 0.9 of the time of
    NaN-propagating maxima.
    """
    total = values[0]
    for value in values[1:]:
        total = b.select(value > total, value, total)
    if not total.dtype.startswith("float"):
        return total
    has_nan = values[0].differs(values[0])
    for value in values[1:]:
        has_nan = has_nan | value.differs(value)
    return b.select(has_nan, np.nan, total)


def _hits(taps: Sequence[LoopValue], maximum: LoopValue) -> Iterator[LoopValue]:
    """Masks of the taps that are the first with the window's maximum. NaN matches none."""
    is_free = None
    for tap in taps:
        has_it = tap.equals(maximum)
        yield has_it if is_free is None else has_it & is_free
        is_free = ~has_it if is_free is None else is_free & ~has_it


def _gradients(dtype: str, n_taps: int) -> LoopProgram:
    """Program with operands: maximum, its gradient, the taps, and their gradients."""
    b = LoopBuilder()
    maximum, gradient, *taps = [b.load(b.operand(dtype)) for _ in range(2 + n_taps)]
    for hit in _hits(taps, maximum):
        b.put(b.select(hit, gradient, 0), b.operand(dtype))
    return b.build()


def _first_maximum(dtype: str, n_taps: int) -> LoopProgram:
    """Program with operands: maximum, its gradient, the taps, the index of the first with the maximum, or -1,
    and the gradient again.
    """
    b = LoopBuilder()
    maximum, gradient, *taps = [b.load(b.operand(dtype)) for _ in range(2 + n_taps)]
    first = b.const(-1, "int32")
    for number in reversed(range(n_taps)):
        first = b.select(taps[number].equals(maximum), b.const(number, "int32"), first)
    b.put(first, b.operand("int32"))
    b.put(gradient, b.operand(dtype))
    return b.build()


def _sums(dtype: str, n_windows: int, elements: Sequence[Sequence[tuple[int, int]]]) -> LoopProgram:
    """Program with operands: for each window, the tap of its maximum and the maximum's gradient; and the
    gradients of elements, each tap ``(window, number)`` of some of the windows.
    """
    b = LoopBuilder()
    windows = [(b.load(b.operand("int32")), b.load(b.operand(dtype))) for _ in range(n_windows)]
    for users in elements:
        parts = [b.select(windows[i][0].equals(tap), windows[i][1], 0) for i, tap in users]
        b.put(reduce(operator.add, parts), b.operand(dtype))
    return b.build()


POOL_KERNELS: Mapping[OpDef, Kernel] = {
    max_pool_op: _max_pool,
    max_pool3d_op: _max_pool,
    max_pool_grad_op: _max_pool_grad,
    max_pool3d_grad_op: _max_pool_grad,
}
"""``kernel(op, xp, *inputs, out=None, workspace=None, **attrs)``."""
