"""Information about the cluster from one source, and the parsing of its variables.

There are two kinds. A *declaration* was written by the user for this process; it may leave parts to other
sources. A *launch* comes from the program that started this process as one of several: it numbers them, and
may have their locations.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from flowrt.distribute.cluster.cluster_spec import MAX_PORT, MAX_TASKS, Address, ClusterSpec
from flowrt.errors import InvalidArgumentError

Environ = Mapping[str, str]

WORKER = "worker"
"""The job of processes that were only counted."""


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """``source`` is the name of the variable or flag; None means not declared."""

    source: str
    spec: ClusterSpec | None = None
    job: str | None = None
    task: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """This process is number ``rank`` of ``size``. ``why_no_spec`` is the reason if ``spec`` is None."""

    source: str
    size: int
    rank: int
    spec: ClusterSpec | None = None
    why_no_spec: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_TASKS or not 0 <= self.rank < self.size:
            raise InvalidArgumentError(
                f"{self.source}: expected 1 to {MAX_TASKS} processes, numbered from 0; got number {self.rank}"
                f" of {self.size}"
            )


@final
@dataclass(frozen=True, slots=True)
class ResolvedCluster:
    """The cluster, this process's task in it, and the sources. Prints as one line for the user. ``epoch`` is
    the number of the membership epoch of an elastic job: another epoch has another cluster.
    """

    spec: ClusterSpec
    job: str
    task: int
    source: str
    epoch: int = 0

    @property
    def address(self) -> str:
        return self.spec.task_address(self.job, self.task)

    def __str__(self) -> str:
        return f"cluster: {self.spec} from {self.source}; I am {self.job} {self.task} at {self.address}"


def workers(places: Iterable[tuple[str, int]]) -> ClusterSpec:
    """A cluster of one job from hosts and ports."""
    return ClusterSpec({WORKER: [str(Address(_bracketed(host), port)) for host, port in places]})


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def number(environ: Environ, name: str) -> int:
    """The variable ``name``, which must be there and below a million. Raises `InvalidArgumentError`."""
    text = environ.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidArgumentError(f"{name}: expected a number; got {environ.get(name)!r}")
    return int(text)


def has(environ: Environ, *names: str) -> bool:
    """Whether all of these variables are set."""
    return all(environ.get(name) for name in names)


# --- ports that all tasks of a run derive identically, for launchers that provide hosts but no ports

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
