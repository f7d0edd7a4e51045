"""Windows without padding: which of them have the same taps within the input, and where those lie.

Who reads an image so makes no padded copy of it. The windows in its middle, which have all their taps, are
one part, and those at a border, which lack some, are others; so are the elements in the middle, which are in
as many windows as there can be, and those at a border.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from flowrt.graph.ops.windows import Axis

Where: TypeAlias = tuple[slice, ...]
"""Elements of an array, one slice an axis."""


class WindowPart(NamedTuple):
    """Windows that have the same taps within the input, maybe none."""

    windows: Where
    taps: Mapping[int, Where]
    """Where in the input they have each, by its number in row-major order."""


class ElementPart(NamedTuple):
    """Elements of the input that are in the same number of windows, in the same places of them."""

    windows: tuple[Where, ...]
    """In row-major order."""
    elements: tuple[tuple[Where, tuple[tuple[int, int], ...]], ...]
    """(these, ((which of the ``windows`` they are in, as which tap), …)). All have one shape."""


@lru_cache(maxsize=256)
def window_parts(axes: tuple[Axis, ...]) -> tuple[WindowPart, ...]:
    """All windows."""
    sizes = [a.taps for a in axes]
    return tuple(
        WindowPart(
            tuple([windows for windows, _ in part]),
            {_number(tap, sizes): where for tap, where in _joined([taps for _, taps in part])},
        )
        for part in product(*map(_alike_windows, axes))
    )


@lru_cache(maxsize=256)
def element_parts(axes: tuple[Axis, ...]) -> tuple[ElementPart, ...]:
    """All elements that are in windows, which have no dilation.

    Between the begins of two windows lie elements that are in the same windows. They are written together,
    so that what is read of the windows is read once: with strides of 2, once for 4 elements of an image.
    """
    sizes = [a.taps for a in axes]
    found = []
    for part in product(*map(_alike_periods, axes)):
        windows = _joined([behind for behind, _ in part])
        elements = []
        for phase, where in _joined([phases for _, phases in part]):
            taps = [_place([m * a.stride for m, a in zip(ms, axes, strict=True)], phase) for ms, _ in windows]
            seen_as = [
                (i, _number(tap, sizes)) for i, tap in enumerate(taps) if all(map(int.__lt__, tap, sizes))
            ]
            if seen_as:
                elements.append((where, tuple(seen_as)))
        if elements:
            found.append(ElementPart(tuple([where for _, where in windows]), tuple(elements)))
    return tuple(found)


def count(wheres: Iterable[Where]) -> int:
    """How many elements there are."""
    return sum(math.prod([len(range(s.start, s.stop, s.step or 1)) for s in where]) for where in wheres)


def _alike_windows(a: Axis) -> Iterator[tuple[slice, dict[int, slice]]]:
    """Along one axis: (windows, {tap: where they have it})."""
    firsts = {tap: tap * a.dilation - a.before for tap in range(a.taps)}
    spans = {tap: _inside(a.length, a.stride, first, a.outputs) for tap, first in firsts.items()}
    for begin, end in _stretches(spans.values(), a.outputs):
        taps = [tap for tap, span in spans.items() if _has(span, begin, end)]
        yield slice(begin, end), {tap: _every(a.stride, firsts[tap], begin, end) for tap in taps}


def _alike_periods(a: Axis) -> Iterator[tuple[dict[int, slice], dict[int, slice]]]:
    """Along one axis, where period q is from the begin of window q to that of the next, for some periods:
    ({m: windows q - m}, {phase: elements of that place in the period}). An element is tap
    ``m * stride + phase`` of window q - m.
    """
    reach = (a.taps - 1) // a.stride
    periods = a.outputs + reach
    windows = {m: range(m, m + a.outputs) for m in range(reach, -1, -1)}
    firsts = {phase: phase - a.before for phase in range(min(a.stride, a.taps))}
    spans = {phase: _inside(a.length, a.stride, first, periods) for phase, first in firsts.items()}
    for begin, end in _stretches([*windows.values(), *spans.values()], periods):
        phases = [phase for phase, span in spans.items() if _has(span, begin, end)]
        yield (
            {m: slice(begin - m, end - m) for m, span in windows.items() if _has(span, begin, end)},
            {phase: _every(a.stride, firsts[phase], begin, end) for phase in phases},
        )


def _inside(length: int, stride: int, first: int, count: int) -> range:
    """The i below ``count`` with ``i * stride + first`` within an axis of ``length``."""
    begin = max(0, -(first // stride))
    return range(begin, max(begin, min(count, (length - 1 - first) // stride + 1)))


def _stretches(spans: Iterable[range], end: int) -> Iterator[tuple[int, int]]:
    """``0 … end`` in pieces, each within a span or outside."""
    edges = {0, end, *[edge for span in spans for edge in (span.start, span.stop)]}
    return pairwise(sorted(edge for edge in edges if edge <= end))


def _has(span: range, begin: int, end: int) -> bool:
    return span.start <= begin and end <= span.stop


def _every(stride: int, first: int, begin: int, end: int) -> slice:
    """The places ``i * stride + first``."""
    return slice(begin * stride + first, (end - 1) * stride + first + 1, stride)


def _joined(axes: Sequence[Mapping[int, slice]]) -> list[tuple[tuple[int, ...], Where]]:
    """The choices of one an axis, in row-major order: (keys, slices)."""
    chosen = product(*[axis.items() for axis in axes])
    return [(tuple([key for key, _ in one]), tuple([where for _, where in one])) for one in chosen]


def _place(begin: Sequence[int], offset: Sequence[int]) -> tuple[int, ...]:
    return tuple([b + o for b, o in zip(begin, offset, strict=True)])


def _number(place: Sequence[int], sizes: Sequence[int]) -> int:
    """Of a place in an array of these sizes, in row-major order."""
    number = 0
    for index, size in zip(place, sizes, strict=True):
        number = number * size + index
    return number
