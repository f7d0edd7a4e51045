"""`MpiPlace`: one end of a connection in an MPI world, a rank and a unique tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, final

from flowrt.rendezvous.channel.framing import Buffer
from flowrt.rendezvous.mpi.mpi_channel import Arrival, MpiWorld, Transfer


@final
class MpiPlace:
    """A `flowrt.rendezvous.messages.message_path.MessagePlace`."""

    def __init__(self, world: MpiWorld) -> None:
        self._world, self._tag = world, world.new_tag()
        self.address: Mapping[str, Any] = {"world": world.name, "rank": world.rank, "tag": self._tag}

    def path_to(self, said: object) -> MpiPath:
        """See `MessagePlace`."""
        if isinstance(said, Mapping) and said.get("world") == self._world.name:
            rank, tag = said.get("rank"), said.get("tag")
            if _is_below(rank, self._world.size) and _is_below(tag, self._world.max_tag):
                return MpiPath(self._world, rank, tag, self._tag)
        raise OSError("the other end is not in this MPI world")


@final
class MpiPath:
    """Sends to ``rank`` under ``tag``, receives from there under ``own_tag``: a
    `flowrt.rendezvous.messages.message_path.MessagePath`.
    """

    def __init__(self, world: MpiWorld, rank: int, tag: int, own_tag: int) -> None:
        self._world, self._rank, self._tag, self._own_tag = world, rank, tag, own_tag

    def send(self, data: Buffer) -> Transfer:
        """See `MessagePath`."""
        return self._world.send(data, self._rank, self._tag)

    def probe(self) -> Arrival | None:
        """See `MessagePath`."""
        return self._world.probe(self._rank, self._own_tag)

    def close(self) -> None:
        """Nothing to do: MPI has no connections."""


def _is_below(number: object, limit: int) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < limit
