"""Division of an array of elements: one part per rank, even or not, and a part into pieces. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from flowrt.graph.collectives.schedule import offset


def part(length: int, size: int, rank: int) -> slice:
    """Part ``rank`` of ``length`` elements in ``size`` parts, as in `numpy.array_split`."""
    return slice(offset(rank, length, size), offset(rank + 1, length, size))


def parts_of(counts: Sequence[int]) -> list[slice]:
    """Parts of ``counts`` elements, one behind the other."""
    ends = list(itertools.accumulate(map(int, counts), initial=0))
    return [slice(*both) for both in itertools.pairwise(ends)]


def pieces(whole: slice, length: int) -> Iterator[slice]:
    """``whole`` in pieces of ``length`` elements, the last maybe shorter. An empty one is one empty piece."""
    for start in range(whole.start, max(whole.stop, whole.start + 1), length):
        yield slice(start, min(start + length, whole.stop))
