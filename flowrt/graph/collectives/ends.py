"""Chunks of its schedule that each rank of a collective holds before and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from flowrt.graph.collectives.schedule import Schedule

Interval: TypeAlias = tuple[int, int]


class Ends(NamedTuple):
    """Chunks of one rank: the interval that is its input (None if it has none), and the intervals that form
    its result in this order (empty if it gets none).
    """

    before: Interval | None
    after: tuple[Interval, ...]


_FROM_ROOT = ("Broadcast", "Scatter")
_TO_ROOT = ("Reduce", "Gather")


def gives(kind: str, rank: int, root: int) -> bool:
    """Whether ``rank`` has an input to a collective of this kind."""
    return kind not in _FROM_ROOT or rank == root


def gets(kind: str, rank: int, root: int) -> bool:
    """Whether ``rank`` gets a result."""
    return kind not in _TO_ROOT or rank == root


def ends(kind: str, schedule: Schedule, rank: int, root: int) -> Ends:
    """The ends of ``rank`` in a collective of this kind by ``schedule``."""
    return _ENDS[kind](schedule, rank, rank == root)


def _all_to_all(schedule: Schedule, rank: int, _: bool) -> Ends:
    p = schedule.ranks
    return Ends((rank * p, rank * p + p), tuple((i * p + rank, i * p + rank + 1) for i in range(p)))


def _own(rank: int) -> Interval:
    return (rank, rank + 1)


def _all(schedule: Schedule) -> Interval:
    return (0, schedule.chunks)


_ENDS: Mapping[str, Callable[[Schedule, int, bool], Ends]] = {
    "AllReduce": lambda s, rank, is_root: Ends(_all(s), (_all(s),)),
    "Barrier": lambda s, rank, is_root: Ends(_all(s), (_all(s),)),
    "Reduce": lambda s, rank, is_root: Ends(_all(s), (_all(s),) if is_root else ()),
    "Broadcast": lambda s, rank, is_root: Ends(_all(s) if is_root else None, (_all(s),)),
    "AllGather": lambda s, rank, is_root: Ends(_own(rank), (_all(s),)),
    "Gather": lambda s, rank, is_root: Ends(_own(rank), (_all(s),) if is_root else ()),
    "Scatter": lambda s, rank, is_root: Ends(_all(s) if is_root else None, (_own(rank),)),
    "ReduceScatter": lambda s, rank, is_root: Ends(_all(s), (_own(rank),)),
    "AllToAll": _all_to_all,
}
