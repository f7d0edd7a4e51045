"""Budget of distinct loops in a subgraph: as many as are compiled within some seconds.

Groups of one form share a loop. Above the budget, half of it goes to the loops that compute the most
operations, and the other groups are split into single operations, which share loops more often. These get the
other half; if they are too many as well, for example because each has a different constant, the rest are not
fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence

from flowrt.graph.node import Node
from flowrt.graph.passes.fusion.group import Group

MAX_COMPILE_S = 10.0
"""Budget for all loops of a subgraph. Compiling 20,000 operations without equal groups took 56 s, and takes 9
s with it; their step takes 0.6 ms instead of 0.35, and 6 without loops.
"""

LOOP_S, MEMBER_S = 0.012, 0.003
"""Cost of compiling a loop, and per member: one of 64 sines, tanhs and products takes 0.18 s."""


def within_budget(
    found: Sequence[Group | Node], single: Callable[[Node], Group | Node]
) -> list[Group | Node]:
    """``found``, reduced to the budget. ``single`` makes a group of one member, if possible."""
    groups = [item for item in found if isinstance(item, Group)]
    if sum(compile_seconds(len(group.members)) for group in groups) <= MAX_COMPILE_S:
        return list(found)
    compiled = _most_used(groups, MAX_COMPILE_S / 2)
    apart = {
        _name(group): [single(node) for node in group.members]
        for group in groups
        if _name(group) not in compiled
    }
    singles = [item for parts in apart.values() for item in parts if isinstance(item, Group)]
    compiled |= _most_used(singles, MAX_COMPILE_S / 2)
    items = [part for item in found for part in apart.get(_name(item), [item])]
    return [item if isinstance(item, Node) or _name(item) in compiled else item.members[0] for item in items]


def _most_used(groups: Iterable[Group], seconds: float) -> set[str]:
    """Names of the groups with loops that are compiled within so many seconds in total, those that compute
    the most operations first.
    """
    alike: dict[Hashable, list[Group]] = {}
    for group in groups:
        alike.setdefault(group.form, []).append(group)
    by_use = sorted(alike.values(), key=lambda groups: -len(groups) * len(groups[0].members))
    until = itertools.accumulate([compile_seconds(len(groups[0].members)) for groups in by_use])
    return {
        _name(group)
        for groups, total in zip(by_use, until, strict=True)
        if total <= seconds
        for group in groups
    }


def compile_seconds(members: int) -> float:
    """Estimated compile time of a loop of so many operations."""
    return LOOP_S + MEMBER_S * members


def _name(item: Group | Node) -> str:
    """Name of a node, or of a group's first member, which is in no other group."""
    return item.name if isinstance(item, Node) else item.members[0].name
