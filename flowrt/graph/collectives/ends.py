"""Chunks of its schedule that each rank of a collective holds before and after it."""

from __future__ import annotations

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
    if kind == "AllToAll":
        p = schedule.ranks
        return Ends((rank * p, rank * p + p), tuple((i * p + rank, i * p + rank + 1) for i in range(p)))
    own, whole = (rank, rank + 1), (0, schedule.chunks)
    before, after = (own if kind in kinds else whole for kinds in (_OWN_BEFORE, _OWN_AFTER))
    return Ends(before if gives(kind, rank, root) else None, (after,) if gets(kind, rank, root) else ())


_OWN_BEFORE = ("AllGather", "Gather")
_OWN_AFTER = ("Scatter", "ReduceScatter")
"""Kinds in which a rank has only its own chunk before, or after; in other kinds it has everything."""
