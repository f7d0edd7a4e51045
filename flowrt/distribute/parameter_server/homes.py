"""Location of each shard: the server with its primary, and the one with its replica.

A shard starts on the server with its number, with its replica on the next. When servers are lost, the replica
of a shard becomes its primary, and the new replica is on the next server that answers: the same one if there
is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flowrt.errors import UnavailableError


class Home(NamedTuple):
    """Two servers, by number."""

    primary: int
    replica: int


class Seen(NamedTuple):
    """A server's status of a shard: its role (0 for none) and the version of its state."""

    is_primary: bool
    generation: int
    version: int


def find_home(shard: int, servers: int, seen: Mapping[int, Seen], alive: Collection[int]) -> Home:
    """The home of a shard with the status ``seen`` on the servers in ``alive``: its primary is the one with
    that role in the last generation, else the one with the newest state. Without any state it is the initial
    one.

    Raises `UnavailableError` when that server is lost.
    """
    order = [(shard + i) % servers for i in range(servers)]
    with_state = [server for server in order if server in alive and server in seen]
    if with_state:
        primary = max(with_state, key=lambda s: (seen[s].generation, seen[s].is_primary, seen[s].version))
    else:
        primary = shard
    if primary not in alive:
        raise UnavailableError(
            f"shard {shard}: expected server {shard}, or another one with its state; it does not answer, "
            "and no server that answers has the state. Start it, or restore a checkpoint if all servers "
            "with the state are lost"
        )
    following = [(primary + i) % servers for i in range(1, servers + 1)]
    return Home(primary, next(server for server in following if server in alive))
