"""Ports that all tasks of a run derive identically, for launchers that provide hosts but no ports."""

from __future__ import annotations

import zlib

from flowrt.distribute.cluster.cluster_spec import MAX_PORT
from flowrt.distribute.resolvers.source import Environ, number
from flowrt.errors import InvalidArgumentError

PORT = "FLOWRT_PORT"
"""The port of the first task on each host; the others have the next ones."""

FIRST, SPACING, BLOCKS = 10_000, 16, 1250
"""Blocks of 16 ports from 10000 to 29999: above services, below Linux's ephemeral ports (from 32768)."""


def first_port(environ: Environ, run: str) -> int:
    """``FLOWRT_PORT``, else the start of a block that depends on the name of the ``run``.

    Two concurrent runs on a host rarely have the same block (1 in 1250); then one of them reports that its
    port is taken.
    """
    if not environ.get(PORT):
        return FIRST + SPACING * (zlib.crc32(run.encode()) % BLOCKS)
    port = number(environ, PORT)
    if not 0 < port <= MAX_PORT:
        raise InvalidArgumentError(f"{PORT}: expected a port of 1 to {MAX_PORT}; got {port}")
    return port
