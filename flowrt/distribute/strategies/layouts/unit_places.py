"""Places in memory for the variables of units, as far as the model's text tells these.

A variable keeps its place in all steps of a session, so it is given with the graph, while units are found in
each step. Here blocks are joined as steps join them (`flowrt.graph.passes.layouts.join_units`), but in the
order in which they are made: mostly this is the order in which they are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from flowrt.graph.construction.graph import Graph
from flowrt.graph.layouts.attributes import HOST, MEMORY, MESH, UNIT
from flowrt.graph.layouts.memory_places import places_of_unit
from flowrt.graph.layouts.mesh import Mesh, format_mesh
from flowrt.graph.node import Node
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.passes.layouts.join_units import blocks_of, units_in_order


def place_units(graph: Graph, mesh: Mesh, trained: Collection[str]) -> None:
    """Give places to the variables of ``graph`` that are of units over ``mesh`` and have none yet; those of
    ``trained`` come first. A graph that is finalized stays as it is.
    """
    if graph.finalized:
        return
    text = format_mesh(mesh)
    operations = graph.operations
    nodes = {
        name: op.node
        for name, op in operations.items()
        if op.node.op is var_handle_op
        and UNIT in op.node.attrs
        and MEMORY not in op.node.attrs
        and op.node.attrs[MESH] == text
    }
    blocks = blocks_of(nodes.values())
    units = units_in_order(nodes, blocks, blocks)
    members: dict[tuple[str, str, bool], list[Node]] = defaultdict(list)
    for node in nodes.values():
        unit = units.get(node.attrs[UNIT], node.attrs[UNIT])
        members[unit, node.attrs["dtype"].name, HOST in node.attrs].append(node)
    for handles in members.values():
        for name, place in places_of_unit(handles, trained, mesh).items():
            operations[name].mutate(attrs={**operations[name].node.attrs, MEMORY: str(place)})
