"""Ordering: reads and writes of one resource happen in the order in which the user wrote them.

flowrt has no reference edges, so the data flow does not determine whether ``w.assign(...)`` runs before or
after another read of ``w``. The order of creation does: a read waits for the last write before it, a write
for that write and for every read since. Only the resource's own operations are ordered; their consumers are
not.

A fetched variable has its value at the end of the step: its read, marked `AT_END`, follows all writes. If an
ordered operation depends on such a read, the read keeps its original position.

An operation that owns functions reads and writes the resources that they do (`flowrt.graph.effects`); in each
function the order is that of its own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_

from flowrt import dtypes
from flowrt.graph.effects import AT_END, is_stateful, touches
from flowrt.graph.node import Node, Ref, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.prune import redirect
from flowrt.graph.topology import sort_topologically

_ORDERED = (Effect.READ, Effect.WRITE, Effect.NESTED)


@dataclass(slots=True)
class _History:
    """The last write of one resource, and the reads since."""

    write: str | None = None
    reads: list[str] = field(default_factory=list)


def order_effects(subgraph: Subgraph) -> Subgraph:
    """Add the control edges that the order of creation implies."""
    subgraph = _with_plain_handles(subgraph)
    at_end = _reads_at_end(subgraph)
    histories: dict[str, _History] = {}
    nodes = dict(subgraph.nodes)
    for node in chain((node for node in subgraph if node.name not in at_end), at_end.values()):
        if node.op.effect in _ORDERED:
            nodes[node.name] = _ordered(node, histories)
    if all(map(is_, nodes.values(), subgraph)):
        return subgraph
    return subgraph.with_nodes((sort_topologically(nodes) if at_end else nodes).values())


def _reads_at_end(subgraph: Subgraph) -> dict[str, Node]:
    """The reads that follow all writes."""
    marked = {node.name: node for node in subgraph if AT_END in node.attrs}
    if not marked:
        return marked
    needed = set[str]()
    """Ancestors of ordered operations."""
    for node in reversed(list(subgraph)):
        if node.name in needed or (node.name not in marked and touches(node)):
            needed.update([name for name, _ in node.inputs], node.controls)
    return {name: node for name, node in marked.items() if name not in needed}


def _ordered(node: Node, histories: dict[str, _History]) -> Node:
    """``node`` with control edges from its predecessors in the order, and without its `AT_END` mark."""
    node = with_functions(node, order_effects)
    before = dict.fromkeys(_predecessors(node, histories))
    waited = {node.name, *node.controls, *ordering_inputs(node)}
    if added := tuple([name for name in before if name not in waited]):
        node = node.replace(controls=node.controls + added)
    if AT_END in node.attrs:  # equal to any other read after the same write
        node = node.replace(attrs={key: value for key, value in node.attrs.items() if key != AT_END})
    return node


def ordering_inputs(node: Node) -> list[str]:
    """The data inputs that order ``node`` after their producers. Empty if it owns functions: an argument that
    none of them reads is dropped later.
    """
    return [] if node.op.effect is Effect.NESTED else [ref[0] for ref in node.inputs]


def _with_plain_handles(subgraph: Subgraph) -> Subgraph:
    """Readers of a handle that passed through an Identity read the handle itself: one resource, one name."""
    handles: dict[Ref, Ref] = {}
    for node in subgraph:
        if node.op.alias and node.op.is_pure and node.outputs[0].dtype is dtypes.resource:
            source = node.inputs[0]
            handles[node.name, 0] = handles.get(source, source)
    return redirect(subgraph, handles)


def _predecessors(node: Node, histories: dict[str, _History]) -> list[str]:
    """The operations that ``node`` must wait for; records it as the last one of its resources."""
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


def unread_effects(
    subgraph: Subgraph,
    node: Node,
    added: Iterable[Node],
    outputs: Iterable[Ref],
    effectful: Callable[[], set[str]],
) -> tuple[str, ...]:
    """The nodes with effects among the ancestors of ``node`` of ``subgraph`` that are no longer reached from
    its replacements ``added`` and ``outputs``: the step still needs them. ``effectful``: see
    `effectful_nodes`.
    """
    read = {name for name, _ in outputs}.union([ref[0] for other in added for ref in other.inputs])
    stack = [name for name, _ in node.inputs if name not in read]
    seen = set(read)
    found: dict[str, None] = {}
    while stack:
        name = stack.pop()
        if name in seen or name not in effectful():
            continue
        seen.add(name)
        producer = subgraph.nodes[name]
        if is_stateful(producer):
            found[name] = None
        else:
            stack += [*[ref[0] for ref in producer.inputs], *producer.controls]
    return tuple(found)


def behind(node: Node, controls: Sequence[str]) -> Node:
    """``node`` with additional control inputs ``controls``."""
    return node.replace(controls=tuple(dict.fromkeys([*node.controls, *controls])))


def effectful_nodes(subgraph: Subgraph) -> set[str]:
    """The nodes that write a resource or have other side effects, and their descendants."""
    found: set[str] = set()
    for node in subgraph:
        before = [ref[0] for ref in node.inputs]
        if is_stateful(node) or not (found.isdisjoint(before) and found.isdisjoint(node.controls)):
            found.add(node.name)
    return found
