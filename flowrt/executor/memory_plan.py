"""The memory plan: where in one arena each buffer of a compiled partition lies.

The order in which the nodes run is known, so which buffers are live at once is too, and a free place can be
reused at once: best fit over the arena's gaps, in the order of time, with coalescing (Y. Pisarchyk and
J. Lee, "Efficient memory management for deep neural net inference", 2020, compare such planners). A gap is
found by (size, offset), so equal sizes come back where they are warm.

Rules of this file:

  1. It is pure: sizes and positions in, offsets out. It knows no device and no array.
  2. A gap carries who must have ended before it may be used again; with several streams, a buffer takes only
     gaps whose last users are over for certain when its writer begins.
  3. A buffer that is written over an input (in place) takes that input's place, exactly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, final

from flowrt.graph.node import Ref

GRAIN = 64
"""Bytes: the alignment of every buffer (`flowrt.device.stream_executor.ALIGNMENT`)."""


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
class ArenaPlanner:
    """Places buffers as they come and go. ``is_over(user, now)``: whether node ``user`` has ended for certain
    when ``now`` begins.
    """

    def __init__(self, is_over: Callable[[str, str], bool] | None = None) -> None:
        self._is_over = is_over
        self._offsets: dict[Ref, int] = {}
        self._sizes: dict[Ref, int] = {}
        self._live: dict[Ref, int] = {}
        """Of each live buffer its size, rounded."""
        self._gaps: list[tuple[int, int]] = []
        """(size, offset), sorted."""
        self._starts: dict[int, int] = {}
        """Of each gap its end, by its start."""
        self._ends: dict[int, int] = {}
        self._users: dict[int, tuple[str, ...]] = {}
        """Of each gap, by its start, who must have ended before it is used again."""
        self._top = self._live_bytes = self._peak_bytes = 0
        self._changes: list[tuple[Ref, bool]] = []
        """Each buffer as it comes (True) and goes."""
        self._peak_at = 0
        """The number of changes after which most bytes were live."""

    def allocate(self, ref: Ref, nbytes: int, node: str) -> int:
        """Place a buffer of ``nbytes`` that ``node`` writes; its offset."""
        size = _rounded(nbytes)
        offset = self._find(size, node)
        if offset is None:
            offset = self._grow(size, node)
        self._hold(ref, nbytes, offset, size)
        return offset

    def inherit(self, ref: Ref, source: Ref) -> int:
        """Rule 3: ``ref`` takes the place of ``source``, which ends."""
        size = self._end(source)
        self._hold(ref, self._sizes[source], self._offsets[source], size)
        return self._offsets[ref]

    def release(self, ref: Ref, users: Iterable[str] = ()) -> None:
        """``ref`` ends; ``users`` are those that wrote and read it."""
        size = self._end(ref)
        if size:
            offset = self._offsets[ref]
            self._add_gap(offset, offset + size, () if self._is_over is None else tuple(users))

    def plan(self) -> MemoryPlan:
        peak: dict[Ref, None] = {}
        for ref, comes in self._changes[: self._peak_at]:
            if comes:
                peak[ref] = None
            else:
                del peak[ref]
        return MemoryPlan(self._offsets, self._sizes, self._top, self._peak_bytes, tuple(peak))

    def _end(self, ref: Ref) -> int:
        size = self._live.pop(ref)
        self._live_bytes -= size
        self._changes.append((ref, False))
        return size

    # --- gaps

    def _hold(self, ref: Ref, nbytes: int, offset: int, size: int) -> None:
        self._offsets[ref], self._sizes[ref], self._live[ref] = offset, nbytes, size
        self._live_bytes += size
        self._changes.append((ref, True))
        if self._live_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_at = self._live_bytes, len(self._changes)

    def _find(self, size: int, node: str) -> int | None:
        """The start of the smallest gap that holds ``size`` and that ``node`` may write into."""
        for i in range(bisect_left(self._gaps, (size, 0)), len(self._gaps)):
            length, start = self._gaps[i]
            if self._may_use(start, node):
                users = self._remove_gap(start)
                if length > size:
                    self._add_gap(start + size, start + length, users)
                return start
        return None

    def _grow(self, size: int, node: str) -> int:
        """Make the arena larger, from the start of a gap at its end if there is one."""
        start = self._ends.get(self._top, self._top)
        if start < self._top and self._may_use(start, node):
            self._remove_gap(start)
        else:
            start = self._top
        self._top = start + size
        return start

    def _may_use(self, start: int, node: str) -> bool:
        is_over = self._is_over
        return is_over is None or all(is_over(user, node) for user in self._users[start])

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


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRAIN) * GRAIN
