"""Supervision: decides when the processes of a job are stopped and restarted; `launcher` acts on it.

Rule 1: the first failure ends all; tasks that succeeded may be gone.   Rule 2: all restart, or none.
Rule 3: an interrupted job is not restarted.   Rule 4: every stop is bounded: `GraceOver` kills.
Rule 5: the first task that reports a lost peer need not be the cause. The others get a moment, until
`CauseOver`, to end by themselves: a process closes its connections before it exits.
"""

from __future__ import annotations

import enum
import signal
from typing import NamedTuple, TypeAlias, final

CAUSED_BY_STOP = {0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM}
"""Statuses of processes that were stopped; others ended independently."""


class Exited(NamedTuple):
    """A process has ended: ``status`` is its return code, or -n for signal n. ``follows``: its error is a
    consequence of another process: a lost peer, an aborted step.
    """

    rank: int
    status: int
    follows: bool = False


class Interrupted(NamedTuple):
    """The user, or the scheduler, wants an end."""

    signal: int


class GraceOver(NamedTuple):
    """The time that processes have to end after `Terminate` is over."""


class CauseOver(NamedTuple):
    """The time in which the cause of a lost peer may show itself is over."""


class Lingered(NamedTuple):
    """The time in which others end soon after the first that ended well is over."""


class Start(NamedTuple):
    """Start all processes; ``attempt`` counts from 0."""

    attempt: int


class Restart(NamedTuple):
    """Start this process alone, again: its ``attempt`` counts from 0."""

    rank: int
    attempt: int


class Terminate(NamedTuple):
    """Ask these to end, and send `GraceOver` when they have had their time."""

    ranks: tuple[int, ...]


class Kill(NamedTuple):
    ranks: tuple[int, ...]


class AwaitCause(NamedTuple):
    """Send `CauseOver` in a moment."""


class AwaitEnds(NamedTuple):
    """Send `Lingered` after a while."""


class Note(NamedTuple):
    """Tell the user that ``ended`` have succeeded and ``running`` are still running."""

    ended: tuple[int, ...]
    running: tuple[int, ...]


class Report(NamedTuple):
    """Tell the user about the root cause of a failed attempt."""

    cause: Exited
    attempt: int


class Finish(NamedTuple):
    """All have ended. ``status`` is for the shell."""

    status: int


Event: TypeAlias = Exited | Interrupted | GraceOver | CauseOver | Lingered
Action: TypeAlias = Start | Restart | Terminate | Kill | AwaitCause | AwaitEnds | Note | Report | Finish


class State(enum.Enum):
    """The state of a job. In ``DOUBTING`` a task has lost a peer, and the cause is awaited."""

    RUNNING, DOUBTING, STOPPING, DONE = range(4)


@final
class Supervisor:
    """``size`` processes, restarted up to ``max_restarts`` times."""

    def __init__(self, size: int, max_restarts: int) -> None:
        self._size, self._max_restarts = size, max_restarts
        self._attempt = -1
        self._state = State.DONE
        self._alive: set[int] = set()
        self._failures: list[Exited] = []
        self._signal: int | None = None

    def start(self) -> list[Action]:
        """The first actions; again after a failed attempt."""
        self._attempt += 1
        self._state = State.RUNNING
        self._alive = set(range(self._size))
        self._failures = []
        return [Start(self._attempt)]

    def handle(self, event: Event) -> list[Action]:
        """The actions for ``event``. None for one that is too late."""
        match event:
            case Exited():
                return self._exited(event)
            case Interrupted():
                return self._interrupted(event)
            case GraceOver():
                return [Kill(self._ranks())] if self._state is State.STOPPING else []
            case CauseOver():
                return self._stop() if self._state is State.DOUBTING else []
            case Lingered():
                return self._note() if self._state is State.RUNNING else []

    def check(self) -> None:
        """Raise AssertionError where a rule of this file is broken."""
        assert (self._state is State.DONE) == (not self._alive), (self._state, self._alive)
        assert self._attempt <= self._max_restarts
        assert self._state is not State.RUNNING or not self._failures

    def _exited(self, event: Exited) -> list[Action]:
        if event.rank not in self._alive:
            return []
        self._alive.discard(event.rank)
        told = self._state is State.STOPPING and event.status in CAUSED_BY_STOP
        if event.status != 0 and not told:
            self._failures.append(event)
        if not self._alive:
            return self._conclude()
        if self._state is State.RUNNING and not self._failures:
            return [AwaitEnds()] if len(self._alive) == self._size - 1 else []
        return self._doubt_or_stop()

    def _doubt_or_stop(self) -> list[Action]:
        """Handle a failure: stop as soon as there is one with an independent cause."""
        if self._state is State.STOPPING:
            return []
        if not all(each.follows for each in self._failures):
            return self._stop()
        if self._state is State.DOUBTING:
            return []
        self._state = State.DOUBTING
        return [AwaitCause()]

    def _note(self) -> list[Action]:
        ended = tuple(sorted(set(range(self._size)) - self._alive))
        return [Note(ended, self._ranks())] if ended else []

    def _interrupted(self, event: Interrupted) -> list[Action]:
        if self._state is State.DONE:
            return []
        self._signal = event.signal
        return [Kill(self._ranks())] if self._state is State.STOPPING else self._stop()

    def _stop(self) -> list[Action]:
        self._state = State.STOPPING
        return [Terminate(self._ranks())]

    def _conclude(self) -> list[Action]:
        self._state = State.DONE
        if self._signal is not None:
            return [Finish(128 + self._signal)]
        if not self._failures:
            return [Finish(0)]
        cause = next((each for each in self._failures if not each.follows), self._failures[0])
        report = Report(cause, self._attempt)
        if self._attempt < self._max_restarts:
            return [report, *self.start()]
        return [report, Finish(shell_status(cause.status))]

    def _ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._alive))


def shell_status(status: int) -> int:
    """The shell's form of a status: 128 + n for signal n."""
    return status if status >= 0 else 128 - status
