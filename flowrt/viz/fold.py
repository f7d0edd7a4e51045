"""Folding: a view with closed groups, each drawn as one node, and bundled edges between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

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
