"""Ordering: reads and writes of one resource happen in the order in which the user wrote them.

There are no reference edges in flowrt, so nothing in the data flow says whether ``w.assign(...)`` comes
before or after another read of ``w``. The order of creation does: a read waits for the last write before it,
a write for that write and for every read since. Only the resource's own operations are tied; what they feed
runs freely.

An operation that owns functions reads and writes what they do (`flowrt.graph.effects`); in each function the
order is that of its own operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrt import dtypes
from flowrt.graph.effects import is_stateful, touches
from flowrt.graph.node import Node, Ref, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prune import redirect

_ORDERED = (Effect.READ, Effect.WRITE, Effect.NESTED)


@dataclass(slots=True)
class _History:
    """Of one resource: the last write, and the reads since."""

    write: str | None = None
    reads: list[str] = field(default_factory=list)


def order_effects(subgraph: Subgraph) -> Subgraph:
    """Add the control edges that the order of creation implies."""
    subgraph = _with_plain_handles(subgraph)
    histories: dict[str, _History] = {}
    nodes: list[Node] = []
    changed = False
    for node in subgraph:
        if node.op.effect in _ORDERED:
            ordered = with_functions(node, order_effects)
            changed = changed or ordered is not node
            node = ordered
            before = dict.fromkeys(_predecessors(node, histories))
            waited = {node.name, *node.controls, *ordering_inputs(node)}
            added = tuple([name for name in before if name not in waited])
            if added:
                node = node.replace(controls=node.controls + added)
                changed = True
        nodes.append(node)
    return subgraph.with_nodes(nodes) if changed else subgraph


def ordering_inputs(node: Node) -> list[str]:
    """Whom ``node`` comes after because it reads from them. Not so where it owns functions: an argument that
    none of them reads is dropped later.
    """
    return [] if node.op.effect is Effect.NESTED else [ref[0] for ref in node.inputs]


def _with_plain_handles(subgraph: Subgraph) -> Subgraph:
    """Readers of a handle that went through an Identity read the handle itself: one resource, one name."""
    handles: dict[Ref, Ref] = {}
    for node in subgraph:
        if node.op.alias and node.op.is_pure and node.outputs[0].dtype is dtypes.resource:
            source = node.inputs[0]
            handles[node.name, 0] = handles.get(source, source)
    return redirect(subgraph, handles)


def _predecessors(node: Node, histories: dict[str, _History]) -> list[str]:
    """What ``node`` has to wait for; notes it as the last of its resources' operations."""
    before: list[str] = []
    for (resource, _), writes in touches(node):
        history = histories.setdefault(resource, _History())
        if writes:
            before += history.reads or ([history.write] if history.write else [])
            history.write, history.reads = node.name, []
        else:
            before += [history.write] if history.write else []
            history.reads.append(node.name)
    return before


def effectful_nodes(subgraph: Subgraph) -> set[str]:
    """The nodes that change a resource or touch the world outside, or come after one that does."""
    found: set[str] = set()
    for node in subgraph:
        before = [ref[0] for ref in node.inputs]
        if is_stateful(node) or not (found.isdisjoint(before) and found.isdisjoint(node.controls)):
            found.add(node.name)
    return found
