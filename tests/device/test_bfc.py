"""`BFCAllocator`: the rules of its file, against a model that knows only cells of 256 bytes."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.device.bfc import (
    AHEAD,
    FIRST_REGION,
    LEAST_GROWTH,
    BFCAllocator,
    BinStats,
    Chunk,
    ChunkState,
    Region,
)
from flowrt.errors import InternalError, InvalidArgumentError

CELL = 256
MIB = 1 << 20
FUZZ_OPERATIONS = 100_000
FUZZ_RUNS = 10
STREAMS = (None, "a", "b")


def allocator_of(*cells: int, limit: int = 1 << 40) -> BFCAllocator:
    """Regions of so many cells each, one right behind the other."""
    allocator = BFCAllocator(limit)
    at = CELL
    for count in cells:
        allocator.add_region(at, count * CELL)
        at += count * CELL
    return allocator


def allocate(allocator: BFCAllocator, *cells: int, stream: Hashable = None) -> list[int]:
    addresses = [allocator.allocate(count * CELL, stream) for count in cells]
    assert None not in addresses
    return [address for address in addresses if address is not None]


def layout(allocator: BFCAllocator) -> str:
    """``4# 2.`` for four used cells and two free ones."""
    allocator.check()
    return " ".join(f"{chunk.nbytes // CELL}{chunk.state.value}" for chunk in allocator.chunks())


# --- sizes and places


@pytest.mark.parametrize("nbytes, in_use", [(0, 256), (1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_sizes_are_rounded_up_to_256_bytes(nbytes, in_use):
    allocator = allocator_of(16)
    assert allocator.allocate(nbytes) is not None
    assert allocator.stats().bytes_in_use == in_use
    assert allocator.stats().largest_alloc_size == nbytes


def test_the_smallest_chunk_that_fits_is_taken_and_the_lowest_of_equals():
    allocator = allocator_of(40)
    holes = allocate(allocator, 6, 1, 4, 1, 4, 1, 5, 1)
    for address in holes[::2]:
        allocator.deallocate(address)
    assert layout(allocator) == "6. 1# 4. 1# 4. 1# 5. 1# 17."
    assert allocate(allocator, 4, 4, 4, 6, 7) == [*holes[2:5:2], holes[6], holes[0], holes[7] + CELL]


def test_a_chunk_larger_than_its_bin_is_found_in_a_higher_bin():
    allocator = allocator_of(7, 1 << 21)  # the second is 512 MiB, beyond the first border of the last bin
    assert allocate(allocator, 1 << 20, 5) == [8 * CELL, CELL]


def test_a_request_that_fits_nowhere_gets_none_and_changes_nothing():
    allocator = allocator_of(4, 4)
    allocate(allocator, 2)
    before = layout(allocator), allocator.stats()
    assert allocator.allocate(5 * CELL) is None
    assert (layout(allocator), allocator.stats()) == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_merge_in_any_order(order):
    allocator = allocator_of(6)
    addresses = allocate(allocator, 1, 2, 3)
    for index in order:
        allocator.deallocate(addresses[index])
    assert layout(allocator) == "6."


def test_chunks_do_not_merge_over_the_border_of_two_regions():
    allocator = allocator_of(4, 4)
    for address in allocate(allocator, 4, 4):
        allocator.deallocate(address)
    assert layout(allocator) == "4. 4."


# --- bad input


def test_a_second_free_is_refused_and_loses_nothing():
    allocator = allocator_of(8)
    first, second = allocate(allocator, 2, 2)
    allocator.deallocate(first)
    with pytest.raises(InvalidArgumentError, match="0x100 is free already"):
        allocator.deallocate(first)
    assert layout(allocator) == "2. 2# 4."
    allocator.deallocate(second)
    assert layout(allocator) == "8."


@pytest.mark.parametrize(
    "address, why",
    [(CELL + 1, "is not where an allocation starts"), (1 << 30, "expected an address of this allocator")],
)
def test_a_foreign_address_is_refused(address, why):
    allocator = allocator_of(8)
    allocate(allocator, 2)
    with pytest.raises(InvalidArgumentError, match=why):
        allocator.deallocate(address)
    assert layout(allocator) == "2# 6."


def test_sizes_and_limits_that_make_no_sense_are_refused():
    with pytest.raises(InvalidArgumentError, match="got -1"):
        allocator_of(8).allocate(-1)
    with pytest.raises(InvalidArgumentError, match="got 255"):
        BFCAllocator(255)


@pytest.mark.parametrize(
    "address, nbytes, why",
    [
        (4 * CELL, CELL, "no overlap with another region"),
        (0, 2 * CELL, "no overlap with another region"),
        (64 * CELL + 1, CELL, "multiples of 256"),
        (64 * CELL, 300, "multiples of 256"),
        (64 * CELL, 0, "multiples of 256"),
        (64 * CELL, 9 * CELL, "at most 2048 bytes more"),
    ],
)
def test_a_bad_region_is_refused(address, nbytes, why):
    allocator = allocator_of(8, limit=16 * CELL)
    with pytest.raises(InvalidArgumentError, match=why):
        allocator.add_region(address, nbytes)
    assert layout(allocator) == "8."


# --- streams


def test_waiting_memory_goes_to_its_own_stream_only():
    allocator = allocator_of(4)
    (address,) = allocate(allocator, 4, stream="a")
    allocator.deallocate(address, "a", 7)
    assert layout(allocator) == "4~"
    assert allocator.allocate(CELL, "b") is None
    assert allocator.allocate(CELL) is None
    assert allocate(allocator, 1, stream="a") == [address]
    assert layout(allocator) == "1# 3~"


def test_waiting_memory_is_free_for_all_once_its_stamp_is_passed():
    allocator = allocator_of(4)
    first, second = allocate(allocator, 2, 2, stream="a")
    allocator.deallocate(first, "a", 7)
    allocator.deallocate(second, "a", 8)
    allocator.advance("b", 9)
    allocator.advance("a", 6)
    assert layout(allocator) == "2~ 2~"
    allocator.advance("a", 7)
    assert layout(allocator) == "2. 2~"
    allocator.advance("a", 8)
    assert layout(allocator) == "4."


def test_waiting_memory_merges_with_none_but_its_like():
    allocator = allocator_of(6)
    addresses = allocate(allocator, *[1] * 6)
    frees = [("a", 1), ("a", 1), ("a", 2), ("b", 2), (None, 0), (None, 0)]
    for address, (stream, stamp) in zip(addresses, frees, strict=True):
        allocator.deallocate(address, stream, stamp)
    assert layout(allocator) == "2~ 1~ 1~ 2."


def test_a_stream_in_need_gets_a_row_of_its_own_and_free_memory_until_the_latest_stamp():
    allocator = allocator_of(8)
    addresses = allocate(allocator, *[1] * 8)
    for address, (stream, stamp) in zip(
        addresses,
        [("a", 1), (None, 0), ("a", 2), ("b", 2), ("a", 9), ("a", 8), (None, 0), ("a", 1)],
        strict=True,
    ):
        allocator.deallocate(address, stream, stamp)
    assert allocate(allocator, 3, stream="a") == [addresses[0]]  # the smaller of the two rows
    allocator.deallocate(addresses[0], "a", 2)
    assert allocate(allocator, 4, stream="a") == [addresses[4]]
    allocator.deallocate(addresses[4], "a", 10)
    assert layout(allocator) == "3~ 1~ 4~"


def test_what_was_free_waits_with_the_rest_of_a_merged_row():
    allocator = allocator_of(4)
    mine = allocate(allocator, 2, 1, 1, stream="a")[0]
    allocator.deallocate(mine, "a", 5)
    allocator.deallocate(mine + 2 * CELL)
    assert allocate(allocator, 3, stream="a") == [mine]
    allocator.deallocate(mine, "a", 6)
    allocator.advance("a", 5)
    assert layout(allocator) == "3~ 1#"
    allocator.advance("a", 6)
    assert layout(allocator) == "3. 1#"


# --- regions


def test_growth_starts_small_and_is_a_part_of_what_is_there():
    allocator, at, sizes = BFCAllocator(1 << 40), 0, []
    while allocator.stats().bytes_in_use < 1 << 30:
        if allocator.allocate(FIRST_REGION) is None:
            growth = allocator.growth(FIRST_REGION)
            assert growth is not None
            assert growth.give_back == []
            allocator.add_region(at, growth.nbytes)
            at += growth.nbytes
            sizes.append(growth.nbytes)
    assert sizes[0] == FIRST_REGION
    assert at <= (1 << 30) * (1 + 1 / AHEAD)
    assert len(sizes) < 100
    assert all(size >= sum(sizes[:i]) // LEAST_GROWTH - FIRST_REGION for i, size in enumerate(sizes))


@given(nbytes=st.integers(1, MIB // 2))
def test_equal_pieces_leave_no_tails(nbytes):
    allocator, top = BFCAllocator(1 << 40), 0
    for _ in range(200):
        if allocator.allocate(nbytes) is None:
            growth = allocator.growth(nbytes)
            assert growth is not None
            allocator.add_region(top, growth.nbytes)
            top += growth.nbytes
            assert allocator.allocate(nbytes) is not None
        in_use = allocator.stats().bytes_in_use
        assert top <= max(in_use + in_use // AHEAD, in_use + FIRST_REGION)


def test_growth_for_one_large_request_is_no_larger():
    growth = BFCAllocator(1 << 40).growth(100 * MIB + 1)
    assert growth == ([], 100 * MIB + CELL)


def test_growth_is_within_the_limit():
    allocator = BFCAllocator(FIRST_REGION + 3 * CELL)
    allocator.add_region(0, FIRST_REGION)
    allocate(allocator, FIRST_REGION // CELL)
    assert allocator.growth(CELL) == ([], 3 * CELL)
    assert allocator.growth(4 * CELL) is None


def test_free_regions_go_before_the_limit_stops_growth():
    allocator = allocator_of(4, 8, 4, limit=20 * CELL)
    kept = allocate(allocator, 3)[0]
    assert allocator.free_regions() == [Region(5 * CELL, 8 * CELL), Region(13 * CELL, 4 * CELL)]
    growth = allocator.growth(16 * CELL)
    assert growth is not None
    assert [region.nbytes for region in growth.give_back] == [4 * CELL, 8 * CELL]
    assert growth.nbytes == 16 * CELL
    assert allocator.growth(17 * CELL) is None
    for region in growth.give_back:
        allocator.remove_region(region.address)
    assert layout(allocator) == "3# 1."
    allocator.deallocate(kept)


def test_clearing_the_stats_does_not_change_how_memory_grows():
    allocator = allocator_of(1 << 14)
    (address,) = allocate(allocator, 1 << 14)
    allocator.deallocate(address)
    before = allocator.growth(5 * MIB)
    allocator.clear_stats()
    assert allocator.stats().peak_bytes_in_use == 0
    assert allocator.growth(5 * MIB) == before


def test_a_region_in_use_or_waiting_cannot_be_removed():
    allocator = allocator_of(4, 4)
    used, waiting = allocate(allocator, 4, 4, stream="a")
    allocator.deallocate(waiting, "a", 1)
    for address in (used, waiting, 1 << 30):
        with pytest.raises(InvalidArgumentError, match="expected a region with all chunks free"):
            allocator.remove_region(address)
    assert layout(allocator) == "4# 4~"


# --- what there is


def test_stats():
    allocator = allocator_of(16, limit=32 * CELL)
    first, second, _ = allocate(allocator, 4, 6, 2)
    allocator.deallocate(first)
    allocator.deallocate(second)
    assert allocate(allocator, 3) == [first + 10 * CELL + 2 * CELL]
    stats = allocator.stats()
    assert stats == (4, 5 * CELL, 12 * CELL, 6 * CELL, 32 * CELL, 16 * CELL, 16 * CELL, 10 * CELL)
    assert stats.fragmentation == pytest.approx(1 / 11)
    allocator.clear_stats()
    assert allocator.stats()[:4] == (0, 5 * CELL, 5 * CELL, 0)
    assert BFCAllocator(CELL).stats().fragmentation == 0


def test_chunks_bins_and_picture():
    allocator = allocator_of(16)
    first, second, _ = allocate(allocator, 4, 4, 4, stream="a")
    allocator.deallocate(first, "a", 1)
    allocator.deallocate(second)
    assert allocator.chunks()[:2] == [
        Chunk(first, 4 * CELL, ChunkState.WAITING),
        Chunk(second, 4 * CELL, ChunkState.FREE),
    ]
    assert allocator.bins() == [BinStats(4 * CELL, 3, 12 * CELL, 1, 4 * CELL)]
    assert allocator.picture(8) == "~~..##.."
    assert allocator.picture(100) == "~" * 25 + "." * 25 + "#" * 25 + "." * 25
    assert allocator.picture(1) == "."
    assert BFCAllocator(CELL).picture() == ""


def test_check_finds_what_is_broken():
    allocator = allocator_of(8)
    (address,) = allocate(allocator, 2)
    allocator._used[address] = 3 * CELL
    with pytest.raises(InternalError, match="chunks that tile the regions"):
        allocator.check()


# --- any order


class Cells:
    """The model: what became of every cell, and what each stream has passed."""

    def __init__(self) -> None:
        self.allocator = BFCAllocator(1 << 30)
        self.regions: dict[int, int] = {}
        self.used: dict[int, tuple[int, Hashable]] = {}  # cells and stream, by first cell
        self.waits: dict[int, tuple[Hashable, int]] = {}  # by cell: given back by, at
        self.passed: dict[Hashable, int] = {"a": 0, "b": 0}
        self.clock = 0
        self.calls = 0

    def may_have(self, cell: int, stream: Hashable) -> bool:
        waits_for, stamp = self.waits.get(cell, (None, 0))
        return waits_for is None or waits_for == stream or stamp <= self.passed[waits_for]

    def longest_row(self, stream: Hashable) -> int:
        taken = {first + i for first, (count, _) in self.used.items() for i in range(count)}
        longest = 0
        for first, count in self.regions.items():
            row = 0
            for cell in range(first, first + count):
                row = row + 1 if cell not in taken and self.may_have(cell, stream) else 0
                longest = max(longest, row)
        return longest

    def allocate(self, count: int, stream: Hashable) -> None:
        address = self.allocator.allocate(count * CELL, stream)
        if address is None:
            # Memory that a stream in need merged waits for it, free as it was: so only when nothing waits.
            assert min(self.passed.values()) < self.clock or self.longest_row(stream) < count
            return
        self.calls += 1
        first = address // CELL
        assert all(self.may_have(cell, stream) for cell in range(first, first + count))
        self.used[first] = count, stream

    def deallocate(self, first: int) -> None:
        count, stream = self.used.pop(first)
        self.clock += 1
        self.allocator.deallocate(first * CELL, stream, self.clock)
        for cell in range(first, first + count):
            self.waits[cell] = stream, self.clock

    def advance(self, stream: Hashable, stamp: int) -> None:
        self.passed[stream] = stamp
        self.allocator.advance(stream, stamp)

    def add_region(self, first: int, count: int) -> None:
        self.regions[first] = count
        self.allocator.add_region(first * CELL, count * CELL)
        for cell in range(first, first + count):
            self.waits.pop(cell, None)

    def remove_region(self, region: Region) -> None:
        first = region.address // CELL
        assert self.regions.pop(first) * CELL == region.nbytes
        assert not any(first <= used < first + region.nbytes // CELL for used in self.used)
        self.allocator.remove_region(region.address)

    def check(self) -> None:
        self.allocator.check()
        stats = self.allocator.stats()
        assert stats.num_allocs == self.calls
        assert stats.bytes_in_use == CELL * sum(count for count, _ in self.used.values())
        assert stats.bytes_reserved == CELL * sum(self.regions.values())


@pytest.mark.parametrize("seed", range(FUZZ_RUNS))
def test_every_rule_holds_after_every_one_of_many_random_operations(seed):
    rng, cells = random.Random(seed), Cells()
    for _ in range(FUZZ_OPERATIONS // FUZZ_RUNS):
        kind = rng.random()
        if kind < 0.46:
            cells.allocate(rng.choice((1, 1, 2, 3, 5, 8, 13)), rng.choice(STREAMS))
        elif kind < 0.9 and cells.used:
            cells.deallocate(rng.choice(list(cells.used)))
        elif kind < 0.96:
            stream = rng.choice(("a", "b"))
            cells.advance(stream, rng.choice((cells.clock, rng.randint(cells.passed[stream], cells.clock))))
        elif len(cells.regions) < 4:
            free = [first for first in range(1, 100, 25) if first not in cells.regions]
            cells.add_region(rng.choice(free), rng.choice((16, 25)))
        elif regions := cells.allocator.free_regions():
            cells.remove_region(rng.choice(regions))
        cells.check()
    assert cells.calls > FUZZ_OPERATIONS / FUZZ_RUNS / 5
