"""`Coordinator`: decides which workers form the group of an elastic job, epoch by epoch. Pure.

    STARTING   no group yet: waits for all that may come, or until none has come for a while
    RUNNING    the group trains; others that come wait
    CHANGING   the group has lost a member, or should: waits until those that live are ready

See `flowrt.distribute.elastic` for the rules.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

MAX_STALLS = 3
"""Epochs of the same members in which none of them has committed: the next one would not either."""

MAX_FAILURES = 3
"""Epochs in which workers of a host may fail until it is left out."""

NO_COMMIT = -1
"""The commit of a member that has none."""


class Joined(NamedTuple):
    """A worker has come. ``host`` is the same for workers of one host; ``commit`` as in `Ready`."""

    member: int
    name: str
    host: str


class Ready(NamedTuple):
    """A member's epoch has ended for ``reason``, and it waits for the next, with the state of ``commit``."""

    member: int
    epoch: int
    commit: int
    reason: str


class Finished(NamedTuple):
    """A member has nothing left to do in this epoch."""

    member: int
    epoch: int
    commit: int


class Left(NamedTuple):
    """A member has ended as it was told to: no failure."""

    member: int


class Lost(NamedTuple):
    """A member's process or network died."""

    member: int
    why: str


class OwnEnded(NamedTuple):
    """The workers of the coordinator's own host have ended. If none has come, others must come in time."""


class Ticked(NamedTuple):
    """The time is ``now``, in seconds of a monotonic clock."""

    now: float


class Form(NamedTuple):
    """Begin ``epoch`` with these members, by rank; the first one has the state of ``commit``."""

    members: tuple[int, ...]
    epoch: int
    commit: int


class Announce(NamedTuple):
    """Tell members that their epoch is over; unless ``at_once``, they go on to their next commit. No members:
    they know it already, from one of themselves; only the reason is new.
    """

    members: tuple[int, ...]
    why: str
    at_once: bool


class Refuse(NamedTuple):
    """Tell members that they are in this job no longer, and forget them."""

    members: tuple[int, ...]
    why: str


class End(NamedTuple):
    """Tell members that the job has ended; it failed if there is a reason ``why``."""

    members: tuple[int, ...]
    why: str | None


Event: TypeAlias = Joined | Ready | Finished | Left | Lost | OwnEnded | Ticked
Action: TypeAlias = Form | Announce | Refuse | End


class State(enum.Enum):
    """The state of a member."""

    WAITING, RUNNING, FINISHED = range(3)


@dataclass
class _Member:
    name: str
    host: str
    state: State = State.WAITING
    commit: int = NO_COMMIT


@final
class Coordinator:
    """Forms groups of ``least`` to ``most`` members. At the start, and whenever no member is left, it waits
    for ``most`` of them, or until ``last_call_s`` seconds have passed since the last one came. ``timeout_s``
    bounds the other waits.
    """

    def __init__(self, least: int, most: int, last_call_s: float, timeout_s: float) -> None:
        self._least, self._most = least, most
        self._last_call_s, self._timeout_s = last_call_s, timeout_s
        self._now = self._last_came = 0.0
        self._deadline: float | None = None
        """Time at which members must be ready, and enough."""
        self._members: dict[int, _Member] = {}
        """Members that live, in the order in which they came."""
        self._epoch = 0
        self._group: tuple[int, ...] = ()
        """The members of the epoch that live, by rank."""
        self._is_changing = self._is_broken = False
        """The epoch is over, or will be at the next commit; and: no step of it can succeed."""
        self._reason = ""
        self._formed: tuple[int, ...] = ()
        self._best, self._stalls = NO_COMMIT, 0
        self._failures = Counter[str]()
        self._failed_now: set[str] = set()
        """Hosts that have failed in this epoch."""
        self._left_out: set[str] = set()
        self.has_ended = False

    def handle(self, event: Event) -> list[Action]:
        """The actions for ``event``. None for one that is too late."""
        if self.has_ended:
            return []
        match event:
            case Ticked(now):
                self._now = now
                return [*self._time_out(), *self._next()]
            case OwnEnded():
                self._begin_deadline()
                return []
            case Joined():
                return [*self._join(event), *self._next()]
        if event.member not in self._members:
            return []
        match event:
            case Ready(member, epoch, commit, reason):
                return [*self._ready(member, epoch, commit, reason), *self._next()]
            case Finished(member, epoch, commit):
                return [*self._finish(member, epoch, commit), *self._next()]
            case Left(member):
                return [*self._remove(member, f"{self._members[member].name} has left"), *self._next()]
            case Lost(member, why):
                return [*self._lose(member, why), *self._next()]

    def check(self) -> None:
        """Raise AssertionError where a rule is broken."""
        assert set(self._group) <= set(self._members)
        assert len(self._formed) <= self._most
        for number, member in self._members.items():
            assert member.state is State.WAITING or number in self._group, (number, member)
            assert member.host not in self._left_out
        assert self._is_changing or not self._group or self._group == self._formed
        assert not self._is_broken or self._is_changing

    # --- events

    def _join(self, event: Joined) -> list[Action]:
        if event.host in self._left_out:
            return [Refuse((event.member,), self._why_left_out(event.host))]
        self._members[event.member] = _Member(event.name, event.host)
        self._last_came = self._now
        self._begin_deadline()
        return []

    def _begin_deadline(self) -> None:
        """Begin the wait for the first epoch, unless it has begun."""
        if not self._epoch and self._deadline is None:
            self._deadline = self._now + self._timeout_s

    def _ready(self, number: int, epoch: int, commit: int, reason: str) -> list[Action]:
        member = self._members[number]
        if member.state is not State.RUNNING or epoch != self._epoch:
            return []
        member.state, member.commit = State.WAITING, commit
        return self._change(f"{member.name}: {reason}", at_once=True)

    def _finish(self, number: int, epoch: int, commit: int) -> list[Action]:
        member = self._members[number]
        if member.state is State.RUNNING and epoch == self._epoch:
            member.state, member.commit = State.FINISHED, commit
        return []

    def _lose(self, number: int, why: str) -> list[Action]:
        member = self._members[number]
        was_in_group, lost = number in self._group, f"{member.name} was lost: {why}"
        actions = self._remove(number, lost)
        if was_in_group and not actions:
            actions.append(Announce((), lost, at_once=True))
        if member.host not in self._failed_now:
            self._failed_now.add(member.host)
            self._failures[member.host] += 1
        others = [each for each in self._members.values() if each.host != member.host]
        if self._failures[member.host] >= MAX_FAILURES and len(others) >= self._least:
            self._left_out.add(member.host)
            why = self._why_left_out(member.host)
            out = [each for each, found in self._members.items() if found.host == member.host]
            for each in out:
                actions += self._remove(each, why)
            if out:
                actions.append(Refuse(tuple(out), why))
        return actions

    def _why_left_out(self, host: str) -> str:
        return f"host {host} is left out, since workers failed there in {self._failures[host]} epochs"

    def _remove(self, number: int, why: str) -> list[Action]:
        del self._members[number]
        if number not in self._group:
            return []
        self._group = tuple(each for each in self._group if each != number)
        return self._change(why, at_once=True)

    def _change(self, why: str, at_once: bool) -> list[Action]:
        """End the epoch."""
        if self._is_broken or (self._is_changing and not at_once):
            return []
        self._reason = self._reason if self._is_changing else why
        self._is_changing = True
        if at_once:
            self._is_broken, self._deadline = True, self._now + self._timeout_s
        told = self._in(State.RUNNING)
        return [Announce(told, why, at_once)] if told else []

    # --- decisions

    def _in(self, state: State) -> tuple[int, ...]:
        return tuple(number for number, member in self._members.items() if member.state is state)

    def _next(self) -> list[Action]:
        """The actions that follow from the members' states: a change, a new epoch, the end."""
        running, waiting = self._in(State.RUNNING), self._in(State.WAITING)
        if self._group and all(self._members[each].state is State.FINISHED for each in self._group):
            return self._end(None)
        if self._group and not self._is_changing:
            new = [each for each in waiting if each not in self._group]
            if not new or len(self._group) >= self._most:
                return []
            names = ", ".join(self._members[each].name for each in new)
            return self._change(f"{names} came", at_once=False)
        candidates = [*waiting, *self._in(State.FINISHED)]
        if running or len(candidates) < self._least:
            return []
        is_first_call = not self._group and len(candidates) < self._most
        if is_first_call and self._now < self._last_came + self._last_call_s:
            return []
        return self._form(candidates)

    def _form(self, candidates: Iterable[int]) -> list[Action]:
        places = {number: rank for rank, number in enumerate(self._group)}
        arrival = {number: place for place, number in enumerate(self._members)}

        def order(number: int) -> tuple[bool, int, int, int]:
            is_new = number not in places
            return is_new, -self._members[number].commit, places.get(number, 0), arrival[number]

        formed = tuple(sorted(candidates, key=order)[: self._most])
        commit = self._members[formed[0]].commit
        is_stalled = set(formed) == set(self._formed) and commit <= self._best
        self._stalls = self._stalls + 1 if is_stalled else 0
        if self._stalls >= MAX_STALLS:
            return self._end(f"{self._stalls} epochs of the same workers without a commit: {self._reason}")
        self._epoch, self._group, self._formed, self._best = self._epoch + 1, formed, formed, commit
        self._is_changing = self._is_broken = False
        self._deadline, self._failed_now = None, set()
        for number, member in self._members.items():
            member.state = State.RUNNING if number in formed else State.WAITING
        return [Form(formed, self._epoch, commit)]

    def _end(self, why: str | None) -> list[Action]:
        self.has_ended = True
        return [End(tuple(self._members), why)]

    def _time_out(self) -> list[Action]:
        if self._deadline is None or self._now < self._deadline:
            return []
        late, have = self._in(State.RUNNING), len(self._members)
        if not late and have >= self._least:
            return []
        if not late:
            why = f"; {self._reason}" if self._reason else ""
            return self._end(
                f"expected at least {self._least} workers within {self._timeout_s:g} s; got {have}{why}"
            )
        why = f"it did not end its epoch within {self._timeout_s:g} s"
        actions = [action for each in late for action in self._lose(each, why) if isinstance(action, Refuse)]
        self._deadline = self._now + self._timeout_s
        return [Refuse(late, why), *actions]
