"""The memory plan: offsets of a compiled partition's buffers in one arena.

The execution order is known, and so are the live ranges of buffers. Two strategies are tried (Y. Pisarchyk
and J. Lee, "Efficient memory management for deep neural net inference", 2020, compare such planners), and the
smaller arena is used:

    in order      best fit over the arena's gaps, with coalescing. Gaps are sorted by (size, offset), so equal
                  sizes reuse warm memory. Training steps of 1,000 equal layers take 0.05 % more
                  than the bound, those of small nets of unequal layers up to 45 %
    by size       largest first, each at the lowest offset that is free during its lifetime: at most
                  7 % more than the bound for any of these. It compares each block with all larger ones, so
                  it is tried only if the first strategy wastes memory, and not for thousands

Rules of this file:

  1. It is pure: from sizes and positions to offsets, independent of devices and arrays.
  2. With several streams, two buffers share bytes only if all users of one have certainly finished when the
     writer of the other begins.
  3. A buffer that overwrites an input in place has exactly that input's offset.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple, final

from flowrt.graph.node import Ref

GRAIN = 64
"""Bytes: the alignment of every buffer (`flowrt.device.stream_executor.ALIGNMENT`)."""

TOLERATED = 1.02
"""Times the lower bound: an arena of at most this size is not planned a second time."""

MAX_BY_SIZE = 2048
"""Maximum number of blocks placed by size: 0.1 s (with several streams 0.3); quadratic."""


class MemoryPlan(NamedTuple):
    """``offsets[ref]`` bytes from the arena's start, ``sizes[ref]`` bytes. ``nbytes`` is the arena's size,
    ``lower_bound`` the largest sum of live bytes: no plan for this order can be smaller.
    """

    offsets: Mapping[Ref, int]
    sizes: Mapping[Ref, int]
    nbytes: int
    lower_bound: int
    peak: tuple[Ref, ...]
    """The buffers that are live when most bytes are."""


@final
class _Block:
    """The place of a buffer, and of those that are written over it: ``size`` bytes that ``writer`` is the
    first to use and ``users`` the last, from change ``begin`` up to ``end``.
    """

    __slots__ = ("begin", "end", "offset", "size", "users", "writer")

    def __init__(self, size: int, offset: int, writer: str, begin: int) -> None:
        self.size, self.offset, self.writer, self.begin = size, offset, writer, begin
        self.end = math.inf
        self.users: tuple[str, ...] = ()


@final
class ArenaPlanner:
    """Allocates buffers in order. ``is_over(user, now)``: whether node ``user`` has certainly ended when
    ``now`` begins; None if all earlier nodes have.
    """

    def __init__(self, is_over: Callable[[str, str], bool] | None = None) -> None:
        self._is_over = is_over
        self._blocks: list[_Block] = []
        self._block_of: dict[Ref, _Block] = {}
        self._sizes: dict[Ref, int] = {}
        self._gaps: list[tuple[int, int]] = []
        """(size, offset), sorted."""
        self._starts: dict[int, int] = {}
        """End of each gap, by its start."""
        self._ends: dict[int, int] = {}
        self._users: dict[int, tuple[str, ...]] = {}
        """Nodes that must have ended before a gap is reused, by its start."""
        self._top = self._live_bytes = self._peak_bytes = 0
        self._changes: list[tuple[Ref, bool]] = []
        """Events of each buffer, in order: allocated (True) or freed."""
        self._peak_at = 0
        """The number of changes after which most bytes were live."""

    def allocate(self, ref: Ref, nbytes: int, node: str) -> None:
        """Allocate ``nbytes`` for ``ref``, written by ``node``."""
        size = -(-nbytes // GRAIN) * GRAIN
        offset = self._find(size, node)
        if offset is None:
            offset = self._grow(size, node)
        block = _Block(size, offset, node, len(self._changes))
        self._blocks.append(block)
        self._come(ref, nbytes, block)

    def inherit(self, ref: Ref, source: Ref) -> None:
        """Let ``ref`` take over the memory of ``source``, which ends (rule 3)."""
        self._go(source)
        self._come(ref, self._sizes[source], self._block_of[source])

    def release(self, ref: Ref, users: Iterable[str] = ()) -> None:
        """``ref`` ends; ``users`` are those that wrote and read it."""
        block = self._block_of[ref]
        block.end = len(self._changes)
        self._go(ref)
        if self._is_over is not None:
            block.users = tuple(users)
        if block.size:
            self._add_gap(block.offset, block.offset + block.size, block.users)

    def plan(self) -> MemoryPlan:
        """The smaller of the two plans."""
        offsets, nbytes = {block: block.offset for block in self._blocks}, self._top
        if nbytes > TOLERATED * self._peak_bytes and len(self._blocks) <= MAX_BY_SIZE:
            by_size = self._offsets_by_size()
            top = max(offset + block.size for block, offset in by_size.items())
            if top < nbytes:
                offsets, nbytes = by_size, top
        found = {ref: offsets[block] for ref, block in self._block_of.items()}
        return MemoryPlan(found, self._sizes, nbytes, self._peak_bytes, self._peak())

    # --- liveness

    def _come(self, ref: Ref, nbytes: int, block: _Block) -> None:
        self._block_of[ref], self._sizes[ref] = block, nbytes
        self._live_bytes += block.size
        self._changes.append((ref, True))
        if self._live_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_at = self._live_bytes, len(self._changes)

    def _go(self, ref: Ref) -> None:
        self._live_bytes -= self._block_of[ref].size
        self._changes.append((ref, False))

    def _peak(self) -> tuple[Ref, ...]:
        live: dict[Ref, None] = {}
        for ref, comes in self._changes[: self._peak_at]:
            if comes:
                live[ref] = None
            else:
                del live[ref]
        return tuple(live)

    # --- by size

    def _offsets_by_size(self) -> dict[_Block, int]:
        placed: list[tuple[int, int, float, float, _Block]] = []
        """(start, stop, begin, end, block), by start: reading attributes would take as long again."""
        offsets: dict[_Block, int] = {}
        for block in sorted(self._blocks, key=lambda block: -block.size):
            offsets[block] = start = self._lowest(placed, block)
            insort(placed, (start, start + block.size, block.begin, block.end, block), key=itemgetter(0))
        return offsets

    def _lowest(self, placed: list[tuple[int, int, float, float, _Block]], block: _Block) -> int:
        """The lowest offset at which none of ``placed`` is in the way of ``block``."""
        lowest, size, begin, end = 0, block.size, block.begin, block.end
        all_are_over = self._is_over is None
        for start, stop, other_begin, other_end, other in placed:
            if other_end < begin and (all_are_over or self._are_over(other.users, block.writer)):
                continue
            if end < other_begin and (all_are_over or self._are_over(block.users, other.writer)):
                continue
            if start - lowest >= size:
                break
            if stop > lowest:
                lowest = stop
        return lowest

    def _are_over(self, users: Iterable[str], now: str) -> bool:
        is_over = self._is_over
        return is_over is None or all(is_over(user, now) for user in users)

    # --- in order

    def _find(self, size: int, node: str) -> int | None:
        """The start of the smallest gap that holds ``size`` and that ``node`` may write into."""
        for i in range(bisect_left(self._gaps, (size, 0)), len(self._gaps)):
            length, start = self._gaps[i]
            if self._are_over(self._users[start], node):
                users = self._remove_gap(start)
                if length > size:
                    self._add_gap(start + size, start + length, users)
                return start
        return None

    def _grow(self, size: int, node: str) -> int:
        """Make the arena larger, from the start of a gap at its end if there is one."""
        start = self._ends.get(self._top, self._top)
        if start < self._top and self._are_over(self._users[start], node):
            self._remove_gap(start)
        else:
            start = self._top
        self._top = start + size
        return start

    def _add_gap(self, start: int, end: int, users: tuple[str, ...]) -> None:
        if (before := self._ends.get(start)) is not None:
            users += self._remove_gap(before)
            start = before
        if end in self._starts:
            after = self._starts[end]
            users += self._remove_gap(end)
            end = after
        insort(self._gaps, (end - start, start))
        self._starts[start], self._ends[end], self._users[start] = end, start, users

    def _remove_gap(self, start: int) -> tuple[str, ...]:
        end = self._starts.pop(start)
        del self._ends[end]
        del self._gaps[bisect_left(self._gaps, (end - start, start))]
        return self._users.pop(start)
