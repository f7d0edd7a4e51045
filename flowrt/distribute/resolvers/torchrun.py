"""The variables that torchrun sets, and others in its place: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

They name one host. That is enough where all processes share it (LOCAL_WORLD_SIZE is WORLD_SIZE): process r
listens at port MASTER_PORT + 1 + r, because torchrun itself may have MASTER_PORT.
"""

from __future__ import annotations

from flowrt.distribute.resolvers.source import PORT, Environ, Launch, first_port, has, number, workers

VARIABLES = ("RANK", "WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


def from_torchrun(environ: Environ) -> Launch | None:
    """None without RANK and WORLD_SIZE. Raises `InvalidArgumentError`."""
    if not has(environ, *VARIABLES):
        return None
    size, rank = number(environ, "WORLD_SIZE"), number(environ, "RANK")
    if not has(environ, *_MASTER):
        return Launch("torchrun", size, rank, why_no_spec="MASTER_ADDR or MASTER_PORT is missing")
    local = number(environ, "LOCAL_WORLD_SIZE") if has(environ, "LOCAL_WORLD_SIZE") else size
    if local != size:
        why = f"its variables name one host, and only {local} of the {size} processes are on this host"
        return Launch("torchrun", size, rank, why_no_spec=why)
    first = first_port(environ, "") if has(environ, PORT) else number(environ, "MASTER_PORT") + 1
    spec = workers((environ["MASTER_ADDR"], first + index) for index in range(size))
    return Launch("torchrun", size, rank, spec)
