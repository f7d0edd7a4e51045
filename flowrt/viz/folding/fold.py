"""Views cut down to what a reader can take in.

focus            the neighbourhood of one operation or scope
set_apart        roles without edges to the model
fold             closed groups, each drawn as one node, with bundled edges between them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowrt.errors import NotFoundError, nearest
from flowrt.profiler.text_table import first_few
from flowrt.viz.compile_request import MAX_NAMED
from flowrt.viz.folding.opening import open_groups
from flowrt.viz.view import (
    EdgeKind,
    EdgeView,
    GraphView,
    GroupKind,
    Groups,
    GroupView,
    NodeView,
    around,
    held_groups,
)

_KINDS = list(EdgeKind)
_COUNTED = (GroupKind.SCOPE, GroupKind.FUNCTION, GroupKind.ROLE)


def fold(view: GraphView, depth: int) -> GraphView:
    """``view`` with ``depth`` levels of scopes and functions: those of the last level are closed, one node
    each, except groups of a single operation. Boxes of devices and series do not count as levels. A series is
    always closed.
    """
    level = _levels(view.groups)
    shut = {n for n, g in view.groups.items() if g.kind in _COUNTED and level[n] >= depth}
    return _closed(view, shut)


def fold_to_screen(view: GraphView) -> GraphView:
    """``view`` with as many groups open as are legible on one screen: see `open_groups`."""
    shut = {name for name, group in view.groups.items() if group.kind in _COUNTED}
    return _closed(view, shut - open_groups(view))


def set_apart(view: GraphView) -> GraphView:
    """``view`` without the edges between the model and roles: nearly every layer has one to its gradient.
    Transfers are kept.
    """
    role = {name: _role_around(view.groups, node.group) for name, node in view.nodes.items()}
    edges = [
        edge
        for edge in view.edges
        if edge.kind is EdgeKind.TRANSFER or bool(role[edge.source]) == bool(role[edge.target])
    ]
    return view._replace(edges=edges)


def _role_around(groups: Groups, name: str) -> str:
    return next((group.name for group in around(groups, name) if group.kind is GroupKind.ROLE), "")


def _closed(view: GraphView, shut: Collection[str]) -> GraphView:
    """``view`` with the groups ``shut``, and all series, as one node each."""
    closed = _closed_around(view.groups, shut)
    stands_in: dict[str, str] = {}
    nodes: dict[str, NodeView] = {}
    for name, node in view.nodes.items():
        box = closed.get(node.group, "")
        stands_in[name] = box or name
        if not box:
            nodes[name] = node
        elif view.groups[box].num_ops == 1:  # its only operation is more informative
            stands_in[name] = name
            nodes[name] = node._replace(label=_full_label(view, box, node), group=view.groups[box].parent)
        elif box not in nodes:
            nodes[box] = _box(view.groups[box], node)
        elif node.device not in (nodes[box].device, *nodes[box].devices):
            devices = nodes[box].devices or (nodes[box].device,)
            nodes[box] = nodes[box]._replace(device="", devices=(*devices, node.device))
    edges = _bundled(view, stands_in)
    return GraphView(nodes, edges, held_groups(GraphView(nodes, edges, view.groups)))


def _full_label(view: GraphView, box: str, node: NodeView) -> str:
    """The label of the only operation in ``box``: ``pool2`` if it is only called by its type, else
    ``dense/kernel``.
    """
    inner = [group.label for group in around(view.groups, node.group)]
    outer = [group.label for group in around(view.groups, box)]
    labels = inner[: len(inner) - len(outer) + 1][::-1]
    return "/".join(dict.fromkeys(labels if node.label == node.op else [*labels, node.label]))


def _levels(groups: Groups) -> dict[str, int]:
    found = {"": 0}
    for name, group in groups.items():  # a group precedes its contents
        found[name] = found[group.parent] + (group.kind in _COUNTED)
    return found


def _closed_around(groups: Groups, shut: Collection[str]) -> dict[str, str]:
    """The outermost closed group that each group is or is in; "" for open ones."""
    found: dict[str, str] = {}
    for name, group in groups.items():
        is_closed = name in shut or group.kind is GroupKind.SERIES
        found[name] = found.get(group.parent, "") or (name if is_closed else "")
    return found


def _box(group: GroupView, first: NodeView) -> NodeView:
    """A closed group; its device is that of its ``first`` node, until another node has a different one."""
    return NodeView(group.name, group.label, "", group.parent, first.device, {}, (), "", group.num_ops)


def _bundled(view: GraphView, stands_in: Mapping[str, str]) -> list[EdgeView]:
    """One edge for all from one box to another, and one for the transfers. Inner edges are not drawn."""
    found: dict[tuple[str, str, bool], EdgeView] = {}
    for edge in view.edges:
        source, target = stands_in[edge.source], stands_in[edge.target]
        if source == target:
            continue
        key = source, target, edge.kind is EdgeKind.TRANSFER
        known = found.get(key)
        found[key] = edge._replace(source=source, target=target) if known is None else _joined(known, edge)
    return list(found.values())


def _joined(a: EdgeView, b: EdgeView) -> EdgeView:
    kind = max(a.kind, b.kind, key=_KINDS.index)
    first = a if a.tensor or not b.tensor else b
    return a._replace(
        kind=kind,
        tensor=first.tensor,
        facts=first.facts,
        nbytes=a.nbytes + b.nbytes,
        transport=a.transport or b.transport,
        num_edges=a.num_edges + b.num_edges,
        moves=tuple(dict.fromkeys([*a.moves, *b.moves])),
    )


# --- focusing


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
        hint = (
            near or f" It has {first_few(sorted({each.partition('/')[0] for each in view.nodes}), MAX_NAMED)}"
        )
        raise NotFoundError(f"focus: expected an operation or a scope of the graph; got {name!r}.{hint}")
    return {
        node.name
        for node in view.nodes.values()
        if any(group.name == name for group in around(view.groups, node.group))
    }
