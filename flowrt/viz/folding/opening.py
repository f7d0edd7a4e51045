"""Groups that are open where nobody says how deep: as many as leave a view legible on one screen."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowrt.viz.folding.series import alike
from flowrt.viz.folding.siblings import Child, Siblings, children_of
from flowrt.viz.view import GraphView, GroupKind, GroupView, NodeView


class Screen(NamedTuple):
    """Room for what a reader takes in at once: ``boxes`` in all, ``rows`` of them one below the other."""

    boxes: int
    rows: int


LAPTOP = Screen(48, 14)
"""Graphviz's boxes on 1440 x 900 pixels, with texts of 9 pixels."""


OPENED = (GroupKind.SCOPE, GroupKind.FUNCTION)


class _Offer(NamedTuple):
    """Groups to open, ordered: outer ones before those in them, those with few boxes first."""

    level: int
    boxes: int
    groups: tuple[str, ...]


def open_groups(view: GraphView, screen: Screen = LAPTOP) -> set[str]:
    """The scopes and functions of ``view`` to open: all, or those for which there is room. Then scopes of one
    structure open together, and variables stay closed, as does what holds a single box. Roles and series stay
    closed in any case.
    """
    return _Opening(view, screen).opened()


class _Opening:
    def __init__(self, view: GraphView, screen: Screen) -> None:
        self._view, self._screen = view, screen
        self._children = children_of(view)
        self._siblings = Siblings(view)
        self._open: set[str] = set()
        self._rows: dict[str, int] = {}
        self._alike = {group.name: key for key, members in alike(view).items() for group in members}

    def opened(self) -> set[str]:
        everything = [name for name, group in self._view.groups.items() if group.kind in OPENED]
        if len(self._view.nodes) <= self._screen.boxes and self._opens(everything):
            return self._open
        room = self._screen.boxes - self._boxes("")
        waiting = [*self._offers("", 1)]
        heapq.heapify(waiting)
        while waiting:
            offer = heapq.heappop(waiting)
            if offer.boxes - len(offer.groups) > room or not self._opens(offer.groups):
                continue
            room -= offer.boxes - len(offer.groups)
            for name in offer.groups:
                for further in self._offers(name, offer.level + 1):
                    heapq.heappush(waiting, further)
        return self._open

    def _opens(self, names: Sequence[str]) -> bool:
        """Open ``names`` if there are rows for it."""
        self._open.update(names)
        self._rows.clear()
        if self._height("") <= self._screen.rows:
            return True
        self._open.difference_update(names)
        return False

    def _offers(self, name: str, level: int) -> Iterator[_Offer]:
        together: dict[object, list[str]] = {}
        for child in self._inside(name):
            if isinstance(child, GroupView) and child.kind in OPENED and not self._is_whole(child):
                together.setdefault(self._alike.get(child.name, child.name), []).append(child.name)
        for groups in together.values():
            yield _Offer(level, sum(map(self._boxes, groups)), tuple(groups))

    def _inside(self, name: str) -> Iterator[Child]:
        """The children of a group, and those of the devices among them."""
        for child in self._children.get(name, ()):
            if isinstance(child, GroupView) and child.kind is GroupKind.DEVICE:
                yield from self._inside(child.name)
            else:
                yield child

    def _boxes(self, name: str) -> int:
        return sum(1 for _ in self._inside(name))

    def _is_whole(self, group: GroupView) -> bool:
        """Whether it holds one box, or is a variable."""
        held = self._children[group.name]
        of_its_name = [c for c in held if isinstance(c, NodeView) and c.label == group.label]
        return len(held) == 1 or any(c.outputs and c.outputs[0].dtype == "resource" for c in of_its_name)

    def _height(self, name: str) -> int:
        """The rows of an open group: the longest way through it, along which each box is a row, and an open
        one as many as it has.
        """
        if name not in self._rows:
            self._rows[name] = self._siblings.longest(name, self._weights(name))
        return self._rows[name]

    def _weights(self, name: str) -> dict[str, int]:
        groups = (child.name for child in self._inside(name) if isinstance(child, GroupView))
        return {group: self._height(group) for group in groups if group in self._open}
