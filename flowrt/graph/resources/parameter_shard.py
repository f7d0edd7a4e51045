"""`ParameterShard`: a parameter server's logic for the parameters that it holds, as a pure state machine.

    handle(event) -> actions        events describe what happened, actions what the caller must do

A worker's step begins (`StepBegun`), reads the parameters, and pushes a gradient (`GradientPushed`). Both may
have to wait; the reply to a request is an `Answer`. An update applies a number of gradients to the
parameters; their state after ``version`` updates is called that version. A worker's *clock* is the number of
steps that it has completed.

Rules of this file:
  1. A gradient is identified by its worker and clock, and is used once: if it is pushed again because the
     reply was lost, it is answered from the recorded state.
  2. An update replaces one version: with a ``quorum`` above 1, or backups, only gradients of that version
     count, one of each worker, and they are applied in the order of the workers. Later ones are dropped.
     A quorum is all members but the spare ones: as many as it leaves out of all workers.
  3. No step begins while a member's clock is more than ``staleness`` behind that of the step's worker (Ho et
     al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013).
     Quorum and backup workers: Chen et al., "Revisiting Distributed Synchronous SGD", 2016.
  4. A shard with a replica answers a push once the replica has the update. One worker's step at a time
     transfers the state; updates by others in the meantime are included.
  5. A replica accepts only states with a higher version, and none of an earlier generation than its own: a
     replaced primary cannot get updates acknowledged.
  6. No wait for a worker with a dead process exceeds `RETURN_S`.
  7. With spare workers, a straggler (its clock is not the highest) never waits: its gradient joins those
     that wait for a quorum, or is dropped. So each update is a step of the fastest worker, and a job in which
     everyone makes n steps makes n updates, however late the last of them are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
)

LEASE_S = 5.0
"""Time limit for the step that transfers the state to the replica, before another one takes over."""

RETURN_S = 3.0
"""Grace period for a lost worker: enough to create another session if only its network failed."""


class Policy(NamedTuple):
    """``workers`` is their number; ``quorum`` of them make an update; ``staleness`` is how many clocks a step
    may be ahead of the slowest member's, None for no limit. ``is_backup``: the other workers' gradients are
    dropped, also where the quorum is 1.
    """

    workers: int
    quorum: int = 1
    staleness: int | None = None
    is_replicated: bool = False
    is_backup: bool = False

    @property
    def spare(self) -> int:
        """Number of workers without which there is a quorum."""
        return self.workers - self.quorum

    @property
    def drops_late(self) -> bool:
        """Whether gradients count only for the version that they were computed from."""
        return self.quorum > 1 or self.is_backup


class Role(Enum):
    NEW, PRIMARY, SECONDARY = range(3)


# --- events


class WorkerCame(NamedTuple):
    """``worker`` has created ``session`` and is about to begin a step; a loss before then is recorded."""

    worker: int
    session: int


class StepBegun(NamedTuple):
    """``worker``, with ``clock`` completed steps, wants to read. Answered with the version. A worker that had
    left, or was lost, is a member again; ``session`` is its current one.
    """

    request: int
    worker: int
    clock: int
    session: int = 0


class GradientPushed(NamedTuple):
    """``worker`` has computed ``gradient`` in its step number ``clock`` from version ``tag``. Answered with
    the resulting version of the parameters.
    """

    request: int
    worker: int
    clock: int
    tag: int
    gradient: Any


class UpdateEnded(NamedTuple):
    """The end of `ApplyUpdate`; after an error the parameters are unchanged."""

    error: OpError | None = None


class StateAsked(NamedTuple):
    """A step wants ``version`` to be acknowledged. Answered with True if it must transfer the state to the
    replica, with False once that has the version.
    """

    request: int
    version: int
    now: float


class StateReplicated(NamedTuple):
    """The replica has ``version``."""

    version: int


class StateArrived(NamedTuple):
    """A primary's state has reached its replica. ``clocks`` are those of all workers."""

    generation: int
    version: int
    clocks: Sequence[int]
    values: Any


class PromotionAsked(NamedTuple):
    """The primary is gone. No effect on a shard that is already a primary."""


class WorkerLeft(NamedTuple):
    """``worker`` makes no more steps for now and is not waited for."""

    worker: int


class WorkerLost(NamedTuple):
    """The process or network of ``session`` failed, for the reason ``why``. ``worker`` may have another
    session. None: the process failed before it had a session.
    """

    worker: int
    session: int | None
    why: str
    now: float


class RequestLeft(NamedTuple):
    """The answer is no longer awaited."""

    request: int


class Ticked(NamedTuple):
    """The current time ``now``, in seconds of a monotonic clock."""

    now: float


Event: TypeAlias = (
    StepBegun | GradientPushed | UpdateEnded | StateAsked | StateReplicated | StateArrived | PromotionAsked
    | WorkerCame | WorkerLeft | WorkerLost | RequestLeft | Ticked
)  # fmt: skip

# --- actions


class Answer(NamedTuple):
    request: int
    value: Any
    error: OpError | None = None


class ApplyUpdate(NamedTuple):
    """Update the parameters from these gradients, then report `UpdateEnded` before any other event."""

    gradients: Sequence[Any]


class InstallState(NamedTuple):
    """Set the parameters."""

    values: Any


Action: TypeAlias = Answer | ApplyUpdate | InstallState


@final
class ParameterShard:
    """The state machine of shard ``name``. Raises `InvalidArgumentError` for an inconsistent policy."""

    def __init__(self, name: str, policy: Policy) -> None:
        if not 1 <= policy.quorum <= policy.workers:
            raise InvalidArgumentError(
                f"shard {name!r}: expected a quorum of 1 to {policy.workers} workers; got {policy.quorum}"
            )
        self.name, self.policy = name, policy
        self.role, self.generation = Role.NEW, 0
        self.version = self.acknowledged = 0
        self.clocks = [0] * policy.workers
        self.members = set(range(policy.workers))
        self._sessions: dict[int, int] = {}
        """The latest known session of each worker."""
        self._lost: dict[int, WorkerLost] = {}
        self.staleness: Counter[int] = Counter()
        """Histogram of the age, in versions, of the gradients used in updates."""
        self.dropped = 0
        """Number of gradients that arrived too late."""
        self.waits = 0
        """Number of steps that had to wait before they began."""
        self._pending: dict[int, GradientPushed] = {}
        self._applying: list[GradientPushed] = []
        self._beginning: dict[int, StepBegun] = {}
        self._asking: dict[int, StateAsked] = {}
        self._lease: StateAsked | None = None

    def handle(self, event: Event) -> list[Action]:
        """Raises the error of a rejected event, without changing anything."""
        match event:
            case StepBegun():
                return self._begin(event)
            case GradientPushed():
                return self._push(event)
            case UpdateEnded(error):
                return self._end_update(error)
            case StateAsked():
                self._asking[event.request] = event
                return self._hand_over(event.now)
            case StateReplicated(version):
                self.acknowledged = max(self.acknowledged, version)
                self._lease = None
                return self._hand_over(0.0)
            case StateArrived():
                return self._install(event)
            case PromotionAsked():
                return self._promote()
            case WorkerCame() | WorkerLeft() | WorkerLost():
                return self._come_or_go(event)
            case RequestLeft(request):
                self._beginning.pop(request, None)
                self._asking.pop(request, None)
                return []
            case Ticked(now):
                return self._hand_over(now) + self._give_up(now)

    def awaited(self) -> list[int]:
        """The workers that others are waiting for, in order."""
        if self._pending:
            return sorted(self.members - self._pending.keys())
        if self._beginning:
            slowest = self._slowest()
            return [worker for worker in sorted(self.members) if self.clocks[worker] == slowest]
        return []

    def check(self) -> None:
        """Assert the invariants."""
        assert self.acknowledged <= self.version
        assert len(self._pending) < max(1, self._needed())
        assert all(push.tag == self.version for push in self._pending.values())
        assert not any(self._may_begin(step) for step in self._beginning.values())
        assert not any(asked.version <= self.acknowledged for asked in self._asking.values())

    # --- steps begin

    def _begin(self, step: StepBegun) -> list[Action]:
        self._serve_as_primary()
        self._note_session(step.worker, step.session)
        self.members.add(step.worker)
        if self._may_begin(step):
            return [Answer(step.request, self.version)]
        self.waits += 1
        self._beginning[step.request] = step
        return []

    def _may_begin(self, step: StepBegun) -> bool:
        return not self.members or self._slowest() >= self._least(step)

    def _least(self, step: StepBegun) -> float:
        """Minimum clock of the slowest member for ``step`` to begin."""
        allowed = self.policy.staleness
        return -math.inf if allowed is None else step.clock - allowed

    def _slowest(self) -> int:
        return min(self.clocks[worker] for worker in self.members)

    def _admit(self) -> list[Action]:
        """Answer the steps that can now begin."""
        ready = [step for step in self._beginning.values() if self._may_begin(step)]
        for step in ready:
            del self._beginning[step.request]
        return [Answer(step.request, self.version) for step in ready]

    # --- workers that join and leave

    def _come_or_go(self, event: WorkerCame | WorkerLeft | WorkerLost) -> list[Action]:
        match event:
            case WorkerCame(worker, session):
                return self._note_session(worker, session)
            case WorkerLeft(worker):
                return self._leave(worker)
            case WorkerLost():
                return self._note_lost(event)

    def _note_session(self, worker: int, session: int) -> list[Action]:
        self._check_worker(worker)
        self._sessions[worker] = session
        self._lost.pop(worker, None)
        return []

    def _leave(self, worker: int) -> list[Action]:
        self.members.discard(worker)
        self._lost.pop(worker, None)
        return self._admit() + self._update_if_complete()

    def _note_lost(self, event: WorkerLost) -> list[Action]:
        if event.worker in self.members and self._sessions.get(event.worker) == event.session:
            self._lost.setdefault(event.worker, event)
        return []

    def _give_up(self, now: float) -> list[Action]:
        """Fail the requests that only a lost worker could unblock. Their gradients may be pushed again."""
        lost = {worker for worker, event in self._lost.items() if now - event.now >= RETURN_S}
        if not lost:
            return []
        steps = [s for s in self._beginning.values() if min(self.clocks[w] for w in lost) < self._least(s)]
        is_short = self._pending and len((self.members - lost) | self._pending.keys()) < self._needed()
        pushes = list(self._pending.values()) if is_short else []
        for step in steps:
            del self._beginning[step.request]
        for push in pushes:
            del self._pending[push.worker]
        requests = [step.request for step in steps] + [push.request for push in pushes]
        return [Answer(request, None, self._nobody_comes(lost)) for request in requests]

    def _nobody_comes(self, lost: Collection[int]) -> OpError:
        names = [f"worker {w} (at clock {self.clocks[w]}): {self._lost[w].why}" for w in sorted(lost)]
        return DeadlineExceededError(
            f"shard {self.name!r} at version {self.version}: expected steps of all workers; lost "
            f"{', '.join(names)}. Restart it, or train with mode='async' or backup workers"
        )

    # --- gradients

    def _push(self, push: GradientPushed) -> list[Action]:
        self._serve_as_primary()
        self._check_worker(push.worker)
        if push.clock < self.clocks[push.worker]:
            return [Answer(push.request, self.version)]  # an update has it, or it was dropped
        if self.policy.drops_late and (push.tag != self.version or self._is_late(push)):
            self.dropped += 1
            self.clocks[push.worker] = push.clock + 1
            return [Answer(push.request, self.version), *self._admit()]
        self._pending[push.worker] = push
        return self._update_if_complete()

    def _is_late(self, push: GradientPushed) -> bool:
        """Whether ``push`` is of a step that others have completed without it, and nobody waits for it."""
        is_awaited = bool(self._pending.keys() - {push.worker})
        return self.policy.spare > 0 and push.clock < max(self.clocks) and not is_awaited

    def _needed(self) -> int:
        """Number of gradients that make an update."""
        return max(1, len(self.members) - self.policy.spare)

    def _update_if_complete(self) -> list[Action]:
        if not self._pending or len(self._pending) < self._needed():
            return []
        self._applying = [self._pending[worker] for worker in sorted(self._pending)]
        self._pending = {}
        return [ApplyUpdate([push.gradient for push in self._applying])]

    def _end_update(self, error: OpError | None) -> list[Action]:
        pushes, self._applying = self._applying, []
        if error is not None:
            return [Answer(push.request, None, error) for push in pushes]
        for push in pushes:
            self.staleness[self.version - push.tag] += 1
            self.clocks[push.worker] = push.clock + 1
        self.version += 1
        if not self.policy.is_replicated:
            self.acknowledged = self.version
        return [Answer(push.request, self.version) for push in pushes] + self._admit()

    # --- replicas

    def _hand_over(self, now: float) -> list[Action]:
        """Answer the requests for versions that the replica has; let one of the others transfer the state."""
        done = [asked for asked in self._asking.values() if asked.version <= self.acknowledged]
        for asked in done:
            del self._asking[asked.request]
        answers: list[Action] = [Answer(asked.request, False) for asked in done]
        is_free = self._lease is None or now - self._lease.now > LEASE_S
        if is_free and self._asking:
            first = next(iter(self._asking.values()))
            del self._asking[first.request]
            self._lease = first._replace(now=max(now, first.now))
            answers.append(Answer(first.request, True))
        return answers

    def _install(self, state: StateArrived) -> list[Action]:
        if state.generation < self.generation:
            raise AbortedError(
                f"shard {self.name!r}: expected the state of generation {self.generation}; got"
                f" {state.generation}: the primary is another server now. Look it up again"
            )
        is_own = self.role is Role.PRIMARY and state.generation == self.generation
        stamp = self.generation, self.version
        if is_own or (self.role is Role.SECONDARY and stamp >= (state.generation, state.version)):
            return []
        self.role, self.generation = Role.SECONDARY, state.generation
        self.version = self.acknowledged = state.version
        self.clocks = list(state.clocks)
        return [InstallState(state.values)]

    def _promote(self) -> list[Action]:
        if self.role is Role.NEW:
            raise FailedPreconditionError(
                f"shard {self.name!r}: expected the state of its primary; got none: the primary was lost"
                " before the first update. Restore a checkpoint"
            )
        if self.role is Role.SECONDARY:
            self.role, self.generation = Role.PRIMARY, self.generation + 1
        return []

    def _serve_as_primary(self) -> None:
        if self.role is Role.SECONDARY:
            raise FailedPreconditionError(
                f"shard {self.name!r}: expected the primary; got its replica, which was not promoted"
            )
        if self.role is Role.NEW:
            self.role, self.generation = Role.PRIMARY, 1

    def _check_worker(self, worker: int) -> None:
        if not 0 <= worker < self.policy.workers:
            raise InvalidArgumentError(
                f"shard {self.name!r}: expected a worker below {self.policy.workers}; got {worker}"
            )


def histogram(counts: Mapping[int, int]) -> list[int]:
    """``counts`` by key, from key 0 to the largest; keys below 0 (a lost version) count as 0."""
    found = [0] * (1 + max(0, *counts)) if counts else []
    for key, count in counts.items():
        found[max(key, 0)] += count
    return found
