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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from operator import is_
from typing import TypeAlias

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
            needed.update(node.predecessors)
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


def order_accesses(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, a lowered step, with the control edges that the order of its nodes implies: a pass may
    then move nodes. Handles stay as they are; rows of a variable have the memory of the whole.
    """
    histories: dict[str, _History] = {}
    wholes: dict[str, str] = {}
    nodes: list[Node] = []
    for node in subgraph:
        if node.op.alias and node.op.is_pure and node.outputs[0].dtype is dtypes.resource:
            source = node.inputs[0][0]
            wholes[node.name] = wholes.get(source, source)
        if node.op.effect in _ORDERED:
            before = dict.fromkeys(_predecessors(node, histories, wholes))
            added = [name for name in before if name not in (node.name, *node.predecessors)]
            node = node.replace(controls=(*node.controls, *added)) if added else node
        nodes.append(node)
    return subgraph.with_nodes(nodes)


def _predecessors(node: Node, histories: dict[str, _History], wholes: Mapping[str, str] = {}) -> list[str]:
    """The operations that ``node`` must wait for; records it as the last one of its resources. ``wholes`` are
    the handles with the same memory.
    """
    before: list[str] = []
    for (handle, _), writes in touches(node):
        resource = wholes.get(handle, handle)
        history = histories.setdefault(resource, _History())
        if writes:
            before += history.reads or ([history.write] if history.write else [])
            history.write, history.reads = node.name, []
        else:
            before += [history.write] if history.write else []
            history.reads.append(node.name)
    return before


Replaced: TypeAlias = tuple[Sequence[Node], Mapping[int, Ref], Sequence[str]]
"""The nodes that replace one, the replacements of its outputs, and the nodes that must run in any case."""


def replace_owners(subgraph: Subgraph, rule: Callable[[Node, dict[str, Node]], Replaced]) -> Subgraph:
    """``subgraph`` with ``rule(node, nodes)`` in place of each node that owns functions; ``nodes`` are those
    before it, replaced. Effects that are no longer read are still waited for. The same object if all nodes
    are.
    """
    nodes: dict[str, Node] = {}
    replaced: dict[Ref, Ref] = {}
    targets = dict.fromkeys(subgraph.targets)
    effectful = cache(partial(effectful_nodes, subgraph))  # few subgraphs need it
    for before in subgraph:
        node = before.redirected(replaced) if replaced else before
        if node.op.effect is not Effect.NESTED:
            nodes[node.name] = node
            continue
        added, outputs, effects = rule(node, nodes)
        nodes.update((n.name, n) for n in added)
        if unread := unread_effects(subgraph, before, added, outputs.values(), effectful):
            nodes[node.name] = behind(nodes[node.name], unread)
        targets |= dict.fromkeys([*effects, *unread])
        own = node.name
        replaced.update(((own, i), ref) for i, ref in outputs.items() if ref != (own, i))
    if len(nodes) == len(subgraph) and all(map(is_, nodes.values(), subgraph)):
        return subgraph
    fetches = tuple([replaced.get(ref, ref) for ref in subgraph.fetches])
    return subgraph.replace(nodes=nodes, fetches=fetches, targets=tuple(targets))


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
            stack += producer.predecessors
    return tuple(found)


def behind(node: Node, controls: Sequence[str]) -> Node:
    """``node`` with additional control inputs ``controls``."""
    return node.replace(controls=tuple(dict.fromkeys([*node.controls, *controls])))


def effectful_nodes(subgraph: Subgraph) -> set[str]:
    """The nodes that write a resource or have other side effects, and their descendants."""
    found: set[str] = set()
    for node in subgraph:
        if is_stateful(node) or not found.isdisjoint(node.predecessors):
            found.add(node.name)
    return found
