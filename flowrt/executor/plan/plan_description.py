"""Description of a plan: streams, arena, fused groups and program text of each device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowrt.errors import FailedPreconditionError, ResourceExhaustedError
from flowrt.executor.plan.plan import Plan
from flowrt.graph.node import Subgraph, owned_subgraphs
from flowrt.graph.passes.fusion.group import Group


class FusedGroup(NamedTuple):
    """One loop that computes the ``members``: "Relu a, AddV2 b"."""

    name: str
    members: str


class DevicePlan(NamedTuple):
    """One device's part of a step: the number of ``streams``, an arena of ``arena_bytes`` (at least
    ``lower_bound_bytes`` of it are live at once), and the programs' text, one per host stream.
    """

    device: str
    streams: int
    arena_bytes: int
    lower_bound_bytes: int
    groups: tuple[FusedGroup, ...]
    programs: tuple[str, ...]


def settled(plan: Plan) -> Plan:
    """The plan that replaces ``plan`` after some runs; itself if there is none, if there is no memory for a
    second one, or if the session was closed meanwhile.
    """
    tier = plan.next_tier
    if tier is None:
        return plan
    try:
        return tier.make()
    except (FailedPreconditionError, ResourceExhaustedError):
        return plan


def describe_plan(plan: Plan) -> tuple[DevicePlan, ...]:
    """One a device, in the plan's order."""
    texts: dict[str, list[str]] = {}
    for program in plan.programs:
        texts.setdefault(program.device.name, []).append(str(program))
    return tuple(
        DevicePlan(
            name,
            part.schedule.count,
            part.buffers.memory.nbytes,
            part.buffers.memory.lower_bound,
            tuple(_groups([part.subgraph])),
            tuple(texts.get(name, ())),
        )
        for name, part in plan.partitions.items()
    )


def _groups(parts: Sequence[Subgraph]) -> Iterator[FusedGroup]:
    for part in parts:
        for node in part:
            group = node.attrs.get("group")
            if isinstance(group, Group):
                yield FusedGroup(node.name, str(group))
            yield from _groups(owned_subgraphs(node.attrs))
