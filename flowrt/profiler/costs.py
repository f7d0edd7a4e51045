"""Costs of each node of traced steps, and their sums by scope, operation, device or line.

Step... --node_costs--> [NodeCost] --tree | flat--> Row (a sum), its children below it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from flowrt.profiler.steps import Step, device_in_task, task_of


class NodeCost(NamedTuple):
    """One node on one device, over all steps: its time, its new memory, how often it ran."""

    name: str
    op: str
    device: str
    micros: float
    bytes: int
    occurrence: int


@dataclass
class Row:
    """A line of a table: the sums of ``costs``, which include those of its ``children``. It is completed when
    a sum is first read.
    """

    name: str
    costs: list[NodeCost] = field(default_factory=list)
    children: list[Row] = field(default_factory=list)

    @cached_property
    def micros(self) -> float:
        return sum(cost.micros for cost in self.costs)

    @cached_property
    def bytes(self) -> int:
        return sum(cost.bytes for cost in self.costs)

    @cached_property
    def occurrence(self) -> int:
        return sum(cost.occurrence for cost in self.costs)

    @property
    def ops(self) -> list[str]:
        return sorted({cost.op for cost in self.costs})

    @property
    def devices(self) -> list[str]:
        return sorted({short_device(cost.device) for cost in self.costs})


def short_device(device: str) -> str:
    """``CPU:0`` of a session's own devices, ``worker:1 CPU:0`` of a cluster's."""
    task = task_of(device).removeprefix("/job:").replace("/replica:0", "").replace("/task:", ":")
    own = device_in_task(device)
    return own if task in ("localhost:0", device) else f"{task} {own}"


def node_costs(steps: Iterable[Step]) -> list[NodeCost]:
    """One entry per node and device, in order of first execution. The wait of a receive is not a cost: it
    belongs to the producing operation.
    """
    found: dict[tuple[str, str], NodeCost] = {}
    for step in steps:
        for each in step.operations:
            nanos = 0 if each.is_receive else each.end - each.start
            key = each.device, each.name
            cost = found.get(key, NodeCost(each.name, each.op, each.device, 0.0, 0, 0))
            found[key] = cost._replace(
                micros=cost.micros + nanos / 1000,
                bytes=cost.bytes + each.nbytes,
                occurrence=cost.occurrence + 1,
            )
    return list(found.values())


def by_scope(costs: Iterable[NodeCost]) -> Row:
    """A tree: the scopes of the nodes' names, with the nodes as leaves."""
    root = Row("")
    rows = {"": root}
    for cost in costs:
        path = cost.name.split("/")
        for depth in range(len(path) + 1):
            name = "/".join(path[:depth])
            if name not in rows:
                rows[name] = Row(name)
                rows["/".join(path[: depth - 1])].children.append(rows[name])
            rows[name].costs.append(cost)
    return root


def flat(costs: Sequence[NodeCost], key: Callable[[NodeCost], str]) -> Row:
    """A row for each value of ``key``, below one for all."""
    groups: dict[str, list[NodeCost]] = defaultdict(list)
    for cost in costs:
        groups[key(cost)].append(cost)
    return Row("", list(costs), [Row(name, group) for name, group in groups.items()])


def by_op(costs: Sequence[NodeCost]) -> Row:
    return flat(costs, lambda cost: cost.op)


def by_device(costs: Sequence[NodeCost]) -> Row:
    return flat(costs, lambda cost: short_device(cost.device))


def by_line(costs: Sequence[NodeCost], lines: Mapping[str, str]) -> Row:
    """``lines``: of each node, where the script made it."""
    return flat(costs, lambda cost: lines.get(cost.name, "(made by flowrt)"))
