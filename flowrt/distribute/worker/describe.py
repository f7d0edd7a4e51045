"""Description of a worker's compiled parts, for inspection.

client --DescribeGraphs--> worker --describe_parts--> GraphDescriptions --read_description--> DescribedTask
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrt.distribute.wire.messages import MAX_GRAPH_BYTES, Message
from flowrt.distribute.worker.part import CompiledPart
from flowrt.errors import ResourceExhaustedError
from flowrt.executor.plan.plan_description import DevicePlan, FusedGroup, describe_plan
from flowrt.graph.construction.detached import detach_constants
from flowrt.graph.node import Subgraph
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.protos import cluster_pb2 as pb


class DescribedTask(NamedTuple):
    """A task's compiled parts (placed, with a _Feed for each large constant), and their execution plans."""

    name: str
    parts: list[Subgraph]
    plans: tuple[DevicePlan, ...]


def describe_parts(task: str, parts: Sequence[CompiledPart]) -> Message:
    """The answer of ``task``. Raises `ResourceExhaustedError` where the texts are too long for a message."""
    answer = pb.GraphDescriptions(task=task)
    for part in parts:
        answer.graphs.append(print_subgraph(detach_constants(part.plan.placed)[0]).encode())
        for plan in describe_plan(part.plan):
            _write_plan(answer.plans.add(), plan)
    size = answer.ByteSize()
    if size > MAX_GRAPH_BYTES:
        raise ResourceExhaustedError(
            f"task {task}: expected descriptions of at most {MAX_GRAPH_BYTES} bytes; got {size}"
        )
    return Message(answer)


def _write_plan(message: Any, plan: DevicePlan) -> None:
    message.device, message.streams = plan.device, plan.streams
    message.arena_bytes, message.lower_bound_bytes = plan.arena_bytes, plan.lower_bound_bytes
    message.programs.extend(plan.programs)
    for group in plan.groups:
        message.groups.add(name=group.name, members=group.members)


def read_description(answer: Message) -> DescribedTask:
    """Parse a description. Raises `InvalidArgumentError` for invalid graph text."""
    body = answer.body
    parts = [parse_subgraph(text.decode()) for text in body.graphs]
    return DescribedTask(body.task, parts, tuple(map(_read_plan, body.plans)))


def _read_plan(message: Any) -> DevicePlan:
    groups = tuple([FusedGroup(group.name, group.members) for group in message.groups])
    return DevicePlan(
        message.device,
        message.streams,
        message.arena_bytes,
        message.lower_bound_bytes,
        groups,
        tuple(message.programs),
    )
