"""`StepProfiles`: traces of a task's next steps, for watchers of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.distribute.worker.step_trace import StepTrace
from flowrt.errors import ResourceExhaustedError

MAX_PROFILES = 8
"""Limit at any time."""


class TracedStep(NamedTuple):
    step: int
    trace: StepTrace


Complete: TypeAlias = Callable[[Sequence[TracedStep]], object]
"""Called once, with the traced steps in the order of their ends."""


class _Profile:
    """``num_left``: steps that are still to begin; ``running``: those under way."""

    __slots__ = ("complete", "end", "ended", "num_left", "running")

    def __init__(self, steps: int, end: float, complete: Complete) -> None:
        self.num_left, self.end, self.complete = steps, end, complete
        self.running: set[int] = set()
        self.ended: list[TracedStep] = []

    @property
    def is_complete(self) -> bool:
        return not self.num_left and not self.running


@final
class StepProfiles:
    """Thread-safe. ``is_active``: whether the next step is traced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profiles: list[_Profile] = []
        self.is_active = False

    def add(self, steps: int, end: float, complete: Complete) -> None:
        """Have the next ``steps`` steps traced. ``complete`` is called when they have ended, or at the first
        `expire` from ``end`` on, with those that have. Raises `ResourceExhaustedError` if there are too many
        profiles.
        """
        with self._lock:
            if len(self._profiles) >= MAX_PROFILES:
                raise ResourceExhaustedError(f"profile: expected at most {MAX_PROFILES} at once")
            self._profiles.append(_Profile(steps, end, complete))
            self.is_active = True

    def takes(self, step: int) -> bool:
        """Whether ``step``, which begins now, is to be traced."""
        if not self.is_active:
            return False
        with self._lock:
            taking = [profile for profile in self._profiles if profile.num_left]
            for profile in taking:
                profile.num_left -= 1
                profile.running.add(step)
            self._update()
        return bool(taking)

    def ended(self, step: int, trace: StepTrace) -> None:
        """Record the end of a traced step."""
        with self._lock:
            for profile in self._profiles:
                if step in profile.running:
                    profile.running.discard(step)
                    profile.ended.append(TracedStep(step, trace))
            complete = [profile for profile in self._profiles if profile.is_complete]
            self._remove(complete)
        _tell(complete)

    def expire(self, now: float) -> None:
        """Complete the profiles that are due, at ``now`` of the clock of their ends."""
        with self._lock:
            late = [profile for profile in self._profiles if now >= profile.end]
            self._remove(late)
        _tell(late)

    def _remove(self, profiles: Sequence[_Profile]) -> None:
        self._profiles = [each for each in self._profiles if each not in profiles]
        self._update()

    def _update(self) -> None:
        self.is_active = any(profile.num_left for profile in self._profiles)


def _tell(profiles: Sequence[_Profile]) -> None:
    for profile in profiles:
        profile.complete(profile.ended)
