"""`PendingReplies`: what a master waits for on behalf of its clients' requests.

A `Round` is requests to several tasks whose answers belong together, or work of the shell, for one request of
a client. It ends when the last answer has come, in what its ``end`` makes of them. A round that runs a step
ends in one error, the root cause: the first that is not the consequence of another. Its other parts are
aborted and waited for, so that when the client hears of it no part of the step is running any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from flowrt.distribute.machines.events import Answer, Ask, MasterAction, Tell
from flowrt.distribute.wire.messages import Message, encode_status
from flowrt.errors import DeadlineExceededError, OpError, UnavailableError
from flowrt.protos import cluster_pb2 as pb

GRACE_S = 5.0
"""How long a step that failed is waited for in the tasks that still run it."""

LATE_S = 1.0
"""How much later than its deadline a step is ended from here; the tasks have the deadline too."""


@final
class Round:
    """``client``'s request ``request_id``, about ``session``. ``step``: the number of the step that it runs,
    0 if it runs none.
    """

    def __init__(
        self,
        client: str,
        request_id: int,
        session: str,
        end: Callable[[Round], list[MasterAction]] = lambda _: [],
    ) -> None:
        self.client, self.request_id, self.session, self.end = client, request_id, session, end
        self.waiting: dict[int, str] = {}
        """The task that each token's answer comes from."""
        self.answers: dict[str, Message] = {}
        self.errors: list[tuple[str, OpError]] = []
        self.step = 0
        self.deadline: float | None = None
        self.is_ending = False

    @property
    def error(self) -> OpError | None:
        """The root cause, if something failed."""
        found = [error for _, error in self.errors]
        roots = [error for error in found if error.origin is None or not error.origin.is_derived]
        return next(iter(roots or found), None)

    def refuse(self, error: OpError) -> list[MasterAction]:
        """The client's answer is ``error``."""
        return [Answer(self.client, self.request_id, None, error)]

    def answer(self, message: Message) -> list[MasterAction]:
        return [Answer(self.client, self.request_id, message)]


@final
class PendingReplies:
    """Those of the master in ``task`` that are not over. ``now``: the time of the last tick."""

    def __init__(self, task: str) -> None:
        self.task, self.now = task, 0.0
        self._asked: dict[int, Round] = {}
        """By the tokens of their requests."""
        self._works: dict[int, tuple[Round, Any]] = {}
        """What the shell is at, by the tokens of these actions, with what belongs to it."""
        self._last_token = 0

    def __len__(self) -> int:
        """How many answers are waited for."""
        return len(self._asked) + len(self._works)

    def ask(self, round_: Round, task: str, message: Message, wait_s: float = 0.0) -> MasterAction:
        """What asks ``task`` for the round; one that is not up yet is waited for, for ``wait_s`` seconds."""
        self._last_token += 1
        round_.waiting[self._last_token] = task
        self._asked[self._last_token] = round_
        return Ask(task, self._last_token, message, wait_s)

    def take(self, token: int, message: Message | None, error: OpError | None) -> list[MasterAction]:
        """An answer has come."""
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
        """The token under which the shell says the end of its work for ``round_``."""
        self._last_token += 1
        self._works[self._last_token] = round_, what
        return self._last_token

    def end_work(self, token: int) -> tuple[Round, Any]:
        """Whose work that was, and ``what`` belongs to it."""
        return self._works.pop(token)

    def cancel(self, client: str, request_id: int, error: OpError) -> list[MasterAction]:
        """End what runs, or is prepared to run, for this request."""
        works = [round_ for round_, _ in self._works.values()]
        for round_ in [*self._asked.values(), *works]:
            if (round_.client, round_.request_id) == (client, request_id):
                round_.errors.append((self.task, error))
                return self._abort(round_)
        return []

    def tick(self, now: float) -> list[MasterAction]:
        """End steps whose deadline has passed, and rounds whose tasks had the time to end them."""
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
