"""Cost of a schedule: seconds by the linear model, bytes and messages; and the choice of an algorithm.

A message of l bytes takes a + b*l seconds (Hockney, "The communication challenge for MPP", 1994). A task
sends and receives one message at a time; inside a task all messages share its memory. A step takes as long as
its busiest task. If each of p ranks is in a separate task and p is a power of two, this gives closed forms,
for l bytes per rank, or l bytes in total where each rank holds a part (*):

    tree broadcast, reduce                 (a + b l) log2 p
    gather, scatter                        a log2 p + (p - 1) b l
    ring all-gather*, reduce-scatter       (p - 1) (a + b l / p)
    ring all-reduce                        2 (p - 1) (a + b l / p)
    halving-doubling all-reduce            2 a log2 p + 2 (p - 1) / p b l
    hypercube all-gather*                  a log2 p + (p - 1) / p b l
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.collectives.schedule import Schedule, Step, Transfer


class Link(NamedTuple):
    """Linear cost model: a message of l bytes takes ``latency_s + seconds_per_byte * l``."""

    latency_s: float
    seconds_per_byte: float

    def seconds(self, nbytes: float) -> float:
        return self.latency_s + self.seconds_per_byte * nbytes


class Links(NamedTuple):
    """The link between two ranks of one task, and that between two tasks."""

    inside: Link
    between: Link


DEFAULT_LINKS = Links(
    # A send and receive between two programs of a process, and the sum, take 4 us. The bytes are not sent but
    # read where they are: three streams of memory, for two operands and a sum, at 10 GB/s.
    inside=Link(4e-6, 3e-10),
    # gRPC: 270 us per round trip including the request; payloads by shared memory or TCP at 3.7 GB/s.
    between=Link(270e-6, 2.7e-10),
)
"""Measured on two cores. ``flowrt-worker --probe`` measures those of a cluster."""

LINKS_VARIABLE = "FLOWRT_LINKS"
"""Environment variable with measured links, as from `format_links`; equal in all tasks of a cluster."""


def links_of(environ: Mapping[str, str]) -> Links:
    """The links set in ``environ``, by default `DEFAULT_LINKS`. Raises as `parse_links`."""
    text = environ.get(LINKS_VARIABLE)
    return parse_links(text) if text else DEFAULT_LINKS


@lru_cache(maxsize=16)
def parse_links(text: str) -> Links:
    """Parse ``inside=a,b between=a,b``, in seconds and seconds per byte; a missing one is as in
    `DEFAULT_LINKS`. Raises `InvalidArgumentError`.
    """
    try:
        named = dict(part.split("=") for part in text.split())
        links = {name: Link(*[float(number) for number in pair.split(",")]) for name, pair in named.items()}
        found = DEFAULT_LINKS._replace(**links)
    except (TypeError, ValueError):
        found = None
    if found is None or not all(0 <= number < math.inf for link in found for number in link):
        raise InvalidArgumentError(
            f"{LINKS_VARIABLE}: expected 'inside=SECONDS,SECONDS_A_BYTE between=SECONDS,SECONDS_A_BYTE', or "
            f"one of them; got {text!r}. flowrt-worker --probe prints the value"
        )
    return found


def format_links(links: Mapping[str, Link]) -> str:
    """The inverse of `parse_links`."""
    return " ".join([f"{name}={a:.3g},{b:.3g}" for name, (a, b) in links.items()])


@final
class Traffic(NamedTuple):
    """Traffic sent by one rank, or by all together."""

    messages: int
    nbytes: float


def seconds(schedule: Schedule, tasks: tuple[int, ...], nbytes: float, links: Links = DEFAULT_LINKS) -> float:
    """Duration of ``schedule`` among ranks in ``tasks``, for a payload of ``nbytes``."""
    return sum([_step_seconds(schedule, step, tasks, nbytes, links) for step in schedule.steps])


def _step_seconds(
    schedule: Schedule, step: Step, tasks: tuple[int, ...], nbytes: float, links: Links
) -> float:
    """Duration of a step: that of its busiest port. A task has one port out, one in, and its memory for
    internal transfers.
    """
    busy: dict[tuple[int, str], float] = {}
    for transfer in step:
        source, target = tasks[transfer.source], tasks[transfer.target]
        link = links.inside if source == target else links.between
        took = link.seconds(_bytes(schedule, transfer, nbytes))
        ports = [(source, "memory")] if source == target else [(source, "out"), (target, "in")]
        for port in ports:
            busy[port] = busy.get(port, 0.0) + took
    return max(busy.values(), default=0.0)


def traffic(schedule: Schedule, nbytes: float, rank: int | None = None) -> Traffic:
    """Traffic sent by ``rank``, or by all ranks."""
    sent = [t for t in schedule.messages() if rank is None or t.source == rank]
    return Traffic(len(sent), sum([_bytes(schedule, t, nbytes) for t in sent]))


def _bytes(schedule: Schedule, transfer: Transfer, nbytes: float) -> float:
    return nbytes * (transfer.end - transfer.first) / schedule.chunks


@lru_cache(maxsize=4096)
def schedule_of(kind: str, lowering: str, group: Group) -> Schedule:
    """The schedule of the algorithm ``lowering``. Raises `InvalidArgumentError` if the kind lacks it, or
    lacks it for groups of this size.
    """
    usable = algorithms_for(kind, group)
    if lowering not in usable:
        sizes = f" for {group.size} ranks" if lowering in ALGORITHMS[kind] else ""
        raise InvalidArgumentError(
            f"{kind}: expected the lowering 'auto', 'native', or one of {', '.join(usable)}{sizes}; got "
            f"{lowering!r}"
        )
    return usable[lowering](group)


@lru_cache(maxsize=4096)
def cheapest(kind: str, group: Group, nbytes: int | None, links: Links = DEFAULT_LINKS) -> str:
    """Name of the cheapest algorithm for a payload of ``nbytes``; the first of equals. If the size is
    unknown, the choice is among those with the fewest chunks: they need no slices.
    """
    names = list(algorithms_for(kind, group))
    found = {name: schedule_of(kind, name, group) for name in names}
    if nbytes is None:
        fewest = min(schedule.chunks for schedule in found.values())
        names = [name for name in names if found[name].chunks == fewest]
    return min(names, key=lambda name: seconds(found[name], group.tasks, nbytes or 0, links))
