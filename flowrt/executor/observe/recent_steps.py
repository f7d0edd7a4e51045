"""The last steps of this process, kept for diagnosis when one was slow or failed.

    keep_recent_steps(20) -> every `Plan` created from now on records its steps -> recent_steps()

When disabled it has no overhead: a plan checks once, when it is created. When enabled, a step takes about 0.5
us more per instruction, and steps on a GPU are not captured.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from flowrt.executor.observe.step_stats import StepRecorder

MAX_SLICES_A_STREAM = 50_000
"""Limit for one step: a loop may run forever, and then its end is of interest."""

MAX_SLICES = 500_000
"""Limit for all steps, about 80 MB: the oldest steps are dropped, even if fewer than requested remain."""


@final
class RecentSteps:
    """A ring of the recorders of the last ``capacity`` steps. Any thread may call anything."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._steps: deque[StepRecorder] = deque()
        self._sizes: deque[int] = deque()
        """Slices of each step but the last, which still runs."""
        self._num_slices = 0

    def begin(self) -> StepRecorder:
        """The recorder of a step that begins. It counts from now on: one that never ends is there too."""
        recorder = StepRecorder(MAX_SLICES_A_STREAM, is_thorough=False)
        with self._lock:
            if self._steps:
                self._sizes.append(self._steps[-1].num_slices)
                self._num_slices += self._sizes[-1]
            self._steps.append(recorder)
            while len(self._steps) > self._capacity or (self._num_slices > MAX_SLICES and self._sizes):
                self._steps.popleft()
                self._num_slices -= self._sizes.popleft()
        return recorder

    def read(self) -> list[StepRecorder]:
        """The kept steps, oldest first; a running step contains what was recorded so far."""
        with self._lock:
            return list(self._steps)


_kept: RecentSteps | None = None


def keep_recent_steps(capacity: int) -> None:
    """Have the plans that are made from now on keep their last ``capacity`` steps, all together; 0: none."""
    global _kept  # noqa: PLW0603 (one per process)
    _kept = RecentSteps(capacity) if capacity else None


def recent_steps() -> RecentSteps | None:
    """The store of recent steps, if enabled."""
    return _kept
