"""`Standstill`: times in which this process stood still, since it or its machine was stopped.

It heard nobody then, but that says nothing about the others: a cluster that was paused as a whole, as a
virtual machine or a container is, must not find all of its tasks dead when it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final


@final
class Standstill:
    """Watches a loop that comes by every ``interval_s`` seconds. Shorter times than half of ``lost_s``, after
    which a silent peer is given up, are no standstill: a busy machine has those, too.
    """

    def __init__(self, interval_s: float, lost_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._normal_s = interval_s + lost_s / 2
        self._last = clock()
        self.total_s = 0.0
        """Seconds of all standstills so far: a clock without them is for deadlines."""

    def before(self, now: float) -> float:
        """Seconds of the standstill between the last call and ``now``; 0 if there was none."""
        passed_s, self._last = now - self._last, now
        stood_s = passed_s if passed_s > self._normal_s else 0.0
        self.total_s += stood_s
        return stood_s
