"""Costs of each node of traced steps, and their sums by scope, operation, device or line; live tensors.

Step... --node_costs--> [NodeCost] --tree | flat--> Row (a sum), its children below it
Step --live_bytes--> bytes of live tensors on each device over time
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from flowrt.profiler.steps import Operation, Step, device_in_task, task_of


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


def live_bytes(step: Step) -> dict[str, list[tuple[int, int]]]:
    """(time, bytes from then on) of each device, in order of time.

    A result is alive from the start of its operation to the end of its last reader; without a reader, such as
    a fetch, to the end of the step. Computed from shapes: a result computed in place is counted in addition
    to its operand; variables, constants and feeds, which existed before, are not counted.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation, last_use in _last_uses(step):
        if operation.nbytes:
            changes[operation.device] += [(operation.start, operation.nbytes), (last_use, -operation.nbytes)]
    return {device: _summed(sorted(each)) for device, each in changes.items()}


def _last_uses(step: Step) -> list[tuple[Operation, int]]:
    """Each operation with the end of its results. A loop makes a tensor of one name again and again: each but
    the last ends with its last reader in any case.
    """
    uses: list[tuple[Operation, int]] = []
    newest: dict[tuple[str, str], int] = {}
    read: set[int] = set()
    for operation in step.operations:
        for operand in operation.operands:
            number = newest.get((operation.device, operand.removeprefix("^")))
            if number is not None:
                read.add(number)
                uses[number] = (uses[number][0], max(uses[number][1], operation.end))
        read.add(newest.get((operation.device, operation.name), -1))  # executed again: no fetch
        newest[operation.device, operation.name] = len(uses)
        uses.append((operation, operation.end))
    return [
        (operation, end if number in read else max(end, step.end))
        for number, (operation, end) in enumerate(uses)
    ]


def _summed(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Running sums, one for each time."""
    totals: dict[int, int] = {}
    total = 0
    for time, change in changes:
        total += change
        totals[time] = total
    return list(totals.items())
