"""`programs_of_schedule`: a pipeline's schedule as class programs, to play it without a graph."""

from __future__ import annotations

from flowrt.graph.pipeline.actions import Action, Schedule, dependencies
from flowrt.graph.pipeline.times import EQUAL, AnyTimes, in_ticks
from flowrt.plan.replay.played import ClassProgram, Message, Work


def programs_of_schedule(
    schedule: Schedule, times: AnyTimes = EQUAL, nbytes: int = 0
) -> tuple[ClassProgram, ...]:
    """One program per device of ``schedule``: a work per action, and a message of ``nbytes`` wherever an
    action waits for one on another device.

    ``times`` are seconds, as in `flowrt.graph.pipeline.replay`. Its ``hop`` is the duration of a message; the
    results are equal as long as no action takes less than a hop, since there messages do not queue.

    Raises `InvalidArgumentError` for times that do not fit.
    """
    ticks = in_ticks(times, schedule.stages, schedule.chunks)
    seconds = [{kind: float(each * ticks.tick) for kind, each in of.items()} for of in ticks.of]
    readers: dict[Action, list[int]] = {}
    for device, line in enumerate(schedule.actions):
        for action in line:
            for needed in _from_elsewhere(action, device, schedule):
                readers.setdefault(needed, []).append(device)
    programs = []
    for device, line in enumerate(schedule.actions):
        works: list[Work] = []
        for action in line:
            before = len(works)
            works += [
                Work(f"receive {needed}", meets=_message(needed, schedule, nbytes, is_sent=False))
                for needed in _from_elsewhere(action, device, schedule)
            ]
            arrived = tuple(range(before, len(works)))
            works.append(Work(str(action), seconds[action.stage][action.kind], arrived, action=action))
            done = len(works) - 1
            works += [
                Work(
                    f"send {action}", after=(done,), meets=Message(reader, str(action), nbytes, is_sent=True)
                )
                for reader in readers.get(action, ())
            ]
        programs.append(ClassProgram(device, tuple(works)))
    return tuple(programs)


def _from_elsewhere(action: Action, device: int, schedule: Schedule) -> list[Action]:
    """The actions on other devices that ``action`` waits for."""
    return [
        needed
        for needed in dependencies(action, schedule.stages)
        if schedule.device_of(needed.stage) != device
    ]


def _message(needed: Action, schedule: Schedule, nbytes: int, *, is_sent: bool) -> Message:
    return Message(schedule.device_of(needed.stage), str(needed), nbytes, is_sent)
