"""How many different loops a subgraph may have: as many as are compiled in some seconds.

Groups of one form share a loop. Where the loops are too many, half of the time is for those that compute most
operations, and the other groups are taken apart: one operation's loop is that of many. For these is the other
half; where they are too many as well, as where each has a constant of its own, the rest stay nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence

from flowrt.graph.node import Node
from flowrt.graph.passes.fusion.group import Group

MAX_COMPILE_S = 10.0
"""Of all loops of a subgraph. 20,000 operations of which no two groups were equal took 56 s, and take 9 so;
their step takes 0.6 ms instead of 0.35, and 6 without loops.
"""

LOOP_S, MEMBER_S = 0.012, 0.003
"""To compile a loop, and for each member of it: one of 64 sines, tanhs and products takes 0.18 s."""


def within_budget(
    found: Sequence[Group | Node], single: Callable[[Node], Group | Node]
) -> list[Group | Node]:
    """``found``, with few enough loops. ``single`` makes a group of one member, if that can be one."""
    groups = [item for item in found if isinstance(item, Group)]
    if sum(map(_compile_s, groups)) <= MAX_COMPILE_S:
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
    """The names of the groups whose loops are compiled in so many seconds together: of those that compute
    most operations.
    """
    alike: dict[Hashable, list[Group]] = {}
    for group in groups:
        alike.setdefault(group.form, []).append(group)
    by_use = sorted(alike.values(), key=lambda groups: -len(groups) * len(groups[0].members))
    until = itertools.accumulate([_compile_s(groups[0]) for groups in by_use])
    return {
        _name(group)
        for groups, total in zip(by_use, until, strict=True)
        if total <= seconds
        for group in groups
    }


def _compile_s(group: Group) -> float:
    """About how long its loop takes to compile."""
    return LOOP_S + MEMBER_S * len(group.members)


def _name(item: Group | Node) -> str:
    """A group's is that of its first member, which is in no other."""
    return item.name if isinstance(item, Node) else item.members[0].name
