"""What a schedule takes: seconds by the linear model, bytes and messages; and the choice of an algorithm.

A message of l bytes takes a + b*l seconds (Hockney, "The communication challenge for MPP", 1994). A task
sends and receives one message at a time; inside of a task all messages share its memory. A step takes as long
as the busiest task. Where each of p ranks has a task of its own and p is a power of two, that gives closed
forms, for l bytes a rank, or l bytes of the whole where ranks have parts of it (*):

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
    """A message of l bytes takes ``latency_s + seconds_per_byte * l``."""

    latency_s: float
    seconds_per_byte: float

    def seconds(self, nbytes: float) -> float:
        return self.latency_s + self.seconds_per_byte * nbytes


class Links(NamedTuple):
    """Between two ranks of one task, and of two tasks."""

    inside: Link
    between: Link


DEFAULT_LINKS = Links(
    # A send and receive between two programs of a process, and the sum, take 4 us. The bytes are not sent but
    # read where they are: three streams of memory, for two operands and a sum, at 10 GB/s.
    inside=Link(4e-6, 3e-10),
    # Over gRPC 270 us a round trip with the request; payloads go by shared memory or TCP at 3.7 GB/s.
    between=Link(270e-6, 2.7e-10),
)
"""Measured with two cores. ``flowrt-worker --probe`` measures those of a cluster."""

LINKS_VARIABLE = "FLOWRT_LINKS"
"""Where measured links stand, in the form of `format_links`; alike for all tasks of a cluster."""


def links_of(environ: Mapping[str, str]) -> Links:
    """What ``environ`` says, `DEFAULT_LINKS` where it says nothing. Raises as `parse_links`."""
    text = environ.get(LINKS_VARIABLE)
    return parse_links(text) if text else DEFAULT_LINKS


@lru_cache(maxsize=16)
def parse_links(text: str) -> Links:
    """``inside=a,b between=a,b``, in seconds and seconds a byte; one that is not named is as in
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
            f"{LINKS_VARIABLE}: expected 'inside=SECONDS,SECONDS_A_BYTE between=SECONDS,SECONDS_A_BYTE', or"
            f" one of them; got {text!r}. flowrt-worker --probe prints it"
        )
    return found


def format_links(links: Mapping[str, Link]) -> str:
    """What `parse_links` reads."""
    return " ".join([f"{name}={a:.3g},{b:.3g}" for name, (a, b) in links.items()])


@final
class Traffic(NamedTuple):
    """What one rank, or all together, sends."""

    messages: int
    nbytes: float


def seconds(schedule: Schedule, tasks: tuple[int, ...], nbytes: float, links: Links = DEFAULT_LINKS) -> float:
    """How long ``schedule`` takes among ranks in ``tasks`` for ``nbytes`` that its chunks share."""
    return sum([_step_seconds(schedule, step, tasks, nbytes, links) for step in schedule.steps])


def _step_seconds(
    schedule: Schedule, step: Step, tasks: tuple[int, ...], nbytes: float, links: Links
) -> float:
    """That of the busiest port: what leaves a task leaves by one, so does what comes, and what stays inside
    goes over its memory.
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
    """What ``rank`` sends, or all ranks."""
    sent = [t for t in schedule.messages() if rank is None or t.source == rank]
    return Traffic(len(sent), sum([_bytes(schedule, t, nbytes) for t in sent]))


def _bytes(schedule: Schedule, transfer: Transfer, nbytes: float) -> float:
    return nbytes * (transfer.end - transfer.first) / schedule.chunks


@lru_cache(maxsize=4096)
def schedule_of(kind: str, lowering: str, group: Group) -> Schedule:
    """The schedule by the algorithm ``lowering``. Raises `InvalidArgumentError` for one that the kind has
    not, or has not for groups of this size.
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
    """The name of the algorithm that takes least for a payload of ``nbytes``; the first of equals. Where the
    size is not known, of those with the fewest chunks: they need no slices.
    """
    names = list(algorithms_for(kind, group))
    found = {name: schedule_of(kind, name, group) for name in names}
    if nbytes is None:
        fewest = min(schedule.chunks for schedule in found.values())
        names = [name for name in names if found[name].chunks == fewest]
    return min(names, key=lambda name: seconds(found[name], group.tasks, nbytes or 0, links))
