"""`GangTurns`: turns of steps with collectives that run in joined groups.

All ranks of a group must make the same calls in the same order, but the messages of two masters reach two
tasks in any order. If the calls of two steps met in one group, its ranks would disagree, or add up values of
different steps. So such a step is *gang scheduled*: it begins when no other one runs on its devices, and all
of its parts have ended before the next one begins.

Sessions take turns: the one that was served last is served last. A step that waits also reserves its devices,
so that steps with fewer devices do not overtake it for ever.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, final


class Turn(NamedTuple):
    """The turn of ``step`` on ``devices``, by their full names. ``peer`` asked for it, by ``request_id``."""

    step: int
    session: str
    devices: frozenset[str]
    peer: str
    request_id: int


@final
class GangTurns:
    """Turns that steps have or wait for. Each method returns the turns that begin."""

    def __init__(self) -> None:
        self._taken: dict[int, Turn] = {}
        self._waiting: dict[str, deque[Turn]] = {}
        """Turns of each session, in the order in which sessions are served."""

    def take(self, turn: Turn) -> list[Turn]:
        """Begin ``turn`` when its devices are free, and its session is next."""
        self._waiting.setdefault(turn.session, deque()).append(turn)
        return self._begin()

    def end(self, step: int) -> list[Turn]:
        """The turn of ``step`` is over, or not needed."""
        self._taken.pop(step, None)
        self.withdraw(step)
        return self._begin()

    def lose(self, peer: str) -> list[Turn]:
        """End all turns of ``peer``, which is gone."""
        self._taken = {step: turn for step, turn in self._taken.items() if turn.peer != peer}
        for turn in [turn for queue in self._waiting.values() for turn in queue if turn.peer == peer]:
            self.withdraw(turn.step)
        return self._begin()

    def withdraw(self, step: int) -> Turn | None:
        """Remove the turn for which ``step`` waits; None if it does not wait. Call `end` after it."""
        for session, queue in self._waiting.items():
            for turn in queue:
                if turn.step == step:
                    queue.remove(turn)
                    if not queue:
                        del self._waiting[session]
                    return turn
        return None

    def _begin(self) -> list[Turn]:
        begun: list[Turn] = []
        while (turn := self._next()) is not None:
            queue = self._waiting.pop(turn.session)
            queue.popleft()
            if queue:
                self._waiting[turn.session] = queue  # behind the others
            self._taken[turn.step] = turn
            begun.append(turn)
        return begun

    def _next(self) -> Turn | None:
        """The first turn that waits for no device of a taken turn, or of one that waits before it."""
        busy = frozenset[str]().union(*[turn.devices for turn in self._taken.values()])
        for queue in self._waiting.values():
            if busy.isdisjoint(queue[0].devices):
                return queue[0]
            busy |= queue[0].devices
        return None
