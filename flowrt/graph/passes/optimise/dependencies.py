"""Removal of redundant control edges.

* Nodes that no root needs are removed (`prune`).
* A control edge from a constant, a handle, a feed or a NoOp is replaced by edges from that node's own control
  inputs, if that does not add edges. Groups of groups thus collapse.
* A control edge implied by other edges is removed (transitive reduction), as far as a bounded search finds
  it.
"""

from __future__ import annotations

from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.order_effects import ordering_inputs
from flowrt.graph.passes.prepare.prune import prune

MAX_VISITS = 1000
"""Limit on the nodes visited to find the implied edges of one node."""

VISITS_A_NODE = 4
"""Limit for all searches together, per node of the subgraph; it keeps the pass linear."""


def clean_dependencies(subgraph: Subgraph) -> Subgraph:
    """Drop redundant control edges, and nodes that become unused."""
    pruned = prune(subgraph)
    reduced = _reduce(_bypass(pruned))
    return reduced if reduced is pruned else prune(reduced)


# --- nodes that are not worth waiting for


def _bypass(subgraph: Subgraph) -> Subgraph:
    """Replace control edges from nodes that do nothing by edges from their control inputs."""
    readers = _count_control_readers(subgraph)
    if not readers:
        return subgraph
    instead: dict[str, tuple[str, ...]] = {}
    nodes: dict[str, Node] = {}
    changed = False
    for node in subgraph:
        if node.controls and not instead.keys().isdisjoint(node.controls):
            node = node.redirected({}, instead)
            changed = True
        count = readers.get(node.name, 0)
        if count and _does_nothing(node) and len(node.controls) * count <= len(node.controls) + count:
            instead[node.name] = node.controls
        nodes[node.name] = node
    return subgraph.replace(nodes=nodes) if changed else subgraph


def _count_control_readers(subgraph: Subgraph) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in subgraph:
        for name in node.controls:
            counts[name] = counts.get(name, 0) + 1
    return counts


def _does_nothing(node: Node) -> bool:
    """Whether the node finishes as soon as its control inputs do."""
    return not node.inputs and node.op.effect in (Effect.PURE, Effect.HANDLE, Effect.SOURCE)


# --- edges that others imply


def _reduce(subgraph: Subgraph) -> Subgraph:
    """Drop control edges from nodes that already precede another predecessor."""
    if not any(node.controls for node in subgraph):
        return subgraph
    position = {name: i for i, name in enumerate(subgraph.nodes)}
    budget = VISITS_A_NODE * len(subgraph)
    nodes: dict[str, Node] = {}
    changed = False
    for node in subgraph:
        if node.controls and len(node.controls) + len(node.inputs) > 1:
            implied, visits = _implied(node, nodes, position, min(budget, MAX_VISITS))
            budget -= visits
            if implied:
                node = node.replace(controls=tuple([c for c in node.controls if c not in implied]))
                changed = True
        nodes[node.name] = node
    return subgraph.replace(nodes=nodes) if changed else subgraph


def _implied(
    node: Node, nodes: dict[str, Node], position: dict[str, int], limit: int
) -> tuple[set[str], int]:
    """The node's control inputs that are also its inputs or precede another predecessor, and the number of
    visits.

    Walks back from all predecessors, not beyond the earliest control input.
    """
    controls = set(node.controls)
    producers = dict.fromkeys(ordering_inputs(node))  # in order: what a bounded search finds depends on it
    implied = controls & producers.keys()
    earliest = min([position[name] for name in controls])
    stack = [name for name in dict.fromkeys([*producers, *node.controls]) if position[name] > earliest]
    seen = set(stack)
    visits = 0
    while stack and visits < limit and len(implied) < len(controls):
        visits += 1
        current = nodes[stack.pop()]
        for name in [ref[0] for ref in current.inputs] + list(current.controls):
            if name in controls:
                implied.add(name)
            if name not in seen and position[name] > earliest:
                seen.add(name)
                stack.append(name)
    return implied, visits
