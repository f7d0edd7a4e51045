"""`ShardService`: a thread-safe `ParameterShard`; threads wait here for its answers.

All decisions and updates are made under one lock, so updates are atomic, and a step that ends early leaves
none half applied.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.errors import DeadlineExceededError, OpError, UnknownError
from flowrt.graph.resources.parameter_shard import (
    Action,
    Answer,
    ApplyUpdate,
    Event,
    GradientPushed,
    InstallState,
    ParameterShard,
    Policy,
    PromotionAsked,
    RequestLeft,
    StateArrived,
    StateAsked,
    StateReplicated,
    StepBegun,
    Ticked,
    UpdateEnded,
    WorkerCame,
    WorkerLeft,
    WorkerLost,
    histogram,
)
from flowrt.graph.resources.step_context import wait_until

TICK_S = 1.0
"""Interval at which a waiting step checks whether the one transferring the state has timed out."""

Apply: TypeAlias = Callable[[Sequence[Any]], None]
"""Updates the parameters from gradients. The update of each variable is atomic."""


class Contribution(NamedTuple):
    """A gradient, and the function that updates the parameters from it and the others."""

    values: Any
    apply: Apply


class ShardStatus(NamedTuple):
    role: int
    generation: int
    version: int
    acknowledged: int
    dropped: int
    waits: int
    clocks: tuple[int, ...]


@final
class ShardService:
    """The shard ``name`` of a session or of a server's sessions. A request that waits longer than
    ``timeout_s`` seconds raises `DeadlineExceededError`, which names the late workers; a step that ends stops
    its wait. ``tasks``: the workers', in a cluster.
    """

    def __init__(self, name: str, policy: Policy, timeout_s: float, tasks: Sequence[str] = ()) -> None:
        self._shard, self._timeout_s, self._tasks = ParameterShard(name, policy), timeout_s, tasks
        self._changed = threading.Condition()
        self._requests = itertools.count()
        self._answers: dict[int, Answer] = {}

    @property
    def policy(self) -> Policy:
        return self._shard.policy

    def attend(self, worker: int, session: int) -> None:
        """Record that ``worker`` has created ``session``, its identifier for `lose`."""
        self._tell(WorkerCame(worker, session))

    def begin(self, worker: int, clock: int, session: int = 0) -> int:
        """Wait until ``worker`` may begin its step; returns the minimum version that it reads. ``session`` is
        its identifier for `lose`.
        """
        what = f"worker {worker}'s step"
        return int(self._ask(lambda request: StepBegun(request, worker, clock, session), what))

    def push(self, worker: int, clock: int, tag: int, values: Any, apply: Apply) -> int:
        """Wait until the gradient ``values`` is in an update, or too late for one; returns the version."""
        gradient = Contribution(values, apply)
        what = f"worker {worker}'s gradient of version {tag}"
        return int(self._ask(lambda request: GradientPushed(request, worker, clock, tag, gradient), what))

    def carries(self, version: int) -> bool:
        """Wait until the replica has ``version`` (False) or this step must transfer the state (True)."""
        what = f"version {version} in the replica"
        return bool(self._ask(lambda request: StateAsked(request, version, time.monotonic()), what))

    def replicated(self, version: int) -> None:
        self._tell(StateReplicated(version))

    def install(
        self, generation: int, version: int, clocks: Sequence[int], install: Callable[[], None]
    ) -> None:
        """Install a primary's state by ``install()``, unless this shard already has it. Raises `AbortedError`
        if the sender is no longer the primary.
        """
        self._tell(StateArrived(generation, version, clocks, install))

    def promote(self) -> None:
        """Become the primary. Raises `FailedPreconditionError` if there is no state."""
        self._tell(PromotionAsked())

    def leave(self, worker: int) -> None:
        self._tell(WorkerLeft(worker))

    def lose(self, worker: int, session: int, why: str) -> None:
        """Record the loss of the session in which ``worker`` joined or began its last step."""
        self._tell(WorkerLost(worker, session, why, time.monotonic()))

    def lose_task(self, task: str, error: OpError) -> None:
        """Record the loss of ``task``; a worker that has had a session is reported by `lose` instead."""
        if task in self._tasks:
            lost = WorkerLost(self._tasks.index(task), None, error.message, time.monotonic())
            self._tell(lost)

    def status(self) -> ShardStatus:
        with self._changed:
            return self._status()

    def snapshot(self, copy: Callable[[], Any]) -> tuple[ShardStatus, Any]:
        """The status, and ``copy()`` of the parameters of that version."""
        with self._changed:
            return self._status(), copy()

    def staleness(self) -> list[int]:
        """The number of gradients that were 0, 1, 2, ... versions old when they were applied."""
        with self._changed:
            return histogram(self._shard.staleness)

    # --- the machine

    def _status(self) -> ShardStatus:
        s = self._shard
        clocks = tuple(s.clocks)
        return ShardStatus(s.role.value, s.generation, s.version, s.acknowledged, s.dropped, s.waits, clocks)

    def _tell(self, event: Event) -> None:
        with self._changed:
            self._perform(self._shard.handle(event))

    def _ask(self, event: Callable[[int], Event], what: str) -> Any:
        with self._changed:
            request = next(self._requests)
            self._perform(self._shard.handle(event(request)))
            try:
                answer = self._wait_for(request, what)
            except BaseException:
                self._perform(self._shard.handle(RequestLeft(request)))
                self._answers.pop(request, None)
                raise
            if answer.error is not None:
                raise answer.error
            return answer.value

    def _wait_for(self, request: int, what: str) -> Answer:
        def wait(seconds: float | None) -> None:
            self._changed.wait(TICK_S if seconds is None else min(seconds, TICK_S))
            self._perform(self._shard.handle(Ticked(time.monotonic())))

        try:
            in_time = wait_until(lambda: request in self._answers, wait, self._timeout_s)
        except DeadlineExceededError as error:  # the step's
            raise DeadlineExceededError(f"{error.message}: {self._obstacle(what)}") from error
        if not in_time:
            raise DeadlineExceededError(f"{self._obstacle(what)}, after {self._timeout_s:g} s")
        return self._answers.pop(request)

    def _obstacle(self, what: str) -> str:
        shard = self._shard
        late = [f"{worker} (at clock {shard.clocks[worker]})" for worker in shard.awaited()]
        missing = f"worker {', '.join(late)}" if late else "the replica"
        return f"shard {shard.name!r} at version {shard.version}: {what} still waits for {missing}"

    def _perform(self, actions: Sequence[Action]) -> None:
        """Execute ``actions``, with the lock held, including those that an update leads to."""
        for action in actions:
            match action:
                case Answer():
                    self._answers[action.request] = action
                case ApplyUpdate(gradients):
                    self._perform(self._shard.handle(UpdateEnded(_applied(gradients))))
                case InstallState(install):
                    install()
        self._changed.notify_all()


def _applied(gradients: Sequence[Contribution]) -> OpError | None:
    """Apply an update; returns the error if it failed."""
    try:
        gradients[-1].apply([gradient.values for gradient in gradients])
    except OpError as error:
        return error
    except Exception as error:  # noqa: BLE001 (raised for all contributors, which would wait forever)
        return UnknownError(f"an update failed: {type(error).__name__}: {error}")
    return None
