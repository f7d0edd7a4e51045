"""`replay`: a schedule played with given times: when each action runs, and what waits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Schedule, dependencies
from flowrt.graph.pipeline.times import EQUAL, AnyTimes, Number, Ticks, in_ticks


@final
@dataclass(frozen=True)
class Replay:
    """Start and end of each action, if every device runs its actions in order, each as early as it can.

    All times are exact fractions, in the unit of the `Times`; the first action starts at 0.
    """

    schedule: Schedule
    start: dict[Action, Fraction]
    end: dict[Action, Fraction]

    @cached_property
    def makespan(self) -> Fraction:
        """The end of the last action."""
        return max(self.end.values())

    @cached_property
    def busy(self) -> tuple[Fraction, ...]:
        """The time that each device computes."""
        return tuple(
            sum((self.end[each] - self.start[each] for each in line), Fraction(0))
            for line in self.schedule.actions
        )

    @property
    def bubble(self) -> Fraction:
        """The time that the busiest device idles before the makespan is over."""
        return self.makespan - max(self.busy)

    @cached_property
    def spans(self) -> tuple[Fraction, ...]:
        """The time from a device's first start to its last end. Without gaps it is equal to `busy`.

        It is the time of a step where steps follow each other without a barrier between the devices.
        """
        return tuple(self.end[line[-1]] - self.start[line[0]] for line in self.schedule.actions)

    def activations(self, device: int) -> list[tuple[Fraction, Fraction]]:
        """Micro-batches of which ``device`` holds activations, over time: pairs (time, number from then on).

        An activation is held from the start of F to the end of B or W. The activations of one chunk count
        1/chunks.
        """
        line = self.schedule.actions[device]
        moments = [self.start[each] if each.kind == "F" else self.end[each] for each in line]
        steps = zip(line, moments, held_passes(self.schedule, device), strict=True)
        chunks = self.schedule.chunks
        return [(moment, Fraction(n, chunks)) for action, moment, n in steps if action.kind != "I"]

    @property
    def peaks(self) -> tuple[Fraction, ...]:
        """The largest number of `activations` on each device; it does not depend on the times."""
        return peaks(self.schedule)


_CHANGE = {"F": 1, "B": -1, "I": 0, "W": -1}
"""The change of the number of passes that hold activations, by kind of action."""


def held_passes(schedule: Schedule, device: int) -> list[int]:
    """Passes of which ``device`` holds activations: after the start of each F, the end of other actions."""
    return list(accumulate(_CHANGE[action.kind] for action in schedule.actions[device]))


def held_by_stages(schedule: Schedule) -> tuple[int, ...]:
    """The most micro-batches of which each stage holds activations at a time.

    >>> held_by_stages(order("1f1b", devices=3, micro_batches=8))
    (3, 2, 1)
    """
    most, held = [0] * schedule.stages, [0] * schedule.stages
    for action in chain.from_iterable(schedule.actions):
        held[action.stage] += _CHANGE[action.kind]
        most[action.stage] = max(most[action.stage], held[action.stage])
    return tuple(most)


def recomputed_by_stages(schedule: Schedule) -> tuple[int, ...]:
    """The most micro-batches that each stage holds in whole at a time, if it keeps what arrives and computes
    the rest again for the backward pass: one, or those between their I and their W.

    >>> recomputed_by_stages(order("zb_h1", devices=3, micro_batches=8))
    (1, 2, 3)
    """
    most, held = [1] * schedule.stages, [0] * schedule.stages
    for action in chain.from_iterable(schedule.actions):
        held[action.stage] += {"I": 1, "W": -1}.get(action.kind, 0)
        most[action.stage] = max(most[action.stage], held[action.stage])
    return tuple(most)


def peaks(schedule: Schedule) -> tuple[Fraction, ...]:
    """The largest number of micro-batches of which each device holds activations."""
    most = (max(held_passes(schedule, device)) for device in range(schedule.devices))
    return tuple(Fraction(passes, schedule.chunks) for passes in most)


def replay(schedule: Schedule, times: AnyTimes = EQUAL, hop: Number = 0) -> Replay:
    """``schedule`` with each action as early as its device and what it waits for allow.

    ``hop`` is the time between the end of an action and the start, on another device, of one that waits for
    it. Sends do not occupy a device.

    >>> replay(order("1f1b", devices=4, micro_batches=8)).bubble
    Fraction(9, 1)

    Raises `InvalidArgumentError` for times that do not fit, and if actions wait for each other.
    """
    ticks = in_ticks(times, schedule.stages, schedule.chunks, hop)
    start, end, blocked = play(schedule, ticks)
    if blocked:
        cycle = format_cycle(find_cycle(schedule, blocked))
        raise InvalidArgumentError(f"schedule {schedule.name!r}: expected no cycle; got {cycle}")
    return Replay(
        schedule,
        {action: time * ticks.tick for action, time in start.items()},
        {action: time * ticks.tick for action, time in end.items()},
    )


class Blocked(NamedTuple):
    """An action that a device cannot start, and one that it waits for and that did not run."""

    action: Action
    waits_for: Action


class Played(NamedTuple):
    """Start and end of each action that can run, in ticks, and where devices stand that did not finish."""

    start: dict[Action, int]
    end: dict[Action, int]
    blocked: dict[int, Blocked]


def play(schedule: Schedule, ticks: Ticks) -> Played:
    """Each device runs its line until an action waits for one that cannot run."""
    device_of = [schedule.device_of(stage) for stage in range(schedule.stages)]
    start: dict[Action, int] = {}
    end: dict[Action, int] = {}
    free, position = [0] * schedule.devices, [0] * schedule.devices
    waiting: dict[Action, list[int]] = {}
    blocked: dict[int, Blocked] = {}
    ready = list(range(schedule.devices))
    while ready:
        device = ready.pop()
        line = schedule.actions[device]
        while position[device] < len(line):
            action = line[position[device]]
            earliest = free[device]
            missing = None
            for needed in dependencies(action, schedule.stages):
                if needed not in end:
                    missing = needed
                    break
                hop = ticks.hop if device_of[needed.stage] != device else 0
                earliest = max(earliest, end[needed] + hop)
            if missing is not None:
                blocked[device] = Blocked(action, missing)
                waiting.setdefault(missing, []).append(device)
                break
            start[action] = earliest
            end[action] = free[device] = earliest + ticks.of[action.stage][action.kind]
            position[device] += 1
            ready += waiting.pop(action, ())
        else:
            blocked.pop(device, None)
    return Played(start, end, blocked)


def find_cycle(schedule: Schedule, blocked: dict[int, Blocked]) -> tuple[Action, ...]:
    """Actions on ``blocked`` devices, each of which waits for the next; the last is the first again."""
    device = min(blocked)
    path: list[int] = []
    while device not in path:
        path.append(device)
        device = schedule.device_of(blocked[device].waits_for.stage)
    cycle: list[Action] = []
    for each in path[path.index(device) :]:
        cycle += (action for action in blocked[each] if [action] != cycle[-1:])
    return tuple(cycle if cycle[-1] == cycle[0] else [*cycle, cycle[0]])


def format_cycle(cycle: tuple[Action, ...]) -> str:
    """``cycle`` as in "F(1,0) after F(0,0) after B(0,1) after B(1,1) after F(1,0)"."""
    return " after ".join(map(str, cycle))
