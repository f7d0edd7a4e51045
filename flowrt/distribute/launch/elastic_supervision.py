"""Supervision of an elastic job's workers on one host: decides which start again; `launcher` acts on it.

Rule 1: a failure ends nobody else; the failed worker alone starts again, while restarts are left.
Rule 2: one that failed because the job is over, or has left it out, does not. One that has lost the
coordinator does: it waits for it to come again, for ``FLOWRT_CONNECT_TIMEOUT``.   Rule 3: an interrupted job
starts nothing again.   Rule 4: every stop is bounded: `GraceOver` kills.
"""

from __future__ import annotations

from typing import final

from flowrt.distribute.launch.supervision import (
    Action,
    CauseOver,
    Event,
    Exited,
    Finish,
    GraceOver,
    Interrupted,
    Kill,
    Lingered,
    Report,
    Restart,
    Start,
    Terminate,
    shell_status,
)


@final
class ElasticSupervisor:
    """``size`` processes, of which up to ``max_restarts`` in all start again, one by one."""

    def __init__(self, size: int, max_restarts: int) -> None:
        self._size, self._left = size, max_restarts
        self._attempts = [0] * size
        self._alive: set[int] = set()
        self._is_stopping = False
        self._signal: int | None = None

    def start(self) -> list[Action]:
        """The first actions."""
        self._alive = set(range(self._size))
        return [Start(0)]

    def handle(self, event: Event) -> list[Action]:
        """The actions for ``event``. None for one that is too late."""
        match event:
            case Exited():
                return self._exited(event)
            case Interrupted():
                return self._interrupted(event)
            case GraceOver():
                return [Kill(self._ranks())] if self._is_stopping and self._alive else []
            case CauseOver() | Lingered():
                return []

    def _exited(self, event: Exited) -> list[Action]:
        if event.rank not in self._alive:
            return []
        actions = list[Action]()
        if event.status != 0 and not self._is_stopping:
            attempt = self._attempts[event.rank]
            actions.append(Report(event, attempt))
            if self._left and not event.follows:
                self._left -= 1
                self._attempts[event.rank] += 1
                return [*actions, Restart(event.rank, attempt + 1)]
        self._alive.discard(event.rank)
        return actions if self._alive else [*actions, self._finish(event)]

    def _finish(self, last: Exited) -> Finish:
        """The end. The last one's status is the job's, since it went on after the failures of others."""
        return Finish(128 + self._signal if self._signal is not None else shell_status(last.status))

    def _interrupted(self, event: Interrupted) -> list[Action]:
        if not self._alive:
            return []
        self._signal = event.signal
        if self._is_stopping:
            return [Kill(self._ranks())]
        self._is_stopping = True
        return [Terminate(self._ranks())]

    def _ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._alive))
