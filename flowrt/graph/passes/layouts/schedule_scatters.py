"""Reductions of gradients to parts: each right behind the operation that makes it, two units at a time.

A gradient of a variable that is kept in parts is reduced and scattered (a Relayout with the attribute
`_unit`). Scripts ask for it behind the whole backward pass; here it moves to where the gradient is made. The
gradients of a unit are not made before those of the unit two before it are in parts, so no more than two
units' gradients are whole at any time. Those that are to be reduced last, with the attribute `_last`, stay
where they are.

A gradient that is summed up in a narrower dtype than its variable's is widened in parts, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrt.graph.layouts.attributes import HOST, UNIT
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.precision import SUMS_FIRST

BEHIND = 2
"""A unit's gradients are made when those of the unit so many before are in parts."""


def schedule_scatters(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with reductions of gradients where these are made; the same object if there are none."""
    subgraph = _widened_in_parts(subgraph)
    moved = _to_move(subgraph)
    if not moved:
        return subgraph
    waits = _waits(subgraph, moved)
    nodes: dict[str, Node] = {}
    placed = {name for names in moved.values() for name in names}
    for node in subgraph:
        if node.name in placed:
            continue
        if node.name in waits:
            node = node.replace(controls=tuple(dict.fromkeys([*node.controls, *waits[node.name]])))
        nodes[node.name] = node
        nodes |= {name: subgraph.nodes[name] for name in moved.get(node.name, ())}
    return subgraph.replace(nodes=nodes)


def _widened_in_parts(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with reductions before the casts of what is summed up in a narrower dtype."""
    reductions = {node.inputs[0]: node for node in subgraph if node.op is relayout_op and UNIT in node.attrs}
    casts = {
        reductions[node.name, 0].name: node
        for node in subgraph
        if SUMS_FIRST in node.attrs and (node.name, 0) in reductions
    }
    if not casts:
        return subgraph
    nodes: dict[str, Node] = {}
    for node in subgraph:
        cast = casts.get(node.name)
        if cast is not None:
            spec, name = subgraph.spec(cast.inputs[0]), f"{node.name}/narrow"
            attrs = {**node.attrs, "T": spec.dtype}
            nodes[name] = node.replace(name=name, inputs=cast.inputs, attrs=attrs, outputs=(spec,))
            place = {HOST: node.attrs[HOST]} if HOST in node.attrs else {}
            attrs = {**{key: cast.attrs[key] for key in cast.op.attrs}, **place}
            node = node.replace(op=cast.op, inputs=((name, 0),), controls=(), attrs=attrs)
        nodes[node.name] = node
    return subgraph.replace(nodes=nodes)


def _to_move(subgraph: Subgraph) -> dict[str, list[str]]:
    """The reductions to move, by the name of the operation that makes the gradient, in the order of these."""
    position = {name: i for i, name in enumerate(subgraph.nodes)}
    found: dict[str, list[str]] = {}
    for node in subgraph:
        if node.op is relayout_op and UNIT in node.attrs:
            producer = node.inputs[0][0]
            if all(position[name] <= position[producer] for name in node.controls):
                found.setdefault(producer, []).append(node.name)
    return dict(sorted(found.items(), key=lambda item: position[item[0]]))


def _waits(subgraph: Subgraph, moved: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The reductions that the first operation of each unit to make a gradient waits for."""
    runs: list[tuple[str, list[str]]] = []
    waits: dict[str, list[str]] = {}
    for producer, names in moved.items():
        for name in names:
            unit = subgraph.nodes[name].attrs[UNIT]
            if not runs or runs[-1][0] != unit:
                runs.append((unit, []))
                if len(runs) > BEHIND:
                    waits.setdefault(producer, []).extend(runs[-1 - BEHIND][1])
            runs[-1][1].append(name)
    return {producer: [n for n in names if n not in moved[producer]] for producer, names in waits.items()}
