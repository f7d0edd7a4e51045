"""The graphs among the children of boxes: their edges, in an order in which all but cycles go forward."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from flowrt.viz.view import GraphView, GroupKind, GroupView, NodeView

Edge: TypeAlias = tuple[int, int]

Child: TypeAlias = NodeView | GroupView


def children_of(view: GraphView) -> dict[str, list[Child]]:
    """The children of each group and of "", in execution order."""
    children: dict[str, list[Child]] = {}
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


def lifted(edges: Iterable[Sequence[int]], parents: Sequence[int]) -> dict[int, set[Edge]]:
    """The edges between the children of each item that ``edges`` between their contents imply."""
    depths = depths_of(parents)
    found: dict[int, set[Edge]] = {}
    waiting = {(edge[0], edge[1]) for edge in edges}
    while waiting:  # a step up at a time: most edges between groups become one
        above: set[Edge] = set()
        for a, b in waiting:
            if parents[a] == parents[b]:
                if a != b:
                    found.setdefault(parents[a], set()).add((a, b))
            elif depths[a] > depths[b]:
                above.add((parents[a], b))
            elif depths[b] > depths[a]:
                above.add((a, parents[b]))
            else:
                above.add((parents[a], parents[b]))
        waiting = above
    return found


def depths_of(parents: Sequence[int]) -> list[int]:
    """The number of items around each; item 0 is around all. A parent may come after its child."""
    depths = [0, *[-1] * (len(parents) - 1)]
    for item in range(len(parents)):
        way = []
        while depths[item] < 0:
            way.append(item)
            item = parents[item]
        for depth, inner in enumerate(reversed(way), depths[item] + 1):
            depths[inner] = depth
    return depths


def in_order(items: Sequence[int], edges: Iterable[Edge]) -> tuple[list[int], list[int], list[int]]:
    """``items`` in three lists, of which each may have edges to the next ones: those above all cycles, in
    topological order; those on cycles and between them; those below, in topological order. Where edges leave
    a choice, the order is that of ``items``.
    """
    place = {item: i for i, item in enumerate(items)}
    after: list[list[int]] = [[] for _ in items]
    before: list[list[int]] = [[] for _ in items]
    for source, target in edges:
        after[place[source]].append(place[target])
        before[place[target]].append(place[source])
    top = _peeled(range(len(items)), before, after)
    rest = sorted({*range(len(items))}.difference(top), reverse=True)
    bottom = _peeled(rest, after, before)
    middle = sorted(set(rest).difference(bottom))
    return [items[i] for i in top], [items[i] for i in middle], [items[i] for i in reversed(bottom)]


def _peeled(
    places: Sequence[int], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> list[int]:
    """The ``places`` that no cycle among them precedes, each behind all ``before`` it."""
    rank = {place: i for i, place in enumerate(places)}
    missing = {place: sum(other in rank for other in before[place]) for place in places}
    ready = [rank[place] for place in places if not missing[place]]
    found = []
    while ready:
        place = places[heapq.heappop(ready)]
        found.append(place)
        for other in after[place]:
            if other in rank:
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(ready, rank[other])
    return found


class Siblings:
    """The edges among the children of each group. The children of all devices are siblings: a way from one
    to another may lead over a third device.
    """

    def __init__(self, view: GraphView) -> None:
        self._item = {name: i for i, name in enumerate(["", *view.groups, *_marked(view.nodes)])}
        self._names = list(self._item)
        devices = {name for name, group in view.groups.items() if group.kind is GroupKind.DEVICE}
        around_it = [0, *(self._item[g.parent] for g in view.groups.values())]
        around_it += [self._item[node.group] for node in view.nodes.values()]
        self._parents = [0 if self._names[p] in devices else p for p in around_it]
        ends = ((self._item[_mark(e.source)], self._item[_mark(e.target)]) for e in view.edges)
        self._edges = lifted(ends, self._parents)
        self._orders: dict[int, tuple[list[int], list[int], list[int]]] = {}
        self._items: dict[int, list[int]] = {}
        for item, parent in enumerate(self._parents[1:], 1):
            if self._names[item] not in devices:
                self._items.setdefault(parent, []).append(item)

    def sorted(self, children: Sequence[Child]) -> list[Child]:
        """``children`` of one group, in the order of `in_order`."""
        known = {self._item[_mark(c.name) if isinstance(c, NodeView) else c.name]: c for c in children}
        parts = self._order(self._parents[next(iter(known))])
        return [known[item] for part in parts for item in part if item in known]

    def longest(self, name: str, weights: Mapping[str, int]) -> int:
        """The length of the longest way through the group ``name``: of the groups in it as ``weights`` say,
        of its other children 1.
        """
        parent = self._item[name]
        lengths: dict[int, int] = {}
        before = self._before(parent)
        for part in self._order(parent):
            for item in part:
                above = max((lengths[other] for other in before.get(item, ()) if other in lengths), default=0)
                lengths[item] = above + weights.get(self._names[item], 1)
        return max(lengths.values(), default=0)

    def contiguous(self, names: Sequence[str]) -> list[list[str]]:
        """``names``, of siblings, in runs: no way leads from one of a run to another past one that is not in
        ``names``. Those on cycles are in none.
        """
        members = {self._item[name] for name in names}
        parent = self._parents[self._item[names[0]]]
        before = self._before(parent)
        above, on_cycles, below = self._order(parent)
        middle = {*on_cycles}
        run: dict[int, int] = {}
        passed: dict[int, int] = {}
        """The last run from which a way leads to an item that is no member."""
        for item in [*above, *below]:
            if below and item == below[0]:
                at = max(
                    (run.get(i, passed.get(i, -1)) for m in middle for i in before.get(m, ())), default=-1
                )
                passed.update(dict.fromkeys(middle, at))
            sources = before.get(item, ())
            outside = max((passed[i] for i in sources if i not in run), default=-1)
            inside = max((run[i] for i in sources if i in run), default=-1)
            if item in members:
                run[item] = max(outside + 1, inside, 0)
            else:
                passed[item] = max(outside, inside)
        found: dict[int, list[str]] = {}
        for name in names:
            if self._item[name] in run:
                found.setdefault(run[self._item[name]], []).append(name)
        return list(found.values())

    def join(self, names: Sequence[str]) -> None:
        """Let the first of ``names`` stand for all of them."""
        first, *others = [self._item[name] for name in names]
        parent = self._parents[first]
        stands_in = dict.fromkeys(others, first)
        pairs = ((stands_in.get(a, a), stands_in.get(b, b)) for a, b in self._edges.get(parent, ()))
        self._edges[parent] = {(a, b) for a, b in pairs if a != b}
        self._items[parent] = [item for item in self._items[parent] if item not in stands_in]
        self._orders.pop(parent, None)

    def _order(self, parent: int) -> tuple[list[int], list[int], list[int]]:
        if parent not in self._orders:
            self._orders[parent] = in_order(self._items.get(parent, []), self._edges.get(parent, ()))
        return self._orders[parent]

    def _before(self, parent: int) -> dict[int, list[int]]:
        """The items from which edges lead to each child of ``parent``."""
        found: dict[int, list[int]] = {}
        for source, target in self._edges.get(parent, ()):
            found.setdefault(target, []).append(source)
        return found


def _mark(name: str) -> str:
    """The name of a node, other than that of any group: both may have one name."""
    return f"{name}:"


def _marked(names: Iterable[str]) -> list[str]:
    return [_mark(name) for name in names]
