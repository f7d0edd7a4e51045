"""How many different loops a subgraph may have: as many as are compiled in some seconds.

Groups of one form share a loop. Where the loops are too many, those that compute fewest operations are not
compiled and their groups are taken apart: one operation's loop is that of many. Where these are too many as
well, as where each has a constant of its own, the rest stay nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence

from flowrt.graph.node import Node
from flowrt.graph.passes.group import Group

MAX_COMPILE_S = 10.0
"""Of all loops together. 20,000 operations of which no two groups were equal took 56 s, and take 16 so; their
step takes 0.6 ms instead of 0.35, and 6 without loops.
"""

LOOP_S, MEMBER_S = 0.012, 0.003
"""To compile a loop, and for each member of it: one of 64 sines, tanhs and products takes 0.18 s."""


def within_budget(
    found: Sequence[Group | Node], single: Callable[[Node], Group | Node]
) -> list[Group | Node]:
    """``found``, with few enough loops. ``single`` makes a group of one member, if that can be one."""
    if sum(_compile_s(item) for item in found if isinstance(item, Group)) <= MAX_COMPILE_S:
        return list(found)
    kept = _affordable(found)
    parts = [
        [item] if isinstance(item, Node) or _name(item) in kept else [single(node) for node in item.members]
        for item in found
    ]
    kept |= _affordable([item for part in parts if len(part) > 1 for item in part])
    return [
        item if isinstance(item, Node) or _name(item) in kept else item.members[0]
        for part in parts
        for item in part
    ]


def _affordable(found: Iterable[Group | Node]) -> set[str]:
    """The names of the groups whose loops are compiled in `MAX_COMPILE_S` together: of those that compute
    most operations.
    """
    alike: dict[Hashable, list[Group]] = {}
    for group in found:
        if isinstance(group, Group):
            alike.setdefault(group.form, []).append(group)
    by_use = sorted(alike.values(), key=lambda groups: -len(groups) * len(groups[0].members))
    until = itertools.accumulate([_compile_s(groups[0]) for groups in by_use])
    affordable = [groups for groups, seconds in zip(by_use, until, strict=True) if seconds <= MAX_COMPILE_S]
    return {_name(group) for groups in affordable for group in groups}


def _compile_s(group: Group) -> float:
    """About how long its loop takes to compile."""
    return LOOP_S + MEMBER_S * len(group.members)


def _name(group: Group) -> str:
    """Of its first member, which is in no other."""
    return group.members[0].name
