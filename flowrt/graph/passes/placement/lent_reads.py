"""Reads of variables that other devices may use where they are.

What is sent must stay as it was until it is received, and a variable that is updated in the same step does
not: so its read is copied. That is not needed if the update waits for all that is computed from the read on
other devices, as in training: the update needs the gradient, and the gradient that product. Within one
device's part of a step this cannot be seen; here the step is still whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flowrt.graph.effects import touches
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.variable_ops import read_variable_op


def lent_reads(whole: Subgraph, part: Mapping[str, str]) -> frozenset[str]:
    """The reads of variables, by name, of which all uses in other parts have ended before the variable is
    written. ``part`` maps each node to its part.
    """
    consumers = whole.consumers()
    uses = {
        node.name: _uses(node, whole, consumers)
        for node in whole
        if node.op is read_variable_op and any(part[c] != part[node.name] for c in consumers[node.name])
    }
    writes = _writes_after(whole, uses)
    needed = {name: found for name, found in uses.items() if found is not None and name in writes}
    if not needed:
        return frozenset()
    bits = {use: 1 << i for i, use in enumerate({use for found in needed.values() for use in found})}
    before = _preceding(whole, bits)
    return frozenset(
        name
        for name, found in needed.items()
        if all(before[write] & bits[use] for use in found for write in writes[name])
    )


def _uses(read: Node, whole: Subgraph, consumers: Mapping[str, Sequence[str]]) -> set[str] | None:
    """The operations that use the memory of ``read``, through views of it; None if it may be used later."""
    found: set[str] = set()
    views = [read.name]
    while views:
        view = views.pop()
        if any(name == view for name, _ in whole.fetches):
            return None
        for name in consumers[view]:
            node = whole.nodes[name]
            if node.op.effect is Effect.NESTED:
                return None
            is_read = any(ref[0] == view for ref in node.inputs)
            (views.append if node.op.alias and is_read else found.add)(name)
    return found


def _writes_after(whole: Subgraph, reads: Mapping[str, object]) -> dict[str, list[str]]:
    """The writes of its variable behind each of ``reads``."""
    readers: dict[object, list[str]] = defaultdict(list)
    found: dict[str, list[str]] = defaultdict(list)
    for node in whole:
        if node.name in reads:
            readers[_variable(node.inputs[0], whole)].append(node.name)
        for handle, writes in touches(node) if node.op.effect in (Effect.WRITE, Effect.NESTED) else ():
            for name in readers[_variable(handle, whole)] if writes else ():
                found[name].append(node.name)
    return found


def _variable(handle: Ref, whole: Subgraph) -> Ref:
    """The handle of the variable that has the memory of ``handle``."""
    node = whole.nodes[handle[0]]
    while node.op.alias and node.inputs:
        handle = node.inputs[node.op.aliased]
        node = whole.nodes[handle[0]]
    return handle


def _preceding(whole: Subgraph, bits: Mapping[str, int]) -> dict[str, int]:
    """The nodes among those of ``bits`` that each node waits for, as a sum of their bits."""
    found: dict[str, int] = {}
    for node in whole:
        mask = bits.get(node.name, 0)
        for name in node.predecessors:
            mask |= found[name]
        found[node.name] = mask
    return found
