"""The threads of a GPU that compute a loop: a schedule of rows, as data.

A block's threads form groups of neighbours, called lanes. A lane computes a row, its threads striding over
the columns, and then another row. A program without rows has rows of one column: each thread is a lane.
"""

from __future__ import annotations

from typing import NamedTuple

THREADS, MAX_THREADS = 256, 1024
"""Threads of a block: the default, and for rows of at least that length."""

COLUMNS_A_THREAD = 4
"""Minimum columns for several threads per lane: a level of a tree costs as much as an element or two."""

MAX_BLOCKS, MAX_SUMMING_BLOCKS = 4096, 256
"""Grid-size cap, for full occupancy of the largest GPU; each lane writes a partial sum that is read again."""

INT_ELEMENTS = 1 << 30
"""A domain below this size is indexed in 32 bits, where a division takes a quarter of the time of 64."""


class Grid(NamedTuple):
    """``blocks`` of ``threads``, in lanes of ``width`` threads each."""

    blocks: int
    threads: int
    width: int
    index_type: str
    """The C type of rows, columns and elements."""

    @property
    def lanes(self) -> int:
        """Number of lanes of a block."""
        return self.threads // self.width

    @property
    def all_lanes(self) -> int:
        return self.blocks * self.lanes


def grid_of(rows: int, columns: int, has_sums_of_rows: bool) -> Grid:
    """The grid for a loop over ``rows`` of ``columns``, which may have partial sums over rows."""
    width = min(power_of_two(-(-columns // COLUMNS_A_THREAD)), MAX_THREADS)
    threads = max(THREADS, width)
    most = MAX_SUMMING_BLOCKS if has_sums_of_rows else MAX_BLOCKS
    blocks = min(-(-rows // (threads // width)), most)
    return Grid(blocks, threads, width, "int" if rows * columns < INT_ELEMENTS else "long long")


def power_of_two(number: int) -> int:
    """The least that is not below ``number``."""
    return 1 << (number - 1).bit_length()
