"""Processes of one host, which share its cores: the transfers of a played step that know it.

A *thread* is a port through which at most one second of computing goes in a second, and the cores of the host
are one port of all threads: so `flowrt.plan.replay.network` divides cores as it divides links. Each process
has a thread that computes and one that communicates.

Even shares stand for the slices of time that a kernel gives. Linux's are 0.7 ms x (1 + log2 of the cores),
3 ms at most (``sysctl_sched_base_slice`` in kernel/sched/fair.c), less than most works of a step: with them,
played exactly, pipelines with more processes than cores take 0 to 2 % longer or shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from flowrt.plan.replay.events import Ends, Transfer, play_by_events
from flowrt.plan.replay.network import Flow, Network
from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message
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
    """The speed of a host with so many ``cores`` for its processes: how long works take there while others
    compute is in their seconds. ``exchanges``: those of meetings by kind and number of processes, such as
    ``all_reduce 2``, and of messages.
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
    since = {program.position: _busy_since(program, ends) for program in programs}
    sent = {
        key_of(program.position, work.meets): since[program.position][number]
        for program in programs
        for number, work in enumerate(program.works)
        if isinstance(work.meets, Message) and work.meets.is_sent
    }
    classes = tuple(_class(program, ends, since[program.position], sent) for program in programs)
    return Played(ends.makespan, classes, _nbytes(programs, mesh_shape))


def _busy_since(program: ClassProgram, ends: Ends) -> dict[int, Vector]:
    """The time since which the link was busy without a gap, for each meeting and sent message."""
    start, end = ends.starts[program.position], ends.works[program.position]
    free = since = np.zeros(start.shape[1])
    found = {}
    for number, work in enumerate(program.works):
        if work.lane is Lane.LINK and not is_received(work):
            found[number] = since = np.where(start[number] > free, start[number], since)
            free = end[number]
    return found


def _class(
    program: ClassProgram, ends: Ends, since: Mapping[int, Vector], sent: Mapping[Key, Vector]
) -> PlayedClass:
    """The seconds of the devices of ``program`` by what they did: computed, or waited for what."""
    start, end = ends.starts[program.position], ends.works[program.position]
    free = np.zeros(start.shape[1])
    busy, skew, exposed = free.copy(), free.copy(), dict[str, Vector]()

    def wait(free: Vector, number: int) -> Vector:
        """The time at which the work ``number`` has ended, too."""
        meets, later = program.works[number].meets, np.maximum(free, end[number])
        if meets is None:
            return later
        begun = since[number] if number in since else sent[_received(program, number)]
        begun = np.minimum(np.maximum(free, begun), later)
        kind = meets.kind if isinstance(meets, Meeting) else MESSAGE
        exposed[kind] = exposed.get(kind, 0.0) + (later - begun)
        skew[...] += (begun - free) * (kind != MESSAGE)
        return later

    for number, work in enumerate(program.works):
        if work.lane is Lane.COMPUTE:
            for before in work.after:
                free = wait(free, before)
            busy += end[number] - start[number]
            free = end[number]
    if since:
        wait(free, max(since))
    planned = math.fsum(work.seconds for work in program.works)
    return PlayedClass(program.position, planned, busy, exposed, skew, start, end)


def _received(program: ClassProgram, number: int) -> Key:
    meets = program.works[number].meets
    assert isinstance(meets, Message)
    return key_of(program.position, meets)


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
