"""The groups that this process has joined: how an operation finds what reaches the other ranks of its group.

    flowrt.distribute.collectives.join(...)     ->  a `Member` for each of its ranks is kept here
    _GroupSend, _GroupRecv, _GroupStart, _GroupWait  ->  `member_of` their group and rank, when they are bound

A group is the process's and not a session's: a step that ends has not ended it, and sessions come and go.
What its ranks do they do in one order, which the lowering of collectives sees to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flowrt.errors import AlreadyExistsError, FailedPreconditionError, OpError
from flowrt.graph.resources.step_groups import PREFIX, StepMember


class Member(Protocol):
    """One rank's end of a group. ``edge`` names a message or a collective, alike for all that take part.

    `receive` and `wait` block, and raise `InvalidArgumentError`, showing both, where another rank is at
    another edge; `DeadlineExceededError`, naming the rank, where one does not come; `UnavailableError` where
    one was lost; and what ends the step of the thread. The first error ends the group, for all ranks.
    """

    def send(self, peer: int, edge: str, array: Any) -> None:
        """Give ``array``, which may be changed at once, to rank ``peer``."""

    def receive(self, peer: int, edge: str) -> Any:
        """The bytes of the array that ``peer`` sends next."""

    def start(self, edge: str, kind: str, array: Any, attrs: Mapping[str, Any]) -> None:
        """Begin the next collective with this rank's ``array`` (None if it gives none), which may not change
        before `wait`. ``attrs`` are the reduction, root, axis, the result's shape and dtype, and ``plan``:
        with the first of a step a line for each that it has in the group, else "".
        """

    def wait(self, edge: str) -> Any:
        """The rank's result of the collective that was started as ``edge``; None if it gets none."""

    def meet_at_end(self) -> Callable[[], object]:
        """This rank's step has come to the end of the data: nobody will wait for the collectives that it has
        started. What is returned waits until all ranks have come there, and raises as `wait`.
        """

    def abort(self, error: OpError) -> None:
        """End the group with ``error``. Any thread may call."""


_lock = threading.Lock()
_members: dict[tuple[str, int], Member] = {}


def add_member(group_key: str, rank: int, member: Member) -> None:
    """Have operations of this process find ``member``. Raises `AlreadyExistsError` for a second one."""
    with _lock:
        if (group_key, rank) in _members:
            raise AlreadyExistsError(f"group {group_key!r}: this process has joined it as rank {rank} before")
        _members[group_key, rank] = member


def remove_member(group_key: str, rank: int) -> None:
    """Forget the member, if there is one."""
    with _lock:
        _members.pop((group_key, rank), None)


def member_of(group_key: str, rank: int) -> Member:
    """The member that joined as ``rank``; nobody joins the group of a step. Raises `FailedPreconditionError`
    if none did.
    """
    if group_key.startswith(PREFIX):
        return StepMember(group_key, rank)
    with _lock:
        member = _members.get((group_key, rank))
    if member is None:
        raise FailedPreconditionError(
            f"group {group_key!r}: expected this process to have joined it as rank {rank}. Call"
            " flowrt.distribute.collectives.join() in the process that runs the operation"
        )
    return member
