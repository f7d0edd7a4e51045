"""Best fit with coalescing, over integer addresses: pure, without memory, locks, threads or clocks.

The caller adds regions of address space (`BFCAllocator.add_region`) and gets chunks of them. A chunk is used,
or free, or waiting: freed by a stream that has not passed its last use yet, so that only this stream may
reuse it.

Rules of this file:

  1. Chunks tile the regions: they start and end at multiples of 256 bytes, do not overlap, leave no gap and
     cross no region's border.
  2. Neighbours available to the same streams from the same moment on are one chunk.
  3. A request gets the smallest chunk that is large enough and available to its stream, the one at the lowest
     address among equals, split to size.
  4. A call that raises or returns None has changed nothing, except that it may have merged free chunks.

The algorithm is that of TensorFlow's ``BFCAllocator``, after Doug Lea's malloc ("A Memory Allocator", 1996).
One difference: every chunk is split to its size. TensorFlow leaves up to half of a chunk unused to avoid
small pieces, which alone may double the memory.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InternalError, InvalidArgumentError, OpError

MIN_CHUNK = 256
"""Bytes. What the CUDA driver aligns to; a multiple of a cache line and of every vector register."""

BIN_COUNT = 21
"""Bin b has the free chunks of 256 * 2**b bytes up to twice that; the last all from 256 MiB up."""

FIRST_REGION = 1 << 17
"""Size in bytes, or less if requests do not fit evenly. With 1 MiB, a small CNN without a plan reserves 1.19
times its peak live memory, with 256 KiB 1.15; with this 1.04, in 36 regions.
"""

AHEAD = 8
"""One part in 8 of the most that was in use is reserved ahead of need. TensorFlow doubles its regions each
time, and ends with up to twice the memory that is needed.
"""

LEAST_GROWTH = 32
"""Reciprocal of the minimum reserved fraction of a region, so that 22 regions or fewer double the memory."""

Status: TypeAlias = tuple[Hashable, int] | None
"""Status of a free chunk: None, or the stream that it waits for and the stamp which that stream must pass."""


class ChunkState(enum.Enum):
    """The values are the letters of `BFCAllocator.picture`."""

    USED = "#"
    WAITING = "~"
    FREE = "."


class Chunk(NamedTuple):
    """``nbytes`` bytes of a region, at ``address``."""

    address: int
    nbytes: int
    state: ChunkState


class Region(NamedTuple):
    """A contiguous region added by the caller."""

    address: int
    nbytes: int


class Growth(NamedTuple):
    """Steps to make room: remove the regions of ``give_back``, then add one of ``nbytes`` bytes."""

    give_back: list[Region]
    nbytes: int


class BinStats(NamedTuple):
    """The chunks of ``smallest`` bytes up to twice that. Free ones include those that wait."""

    smallest: int
    free_chunks: int
    free_bytes: int
    used_chunks: int
    used_bytes: int


class AllocatorStats(NamedTuple):
    """Counts and bytes, under TensorFlow's names. Bytes in use are those of whole chunks, rounded up."""

    num_allocs: int
    bytes_in_use: int
    peak_bytes_in_use: int
    largest_alloc_size: int
    bytes_limit: int
    bytes_reserved: int
    peak_bytes_reserved: int
    largest_free_block_bytes: int
    """The largest chunk that is free or waiting."""

    @property
    def fragmentation(self) -> float:
        """The part of the free bytes that is not in the largest free chunk: 0 for one free chunk or none."""
        free = self.bytes_reserved - self.bytes_in_use
        return 1 - self.largest_free_block_bytes / free if free else 0.0


def round_up(nbytes: int) -> int:
    """The bytes of the chunk that a request for ``nbytes`` gets: a multiple of 256, not 0."""
    return (nbytes + MIN_CHUNK - 1) // MIN_CHUNK * MIN_CHUNK or MIN_CHUNK


class _Bins:
    """Free chunks by size. Each bin is a sorted list of ``(nbytes, address)``; a bit marks non-empty bins."""

    __slots__ = ("_filled", "_lists")

    def __init__(self) -> None:
        self._lists: list[list[tuple[int, int]]] = [[] for _ in range(BIN_COUNT)]
        self._filled = 0

    def add(self, nbytes: int, address: int) -> None:
        index = _bin_index(nbytes)
        insort(self._lists[index], (nbytes, address))
        self._filled |= 1 << index

    def remove(self, nbytes: int, address: int) -> None:
        index = _bin_index(nbytes)
        chunks = self._lists[index]
        del chunks[bisect_left(chunks, (nbytes, address))]
        if not chunks:
            self._filled ^= 1 << index

    def best(self, nbytes: int) -> tuple[int, int] | None:
        """The first chunk of at least ``nbytes``, by size and address."""
        index = _bin_index(nbytes)
        chunks = self._lists[index]
        at = bisect_left(chunks, (nbytes, 0))
        if at < len(chunks):
            return chunks[at]
        larger = self._filled >> index + 1
        if not larger:
            return None
        return self._lists[index + (larger & -larger).bit_length()][0]

    def largest(self) -> int:
        """Size of the largest chunk in bytes; 0 if there is none."""
        return self._lists[self._filled.bit_length() - 1][-1][0] if self._filled else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for chunks in self._lists:
            yield from chunks


def _bin_index(nbytes: int) -> int:
    """``nbytes`` is rounded: at least 256, which has 9 bits."""
    index = nbytes.bit_length() - 9
    return index if index < BIN_COUNT else BIN_COUNT - 1


@final
class BFCAllocator:
    """Allocator of at most ``limit`` bytes of regions, and their chunks.

    A stream is any hashable; None is no particular stream: it has no waiting chunks, and chunks that it frees
    are free for all. The streams' progress is reported by `advance`, as increasing integer stamps.
    """

    def __init__(self, limit: int) -> None:
        if limit < MIN_CHUNK:
            raise InvalidArgumentError(f"BFCAllocator: expected a limit of 256 bytes or more; got {limit}")
        self._limit = limit // MIN_CHUNK * MIN_CHUNK
        self._regions: dict[int, int] = {}  # bytes by address, as in the next two
        self._used: dict[int, int] = {}
        self._free: dict[int, int] = {}  # the waiting ones too
        self._free_ends: dict[int, int] = {}  # address by address of the end: the neighbour before
        self._status: dict[int, tuple[Hashable, int]] = {}  # of the waiting ones
        self._bins: dict[Hashable, _Bins] = {None: _Bins()}
        self._reserved = self._peak_reserved = 0
        self._in_use = self._peak_in_use = 0
        self._num_allocs = self._largest_alloc = 0
        self._most_in_use = 0  # before `clear_stats`, which must not change how memory grows

    # --- chunks

    def allocate(self, nbytes: int, stream: Hashable = None) -> int | None:
        """The address of ``nbytes`` bytes, or None if no sequence of free chunks is large enough. 0 bytes get
        an address too.

        Raises `InvalidArgumentError` for a size that is negative or not an integer.
        """
        try:
            size = (nbytes + 255) & -256 or MIN_CHUNK  # `round_up`, without the call
        except TypeError:
            size = -1
        if size < 0 or nbytes < 0:
            raise InvalidArgumentError(f"BFCAllocator.allocate: expected 0 bytes or more; got {nbytes!r}")
        found = self._bins[None].best(size)
        if stream in self._bins and stream is not None:
            found = self._best_of_two(found, size, stream)
        if found is None:
            return None
        chunk, address = found
        status = self._remove(address)
        if chunk > size:
            self._add(address + size, chunk - size, status)
        self._used[address] = size
        self._num_allocs += 1
        self._in_use += size
        if self._in_use > self._peak_in_use:
            self._peak_in_use = self._in_use
        if nbytes > self._largest_alloc:
            self._largest_alloc = nbytes
        return address

    def deallocate(self, address: int, stream: Hashable = None, stamp: int = 0) -> None:
        """Free a chunk. ``stream`` may reuse it at once, the others after ``advance(stream, stamp)``.

        Raises `InvalidArgumentError` for an address that was not allocated or was already freed.
        """
        size = self._used.pop(address, None)
        if size is None:
            raise self._bad_address(address)
        self._in_use -= size
        self._insert(address, size, None if stream is None else (stream, stamp))

    def advance(self, stream: Hashable, stamp: int) -> None:
        """Report that ``stream`` has passed ``stamp``: chunks that waited for it become free for all."""
        ripe = [at for at, (waits_for, due) in self._status.items() if waits_for == stream and due <= stamp]
        for address in ripe:
            size = self._free[address]
            self._remove(address)
            self._insert(address, size, None)
        if stream is not None and stream in self._bins and not self._bins[stream].largest():
            del self._bins[stream]

    # --- regions

    def growth(self, nbytes: int) -> Growth | None:
        """Steps that make ``nbytes`` fit into a new region, or None if the limit forbids it.

        A region increases the reserved bytes to 9/8 of the peak in use, but at most doubles them, and is at
        least `FIRST_REGION` and 1/32 of them, all in whole multiples of the request, so that no tail is left
        over. If the request alone exceeds those 9/8, free regions are removed first, smallest first.

        At the peak of training steps of one shape, at most 1.13 times the live bytes are reserved, 1.18 if
        batches vary in size, and 1.51 if they do and a single tensor is a third of all memory. Growing to 8
        GiB in pieces of 256 KiB takes 74 regions (``python -m benchmarks.allocator``).
        """
        size = round_up(nbytes)
        most = max(self._most_in_use, self._peak_in_use, self._in_use + size)
        aim = min(self._limit, most + most // AHEAD)
        give_back, left = [], self._reserved
        for region in sorted(self.free_regions(), key=lambda region: region.nbytes):
            if left + size <= aim:
                break
            give_back.append(region)
            left -= region.nbytes
        if left + size > self._limit:
            return None
        ahead = max(FIRST_REGION, left // LEAST_GROWTH, min(left, aim - left)) // size * size
        return Growth(give_back, min(self._limit - left, max(size, ahead)))

    def add_region(self, address: int, nbytes: int) -> None:
        """Add a free region.

        Raises `InvalidArgumentError` if it is not aligned, overlaps another one, or exceeds the limit.
        """
        if address % MIN_CHUNK or nbytes % MIN_CHUNK or nbytes <= 0:
            raise InvalidArgumentError(
                f"BFCAllocator.add_region: expected multiples of 256; got {nbytes} bytes at {address:#x}"
            )
        if any(address < start + size and start < address + nbytes for start, size in self._regions.items()):
            raise InvalidArgumentError(
                f"BFCAllocator.add_region: expected no overlap with another region; got {nbytes} at "
                f"{address:#x}"
            )
        if self._reserved + nbytes > self._limit:
            raise InvalidArgumentError(
                f"BFCAllocator.add_region: expected at most {self._limit - self._reserved} bytes more, the "
                f"limit is {self._limit}; got {nbytes}"
            )
        self._regions[address] = nbytes
        self._reserved += nbytes
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        self._add(address, nbytes, None)

    def free_regions(self) -> list[Region]:
        """Regions without used or waiting chunks, which the caller may remove."""
        return [
            Region(address, size)
            for address, size in self._regions.items()
            if self._free.get(address) == size and address not in self._status
        ]

    def remove_region(self, address: int) -> None:
        """Take away a region. Raises `InvalidArgumentError` when it is not one of `free_regions`."""
        if not any(region.address == address for region in self.free_regions()):
            raise InvalidArgumentError(
                f"BFCAllocator.remove_region: expected a region with all chunks free; got {address:#x}"
            )
        self._remove(address)
        self._reserved -= self._regions.pop(address)

    # --- statistics

    def stats(self) -> AllocatorStats:
        """Peaks and counts are since the last `clear_stats`."""
        return AllocatorStats(
            num_allocs=self._num_allocs,
            bytes_in_use=self._in_use,
            peak_bytes_in_use=self._peak_in_use,
            largest_alloc_size=self._largest_alloc,
            bytes_limit=self._limit,
            bytes_reserved=self._reserved,
            peak_bytes_reserved=self._peak_reserved,
            largest_free_block_bytes=max(bins.largest() for bins in self._bins.values()),
        )

    def clear_stats(self) -> None:
        """Reset counts to 0, and peaks to the current values."""
        self._num_allocs = self._largest_alloc = 0
        self._most_in_use = max(self._most_in_use, self._peak_in_use)
        self._peak_in_use, self._peak_reserved = self._in_use, self._reserved

    def chunks(self) -> list[Chunk]:
        """All of them, by address."""
        found = [Chunk(address, size, ChunkState.USED) for address, size in self._used.items()]
        for address, size in self._free.items():
            state = ChunkState.WAITING if address in self._status else ChunkState.FREE
            found.append(Chunk(address, size, state))
        return sorted(found, key=lambda chunk: chunk.address)

    def bins(self) -> list[BinStats]:
        """Non-empty bins, by size."""
        counts = [[0, 0, 0, 0] for _ in range(BIN_COUNT)]
        for _, size, state in self.chunks():
            count = counts[_bin_index(size)]
            column = 2 if state is ChunkState.USED else 0
            count[column] += 1
            count[column + 1] += size
        return [BinStats(MIN_CHUNK << index, *count) for index, count in enumerate(counts) if any(count)]

    def picture(self, columns: int = 100) -> str:
        """All regions side by side, by address: each column has an equal part of the bytes, and the letter of
        the `ChunkState` that most of them are in.
        """
        shares = [dict.fromkeys(ChunkState, 0) for _ in range(columns)]
        start = 0  # in units of 1/columns byte, so that the columns' borders are integers
        for _, size, state in self.chunks():
            end = start + size * columns
            for column in range(start // self._reserved, -(-end // self._reserved)):
                left, right = column * self._reserved, (column + 1) * self._reserved
                shares[column][state] += min(end, right) - max(start, left)
            start = end
        if not self._reserved:
            return ""
        return "".join(max(share, key=lambda state: share[state]).value for share in shares)

    def check(self) -> None:
        """Raises `InternalError` when a rule of this file is broken, or a count is wrong."""
        chunks = self.chunks()
        binned = {address: (size, stream) for stream, bins in self._bins.items() for size, address in bins}
        free = {at: (size, self._status.get(at, (None,))[0]) for at, size in self._free.items()}
        for rule, holds in (
            ("chunks that tile the regions", _tile(chunks, self._regions)),
            ("chunks of multiples of 256 bytes", all(not (c.address | c.nbytes) % MIN_CHUNK for c in chunks)),
            ("no two free neighbours of one status", not self._unmerged()),
            ("every free chunk in its bin", binned == free),
            ("one bin a free chunk", sum(1 for bins in self._bins.values() for _ in bins) == len(free)),
            ("the ends of the free chunks", self._free_ends == {a + n: a for a, n in self._free.items()}),
            ("a status for free chunks only", self._status.keys() <= self._free.keys()),
            ("bytes in use that add up", self._in_use == sum(self._used.values()) <= self._peak_in_use),
            ("bytes reserved that add up", self._reserved == sum(self._regions.values())),
            ("reserved bytes in the limit", self._reserved <= self._peak_reserved <= self._limit),
        ):
            if not holds:
                raise InternalError(f"BFCAllocator: expected {rule}; violated")

    # --- free chunks

    def _add(self, address: int, size: int, status: Status) -> None:
        """Note a free chunk in all tables."""
        self._free[address] = size
        self._free_ends[address + size] = address
        if status is None:
            self._bins[None].add(size, address)
        else:
            self._status[address] = status
            self._bins.setdefault(status[0], _Bins()).add(size, address)

    def _remove(self, address: int) -> Status:
        """Forget a free chunk, and return its status."""
        size = self._free.pop(address)
        del self._free_ends[address + size]
        status = self._status.pop(address, None)
        self._bins[None if status is None else status[0]].remove(size, address)
        return status

    def _insert(self, address: int, size: int, status: Status) -> None:
        """Note a free chunk, merged with its neighbours of the same status."""
        end = address + size
        after = self._free.get(end)
        if after is not None and end not in self._regions and self._status.get(end) == status:
            self._remove(end)
            size += after
        before = self._free_ends.get(address)
        if before is not None and address not in self._regions and self._status.get(before) == status:
            self._remove(before)
            size += address - before
            address = before
        self._add(address, size, status)

    def _best_of_two(
        self, free: tuple[int, int] | None, size: int, stream: Hashable
    ) -> tuple[int, int] | None:
        """The best of ``free`` and of chunks waiting for ``stream``, merged from both if neither suffices."""
        found = [chunk for chunk in (free, self._bins[stream].best(size)) if chunk is not None]
        return min(found) if found else self._merge(size, stream)

    def _merge(self, size: int, stream: Hashable) -> tuple[int, int] | None:
        """The smallest sequence of ``size`` bytes available to ``stream``, merged to one chunk: its parts
        that were free for all then wait for the stream, until the latest stamp in it.
        """
        rows = [row for row in self._rows(stream) if sum(self._free[at] for at in row) >= size]
        if not rows:
            return None
        row = min(rows, key=lambda row: (sum(self._free[at] for at in row), row[0]))
        stamp = max(self._status[at][1] for at in row if at in self._status)
        total = sum(self._free[at] for at in row)
        for address in row:
            self._remove(address)
        self._add(row[0], total, (stream, stamp))
        return total, row[0]

    def _rows(self, stream: Hashable) -> list[list[int]]:
        """The free chunks that ``stream`` may have, neighbours together."""
        rows: list[list[int]] = []
        end = -1
        for address in sorted(self._free):
            if self._status.get(address, (stream,))[0] == stream:
                if address != end or address in self._regions:
                    rows.append([])
                rows[-1].append(address)
                end = address + self._free[address]
        return rows

    def _unmerged(self) -> list[int]:
        return [
            end
            for end, address in self._free_ends.items()
            if end in self._free
            and end not in self._regions
            and self._status.get(end) == self._status.get(address)
        ]

    def _bad_address(self, address: int) -> OpError:
        for start, size in self._regions.items():
            if start <= address < start + size:
                known = "is free already" if address in self._free else "is not where an allocation starts"
                return InvalidArgumentError(
                    f"BFCAllocator.deallocate: expected an address in use; {address:#x} {known}"
                )
        return InvalidArgumentError(
            f"BFCAllocator.deallocate: expected an address of this allocator; got {address:#x}"
        )


def _tile(chunks: list[Chunk], regions: dict[int, int]) -> bool:
    """Whether the chunks, by address, cover the regions without gap and overlap."""
    rest = iter(chunks)
    for start, size in sorted(regions.items()):
        at = start
        while at < start + size:
            chunk = next(rest, None)
            if chunk is None or chunk.address != at:
                return False
            at += chunk.nbytes
        if at != start + size:
            return False
    return next(rest, None) is None
