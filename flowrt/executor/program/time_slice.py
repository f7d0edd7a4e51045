"""Adaptive time slice: the number of loop iterations in one call of machine code: small enough for deadlines,
`Session.close` and Ctrl-C to take effect soon, as a step can end only between two calls, and large enough
that the calls cost nothing.

The time per iteration is measured, since it cannot be predicted: a body may be one addition or 200 powers,
and arithmetic on subnormal numbers takes 65 times as long as on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

SHORT_S = 0.5e-3
"""A call shorter than this is doubled. Should its numbers become subnormal, it ends within 65 ms."""

LONG_S = 5e-3
"""A call longer than this is halved."""

MAX_ITERATIONS = 1_000_000
"""Limit for one call. The shortest body takes 0.3 ms for them, or nothing if the compiler summed them up."""


@final
class TimeSlice:
    """A call of ``iterate``, each time for so many iterations as the time of the one before allows.

    ``iterate(count)`` makes iterations, up to ``count`` and as long as the loop's predicate holds; it returns
    ``count``, or less if it had room for less. ``goes_on()`` says whether the loop is paused, not over.
    """

    __slots__ = ("_clock", "_goes_on", "_iterate", "count")

    def __init__(self, iterate: Callable[[int], int], goes_on: Callable[[], object], first: int) -> None:
        self._iterate, self._goes_on = iterate, goes_on
        self._clock: Callable[[], float] = time.perf_counter
        self.count = first

    def __call__(self) -> None:
        """Measure one call. A long one may be a short one that waited for the GIL, up to 5 ms: so the next is
        measured in the thread's CPU time. Reading that takes 0.8 us, too much for every call.
        """
        clock = self._clock
        start = clock()
        made = self._iterate(self.count)
        seconds = clock() - start
        if seconds > LONG_S and clock is time.thread_time:
            self.count = max(1, made // 2)
        elif seconds < SHORT_S and self._goes_on():
            self.count = min(2 * made, MAX_ITERATIONS)
        self._clock = time.thread_time if seconds > LONG_S else time.perf_counter
