"""What a benchmark gives back, and how a call is timed.

Every side runs this file, each with its own interpreter, so it imports the standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

MIN_CALLS = 7
WARM_S = 2.0  # code that is compiled beside the first steps is there by then
TIMED_S = 1.0
MEMORY = "peak_memory"
"""Largest resident memory of the side's process, in bytes."""

CHECKED_CALL = 3  # a training step's third loss has two updates in it: gradients and optimizer show


class Outcome(NamedTuple):
    """Median seconds by measure, bytes of a measure `MEMORY`, and a number that shows what was computed (None
    where nothing is).

    Sides whose numbers differ did not do the same work.
    """

    figures: dict[str, float]
    value: float | None = None


def median_s(call: Callable[[], Any], at_least_s: float | None = None, warm_s: float | None = None) -> float:
    """The median seconds of `MIN_CALLS` calls or more, for ``at_least_s`` (default `TIMED_S`), after as many
    for ``warm_s`` (default `WARM_S`) that do not count.
    """
    _call_for(WARM_S if warm_s is None else warm_s, call)
    return median(_call_for(TIMED_S if at_least_s is None else at_least_s, call))


def _call_for(seconds: float, call: Callable[[], Any]) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def timed(call: Callable[[], Any], measure: str = "run", value: Callable[[Any], Any] = float) -> Outcome:
    """Time ``call``; ``value`` makes the outcome's number of what the third call returned."""
    for _ in range(CHECKED_CALL):
        result = call()
    return Outcome({measure: median_s(call)}, float(value(result)))


def timed_from_first(call: Callable[[], Any], value: Callable[[Any], Any] = float) -> Outcome:
    """`timed` for a training step after its first call, whose seconds are a measure of their own."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    later = timed(call, "step", value)
    return later._replace(figures={"first_step": first} | later.figures)
