"""Axes: positions of values, round numbers for ticks, and their format."""

from __future__ import annotations

import math
from typing import NamedTuple

NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(NamedTuple):
    """A linear scale from the values ``low`` to ``high`` to the positions ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        part = (value - self.low) / span if span else 0.5
        return self.start + part * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers in [low, high], spaced by 1, 2, 2.5 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    if not power:
        return [low]
    step = next(nice * power for nice in NICE if nice * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low]


def whole_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` whole numbers in [low, high]."""
    step = max(1, round((high - low) / max(1, count)))
    return [float(tick) for tick in range(math.ceil(low), math.floor(high) + 1, step)]


def byte_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """`ticks` of bytes: their distance is a power of two."""
    rough = (high - low) / max(1, count)
    step = 2.0 ** max(0, math.ceil(math.log2(rough))) if rough > 0 else 1.0
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def padded(low: float, high: float) -> tuple[float, float]:
    """The range, slightly enlarged; an interval around a single value."""
    margin = (high - low) * 0.05 or abs(low) * 0.05 or 1.0
    return low - margin, high + margin


def number(value: float) -> str:
    """A number with at most four digits: ``0.0125``, ``12.5k``, ``3.1e-07``."""
    size = abs(value)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if sign == 'k' else limit):.4g}{sign}"
    return f"{value:.4g}"


def duration(nanos: float) -> str:
    """``0``, ``12 ns``, ``3.4 us``, ``5.6 ms``, ``7.8 s``, ``2 min 3 s``, ``1 h 2 min``."""
    if nanos >= 3600e9:
        return f"{int(nanos // 3600e9)} h {int(nanos % 3600e9 // 60e9)} min"
    if nanos >= 60e9:
        return f"{int(nanos // 60e9)} min {int(nanos % 60e9 // 1e9)} s"
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanos >= limit:
            return f"{nanos / limit:.3g} {unit}"
    return f"{nanos:.3g} ns" if nanos else "0"


def share(part: float, whole: float) -> str:
    """``12 %``; of nothing, 0."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 1 or not percent else "< 1 %"
