"""Order of exchanges: on each device, a receive waits for what the device sends to get its answer.

    device 0   a -> _Send ............ _Recv -> b      one loop of a and b would wait for the answer
    device 1          _Recv -> c -> _Send              to what it has not sent yet

Once the step is cut, nothing on device 0 connects a with b. The control edges given here do: _Recv waits for
a. They are implied by the step, so they delay nothing; but `fuse`, which sees one device at a time, could
otherwise compute a and b together. What waits for ranks of a group in other graphs may depend on all that
this step has sent in earlier collectives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_
from typing import final

from flowrt.graph.node import Node, Subgraph, owned_subgraphs, parts_by_name
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import GROUP_OPS


@final
class ExchangeOrder:
    """Dependencies through other devices in ``whole``, all nodes of which have a device. ``in_groups``: its
    `names_in_groups`.
    """

    def __init__(self, whole: Subgraph, in_groups: Collection[str]) -> None:
        self._parts = parts_by_name(whole)
        leaving = _leaving(whole) | self._parts.keys()
        self._whole = whole
        self._names: list[str] = []
        """The nodes that give something to another device or another graph: bit i of a mask is the i-th."""
        self._of_device: dict[str, int] = {}
        """The ones of each device."""
        self._before: dict[str, int] = {}
        """The ones that each node depends on, without itself."""
        self._until: dict[str, int] = {}
        """The same, with itself."""
        started = 0
        for node in whole:
            before = 0
            for name in self._predecessors(node) if self._parts else node.predecessors:
                before |= self._until[name]
            in_group = node.name in in_groups
            if in_group:
                before |= started
            self._before[node.name] = until = before
            if in_group or node.name in leaving:
                bit = 1 << len(self._names)
                self._names.append(node.name)
                self._of_device[node.device] = self._of_device.get(node.device, 0) | bit
                until |= bit
            self._until[node.name] = until
            if in_group:
                started |= until

    def before(self, name: str, device: str) -> tuple[str, ...]:
        """The nodes of ``device`` on which ``name``, which is on another one or in a group, depends through
        other devices; without those that others of them imply.
        """
        node, nodes = self._whole.nodes[name], self._whole.nodes
        wanted = self._before[name] & self._of_device.get(device, 0)
        if node.device == device:
            own = [self._until[o] for o in self._predecessors(node) if nodes[o].device == device]
            wanted &= ~reduce(or_, own, 0)
        found: list[str] = []
        while wanted:
            last = self._names[wanted.bit_length() - 1]  # no other implies the last in the order of the step
            wanted &= ~self._until[last]
            found.append(last)
        return tuple(found)

    def _predecessors(self, node: Node) -> list[str]:
        if not self._parts:
            return node.predecessors
        return [part for name in node.predecessors for part in self._parts.get(name, (name,))]


def names_in_groups(nodes: Iterable[Node]) -> set[str]:
    """The nodes that exchange something with ranks in other graphs, or own functions with such nodes."""
    return {
        node.name
        for node in nodes
        if node.op in GROUP_OPS or (node.op.effect is Effect.NESTED and _owns_groups(node))
    }


def _owns_groups(node: Node) -> bool:
    return any(map(names_in_groups, owned_subgraphs(node.attrs)))


def _leaving(whole: Subgraph) -> set[str]:
    """The nodes that are read on another device, but for those that no loop computes."""
    nodes, feeds = whole.nodes, set(whole.feeds)
    names = {name for node in whole for name, _ in node.inputs if nodes[name].device != node.device}
    names |= {name for node in whole for name in node.controls if nodes[name].device != node.device}
    return {name for name in names if name not in feeds and nodes[name].op.name != "Const"}
