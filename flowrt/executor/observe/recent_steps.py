"""The last steps of this process, kept while it runs, to be looked at when one was slow or failed.

    keep_recent_steps(20) -> every `Plan` that is made from now on records its steps -> recent_steps()

Off, it costs nothing: a plan asks once, when it is made. On, a step takes about 0.5 us an instruction more,
and steps on a GPU are not captured.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from flowrt.executor.observe.step_stats import StepRecorder

MAX_SLICES_A_STREAM = 50_000
"""Of one step: a loop may run for ever, and what is wanted then is its end."""

MAX_SLICES = 500_000
"""Of all steps, about 80 MB: the oldest steps go, even if there are fewer than were asked for."""


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
        """Those of the kept steps, oldest first; of one that runs, it has what was done so far."""
        with self._lock:
            return list(self._steps)


_kept: RecentSteps | None = None


def keep_recent_steps(capacity: int) -> None:
    """Have the plans that are made from now on keep their last ``capacity`` steps, all together; 0: none."""
    global _kept  # noqa: PLW0603 (there is one process)
    _kept = RecentSteps(capacity) if capacity else None


def recent_steps() -> RecentSteps | None:
    """Where plans keep their steps, if they do."""
    return _kept
