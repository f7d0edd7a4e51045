"""Views cut down to what a reader can take in.

focus            the neighbourhood of one operation or scope
fold             closed groups, each drawn as one node, with bundled edges between them
with_series      scopes of the same structure, as one group
split_clusters   a box with too many children is divided into boxes of neighbours

Generated code often creates thousands of operations in one scope, with similar names or none: there,
consecutive ones are grouped, with about as many per box as there are boxes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from flowrt.errors import NotFoundError, nearest
from flowrt.profiler.text_table import first_few
from flowrt.viz.compile_request import MAX_NAMED
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

MIN_SERIES = 3
"""Minimum number of similar scopes to draw as one box."""

_KINDS = list(EdgeKind)
_COUNTED = (GroupKind.SCOPE, GroupKind.FUNCTION)


def fold(view: GraphView, depth: int) -> GraphView:
    """``view`` with ``depth`` levels of scopes and functions: those of the last level are closed, one node
    each, except groups of a single operation. Boxes of devices and series do not count as levels. A series is
    always closed.
    """
    closed = _closed(view.groups, depth)
    stands_in: dict[str, str] = {}
    nodes: dict[str, NodeView] = {}
    for name, node in view.nodes.items():
        box = closed.get(node.group, "")
        stands_in[name] = box or name
        if not box:
            nodes[name] = node
        elif view.groups[box].num_ops == 1:  # its only operation is more informative
            stands_in[name] = name
            nodes[name] = node._replace(group=view.groups[box].parent)
        elif box not in nodes:
            nodes[box] = _box(view.groups[box], node)
        elif nodes[box].device != node.device:
            nodes[box] = nodes[box]._replace(device="")
    edges = _bundled(view, stands_in)
    return GraphView(nodes, edges, held_groups(GraphView(nodes, edges, view.groups)))


def levels(groups: Groups) -> int:
    """The number of levels."""
    return max(_levels(groups).values())


def _levels(groups: Groups) -> dict[str, int]:
    found = {"": 0}
    for name, group in groups.items():  # a group precedes its contents
        found[name] = found[group.parent] + (group.kind in _COUNTED)
    return found


def _closed(groups: Groups, depth: int) -> dict[str, str]:
    """The outermost closed group that each group is or is in; "" for open ones."""
    found: dict[str, str] = {}
    level = _levels(groups)
    for name, group in groups.items():
        is_last = group.kind in _COUNTED and level[name] >= depth
        is_closed = is_last or group.kind is GroupKind.SERIES
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


# --- series


def with_series(view: GraphView) -> GraphView:
    """``view`` with a group around each `MIN_SERIES` or more scopes in one group that have equal names but
    for a number (``layer``, ``layer_1``, …) and the same kinds and numbers of operations.
    """
    makes = _makes(view)
    alike: dict[tuple[str, str, frozenset[tuple[str, int]]], list[GroupView]] = {}
    for group in view.groups.values():
        if group.kind is GroupKind.SCOPE:
            key = group.parent, _stem(group.label), frozenset(makes[group.name].items())
            alike.setdefault(key, []).append(group)
    series: dict[str, GroupView] = {}
    for (parent, stem, _), members in alike.items():
        if len(members) >= MIN_SERIES:
            around_all = _series(parent, stem, members)
            series.update({member.name: around_all for member in members})
    groups: dict[str, GroupView] = {}
    for name, group in view.groups.items():
        if name in series:
            groups[series[name].name] = series[name]
            group = group._replace(parent=series[name].name)
        groups[name] = group
    return view._replace(groups=groups)


def _makes(view: GraphView) -> dict[str, Counter[str]]:
    """The number of operations of each type in each group."""
    found: dict[str, Counter[str]] = {name: Counter() for name in view.groups}
    for node in view.nodes.values():
        for group in around(view.groups, node.group):
            found[group.name][node.op] += 1
    return found


def _stem(label: str) -> str:
    """``layer_12`` -> ``layer``."""
    return re.sub(r"_?\d+$", "", label)


def _series(parent: str, stem: str, members: list[GroupView]) -> GroupView:
    numbers = [int(found[0]) if (found := re.findall(r"\d+$", m.label)) else 0 for m in members]
    label = f"{stem} × {len(members)}"
    span = f"{stem}[{min(numbers)}..{max(numbers)}]"
    name = f"{parent}/{span}" if parent else span
    return GroupView(name, label, GroupKind.SERIES, parent, sum(m.num_ops for m in members))


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


MAX_CHILDREN = 120
"""Maximum number of children of a box: two screens."""


def split_clusters(view: GraphView) -> GraphView:
    """Return ``view`` with at most `MAX_CHILDREN` children per group and at the top level."""
    groups = dict(view.groups)
    nodes = dict(view.nodes)
    for parent, children in _children(view).items():
        if len(children) > MAX_CHILDREN:
            _split(parent, children, groups, nodes)
    return GraphView(nodes, view.edges, _outer_first(groups))


def _children(view: GraphView) -> dict[str, list[NodeView | GroupView]]:
    """The children of each group and of "", in execution order."""
    children: dict[str, list[NodeView | GroupView]] = {}
    seen: set[str] = set()
    for node in view.nodes.values():
        children.setdefault(node.group, []).append(node)
        name = node.group
        while name and name not in seen:
            seen.add(name)
            group = view.groups[name]
            children.setdefault(group.parent, []).append(group)
            name = group.parent
    return children


def _split(
    parent: str,
    children: Sequence[NodeView | GroupView],
    groups: dict[str, GroupView],
    nodes: dict[str, NodeView],
) -> None:
    size = math.ceil(max(math.sqrt(len(children)), len(children) / MAX_CHILDREN))
    for start in range(0, len(children), size):
        chunk = children[start : start + size]
        span = f"[{start}..{start + len(chunk) - 1}]"
        name = f"{parent}/{span}" if parent else span
        label = f"{chunk[0].label} … {chunk[-1].label}"
        num_ops = sum(child.num_ops for child in chunk)
        groups[name] = GroupView(name, label, GroupKind.SERIES, parent, num_ops)
        if len(chunk) > MAX_CHILDREN:
            _split(name, chunk, groups, nodes)
        else:
            _put(name, chunk, groups, nodes)


def _put(
    parent: str,
    children: Sequence[NodeView | GroupView],
    groups: dict[str, GroupView],
    nodes: dict[str, NodeView],
) -> None:
    for child in children:
        if isinstance(child, NodeView):
            nodes[child.name] = child._replace(group=parent)
        else:
            groups[child.name] = child._replace(parent=parent)


def _outer_first(groups: dict[str, GroupView]) -> dict[str, GroupView]:
    ordered: dict[str, GroupView] = {}

    def put(group: GroupView) -> None:
        if group.name not in ordered:
            if group.parent:
                put(groups[group.parent])
            ordered[group.name] = group

    for group in groups.values():
        put(group)
    return ordered
