"""Clusters: a box with too many children for a reader is divided into boxes of neighbours.

Generated code often creates thousands of operations in one scope, with similar names or none. Consecutive
ones are grouped, with about as many per box as there are boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowrt.viz.view import GraphView, GroupKind, GroupView, NodeView

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
