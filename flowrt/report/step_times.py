"""Activities of devices in traced steps, and traffic between them. All pure sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from flowrt.profiler.costs import short_device
from flowrt.profiler.steps import Operation, Step

ACTIVITIES = ("compute", "send", "wait", "copy", "idle")
"""The activities of a stream: ``wait`` is for a tensor of another device, ``copy`` moves a received one to
its reader, ``idle`` is the rest of the step.
"""


class Activity(NamedTuple):
    """A stream of a device: mean nanoseconds per step by activity."""

    stream: str
    nanos: dict[str, float]


class Traffic(NamedTuple):
    """Mean traffic from one device to another per step."""

    source: str
    target: str
    tensors: float
    nbytes: float


def activities(steps: Sequence[Step]) -> list[Activity]:
    """One for each stream. A step lasts from the first start on any device to the last end."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(ACTIVITIES, 0.0))
    for step in steps:
        for operation in step.operations:
            own = totals[stream_name(step, operation)]
            own[activity_of(operation)] += (operation.end - operation.start) / len(steps)
    for own in totals.values():
        own["idle"] = max(0.0, mean_span(steps) - sum(own.values()))
    return [Activity(name, totals[name]) for name in sorted(totals)]


def activity_of(operation: Operation) -> str:
    """The kind of activity of an operation."""
    if operation.is_receive:
        return "wait"
    if operation.is_copy:
        return "copy"
    return "send" if operation.is_send else "compute"


def stream_name(step: Step, operation: Operation) -> str:
    """``CPU:0``, ``GPU:0 stream 1``, ``GPU:0 host``."""
    own = step.stream_names.get((operation.device, operation.stream), f"stream {operation.stream}")
    name = short_device(operation.device)
    return name if own == "stream 0" else f"{name} {own}"


def traffic(steps: Sequence[Step]) -> list[Traffic]:
    """The traffic of each pair of devices, from the receives, which know their tensor."""
    counts: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step in steps:
        for operation in step.operations:
            if operation.is_receive:
                own = counts[operation.edge.source, operation.device]
                own[0] += 1 / len(steps)
                own[1] += sum(output.nbytes for output in operation.outputs) / len(steps)
    return [
        Traffic(short_device(source), short_device(target), tensors, nbytes)
        for (source, target), (tensors, nbytes) in sorted(counts.items())
    ]


def mean_span(steps: Sequence[Step]) -> float:
    """Mean nanoseconds from the beginning of a step to its end."""
    return sum(step.end - step.start for step in steps) / max(1, len(steps))


def streams(step: Step) -> dict[str, list[Operation]]:
    """The operations of each stream, by its name."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in step.operations:
        found[stream_name(step, operation)].append(operation)
    return dict(sorted(found.items()))
