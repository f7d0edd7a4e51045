"""Registry of the groups that this process has joined, in which operations find their rank's member.

    flowrt.distribute.collectives.join(...)     ->  a `Member` for each of its ranks is registered here
    _GroupSend, _TaggedSend and the like        ->  `member_of` their group and rank, when they are bound

A group belongs to the process, not to a session: it outlives steps and sessions. The lowering of collectives
ensures that all ranks run their operations in the same order.

Some ranks of a joined group are a group too, of the key that `split_key` gives, without joining again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from flowrt.errors import AlreadyExistsError, FailedPreconditionError, OpError
from flowrt.graph.resources.step_groups import PREFIX, StepMember


class Member(Protocol):
    """One rank's end of a group. ``edge`` names a message or a collective, equal for all participants.

    `receive` and `wait` block, and raise `InvalidArgumentError`, showing both edges, if another rank is at a
    different one; `DeadlineExceededError`, naming the rank, if one does not arrive; `UnavailableError` if one
    was lost; and the error that ends the thread's step. The first error ends the group, for all ranks.
    """

    def send(self, peer: int, edge: str, array: Any) -> None:
        """Send ``array`` to rank ``peer``; the caller may modify it afterwards."""

    def receive(self, peer: int, edge: str) -> Any:
        """The bytes of the next array sent by ``peer``."""

    def start(self, edge: str, kind: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        """Begin the next collective with this rank's ``arrays``, which must not change before `wait`: none,
        one, or several of a coalesced one. ``attrs`` are the reduction, root, axes, the results' shapes and
        dtype; ``outs``: where a coalesced gather writes its results, with their axes in front, or None;
        ``plan``: for the first one of a step, one line for each that the step has in the group, else ""; and
        ``step``: its number if all ranks are in it, else None or absent.
        """

    def wait(self, edge: str) -> Sequence[Any]:
        """The rank's results of the collective started as ``edge``."""

    def meet_at_end(self) -> Callable[[], object]:
        """Report that this rank's step reached the end of the data: collectives that it has started will not
        be awaited. The returned function waits until all ranks have reached it, and raises as `wait`.
        """

    def abort(self, error: OpError) -> None:
        """End the group with ``error``. Thread-safe."""

    def settle(self) -> None:
        """Wait, after `abort`, until no collective that was begun uses the memory of its arrays."""


class JoinedMember(Member, Protocol):
    """One rank's end of a group that its processes have joined."""

    def send_tagged(self, peer: int, tag: str, array: Any) -> None:
        """Send ``array`` to rank ``peer``, without waiting; the caller may modify it afterwards."""

    def receive_tagged(self, peer: int, tag: str) -> Any:
        """The bytes of the next array that ``peer`` sent with ``tag``, whatever else it has sent before."""

    def split(self, label: str, ranks: tuple[int, ...]) -> Member:
        """This rank's end of the group of ``ranks``, which is called ``label`` in errors."""

    def agree(self, plan: str, given: Callable[[], str]) -> Callable[[], object]:
        """Compare ``plan``, and what is ``given``, with those of all ranks, the first time that ``plan``
        comes. Its first line says in words what the step does. The returned function waits for the others,
        and raises `InvalidArgumentError` on all ranks, showing the first line that differs, or that others do
        something else.
        """


_lock = threading.Lock()
_members: dict[tuple[str, int], JoinedMember] = {}


def add_member(group_key: str, rank: int, member: JoinedMember) -> None:
    """Register ``member`` for operations of this process. Raises `AlreadyExistsError` for a second one."""
    with _lock:
        if (group_key, rank) in _members:
            raise AlreadyExistsError(
                f"group {group_key!r}: this process has already joined it as rank {rank}"
            )
        _members[group_key, rank] = member


def remove_member(group_key: str, rank: int) -> None:
    """Remove the member, if there is one."""
    with _lock:
        _members.pop((group_key, rank), None)


def ranks_here(group_key: str) -> tuple[int, ...]:
    """The ranks of the group that this process has joined."""
    with _lock:
        return tuple(sorted(rank for key, rank in _members if key == group_key))


def split_key(group_key: str, label: str, ranks: Sequence[int]) -> str:
    """The key of the group of ``ranks`` of the joined group ``group_key``, called ``label`` in errors."""
    return f"{group_key};{label};{','.join(map(str, ranks))}"


class _Split(NamedTuple):
    label: str
    ranks: tuple[int, ...]


def _parts(group_key: str) -> tuple[str, _Split | None]:
    """The key of the joined group, and which of its ranks the group has, if not all."""
    whole, _, rest = group_key.partition(";")
    if not rest:
        return whole, None
    label, _, ranks = rest.partition(";")
    return whole, _Split(label, tuple(map(int, ranks.split(","))))


def ranks_of(group_key: str) -> tuple[int, ...] | None:
    """The ranks of a joined group that the group ``group_key`` has; None for all."""
    split = _parts(group_key)[1]
    return None if split is None else split.ranks


def joined_rank(group_key: str, rank: int) -> tuple[str, int]:
    """The joined group of ``rank`` and its number there: the group itself, or the one that it is split of."""
    if group_key.startswith(PREFIX):
        return group_key, rank
    whole, split = _parts(group_key)
    return whole, rank if split is None else split.ranks[rank]


def member_of(group_key: str, rank: int) -> Member:
    """The member that joined as ``rank``; groups of a step need no joining. Raises `FailedPreconditionError`
    if there is none.
    """
    if group_key.startswith(PREFIX):
        return StepMember(group_key, rank)
    whole, split = _parts(group_key)
    if split is None:
        return joined_member(whole, rank)
    return joined_member(whole, split.ranks[rank]).split(*split)


def joined_member(group_key: str, rank: int) -> JoinedMember:
    """The member that joined as ``rank``. Raises `FailedPreconditionError` if there is none."""
    member = _members.get((group_key, rank))  # without the lock, since messages look it up each time
    if member is None:
        raise FailedPreconditionError(
            f"group {group_key!r}: expected this process to have joined it as rank {rank}. Call"
            " flowrt.distribute.collectives.join() in the process that runs the operation"
        )
    return member
