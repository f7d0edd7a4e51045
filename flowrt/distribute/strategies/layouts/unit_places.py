"""Places in memory for the variables of units, as far as the model's text tells these.

A variable keeps its place in all steps of a session, so it is given with the graph, while units are found in
each step. Here blocks are joined as steps join them (`flowrt.graph.passes.layouts.join_units`), but in the
order in which they are made: mostly this is the order in which they are used. The states of what an optimizer
trains have places of their own: it may train some variables of a unit only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.layouts.attributes import HOST, MEMORY, MESH, STATES, UNIT
from flowrt.graph.layouts.memory_places import MemoryPlace, next_number, numbered, place_of, places_together
from flowrt.graph.layouts.mesh import Mesh, format_mesh
from flowrt.graph.node import Node
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.passes.layouts.join_units import blocks_of, units_in_order


def place_units(graph: Graph, mesh: Mesh, trained: Collection[str]) -> None:
    """Give places to the variables of ``graph`` that are of units over ``mesh`` and have none yet, and to the
    states of those of ``trained``, which an optimizer makes next. A graph that is finalized stays as it is.
    """
    if graph.finalized:
        return
    text = format_mesh(mesh)
    operations = {
        name: op
        for name, op in graph.operations.items()
        if op.node.op is var_handle_op and UNIT in op.node.attrs and op.node.attrs[MESH] == text
    }
    nodes = {name: op.node for name, op in operations.items() if MEMORY not in op.node.attrs}
    blocks = blocks_of(nodes.values())
    units = units_in_order(nodes, blocks, blocks)

    def unit_of(node: Node) -> tuple[Any, ...]:
        unit = node.attrs[UNIT]
        return units.get(unit, unit), node.attrs["dtype"], HOST in node.attrs

    _set(operations, MEMORY, _places(nodes.values(), unit_of, mesh))
    updated = [operations[name].node for name in operations if name in trained]
    states = _places(updated, _memory_of, mesh)
    number = max(map(next_number, updated), default=0)
    numbers = {name: numbered(place, number) for name, place in states.items()}
    _set(operations, STATES, {node.name: numbers.get(node.name) for node in updated})


def _memory_of(handle: Node) -> str | None:
    place = place_of(handle.attrs)
    return None if place is None else place.name


def _places(handles: Iterable[Node], key: Callable[[Node], Hashable], mesh: Mesh) -> dict[str, MemoryPlace]:
    """The places of ``handles``, of which those with equal keys are together; one without a key gets none."""
    members: dict[Hashable, list[Node]] = defaultdict(list)
    for handle in handles:
        if (found := key(handle)) is not None:
            members[found].append(handle)
    return {name: place for group in members.values() for name, place in places_together(group, mesh).items()}


def _set(operations: Mapping[str, Operation], key: str, places: Mapping[str, MemoryPlace | None]) -> None:
    """Set the attribute ``key`` of handles to their ``places``; None removes it."""
    for name, place in places.items():
        before = operations[name].node.attrs
        attrs = {other: value for other, value in before.items() if other != key}
        if place is not None:
            attrs[key] = str(place)
        if attrs != before:
            operations[name].mutate(attrs=attrs)
