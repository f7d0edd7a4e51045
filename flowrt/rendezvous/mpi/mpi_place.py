"""`MpiPlace`: the address of one end of a connection in MPI, and a check that the peer is in its world.

Two worlds can have the same name (Open MPI derives it from a host name and a process id, which may be equal
in containers). The proof is a secret, sent over the gRPC stream, that comes back by MPI.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard, final

from flowrt.rendezvous.channel.framing import Allocate
from flowrt.rendezvous.mpi.mpi_channel import MpiWorld, Transfer
from flowrt.rendezvous.mpi.mpi_link import MpiLink

ASK_S = 1e-3
"""Interval between two polls."""


class MpiAddress(NamedTuple):
    world: str
    rank: int
    tag: int


@final
class MpiPlace:
    """A rank and a unique tag."""

    def __init__(self, world: MpiWorld) -> None:
        self._world = world
        self.address = MpiAddress(world.name, world.rank, world.new_tag())

    def find(self, said: object) -> MpiAddress | None:
        """The address in ``said``, a peer's ``{world, rank, tag}``; None if it is not in this world."""
        if not isinstance(said, Mapping) or said.get("world") != self._world.name:
            return None
        rank, tag = said.get("rank"), said.get("tag")
        if not _is_below(rank, self._world.size) or not _is_below(tag, self._world.max_tag):
            return None
        return MpiAddress(self._world.name, rank, tag)

    def knock(self, peer: MpiAddress, secret: bytes, timeout_s: float) -> None:
        """Send ``secret``. Raises `OSError`, also where it is not on its way within ``timeout_s``."""
        _wait(self._world.send(secret, peer.rank, peer.tag), timeout_s)

    def hears(self, peer: MpiAddress, secret: bytes, timeout_s: float) -> bool:
        """Whether ``peer`` sends ``secret`` within ``timeout_s``. Raises `OSError`."""
        end = time.monotonic() + timeout_s
        while (arrival := self._world.probe(peer.rank, self.address.tag)) is None:
            if time.monotonic() > end:
                return False
            time.sleep(ASK_S)
        shown = bytearray(arrival.nbytes)
        _wait(arrival.receive(shown), timeout_s)
        return hmac.compare_digest(shown, secret)

    def link(self, peer: MpiAddress, allocate: Allocate) -> MpiLink:
        return MpiLink(self._world, peer.rank, peer.tag, self.address.tag, allocate)


def _is_below(number: object, limit: int) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < limit


def _wait(transfer: Transfer, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not transfer.is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"expected MPI to finish within {timeout_s:g} s")
        time.sleep(ASK_S)
