"""Chunks of memory on a device: which are brought anew for a use, and which have to go for them.

A step uses chunks of memory, here the units of variables that are kept elsewhere, in a sequence that is known
when it is compiled. Without a limit each use brings its chunk anew, while the chunk before it is used. With a
limit of bytes chunks stay as long as there is room: what goes is what is used again last, which for chunks of
one size is the least possible (Belady 1966). PatrickStar (Fang et al. 2021) learns the sequence in a first
step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

AHEAD = 2
"""The number of uses after which a chunk's memory is another's, without a limit: two are there at most."""


class Placed(NamedTuple):
    """``brought``: the number of the use for which the chunk was brought, its own or an earlier one.
    ``after``: the uses that must have ended before it is.
    """

    brought: int
    after: tuple[int, ...]


def place_chunks(uses: Sequence[str], sizes: Mapping[str, int], limit: int | None) -> list[Placed]:
    """The place of each of ``uses``, of chunks with ``sizes`` in bytes, of which at most ``limit`` bytes are
    there at a time. Each chunk is within the limit.

    >>> [placed.brought for placed in place_chunks("abcba", {"a": 1, "b": 1, "c": 1}, 2)]
    [0, 1, 2, 1, 4]
    """
    if limit is None:
        return [Placed(i, (i - AHEAD,) if i >= AHEAD else ()) for i in range(len(uses))]
    following = _next_uses(uses)
    here: dict[str, int] = {}
    """The last use of each chunk that is there."""
    found: list[Placed] = []
    for i, chunk in enumerate(uses):
        if chunk in here:
            found.append(Placed(found[here[chunk]].brought, ()))
        else:
            gone: list[int] = []
            while sum(sizes[other] for other in here) + sizes[chunk] > limit:
                free = [other for other in here if i == 0 or other != uses[i - 1]] or list(here)
                last = max(free, key=lambda other: (following[here[other]], sizes[other]))
                gone.append(here.pop(last))
            found.append(Placed(i, tuple(gone)))
        here[chunk] = i
    return found


def _next_uses(uses: Sequence[str]) -> list[float]:
    """The next use of the same chunk after each use."""
    following: dict[str, float] = {}
    found: list[float] = []
    for i, chunk in reversed(list(enumerate(uses))):
        found.append(following.get(chunk, math.inf))
        following[chunk] = i
    return found[::-1]
