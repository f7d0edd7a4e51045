"""Ordering: reads and writes of one resource happen in the order in which the user wrote them.

There are no reference edges in flowrt, so nothing in the data flow says whether ``w.assign(...)`` comes before or after
another read of ``w``. The order of creation does: a read waits for the last write before it, a write for that write and
for every read since. Only the resource's own operations are tied; what they feed runs freely.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect


@dataclass(slots=True)
class _History:
    """Of one resource: the last write, and the reads since."""

    write: str | None = None
    reads: list[str] = field(default_factory=list)


def order_effects(subgraph: Subgraph) -> Subgraph:
    """Add the control edges that the order of creation implies."""
    histories: dict[str, _History] = {}
    nodes: list[Node] = []
    changed = False
    for node in subgraph:
        before = _predecessors(node, histories)
        added = tuple(name for name in before if name not in node.controls and not _reads_from(node, name))
        nodes.append(node.replace(controls=node.controls + added) if added else node)
        changed = changed or bool(added)
    return subgraph.with_nodes(nodes) if changed else subgraph


def _predecessors(node: Node, histories: dict[str, _History]) -> list[str]:
    effect = node.op.effect
    if effect not in (Effect.READ, Effect.WRITE) or not node.inputs:
        return []
    history = histories.setdefault(node.inputs[0][0], _History())
    if effect is Effect.READ:
        history.reads.append(node.name)
        return [history.write] if history.write else []
    before = history.reads or ([history.write] if history.write else [])
    history.write, history.reads = node.name, []
    return before


def _reads_from(node: Node, name: str) -> bool:
    return any(ref[0] == name for ref in node.inputs)
