"""`works_of`: what the thread of a device does, one entry after the other, as works that wait for each other.

The thread computes one entry at a time, begins meetings and messages without waiting for them, and waits
for their ends where it needs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from flowrt.graph.pipeline.actions import Action
from flowrt.plan.replay.played import Meeting, Message, Work


class Computed(NamedTuple):
    """The thread computes for ``seconds``, for ``action`` if it is of one."""

    name: str
    seconds: float
    action: Action | None


class Begun(NamedTuple):
    """The thread begins what ``key`` tells from others, unless it has."""

    key: str
    name: str
    meets: Meeting | Message


class Awaited(NamedTuple):
    """The thread waits for the end of what ``key`` tells from others."""

    key: str


Entry: TypeAlias = Computed | Begun | Awaited


def works_of(entries: Iterable[Entry]) -> tuple[Work, ...]:
    """The works of a thread with ``entries``, in order. What it computes starts behind all that it has waited
    for; what it begins, behind what it has computed, too.

    Raises `KeyError` for an entry that waits for what has not begun.
    """
    works: list[Work] = []
    begun: dict[str, int] = {}
    awaited: dict[int, None] = {}  # since the last one that computes
    last: tuple[int, ...] = ()
    for entry in entries:
        if isinstance(entry, Awaited):
            awaited[begun[entry.key]] = None
        elif isinstance(entry, Computed):
            works.append(Work(entry.name, entry.seconds, tuple(awaited), action=entry.action))
            last, awaited = (len(works) - 1,), {}
        elif entry.key not in begun:
            begun[entry.key] = len(works)
            works.append(Work(entry.name, 0.0, (*last, *awaited), entry.meets))
    return tuple(works)
