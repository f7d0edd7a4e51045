"""`validate`: a schedule is complete, every action is on its stage's device, and nothing waits for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Schedule
from flowrt.graph.pipeline.replay import find_cycle, format_cycle, play
from flowrt.graph.pipeline.times import EQUAL, in_ticks


class Fault(NamedTuple):
    """One mistake. ``position`` counts the actions of the device from 0; an absent action is past the end."""

    device: int
    position: int
    message: str


def validate(schedule: Schedule) -> None:
    """Check that ``schedule`` can run: each device has all actions of its stages once, in a possible order.

    Raises `InvalidArgumentError` for the first mistake. It names the device, the action's position there,
    counted from 0, the action, and what was expected; a cycle is given as its actions:

        schedule 'mine': device 1, action 2, F(0,1): expected on device 0, which has stage 0
        schedule 'mine': device 0, action 1, B(0,0): expected an order without a cycle; got B(0,0) after
            B(1,0) after F(1,0) after F(0,0) after B(0,0)
    """
    fault = find_fault(schedule)
    if fault:
        device, position, message = fault
        raise InvalidArgumentError(
            f"schedule {schedule.name!r}: device {device}, action {position}, {message}"
        )


def find_fault(schedule: Schedule) -> Fault | None:
    """The first mistake in ``schedule``, in the order of `validate`'s checks: lines, then cycles."""
    return next(_faults_of_lines(schedule), None) or _cycle(schedule)


def _faults_of_lines(schedule: Schedule) -> Iterator[Fault]:
    kinds = schedule.kinds
    first: dict[Action, int] = {}
    for device, line in enumerate(schedule.actions):
        for position, action in enumerate(line):
            wrong = _misplaced(schedule, device, action)
            if wrong is None and action in first:
                wrong = f"expected once; got it again, after action {first[action]}"
            if wrong is not None:
                yield Fault(device, position, f"{action}: {wrong}")
            first[action] = position
    for device, line in enumerate(schedule.actions):
        for stage in schedule.stages_of(device):
            for micro_batch in range(schedule.micro_batches):
                for kind in kinds:
                    absent = Action(kind, stage, micro_batch)
                    if absent not in first:
                        yield Fault(
                            device, len(line), f"{absent}: expected once on this device; it is absent"
                        )


def _misplaced(schedule: Schedule, device: int, action: Action) -> str | None:
    kind, stage, micro_batch = action
    if kind not in schedule.kinds:
        return (
            "expected F, I or W: others are split"
            if schedule.split
            else "expected F or B: others are not split"
        )
    if not 0 <= stage < schedule.stages:
        return f"expected a stage below {schedule.stages}"
    if not 0 <= micro_batch < schedule.micro_batches:
        return f"expected a micro-batch below {schedule.micro_batches}"
    home = schedule.device_of(stage)
    return None if home == device else f"expected on device {home}, which has stage {stage}"


def _cycle(schedule: Schedule) -> Fault | None:
    blocked = play(schedule, in_ticks(EQUAL, schedule.stages, schedule.chunks)).blocked
    if not blocked:
        return None
    cycle = find_cycle(schedule, blocked)
    device = schedule.device_of(cycle[0].stage)
    position = schedule.actions[device].index(cycle[0])
    return Fault(device, position, f"{cycle[0]}: expected no cycle; got {format_cycle(cycle)}")
