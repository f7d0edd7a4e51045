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


def pieces_together(lengths: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Pieces of arrays of ``lengths`` elements, in order, as numbers of arrays and slices of these: in lists
    of at most ``most`` elements together. Without elements there is one list, of nothing.

        lengths 3, 4 and most 5    (0, 0:3) (1, 0:2)    (1, 2:4)
    """
    together, room = list[tuple[int, slice]](), most
    for number, length in enumerate(lengths):
        begin = 0
        while begin < length:
            end = min(length, begin + room)
            together.append((number, slice(begin, end)))
            room -= end - begin
            begin = end
            if not room:
                yield together
                together, room = [], most
    if together or not sum(lengths):
        yield together
