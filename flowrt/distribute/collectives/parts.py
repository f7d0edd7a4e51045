"""Division of an array of elements: one part per rank, and a part into pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from flowrt.graph.collectives.schedule import offset


def part(length: int, size: int, rank: int) -> slice:
    """Part ``rank`` of ``length`` elements in ``size`` parts, as in `numpy.array_split`."""
    return slice(offset(rank, length, size), offset(rank + 1, length, size))


def pieces(whole: slice, length: int) -> Iterator[slice]:
    """``whole`` in pieces of ``length`` elements, the last maybe shorter. An empty one is one empty piece."""
    for start in range(whole.start, max(whole.stop, whole.start + 1), length):
        yield slice(start, min(start + length, whole.stop))
