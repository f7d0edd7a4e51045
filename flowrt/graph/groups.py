"""The groups that this process has joined: how an operation finds what reaches the other ranks of its group.

    flowrt.distribute.collectives.join(...)  ->  a `Member` a rank is kept here, under (group key, rank)
    _GroupSend, _GroupRecv, _GroupCall       ->  `member_of` their group and rank, when a plan is bound

A group is the process's and not a session's: a step that ends has not ended it, and sessions come and go.
What its ranks do they do in one order, which the lowering of collectives sees to.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from flowrt.errors import AlreadyExistsError, FailedPreconditionError, OpError


class Member(Protocol):
    """One rank's end of a group. One thread at a time calls; any thread may abort."""

    def send(self, peer: int, edge: str, array: Any) -> None:
        """Give ``array`` to rank ``peer``, which receives ``edge`` next of this rank."""

    def receive(self, peer: int, edge: str) -> Any:
        """The array that ``peer`` sends next. Blocks. Raises `InvalidArgumentError`, showing both, where that
        is another edge's, `DeadlineExceededError` where it does not come, `UnavailableError` where the rank
        was lost.
        """

    def call(self, kind: str, array: Any, **attrs: Any) -> Any:
        """The rank's result of a collective of the whole group, for its ``array``. Blocks; raises as
        `receive`.
        """

    def abort(self, error: OpError) -> None:
        """End the group with ``error``, on all ranks."""


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
    """The member that joined as ``rank``. Raises `FailedPreconditionError` if none did."""
    with _lock:
        member = _members.get((group_key, rank))
    if member is None:
        raise FailedPreconditionError(
            f"group {group_key!r}: this process has not joined it as rank {rank}. Call"
            " flowrt.distribute.collectives.join() before the session runs"
        )
    return member
