"""The step that this thread runs, as far as a kernel that waits has to know it: when it must end.

Who runs a step's programs enters a `step_scope` on each thread that calls kernels. A kernel that may wait
calls `wait_until`, or asks `current_step`. A step inside a step (a session run by a user's function) takes
the place of the outer one while it runs. Outside of steps that can be ended there is none, and nothing but
what is waited for ends a wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, final

POLL_S = 0.05
"""Seconds: a waiting kernel looks this often whether its step was cancelled. It wakes at deadlines anyway."""


class StepEnd(Protocol):
    """What ends a step: a deadline, or somebody who cancels it."""

    def check(self) -> None:
        """Raises the reason when the step must end."""

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""


class _Thread(threading.local):
    step: StepEnd | None = None


_thread = _Thread()


def current_step() -> StepEnd | None:
    """The step of this thread that can be ended, or None."""
    return _thread.step


@final
class step_scope:
    """A context in which ``step`` is this thread's step; one for each thread and each time."""

    __slots__ = ("_outer", "_step")

    def __init__(self, step: StepEnd | None) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._outer = _thread.step
        _thread.step = self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.step = self._outer


def wait_until(
    ready: Callable[[], bool], wait: Callable[[float | None], object], timeout_s: float | None = None
) -> bool:
    """Call ``wait(seconds)``, which sleeps so long at most (None: no limit) or until something changes, as
    often as it takes for ``ready()``.

    True when it is; False once ``timeout_s`` seconds are over. Raises what ends the step of this thread.
    """
    step = current_step()
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not ready():
        limits = [] if end is None else [end - time.monotonic()]
        if limits and limits[0] <= 0:
            return False
        if step is not None:
            step.check()
            left = step.remaining_s()
            limits.append(POLL_S if left is None else min(POLL_S, left))
        wait(min(limits) if limits else None)
    return True
