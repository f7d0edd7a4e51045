"""`LocalSteps`: a task's view of the steps of sessions without a target in its process.

They are counted and profiled like its own. Workers of `MultiWorkerMirroredStrategy` run such sessions, with
collectives between them.
"""

from __future__ import annotations

import itertools
import secrets
from typing import final

from flowrt.distribute.observe.metrics import Counts
from flowrt.distribute.worker.step_profiles import StepProfiles
from flowrt.distribute.worker.step_trace import StepTrace
from flowrt.executor.observe.step_stats import StepRecorder


@final
class LocalSteps:
    """A `flowrt.executor.observe.step_watch.StepWatch` of a task."""

    def __init__(self, task: str, counts: Counts, profiles: StepProfiles) -> None:
        self.task, self.counts, self.profiles = task, counts, profiles
        self._numbers = itertools.count(secrets.randbits(63))  # as masters draw theirs, of 64 bits

    def begin(self) -> LocalStep:
        return LocalStep(self, next(self._numbers))


@final
class LocalStep:
    """A `flowrt.executor.observe.step_watch.WatchedStep`."""

    def __init__(self, steps: LocalSteps, number: int) -> None:
        self._steps, self._number = steps, number
        steps.counts.step_began(number)
        is_traced = steps.profiles.takes(number)
        self._trace = StepTrace(is_for_client=False, local_task=steps.task) if is_traced else None

    @property
    def recorder(self) -> StepRecorder | None:
        return None if self._trace is None else self._trace.recorder

    def ended(self, is_ok: bool) -> None:
        self._steps.counts.step_ended(self._number, is_ok)
        if self._trace is not None:
            self._steps.profiles.ended(self._number, self._trace)
