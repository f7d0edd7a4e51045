"""`Group`: ranks in several graphs; and `join`, which connects this process's ranks to the others.

every process    with join(group, addresses):      listens, dials, waits until all ranks have arrived
                     session.run(...)               operations find their `GroupMember` by group and rank
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final
from weakref import WeakSet

from flowrt.base.closing import Closing
from flowrt.distribute.collectives.communicator_registry import (
    check_kind,
    communicator_over,
    open_communicator,
)
from flowrt.distribute.collectives.member import GroupMember
from flowrt.distribute.collectives.membership import TIMEOUT_S, Membership
from flowrt.distribute.collectives.mesh_forming import form_mesh
from flowrt.graph.resources.groups import add_member, remove_member
from flowrt.graph.source import misuse
from flowrt.rendezvous.channel.channel import Transport
from flowrt.rendezvous.transport import new_transport

_joined: WeakSet[JoinedGroup] = WeakSet()
"""The groups of this process, open or closed."""

_WITHOUT_LINKS = ("local", "mpi")
"""Communicators that have no connections of ours below them."""


@final
@dataclass(frozen=True, slots=True)
class Group:
    """A group of ``size`` ranks, with ``ranks`` in this graph, in the order of its values; other graphs have
    the others. All graphs use the same ``key``, ``size`` and ``tasks``: one number per rank, equal for ranks
    of one task; by default each rank is in a separate task. Raises `InvalidArgumentError`.
    """

    key: str
    size: int
    ranks: tuple[int, ...]
    tasks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.key or ";" in self.key:
            raise misuse(f"group: expected a key, without ';'; got {self.key!r}")
        if self.size < 1:
            raise misuse(f"group {self.key!r}: expected at least one rank; got a size of {self.size}")
        if not self.ranks or not set(self.ranks) <= set(range(self.size)):
            raise misuse(
                f"group {self.key!r}: expected ranks of 0 to {self.size - 1}; got {list(self.ranks)}"
            )
        if len(set(self.ranks)) < len(self.ranks):
            raise misuse(f"group {self.key!r}: expected each rank once; got {list(self.ranks)}")
        if self.tasks and len(self.tasks) != self.size:
            raise misuse(
                f"group {self.key!r}: expected the task of each of {self.size} ranks; got {list(self.tasks)}"
            )


@final
class JoinedGroup(Closing):
    """The ranks of this process in a group. A context manager; closing it ends them, and leaves the others
    with an `UnavailableError` when they need these ranks.
    """

    def __init__(self, group: Group, members: Sequence[GroupMember]) -> None:
        self.group, self.members = group, members

    def close(self) -> None:
        """Idempotent."""
        for rank, member in zip(self.group.ranks, self.members, strict=True):
            remove_member(self.group.key, rank)
            member.close()


def join(
    group: Group,
    addresses: Sequence[str] = (),
    kind: str = "auto",
    timeout_s: float = TIMEOUT_S,
    transport: Transport | None = None,
    names: Sequence[str] = (),
) -> JoinedGroup:
    """Connect this process's ranks, ``group.ranks``, to those of other processes, which join at the same
    time. Returns when all have arrived.

    ``addresses`` are the ``host:port`` of all ranks, by rank, where groups listen; ``kind`` is the
    communicator (`open_communicator`), equal for all; ``names`` are those of all ranks in errors. A rank that
    does not answer for ``timeout_s`` seconds, now or later, is named in a `DeadlineExceededError`. Raises as
    `open_communicator`, and `AlreadyExistsError` if this process has joined a group of this key.
    """
    check_kind(kind)
    transport = transport or new_transport()

    def open_member(rank: int) -> GroupMember:
        membership = Membership(group.key, rank, group.size, tuple(addresses), timeout_s, tuple(names))
        if kind in _WITHOUT_LINKS:
            return GroupMember(open_communicator(kind, membership, transport), None)
        mesh = form_mesh(membership, transport)
        return GroupMember(communicator_over(mesh, kind), mesh)

    with ThreadPoolExecutor(len(group.ranks)) as pool:  # each waits for the others
        futures = [pool.submit(open_member, rank) for rank in group.ranks]
    errors = [error for future in futures if (error := future.exception()) is not None]
    members = [future.result() for future in futures if future.exception() is None]
    if errors:
        for member in members:
            member.close()
        raise errors[0]
    joined = JoinedGroup(group, members)
    _joined.add(joined)
    for rank, member in zip(group.ranks, members, strict=True):
        add_member(group.key, rank, member)
    return joined


def leave_groups() -> None:
    """Close all groups that this process has joined."""
    for joined in list(_joined):
        joined.close()
