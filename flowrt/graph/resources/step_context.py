"""The step that this thread is running, as seen by a blocking kernel: when it must end.

The code that runs a step's programs enters a `step_scope` on each thread that calls kernels. A kernel that
may block calls `wait_until`, or checks `current_step`. A nested step (a session run by a user's function)
replaces the outer one while it runs. Outside a step that can be cancelled, a wait ends only when its
condition holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, final

from flowrt.errors import DeadlineExceededError

POLL_S = 0.05
"""Seconds between checks of a waiting kernel for cancellation. Deadlines wake it separately."""


class StepEnd(Protocol):
    """The end of a step: its deadline or cancellation. ``number`` is the step's, in all of its tasks."""

    number: int

    def check(self) -> None:
        """Raise the reason if the step must end."""

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""


class _Thread(threading.local):
    step: StepEnd | None = None


_thread = _Thread()


def current_step() -> StepEnd | None:
    """The cancellable step of this thread, or None."""
    return _thread.step


def check_step() -> None:
    """Raise the reason if the step of this thread must end."""
    step = _thread.step
    if step is not None:
        step.check()


@final
class step_scope:
    """A context in which ``step`` is this thread's step; for single use by one thread."""

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
    ready: Callable[[], bool],
    wait: Callable[[float | None], object],
    timeout_s: float | None = None,
    obstacle: Callable[[], str] | None = None,
) -> bool:
    """Call ``wait(seconds)``, which sleeps at most that long (None: no limit) or until something changes,
    repeatedly until ``ready()``.

    Returns True when it is; False once ``timeout_s`` seconds are over. Raises the error that ends this
    thread's step; a `DeadlineExceededError` with the text ``obstacle()`` behind its own.
    """
    step = current_step()
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not ready():
        limits = [] if end is None else [end - time.monotonic()]
        if limits and limits[0] <= 0:
            return False
        if step is not None:
            try:
                step.check()
            except DeadlineExceededError as error:
                if obstacle is None:
                    raise
                raise DeadlineExceededError(f"{error.message}: {obstacle()}") from error
            left = step.remaining_s()
            limits.append(POLL_S if left is None else min(POLL_S, left))
        wait(min(limits) if limits else None)
    return True
