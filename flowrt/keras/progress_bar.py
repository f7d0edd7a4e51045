"""`Progbar`: a line that shows how far an epoch is, and the results so far."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Progbar:
    """A bar up to ``target`` (None if unknown). Values are averaged over the calls, by the progress of each;
    those named in ``stateful_metrics`` are shown as they come.

    ``verbose`` 1 draws the bar, at most every ``interval`` seconds; 2 writes one line at the end; 0 nothing.
    """

    def __init__(
        self, target: int | None, width: int = 30, verbose: int = 1, interval: float = 0.05,
        stateful_metrics: Sequence[str] | None = None, unit_name: str = "step",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.target, self.width, self.verbose, self.interval = target, width, verbose, interval
        self.stateful, self.unit_name, self._clock = set(stateful_metrics or ()), unit_name, clock
        self._start, self._last, self._seen = clock(), 0.0, 0
        self._sums: dict[str, tuple[float, float]] = {}
        self._length = 0

    def update(self, current: int, values: Sequence[tuple[str, Any]] = (), finalize: bool = False) -> None:
        """Show ``current`` of the target; pairs of name and value are the results of what was done since."""
        progress = max(current - self._seen, 1)
        for name, value in values:
            value = float(np.mean(value))
            total, weight = self._sums.get(name, (0.0, 0.0))
            kept = name in self.stateful
            self._sums[name] = (value, 1.0) if kept else (total + value * progress, weight + progress)
        self._seen = current
        now = self._clock()
        is_end = finalize or (self.target is not None and current >= self.target)
        if self.verbose == 1 and (is_end or now - self._last >= self.interval):
            self._draw(current, now - self._start, is_end)
            self._last = now
        elif self.verbose == 2 and is_end:
            of = f"{current}/{self.target} - " if self.target else ""
            print(f"{of}{now - self._start:.0f}s{self._results()}", flush=True)

    def add(self, n: int, values: Sequence[tuple[str, Any]] = ()) -> None:
        """Show progress by ``n``."""
        self.update(self._seen + n, values)

    def _draw(self, current: int, seconds: float, is_end: bool) -> None:
        line = f"{self._bar(current)} - {self._time(current, seconds, is_end)}{self._results()}"
        padding = " " * max(self._length - len(line), 0)
        self._length = len(line)
        sys.stdout.write(f"\r{line}{padding}" + ("\n" if is_end else ""))
        sys.stdout.flush()

    def _bar(self, current: int) -> str:
        if not self.target:
            return f"{current:7d}/Unknown"
        digits = int(math.log10(self.target)) + 1
        done = int(self.width * min(current / self.target, 1.0))
        head = "=" * max(done - 1, 0) + (">" if current < self.target and done else "=" if done else "")
        return f"{current:{digits}d}/{self.target} [{head:.<{self.width}}]"

    def _time(self, current: int, seconds: float, is_end: bool) -> str:
        each = seconds / max(current, 1)
        if not is_end and self.target:
            return f"ETA: {each * (self.target - current):.0f}s"
        speed = (
            f"{each:.0f}s" if each >= 1 else f"{each * 1e3:.0f}ms" if each >= 1e-3 else f"{each * 1e6:.0f}us"
        )
        return f"{seconds:.0f}s {speed}/{self.unit_name}"

    def _results(self) -> str:
        parts = []
        for name, (total, weight) in self._sums.items():
            mean = total / max(weight, 1e-9)
            parts.append(f" - {name}: {mean:.4f}" if abs(mean) > 1e-3 else f" - {name}: {mean:.4e}")
        return "".join(parts)
