"""Section ``memory``: the BFC allocator under random use, and the pool over the device's own memory."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from flowrt.cli.selftest.target import Result, Target
from flowrt.device.bfc import BFCAllocator
from flowrt.device.memory_pool import Owner
from flowrt.errors import OpError

FUZZ_STEPS = 3000
FUZZ_LIMIT = 64 << 20
MAX_LIVE = 60
"""Allocations at a time, so that the invariants, which are checked after every step, cost about 50 us."""

POOL_BLOCKS = 200
POOL_MAX_BYTES = 256 << 10
SELFTEST = Owner("selftest", None)


def check_memory(target: Target) -> Result:
    """Test the allocators. Raises nothing: an allocator's error is a failure."""
    failures = []
    for check in (fuzz_allocator, check_pool):
        try:
            failures += check(target)
        except OpError as error:
            failures.append(f"{check.__name__}: {error}")
    free, total = target.device.executor.memory_info()
    what = f"{FUZZ_STEPS} random steps of the allocator, {POOL_BLOCKS} blocks of the pool"
    return Result(f"{what}; {free / 2**30:.1f} of {total / 2**30:.1f} GiB free", tuple(failures))


def fuzz_allocator(target: Target) -> list[str]:
    """Allocate and free on two streams and on none; `BFCAllocator.check` raises where a rule breaks."""
    rng, allocator = Random(0), BFCAllocator(FUZZ_LIMIT)
    live: list[int] = []
    next_region = 1 << 20
    for stamp in range(FUZZ_STEPS):
        stream = rng.choice((None, "a", "b"))
        if live and (len(live) == MAX_LIVE or rng.random() < 0.45):
            allocator.deallocate(live.pop(rng.randrange(len(live))), stream, stamp)
        else:
            nbytes = int(2 ** rng.uniform(0, 21))
            address = allocator.allocate(nbytes, stream)
            if address is None and (growth := allocator.growth(nbytes)) is not None:
                for region in growth.give_back:
                    allocator.remove_region(region.address)
                allocator.add_region(next_region, growth.nbytes)
                next_region += growth.nbytes + rng.choice((0, 4096))  # neighbours too
                address = allocator.allocate(nbytes, stream)
            if address is not None:
                live.append(address)
        if rng.random() < 0.1:
            allocator.advance(rng.choice("ab"), stamp - rng.randrange(50))
        allocator.check()
    return _drain(allocator, live)


def _drain(allocator: BFCAllocator, live: list[int]) -> list[str]:
    """Free everything: blocks still in use afterwards are leaks."""
    for address in live:
        allocator.deallocate(address)
    for stream in "ab":
        allocator.advance(stream, FUZZ_STEPS)
    for region in allocator.free_regions():
        allocator.remove_region(region.address)
    allocator.check()
    left = allocator.stats()
    if left.bytes_in_use or left.bytes_reserved:
        return [f"expected no bytes left; got {left.bytes_in_use} in use and {left.bytes_reserved} reserved"]
    return []


def check_pool(target: Target) -> list[str]:
    """Allocate blocks from the device's memory, free half of them, allocate more: none may overlap."""
    rng, pool = Random(1), target.device.pool
    blocks = [pool.allocate(rng.randint(1, POOL_MAX_BYTES), SELFTEST) for _ in range(POOL_BLOCKS)]
    rng.shuffle(blocks)
    for block in blocks[::2]:
        pool.deallocate(block)
    blocks = blocks[1::2]
    blocks += [pool.allocate(rng.randint(1, POOL_MAX_BYTES), SELFTEST) for _ in range(POOL_BLOCKS // 2)]
    pool.check()
    failures = [
        f"expected blocks that do not overlap; got {first!r} and {second!r}"
        for first, second in pairwise(sorted(blocks, key=lambda block: block.address))
        if first.address + first.nbytes > second.address
    ]
    for block in blocks:
        pool.deallocate(block)
    in_use = pool.stats().bytes_in_use
    return failures if not in_use else [*failures, f"expected no bytes in use; got {in_use}"]
