"""`Events`: a virtual clock with a network; and class programs played device by device on it.

`play_by_events` has the rules of `replay`, and gives the same times where communication takes the same
seconds. It is slower by the number of devices, and knows what the replay on vectors does not: transfers
at the same time share ports and uplinks (`flowrt.plan.replay.network`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.network import Fabric, Flow, Network
from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message, Work
from flowrt.plan.replay.program_checks import Key, check_programs, is_received, key_of
from flowrt.plan.replay.replay import LinkSeconds


class Transfer(NamedTuple):
    """Communication: ``seconds`` pass, then all ``flows`` begin; it ends with the last of them."""

    seconds: float
    flows: Sequence[Flow] = ()


class Events:
    """A clock at ``now`` seconds, and what will happen; of equal times, in the order of the calls."""

    def __init__(self, network: Network | None = None) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._network = network or Network(np.zeros(0))
        self._network_now = 0.0
        """The time up to which the bytes on their way are known: the last change of rates."""
        self._next_flow: float | None = math.inf
        """The time at which the next flow ends; None if flows have begun since it was known."""
        self._transfers: dict[int, _Running] = {}
        """The transfer of each flow, by the flow's number."""

    def after(self, seconds: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), happen))

    def transfer(self, transfer: Transfer, then: Callable[[], object]) -> None:
        if transfer.flows:
            self.after(transfer.seconds, lambda: self._start(transfer.flows, then))
        else:
            self.after(transfer.seconds, then)

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen until ``is_over``, or until nothing is left."""
        while (self._events or self._transfers) and not is_over():
            event = self._events[0][0] if self._events else math.inf
            if event > self.now and self._next_flow is None:  # all that begins now has begun
                self._next_flow = self.now + self._network.seconds_to_next()
            if self._next_flow is None or event < self._next_flow:
                self.now, _, happen = heapq.heappop(self._events)
                happen()
            else:
                self.now = self._next_flow
                self._pass(self._network.seconds_to_next())  # a difference of times would be rounded

    def _start(self, flows: Sequence[Flow], then: Callable[[], object]) -> None:
        running = _Running(len(flows), then)
        if self.now > self._network_now:
            self._pass(self.now - self._network_now)
        for number in self._network.start(flows):
            self._transfers[number] = running
        self._next_flow = None

    def _pass(self, seconds: float) -> None:
        """Let ``seconds`` pass in the network, until now."""
        ended = [self._transfers.pop(number) for number in self._network.advance(seconds)]
        self._network_now, self._next_flow = self.now, None
        for running in ended:
            running.left -= 1
            if not running.left:
                self.after(0.0, running.then)


@dataclass
class _Running:
    """A transfer of which ``left`` flows have not ended."""

    left: int
    then: Callable[[], object]


class Transfers(Protocol):
    """The transfer of a meeting or a sent message of devices at ``position``. ``lanes`` are their numbers
    there: of all that meet, or the one that both ends of a message have.
    """

    def __call__(self, position: int, meets: Meeting | Message, lanes: Sequence[int]) -> Transfer: ...

    def computing(self, position: int, lane: int, seconds: float) -> Transfer:
        """``seconds`` of computing of a device, as a transfer."""


class _OwnCores:
    """Each device computes by itself."""

    def computing(self, position: int, lane: int, seconds: float) -> Transfer:
        return Transfer(seconds)


class TimedTransfers(_OwnCores):
    """Transfers that share nothing and take ``seconds``."""

    def __init__(self, mesh_shape: Mapping[str, int], seconds: LinkSeconds) -> None:
        self._shape, self._seconds = tuple(mesh_shape.values()), seconds

    def __call__(self, position: int, meets: Meeting | Message, lanes: Sequence[int]) -> Transfer:
        if isinstance(meets, Meeting):
            seconds: Any = self._seconds.meeting(position, meets)
        else:
            seconds = self._seconds.message(position, meets)
        return Transfer(float(np.broadcast_to(seconds, self._shape).reshape(-1)[lanes[0]]))


class RingTransfers(_OwnCores):
    """Meetings on rings, and messages, between hosts of ``fabric`` that are single devices: position by
    position, ``lanes`` at each.

    A ring's steps follow each other without a gap, so it is one flow from each device to the next.
    """

    def __init__(self, fabric: Fabric, lanes: int) -> None:
        self._fabric, self._lanes = fabric, lanes

    def __call__(self, position: int, meets: Meeting | Message, lanes: Sequence[int]) -> Transfer:
        route = self._fabric.route
        hosts = [position * self._lanes + lane for lane in lanes]
        if isinstance(meets, Message):
            other = meets.position * self._lanes + lanes[0]
            return Transfer(self._fabric.latency_s, [Flow(route(hosts[0], other), meets.nbytes)])
        size = len(hosts)
        steps = _ring_steps(meets.kind, size)
        part = meets.nbytes / size / (size if meets.kind == "all_to_all" else 1)
        ring = zip(hosts, hosts[1:] + hosts[:1], strict=True)
        flows = [Flow(route(*pair), steps * part) for pair in ring] if steps else []
        return Transfer(steps * self._fabric.latency_s, flows)


def _ring_steps(kind: str, size: int) -> int:
    return 2 * (size - 1) if kind in ("all_reduce", "broadcast") else size - 1


class Ends(NamedTuple):
    """``works[position]`` has the end of each work on each device, shape [works, devices], and
    ``starts[position]`` its start: of a meeting when all have come.
    """

    makespan: float
    works: dict[int, npt.NDArray[np.float64]]
    starts: dict[int, npt.NDArray[np.float64]]


def play_by_events(
    programs: Sequence[ClassProgram],
    mesh_shape: Mapping[str, int],
    transfers: Transfers,
    slowness: Mapping[int, npt.ArrayLike] | None = None,
    network: Network | None = None,
) -> Ends:
    """The step of ``programs``, as `flowrt.plan.replay.replay.play`, for some hundreds of devices.

    Raises `InvalidArgumentError` as that does.
    """
    check_programs(programs, mesh_shape)
    step = _Step(mesh_shape, transfers, Events(network))
    shape = tuple(mesh_shape.values())
    for program in programs:
        factors = np.broadcast_to((slowness or {}).get(program.position, 1.0), shape).reshape(-1)
        for lane, factor in enumerate(factors):
            step.devices[program.position, lane] = _Device(program, lane, float(factor), step)
    for device in step.devices.values():
        device.go_on()
    step.events.run()
    for device in step.devices.values():
        device.check_over()
    ends = {each.position: step.times(each, lambda device: device.ends) for each in programs}
    starts = {each.position: step.times(each, lambda device: device.starts) for each in programs}
    return Ends(max((float(each.max(initial=0.0)) for each in ends.values()), default=0.0), ends, starts)


class _Step:
    """All devices by position and lane, the meetings that gather, and when messages were sent."""

    def __init__(self, mesh_shape: Mapping[str, int], transfers: Transfers, events: Events) -> None:
        self.devices: dict[tuple[int, int], _Device] = {}
        self.events, self.transfers = events, transfers
        self.sent: dict[tuple[Key, int], float] = {}
        self._lanes = np.arange(math.prod(mesh_shape.values())).reshape(tuple(mesh_shape.values()))
        self._axes = {name: number for number, name in enumerate(mesh_shape)}
        self._come: dict[tuple[int, int, int], set[int]] = {}

    def meet(self, position: int, number: int, meeting: Meeting, lane: int) -> None:
        """``lane`` comes to the meeting of work ``number``, which begins when all have."""
        group = self._group(meeting.axes, lane)
        come = self._come.setdefault((position, number, group[0]), set())
        come.add(lane)
        if len(come) < len(group):
            return
        del self._come[position, number, group[0]]
        for each in group:
            self.devices[position, each].starts[number] = self.events.now

        def part() -> None:
            for each in group:
                self.devices[position, each].end(number)

        self.events.transfer(self.transfers(position, meeting, group), part)

    def times(
        self, program: ClassProgram, of: Callable[[_Device], Mapping[int, float]]
    ) -> npt.NDArray[np.float64]:
        """The times ``of`` the devices of ``program``, shape [works, devices]."""
        found = [of(self.devices[program.position, lane]) for lane in range(self._lanes.size)]
        rows = [[each[number] for each in found] for number in range(len(program.works))]
        return np.array(rows, np.float64).reshape(len(rows), len(found))

    def _group(self, axes: tuple[str, ...], lane: int) -> list[int]:
        index: list[Any] = list(np.unravel_index(lane, self._lanes.shape))
        for name in axes:
            index[self._axes[name]] = slice(None)
        return [int(each) for each in np.atleast_1d(self._lanes[tuple(index)]).ravel()]

    def send(self, device: _Device, number: int, message: Message) -> None:
        position = device.program.position

        def arrive() -> None:
            self.sent[key_of(position, message), device.lane] = self.events.now
            device.end(number)
            receiver = self.devices.get((message.position, device.lane))
            if receiver is not None:
                receiver.go_on()

        self.events.transfer(self.transfers(position, message, [device.lane]), arrive)


class _Device:
    """One device: the starts and ends of its works, and how far its two lanes are."""

    def __init__(self, program: ClassProgram, lane: int, slowness: float, step: _Step) -> None:
        self.program, self.lane, self.ends = program, lane, dict[int, float]()
        self.starts: dict[int, float] = {}
        self._slowness, self._step = slowness, step
        self._lines: dict[Lane, list[int]] = {each: [] for each in Lane}
        self._receives: list[int] = []
        for number, work in reversed(list(enumerate(program.works))):
            (self._receives if is_received(work) else self._lines[work.lane]).append(number)
        self._is_busy = dict.fromkeys(Lane, False)

    def go_on(self) -> None:
        """Receive and start whatever can be."""
        self._receive()
        for lane, line in self._lines.items():
            if line and not self._is_busy[lane]:
                work = self.program.works[line[-1]]
                if all(number in self.ends for number in work.after):
                    self._is_busy[lane] = True
                    self._start(line[-1], work)

    def end(self, number: int) -> None:
        lane = self.program.works[number].lane
        assert self._lines[lane].pop() == number
        self._is_busy[lane] = False
        self.ends[number] = self._step.events.now
        self.go_on()

    def check_over(self) -> None:
        for line in (*self._lines.values(), self._receives):
            if line:
                name = self.program.works[line[-1]].name
                raise InvalidArgumentError(
                    f"position {self.program.position}: work {name!r}: expected its turn to come; works wait "
                    "for each other"
                )

    def _receive(self) -> None:
        for number in reversed(self._receives.copy()):
            work = self.program.works[number]
            assert isinstance(work.meets, Message)
            key = key_of(self.program.position, work.meets), self.lane
            if key in self._step.sent and all(before in self.ends for before in work.after):
                self._receives.remove(number)
                self.starts[number] = self.ends[number] = self._step.events.now

    def _start(self, number: int, work: Work) -> None:
        self.starts[number] = self._step.events.now
        if isinstance(work.meets, Meeting):
            self._step.meet(self.program.position, number, work.meets, self.lane)
        elif isinstance(work.meets, Message):
            self._step.send(self, number, work.meets)
        else:
            seconds = work.seconds * self._slowness
            computing = self._step.transfers.computing(self.program.position, self.lane, seconds)
            self._step.events.transfer(computing, lambda: self.end(number))
