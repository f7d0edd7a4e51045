"""`PendingReplies`: pending replies that a master waits for on behalf of its clients' requests.

A `Round` is a set of requests to several tasks, or work of the caller, for one request of a client. It ends
when the last answer has arrived; its ``end`` combines them. A failed step's round ends in one error, the root
cause: the first that is not the consequence of another. Its other parts are aborted and waited for, so that
no part of the step is still running when the client gets the error.

A step that has a turn (`flowrt.distribute.worker.gang_turns`) is not aborted because its client cancels it or
is gone, but when it does not end soon: an abort between two collectives would end groups that other sessions
use, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

from flowrt.distribute.machines.events import Answer, Ask, MasterAction, Tell
from flowrt.distribute.wire.messages import Message, encode_status
from flowrt.errors import AbortedError, CancelledError, DeadlineExceededError, OpError, UnavailableError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node
from flowrt.protos import cluster_pb2 as pb

GRACE_S = 5.0
"""Time to wait for the tasks that still run a failed step."""

LATE_S = 1.0
"""Delay after its deadline before a step is ended from here; the tasks have the deadline too."""


TURN_S = 5.0
"""Time for a step that has a turn to end by itself, once its client does not want it any more."""

End: TypeAlias = "Callable[[Round], list[MasterAction]]"
"""The end of a round: its answers combined."""


@final
class Round:
    """``client``'s request ``request_id``, about ``session``. ``step``: the number it runs, 0 for none."""

    def __init__(self, client: str, request_id: int, session: str, end: End = lambda _: []) -> None:
        self.client, self.request_id, self.session, self.end = client, request_id, session, end
        self.waiting: dict[int, str] = {}
        """The task that answers each token."""
        self.answers: dict[str, Message] = {}
        self.errors: list[tuple[str, OpError]] = []
        self.step = 0
        self.awaited: Mapping[str, Node] = {}
        """An operation of each task that has a part in the step: errors name that of a lost task."""
        self.deadline: float | None = None
        self.is_ending = False
        self.has_turn = False
        """Whether it is a gang-scheduled step that has begun."""

    @property
    def error(self) -> OpError | None:
        """The root cause, if something failed."""
        found = [error for _, error in self.errors]
        roots = [error for error in found if error.origin is None or not error.origin.is_derived]
        error = next(iter(roots or found), None)
        if error is None or error.op is not None or not isinstance(error, (UnavailableError, AbortedError)):
            return error
        awaited = None if error.origin is None else self.awaited.get(error.origin.task)
        return error if awaited is None else located(awaited, error)

    def refuse(self, error: OpError) -> list[MasterAction]:
        """The client's answer is ``error``."""
        return [Answer(self.client, self.request_id, None, error)]

    def answer(self, message: Message) -> list[MasterAction]:
        return [Answer(self.client, self.request_id, message)]


@final
class PendingReplies:
    """The active rounds of the master in ``task``. ``now``: the time of the last tick."""

    def __init__(self, task: str) -> None:
        self.task, self.now = task, 0.0
        self._asked: dict[int, Round] = {}
        """PendingReplies by the tokens of their requests."""
        self._works: dict[int, tuple[Round, Any]] = {}
        """Pending work of the caller, by the tokens of its actions, with associated data."""
        self._last_token = 0

    def __len__(self) -> int:
        """Number of pending answers."""
        return len(self._asked) + len(self._works)

    def ask(self, round_: Round, task: str, message: Message, wait_s: float = 0.0) -> MasterAction:
        """The action that sends a request to ``task`` for the round; a task that is not up yet is waited for,
        for ``wait_s`` seconds.
        """
        self._last_token += 1
        round_.waiting[self._last_token] = task
        self._asked[self._last_token] = round_
        return Ask(task, self._last_token, message, wait_s)

    def take(self, token: int, message: Message | None, error: OpError | None) -> list[MasterAction]:
        """Handle an answer."""
        round_ = self._asked.pop(token, None)
        if round_ is None:
            return []
        task = round_.waiting.pop(token)
        if error is not None or message is None:
            round_.errors.append((task, error or UnavailableError(f"task {task}: no answer")))
            actions = self._abort(round_)
        else:
            round_.answers[task], actions = message, []
        return actions if round_.waiting else [*actions, *round_.end(round_)]

    def begin_work(self, round_: Round, what: Any) -> int:
        """The token with which the caller reports the end of its work for ``round_``."""
        self._last_token += 1
        self._works[self._last_token] = round_, what
        return self._last_token

    def end_work(self, token: int) -> tuple[Round, Any]:
        """The round of that work, and its associated data ``what``."""
        return self._works.pop(token)

    def cancel(self, client: str, request_id: int, error: OpError) -> list[MasterAction]:
        """End the work of this request, running or in preparation."""
        works = [round_ for round_, _ in self._works.values()]
        for round_ in [*self._asked.values(), *works]:
            if (round_.client, round_.request_id) == (client, request_id):
                round_.errors.append((self.task, error))
                return self._end_soon(round_)
        return []

    def leave(self, client: str) -> None:
        """``client`` is gone: its steps that have a turn shall end soon."""
        gone = CancelledError("the client of this step is gone")
        for round_ in [r for r in dict.fromkeys(self._asked.values()) if r.client == client and r.has_turn]:
            round_.errors.append((self.task, gone))
            self._end_soon(round_)

    def has_turn(self, session: str) -> bool:
        """Whether a step of ``session`` has a turn."""
        return any(r.has_turn for r in self._asked.values() if r.session == session)

    def _end_soon(self, round_: Round) -> list[MasterAction]:
        if not round_.has_turn:
            return self._abort(round_)
        if not round_.is_ending:
            round_.deadline = self.now + TURN_S
        return []

    def tick(self, now: float) -> list[MasterAction]:
        """End steps after their deadlines, and rounds with tasks that did not end in time."""
        self.now = now
        rounds = dict.fromkeys(self._asked.values())
        actions: list[MasterAction] = []
        for round_ in [r for r in rounds if r.deadline is not None and now > r.deadline]:
            if not round_.is_ending:
                error = DeadlineExceededError("the step did not end within its deadline")
                round_.errors.append((self.task, error))
                actions += self._abort(round_)
                continue
            for token in list(round_.waiting):  # they had their time
                del self._asked[token], round_.waiting[token]
            actions += round_.end(round_)
        return actions

    def _abort(self, round_: Round) -> list[MasterAction]:
        """Have the parts of a step end that still run; they are waited for a while."""
        error = round_.error
        if not round_.step or round_.is_ending or error is None:
            return []
        round_.is_ending, round_.deadline = True, self.now + GRACE_S
        body = pb.CleanupGraph(step=round_.step, status=encode_status(error, self.task))
        body.status.is_derived = True
        return [Tell(task, Message(body)) for task in round_.waiting.values()]
