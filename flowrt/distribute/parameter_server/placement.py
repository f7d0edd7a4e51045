"""`ByteBalancer`: placement of variables on servers, with about equal numbers of bytes.

A large variable is split along its first dimension, one part per server; others are placed, whole, on the
server with the fewest bytes so far. All workers create the same variables in the same order, so all get the
same placement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, final

MIN_PART_BYTES = 1 << 18
"""Smaller parts cost more in messages (about 0.3 ms each) than they balance."""


class Part(NamedTuple):
    """Rows ``start`` to ``stop`` of a variable, on ``server``."""

    server: int
    start: int
    stop: int


@final
class ByteBalancer:
    """``servers`` of them. ``loads`` are the bytes that each has so far."""

    def __init__(self, servers: int, min_part_bytes: int = MIN_PART_BYTES) -> None:
        self.loads = [0] * servers
        self._min_part_bytes = min_part_bytes

    def place(self, shape: Sequence[int], item_bytes: int) -> list[Part]:
        """The parts of a variable, in order of rows: one part with all of it, unless it is large."""
        rows = shape[0] if shape else 1
        row_bytes = math.prod(shape[1:]) * item_bytes
        count = max(1, min(len(self.loads), rows, rows * row_bytes // self._min_part_bytes))
        each, more = divmod(
            rows, count
        )  # the first parts have one row more, as embedding_lookup's "div" has it
        bounds = [each * i + min(i, more) for i in range(count + 1)]
        emptiest = sorted(range(len(self.loads)), key=lambda server: self.loads[server])
        parts: list[Part] = []
        for start, stop in pairwise(bounds):
            server = emptiest[len(parts)]
            self.loads[server] += (stop - start) * row_bytes
            parts.append(Part(server, start, stop))
        return parts
