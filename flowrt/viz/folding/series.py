"""Boxes that a view gets when there are too many of one kind.

with_series      scopes of the same structure, as one group
split_clusters   a box with too many children is divided into boxes of neighbours

Neither makes a cycle among boxes that is not there without it: what is drawn as one is contiguous, with no
way from one member to another past a box that is none.

Generated code often creates thousands of operations in one scope, with similar names or none: there,
consecutive ones are grouped, with about as many per box as there are boxes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from flowrt.viz.folding.siblings import Child, Siblings, children_of
from flowrt.viz.view import GraphView, GroupKind, GroupView, NodeView, around

MIN_SERIES = 3
"""Minimum number of similar scopes to draw as one box."""

MAX_CHILDREN = 120
"""Maximum number of children of a box: two screens."""


def with_series(view: GraphView) -> GraphView:
    """``view`` with a group around each `MIN_SERIES` or more contiguous scopes in one group that have equal
    names but for a number (``layer``, ``layer_1``, …) and the same kinds and numbers of operations.
    """
    many = [members for members in alike(view).values() if len(members) >= MIN_SERIES]
    series: dict[str, GroupView] = {}
    if many:
        siblings = Siblings(view)
        for members in many:
            for run in siblings.contiguous([member.name for member in members]):
                if len(run) >= MIN_SERIES:
                    made = _series([view.groups[name] for name in run])
                    siblings.join(run)
                    series.update(dict.fromkeys(run, made))
    groups: dict[str, GroupView] = {}
    for name, group in view.groups.items():
        if name in series:
            groups[series[name].name] = series[name]
            group = group._replace(parent=series[name].name)
        groups[name] = group
    return view._replace(groups=groups)


def alike(view: GraphView) -> dict[tuple[str, str, frozenset[tuple[str, int]]], list[GroupView]]:
    """Scopes by their group, their name without its number, and what they hold."""
    makes = _makes(view)
    found: dict[tuple[str, str, frozenset[tuple[str, int]]], list[GroupView]] = {}
    for group in view.groups.values():
        if group.kind is GroupKind.SCOPE:
            key = group.parent, _stem(group.label), frozenset(makes[group.name].items())
            found.setdefault(key, []).append(group)
    return found


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


def _series(members: Sequence[GroupView]) -> GroupView:
    numbers = [int(found[0]) if (found := re.findall(r"\d+$", m.label)) else 0 for m in members]
    parent, stem = members[0].parent, _stem(members[0].label)
    label = f"{stem} × {len(members)}"
    span = f"{stem}[{min(numbers)}..{max(numbers)}]"
    name = f"{parent}/{span}" if parent else span
    return GroupView(name, label, GroupKind.SERIES, parent, sum(m.num_ops for m in members))


# --- very large boxes


def split_clusters(view: GraphView) -> GraphView:
    """Return ``view`` with at most `MAX_CHILDREN` children per group and at the top level."""
    groups = dict(view.groups)
    nodes = dict(view.nodes)
    large = {n: each for n, each in children_of(view).items() if len(each) > MAX_CHILDREN}
    if large:
        siblings = Siblings(view)
        for parent, children in large.items():
            _split(parent, siblings.sorted(children), groups, nodes)
    return GraphView(nodes, view.edges, _outer_first(groups))


def _split(
    parent: str, children: Sequence[Child], groups: dict[str, GroupView], nodes: dict[str, NodeView]
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
    parent: str, children: Sequence[Child], groups: dict[str, GroupView], nodes: dict[str, NodeView]
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
