"""`measured`: when each action of a traced step ran; `predicted`: when it would, by a replay of the schedule.

StepStats -> read_step -> Operations -> measured -> Replay, in milliseconds
Replay -> predicted: mean times of each stage -> replay -> Replay
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Kind, Schedule
from flowrt.graph.pipeline.replay import Replay, replay
from flowrt.graph.pipeline.times import Times
from flowrt.profiler.steps import Operation, Step, read_step
from flowrt.viz.laid_out import LaidOut

NS_PER_US, US_PER_MS = 1000, 1000


def measured(found: LaidOut | None, step_stats: Sequence[Any]) -> Replay:
    """Start and end of each action, in ms, in the fastest of ``step_stats``, of those that trace the step of
    ``found``.

    An action ends with the last of its operations, and has begun with its first, on any device of its stage;
    or as much later as it waited for tensors in between, since what it can compute before these is little.
    One without operations, as for gradients of inputs at the first stage, takes no time after the action
    before it.

    Raises `InvalidArgumentError` if the step is no pipeline's, or no step in ``step_stats`` has all actions.
    """
    schedule = None if found is None else found.lowered.layouts.schedule
    if found is None or schedule is None:
        raise InvalidArgumentError("schedule: expected a step of a PipelineStrategy; got one without stages")
    actions = {action for action in found.lowered.actions.values() if action}
    ran = [_ran(found, read_step(each)) for each in step_stats]
    complete = [_played(schedule, spans) for spans in ran if spans.keys() >= actions]
    if not complete:
        raise InvalidArgumentError(
            f"schedule {schedule.name!r}: expected a traced step with all {len(actions)} actions; got none "
            f"in {len(step_stats)} steps. A process traces only what it runs itself: run the script in one"
        )
    return min(complete, key=lambda played: played.makespan)


def _played(schedule: Schedule, spans: Mapping[Action, tuple[int, int]]) -> Replay:
    first = min(start for start, _ in spans.values())
    starts: dict[Action, Fraction] = {}
    ends: dict[Action, Fraction] = {}
    for line in schedule.actions:
        before = first
        for action in line:
            start, before = spans.get(action, (before, before))
            starts[action], ends[action] = (_in_ms(start - first), _in_ms(before - first))
    return Replay(schedule, starts, ends)


def _in_ms(ns: int) -> Fraction:
    """Milliseconds, to a microsecond: more is not measured."""
    return Fraction(ns // NS_PER_US, US_PER_MS)


def _ran(found: LaidOut, step: Step) -> dict[Action, tuple[int, int]]:
    """Start and end of each action of which ``step`` has an operation, in ns."""
    by_device: dict[str, dict[Action, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    waits: dict[str, list[Operation]] = defaultdict(list)
    for operation in step.operations:
        action = found.lowered.actions.get(operation.name)
        if operation.is_receive:
            waits[operation.device].append(operation)
        elif action is not None:
            by_device[operation.device][action].append(operation)
    spans: dict[Action, tuple[int, int]] = {}
    for device, ran in by_device.items():
        for action, operations in ran.items():
            start, end = min(o.start for o in operations), max(o.end for o in operations)
            start += sum(max(0, min(end, w.end) - max(start, w.start)) for w in waits[device])
            first, last = spans.get(action, (start, end))
            spans[action] = min(first, start), max(last, end)
    return spans


def predicted(played: Replay) -> Replay:
    """A replay of the schedule of ``played`` with mean times: one for each stage and kind of action."""
    schedule = played.schedule
    mean: dict[tuple[int, Kind], Fraction] = defaultdict(Fraction)
    for action, end in played.end.items():
        mean[action.stage, action.kind] += (end - played.start[action]) / schedule.micro_batches
    backward: tuple[Kind, Kind] = ("I", "W") if schedule.split else ("B", "W")  # a B does the work of both
    return replay(
        schedule,
        [Times(*(mean[stage, kind] for kind in ("F", *backward))) for stage in range(schedule.stages)],
    )
