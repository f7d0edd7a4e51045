"""Focusing: the part of a view around one operation or scope."""

from __future__ import annotations

from flowrt.errors import NotFoundError, nearest
from flowrt.viz.compile_request import some
from flowrt.viz.view import GraphView, around, held_groups


def focus(view: GraphView, name: str, radius: int) -> GraphView:
    """The operation ``name``, or all of the scope ``name``, and its neighbourhood of at most ``radius`` edges
    in either direction. Raises `NotFoundError`, with the nearest names, for an unknown name.
    """
    found = _named(view, name)
    neighbours: dict[str, list[str]] = {node: [] for node in view.nodes}
    for edge in view.edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    border = found
    for _ in range(radius):
        border = {n for at in border for n in neighbours[at]} - found
        found = found | border
    nodes = {n: node for n, node in view.nodes.items() if n in found}
    edges = [edge for edge in view.edges if edge.source in found and edge.target in found]
    return GraphView(nodes, edges, held_groups(GraphView(nodes, edges, view.groups)))


def _named(view: GraphView, name: str) -> set[str]:
    if name in view.nodes:
        return {name}
    if name not in view.groups:
        near = nearest(name, {*view.nodes, *view.groups})
        hint = near or f" It has {some(sorted({each.partition('/')[0] for each in view.nodes}))}"
        raise NotFoundError(f"focus: expected an operation or a scope of the graph; got {name!r}.{hint}")
    return {
        node.name
        for node in view.nodes.values()
        if any(group.name == name for group in around(view.groups, node.group))
    }
