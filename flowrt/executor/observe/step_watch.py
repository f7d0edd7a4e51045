"""The steps of this process's own sessions, told to a watch: for the metrics and profiles of its task.

    watch_steps(watch) -> every `Plan` created from now on, until watch_steps(None), tells it of its steps

Without a watch it has no overhead: a plan asks once, when it is created. With one, steps take the path of
observed steps, and a few microseconds more.
"""

from __future__ import annotations

from typing import Protocol

from flowrt.executor.observe.step_stats import StepRecorder


class WatchedStep(Protocol):
    """One step. ``recorder``: to be filled with what its programs do, if it is not None."""

    @property
    def recorder(self) -> StepRecorder | None: ...

    def ended(self, is_ok: bool) -> None: ...


class StepWatch(Protocol):
    """Thread-safe."""

    def begin(self) -> WatchedStep: ...


_watch: StepWatch | None = None


def watch_steps(watch: StepWatch | None) -> None:
    """Have the plans that are made from now on tell ``watch`` of their steps; None: nobody."""
    global _watch  # noqa: PLW0603 (one per process)
    _watch = watch


def step_watch() -> StepWatch | None:
    """The watch, if there is one."""
    return _watch
