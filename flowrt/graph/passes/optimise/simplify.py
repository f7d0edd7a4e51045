"""Algebraic simplification: ``x * 1``, ``-(-x)``, a reshape of a reshape, a chain of identities.

The ``simplify`` rule of an op finds redundant nodes (see `flowrt.graph.op_def.SimplifyContext`); this pass
applies the rules in topological order, so that a chain is removed in one sweep. Results stay equal bit for
bit: ``x + 0.0`` stays, because -0.0 + 0.0 is 0.0, and so does ``1 / (1 / x)``.

A node is bypassed only if it has no control inputs and requests no other device than the tensor that replaces
it. Its control dependents then wait for that tensor's producer. A target keeps its node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial

from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import SimplifyContext
from flowrt.graph.passes.prepare.order_effects import effectful_nodes
from flowrt.graph.passes.prepare.prune import prune


def simplify(subgraph: Subgraph) -> Subgraph:
    """Apply the ops' ``simplify`` rules, and prune."""
    nodes: dict[str, Node] = {}
    same: dict[Ref, Ref] = {}
    instead: dict[str, tuple[str, ...]] = {}
    effectful = cache(partial(effectful_nodes, subgraph))  # few subgraphs need it
    changed = False
    for original in subgraph:
        node = _redirected(original, same, instead) if same else original
        rule = node.op.simplify
        found = None if rule is None else rule(SimplifyContext(node, nodes.__getitem__))
        if isinstance(found, Node):
            node = found
        elif found is not None and _may_bypass(node, found, nodes, effectful):
            for index, ref in enumerate(found):
                same[node.name, index] = ref
            instead[node.name] = tuple(dict.fromkeys([ref[0] for ref in found]))
        changed = changed or node is not original
        nodes[node.name] = node
    fetches = tuple([same.get(ref, ref) for ref in subgraph.fetches])
    if not changed and fetches == subgraph.fetches:
        return subgraph
    return prune(subgraph.replace(nodes=nodes, fetches=fetches))


def _may_bypass(
    node: Node, refs: Sequence[Ref], nodes: Mapping[str, Node], effectful: Callable[[], Collection[str]]
) -> bool:
    if node.controls:
        return False
    if len(refs) > 1 and any(name in effectful() for name, _ in refs):
        return False  # a reader of one output depends on the effects behind all of them
    return not node.device or all(nodes[name].device == node.device for name, _ in refs)


def _redirected(node: Node, same: Mapping[Ref, Ref], instead: Mapping[str, tuple[str, ...]]) -> Node:
    inputs = tuple([same.get(ref, ref) for ref in node.inputs])
    controls = node.controls
    if controls:
        controls = tuple(dict.fromkeys([name for c in controls for name in instead.get(c, (c,))]))
    if inputs == node.inputs and controls == node.controls:
        return node
    return node.replace(inputs=inputs, controls=controls)
