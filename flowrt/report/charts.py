"""The charts of a report, as SVG. Colours are classes (``c0`` ... ``c7``, and those of activities); the
page's style defines them for light and dark mode. Distances are CSS pixels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from flowrt.base.markup import Markup, element, joined
from flowrt.profiler.text_table import size_text
from flowrt.report.read_run import Point
from flowrt.report.scale import Scale, byte_ticks, duration, number, padded, ticks, whole_ticks

NUM_COLOURS = 8
MAX_POINTS = 400
"""Maximum number of points of a line: one per pixel."""

MAX_STEPS = 800
"""Maximum number of steps of an area: about one per pixel."""

SMOOTHING = 0.9
MIN_SMOOTHED = 100
"""Minimum number of points for a noisy curve to be overlaid with its exponential moving average."""

NOISE = 3.0
"""Length of the path of a noisy curve, relative to its range: a monotonic curve has 1."""

WIDE, HEIGHT, ROW = 1040.0, 190.0, 22
LABELS = 130
"""Width of the names left of the rows."""


class Frame(NamedTuple):
    """A chart's plot area: ``x`` and ``y`` map values to positions in it."""

    width: float
    height: float
    x: Scale
    y: Scale


def curves(
    lines: Mapping[str, Sequence[Point]],
    width: float = 340,
    name_y: Callable[[float], str] = number,
    ticks_y: Callable[..., list[float]] = ticks,
) -> Markup:
    """The points of each name by step. Values that are not finite are left out, as gaps in the line.
    ``name_y`` formats a value, ``ticks_y`` returns the positions of grid lines.
    """
    finite = {name: [p for p in points if math.isfinite(p.value)] for name, points in lines.items()}
    every = [point for points in finite.values() for point in points]
    if not every:
        return element("p", "No value is a finite number.", class_="missing")
    frame = _frame(width, [p.step for p in every], [p.value for p in every])
    drawn = [
        _curve(frame, points, f"c{i % NUM_COLOURS}") for i, points in enumerate(lines.values()) if points
    ]
    shown = [
        {"name": name, "points": [[_px(frame.x(p.step)), _px(frame.y(p.value)), p.step, name_y(p.value)]
                                  for p in thinned(points)]}
        for name, points in finite.items()
    ]  # fmt: skip
    return _svg(
        frame.width, frame.height, _axes(frame, number, name_y, ticks_y), drawn, points=json.dumps(shown)
    )


class Line(NamedTuple):
    """A line of `powers_of_two`: (x, y) pairs, its class, and whether they are marked as measured."""

    pairs: Sequence[tuple[float, float]]
    kind: str
    has_dots: bool = False


def powers_of_two(lines: Mapping[str, Line], width: float = 500) -> Markup:
    """Lines of positive numbers, with an axis of powers of two in both directions."""
    logs = {name: [(math.log2(x), math.log2(y)) for x, y in line.pairs] for name, line in lines.items()}
    every = [pair for pairs in logs.values() for pair in pairs]
    frame = _frame(width, [x for x, _ in every], [y for _, y in every])
    drawn: list[Markup] = []
    for name, line in lines.items():
        at = [(_px(frame.x(x)), _px(frame.y(y))) for x, y in logs[name]]
        path = "M" + "L".join(f"{x} {y}" for x, y in at)
        drawn.append(element("path", element("title", name), d=path, class_=f"curve {line.kind}"))
        if line.has_dots:
            texts = [f"{y:.3g} on {x:g}" for x, y in line.pairs]
            drawn += [element("circle", element("title", text), cx=x, cy=y, r=3.5, class_=f"dot {line.kind}")
                      for (x, y), text in zip(at, texts, strict=True)]  # fmt: skip
    return _svg(frame.width, frame.height, _axes(frame, _power, _power, whole_ticks, whole_ticks), drawn)


def _power(exponent: float) -> str:
    return number(2.0**exponent)


def areas(lines: Mapping[str, Sequence[tuple[float, float]]]) -> Markup:
    """A stepped area for each name: (nanoseconds, bytes from then on)."""
    every = [pair for pairs in lines.values() for pair in pairs]
    frame = _frame(WIDE, [x for x, _ in every], [0.0, *(y for _, y in every)], from_zero=True)
    drawn = [_area(frame, peaks(pairs), f"c{i % NUM_COLOURS}") for i, pairs in enumerate(lines.values())]
    return _svg(WIDE, HEIGHT, _axes(frame, duration, size_text, byte_ticks), drawn)


class Bar(NamedTuple):
    """A segment of a row; ``text`` is its tooltip."""

    start: float
    end: float
    kind: str
    text: str


class Mark(NamedTuple):
    """A point in time in a row."""

    at: float
    kind: str
    text: str


def rows(
    bars: Mapping[str, Sequence[Bar]], marks: Mapping[str, Sequence[Mark]], span_ns: tuple[float, float]
) -> Markup:
    """A row for each name, over one axis of nanoseconds: bars, and marks on them."""
    names = list(dict.fromkeys([*bars, *marks]))
    bottom = ROW * len(names) + 4.0
    x = Scale(*span_ns, LABELS, WIDE - 12)
    parts = [
        [
            element("line", x1=x(tick), x2=x(tick), y1=0, y2=bottom, class_="grid"),
            element("text", duration(tick), x=x(tick), y=bottom + 16, text_anchor="middle", class_="tick"),
        ]
        for tick in ticks(*span_ns, 8)
    ]
    for i, name in enumerate(names):
        top = ROW * i
        label = element("text", _short(name), element("title", name), x=0, y=top + 15, class_="label")
        parts.append([label, *(_bar(x, top, bar) for bar in bars.get(name, ()))])
        parts.append([_mark(x, top, mark) for mark in marks.get(name, ())])
    return _svg(WIDE, bottom + 22, parts)


def merged(bars: Iterable[Bar], pixel: float) -> list[Bar]:
    """Bars, those of one kind within one ``pixel`` merged: thousands of small ones are hardly visible."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else None
        if last and last.kind == bar.kind and bar.end - last.start < pixel and bar.start - last.end < pixel:
            found[-1] = last._replace(end=max(last.end, bar.end), text="several operations")
        else:
            found.append(bar)
    return found


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """The lowest and the highest point of each interval, ``limit`` at most, so that spikes remain."""
    if len(points) <= limit:
        return list(points)
    chunk = math.ceil(len(points) / max(1, limit // 2))
    found: list[Point] = []
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        ends = {id(p): p for p in (min(part, key=_value), max(part, key=_value))}
        found += sorted(ends.values(), key=lambda point: point.step)
    return found


def peaks(pairs: Sequence[tuple[float, float]], limit: int = MAX_STEPS) -> list[tuple[float, float]]:
    """An area reduced to at most ``limit`` steps, each the maximum of those it replaces."""
    chunk = max(1, math.ceil(len(pairs) / limit))
    parts = (pairs[start : start + chunk] for start in range(0, len(pairs), chunk))
    return [(part[0][0], max(y for _, y in part)) for part in parts]


def is_noisy(values: Sequence[float]) -> bool:
    """Whether the sum of all changes is much larger than the range."""
    way = sum(abs(after - before) for before, after in pairwise(values))
    return way > NOISE * (max(values) - min(values))


def smoothed(points: Sequence[Point]) -> list[Point]:
    """The exponential mean, without a bias to 0 at the beginning (Kingma and Ba, "Adam", 2015, section 3)."""
    found, mean, total = [], 0.0, 0.0
    for point in points:
        mean, total = SMOOTHING * mean + (1 - SMOOTHING) * point.value, SMOOTHING * total + 1 - SMOOTHING
        found.append(point._replace(value=mean / total))
    return found


# --- parts


def _frame(width: float, xs: Sequence[float], ys: Sequence[float], from_zero: bool = False) -> Frame:
    low, high = (0.0, max(ys) * 1.08 or 1.0) if from_zero else padded(min(ys), max(ys))
    return Frame(width, HEIGHT, Scale(min(xs), max(xs), 58, width - 12), Scale(low, high, HEIGHT - 24, 8))


def _axes(
    frame: Frame,
    name_x: Callable[[float], str],
    name_y: Callable[[float], str],
    ticks_y: Callable[[float, float, int], list[float]] = ticks,
    ticks_x: Callable[[float, float, int], list[float]] = ticks,
) -> list[Markup]:
    x, y = frame.x, frame.y
    across = [
        part
        for tick in ticks_y(y.low, y.high, 4)
        for part in (
            element("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid"),
            element("text", name_y(tick), x=x.start - 8, y=y(tick) + 4, text_anchor="end", class_="tick"),
        )
    ]
    down = [
        element("text", name_x(tick), x=x(tick), y=frame.height - 6, text_anchor="middle", class_="tick")
        for tick in ticks_x(x.low, x.high, round((x.end - x.start) / 80))
    ]
    return [*across, *down]


def _curve(frame: Frame, points: Sequence[Point], colour: str) -> list[Markup]:
    finite = [point for point in points if math.isfinite(point.value)]
    if len(finite) == 1:
        (only,) = finite
        return [element("circle", cx=frame.x(only.step), cy=frame.y(only.value), r=3, class_=f"dot {colour}")]
    if len(finite) < MIN_SMOOTHED or not is_noisy([point.value for point in finite]):
        return [_line(frame, thinned(points), f"curve {colour}")]
    return [
        _line(frame, thinned(points), f"curve faint {colour}"),
        _line(frame, thinned(smoothed(finite)), f"curve {colour}"),
    ]


def _line(frame: Frame, points: Sequence[Point], kind: str) -> Markup:
    path, is_down = [], False
    for point in points:
        if math.isfinite(point.value):
            path.append(f"{'L' if is_down else 'M'}{_px(frame.x(point.step))} {_px(frame.y(point.value))}")
        is_down = math.isfinite(point.value)
    return element("path", d="".join(path), class_=kind)


def _area(frame: Frame, pairs: Sequence[tuple[float, float]], colour: str) -> list[Markup]:
    path = f"M{_px(frame.x(pairs[0][0]))} {_px(frame.y(pairs[0][1]))}"
    for x, y in pairs[1:]:
        path += f"H{_px(frame.x(x))}V{_px(frame.y(y))}"
    path += f"H{_px(frame.x.end)}"
    closed = f"{path}V{_px(frame.y(0))}H{_px(frame.x(pairs[0][0]))}Z"
    return [
        element("path", d=closed, class_=f"area {colour}"),
        element("path", d=path, class_=f"curve {colour}"),
    ]


def _bar(x: Scale, top: float, bar: Bar) -> Markup:
    width = max(0.5, x(bar.end) - x(bar.start))
    shape = element("title", bar.text)
    return element(
        "rect", shape, x=x(bar.start), y=top + 3, width=width, height=ROW - 7, class_=f"bar {bar.kind}"
    )


def _mark(x: Scale, top: float, mark: Mark) -> Markup:
    return element(
        "circle",
        element("title", mark.text),
        cx=x(mark.at),
        cy=top + ROW / 2,
        r=4 if mark.kind == "aborted" else 2.5,
        class_=f"mark {mark.kind}",
    )


def _svg(width: float, height: float, *parts: object, points: str | None = None) -> Markup:
    return element(
        "svg",
        joined(parts),  # type: ignore[arg-type]  # lists of lists of markup
        viewBox=f"0 0 {width:g} {height:g}",
        class_="chart",
        role="img",
        data_points=points,
    )


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"…{name[-19:]}"


def _px(value: float) -> float:
    return round(value, 1)


def _value(point: Point) -> float:
    return point.value if math.isfinite(point.value) else 0.0
