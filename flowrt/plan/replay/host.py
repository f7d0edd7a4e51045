"""Processes of one host, which share its cores: the transfers of a played step that know it.

A *thread* is a port through which at most one second of computing goes in a second, and the cores of the host
are one port of all threads: so `flowrt.plan.replay.network` divides cores as it divides links. Each process
has a thread that computes and one that communicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from flowrt.plan.replay.events import Ends, Transfer, play_by_events
from flowrt.plan.replay.network import Flow, Network
from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message, Work
from flowrt.plan.replay.program_checks import Key, is_received, key_of
from flowrt.plan.replay.step_times import MESSAGE, Played, PlayedClass, Vector


class Exchange(NamedTuple):
    """The seconds of communication: ``latency_s`` in which nobody computes, then on a core of each that takes
    part ``core_s``, and ``core_s_per_byte`` for each byte of the whole.
    """

    latency_s: float
    core_s: float
    core_s_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """The seconds on a core."""
        return self.core_s + self.core_s_per_byte * nbytes


@final
@dataclass(frozen=True)
class HostSpeed:
    """The speed of a host. ``cores`` is how much all its cores compute in the time in which one alone
    computes 1: less than their number, as they share caches and memory. ``exchanges``: those of meetings by
    kind and number of processes, such as ``all_reduce 2``, and of messages.
    """

    cores: float
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)

    def exchange(self, meets: Meeting | Message, size: int) -> Exchange:
        """The exchange of ``size`` processes."""
        return self.exchanges[f"{meets.kind} {size}" if isinstance(meets, Meeting) else MESSAGE]


@final
class HostTransfers:
    """`flowrt.plan.replay.events.Transfers` of processes of one host, position by position, ``lanes`` at each
    of ``positions``.
    """

    def __init__(self, speed: HostSpeed, positions: int, lanes: int) -> None:
        self._speed, self._lanes = speed, lanes
        self._threads = 2 * positions * lanes

    @property
    def network(self) -> Network:
        """All threads, and the cores behind them."""
        return Network(np.array([1.0] * self._threads + [self._speed.cores]))

    def computing(self, position: int, lane: int, seconds: float) -> Transfer:
        return Transfer(0.0, [self._flow(position, lane, Lane.COMPUTE, seconds)])

    def __call__(self, position: int, meets: Meeting | Message, lanes: Sequence[int]) -> Transfer:
        exchange = self._speed.exchange(meets, len(lanes))
        seconds = exchange.seconds(meets.nbytes)
        ends = [(position, lane) for lane in lanes]
        if isinstance(meets, Message):
            ends.append((meets.position, lanes[0]))
        return Transfer(exchange.latency_s, [self._flow(*end, Lane.LINK, seconds) for end in ends])

    def _flow(self, position: int, lane: int, part: Lane, seconds: float) -> Flow:
        thread = 2 * (position * self._lanes + lane) + (part is Lane.LINK)
        return Flow((thread, self._threads), seconds)


def play_on_host(programs: Sequence[ClassProgram], mesh_shape: Mapping[str, int], speed: HostSpeed) -> Played:
    """The step of ``programs``, each device a process of one host. Raises as `play_by_events`."""
    lanes = math.prod(mesh_shape.values())
    transfers = HostTransfers(speed, len(programs), lanes)
    ends = play_by_events(programs, mesh_shape, transfers, network=transfers.network)
    sent = {
        key_of(program.position, work.meets): ends.starts[program.position][number]
        for program in programs
        for number, work in enumerate(program.works)
        if isinstance(work.meets, Message) and work.meets.is_sent
    }
    classes = tuple(_class(program, ends, sent) for program in programs)
    return Played(ends.makespan, classes, _nbytes(programs, mesh_shape))


def _class(program: ClassProgram, ends: Ends, sent: Mapping[Key, Vector]) -> PlayedClass:
    """The seconds of the devices of ``program`` by what they did: computed, or waited for what."""
    start, end = ends.starts[program.position], ends.works[program.position]
    free = np.zeros(start.shape[1])
    busy, skew, exposed = free.copy(), free.copy(), dict[str, Vector]()
    for number, work in enumerate(program.works):
        if work.lane is not Lane.COMPUTE:
            continue
        for before in work.after:
            awaited, later = program.works[before], np.maximum(free, end[before])
            if awaited.meets is not None:
                since = _since(program, awaited, sent, start[before])
                since = np.minimum(np.maximum(free, since), later)
                kind = awaited.meets.kind if isinstance(awaited.meets, Meeting) else MESSAGE
                exposed[kind] = exposed.get(kind, 0.0) + (later - since)
                skew += (since - free) * (kind != MESSAGE)
            free = later
        busy += end[number] - start[number]
        free = end[number]
    return PlayedClass(program.position, _planned(program), busy, exposed, skew, start, end)


def _since(program: ClassProgram, work: Work, sent: Mapping[Key, Vector], start: Vector) -> Vector:
    """The time since which the link is busy with ``work``."""
    if not is_received(work):
        return start
    assert isinstance(work.meets, Message)
    return sent[key_of(program.position, work.meets)]


def _planned(program: ClassProgram) -> float:
    return math.fsum(work.seconds for work in program.works)


def _nbytes(programs: Sequence[ClassProgram], mesh_shape: Mapping[str, int]) -> dict[str, int]:
    """Bytes by kind: of a meeting once per group, of a message once per pair."""
    devices, found = math.prod(mesh_shape.values()), dict[str, int]()
    for work in (work for program in programs for work in program.works):
        if isinstance(work.meets, Meeting):
            groups = devices // math.prod(mesh_shape[name] for name in work.meets.axes)
            found[work.meets.kind] = found.get(work.meets.kind, 0) + groups * work.meets.nbytes
        elif isinstance(work.meets, Message) and work.meets.is_sent:
            found[MESSAGE] = found.get(MESSAGE, 0) + devices * work.meets.nbytes
    return found
