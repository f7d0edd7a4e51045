"""`MemoryPool` on a device whose refusals and events the test decides."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from benchmarks.allocator import record
from flowrt.device.bfc import FIRST_REGION
from flowrt.device.memory_pool import LiveTensor, MemoryPool, Owner
from flowrt.device.stream_executor import DeviceMemory, EventStatus, Stream
from flowrt.errors import FailedPreconditionError, InternalError, InvalidArgumentError, ResourceExhaustedError
from tests.device.fake_executor import FakeExecutor, SynchronousExecutor

MIB = 1 << 20
KIB = 1 << 10
OP = Owner("dense/MatMul", "train.py:12")
LONG_S = 60.0
"""A wait that is over long before, or the test has failed."""


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def pool(executor):
    pool = MemoryPool(executor, 16 * MIB)
    yield pool
    pool.check()


# --- holders


def test_memory_comes_back_with_its_last_holder(pool):
    gc.disable()  # at once, not with the next collection
    try:
        memory = pool.allocate(1000, OP)
        part = memory.slice(10, 20)
        del memory
        assert pool.stats().bytes_in_use == 1024
        del part
        assert pool.stats().bytes_in_use == 0
    finally:
        gc.enable()


def test_memory_may_be_given_back_by_hand_once(pool):
    memory, other = pool.allocate(1000, OP), pool.allocate(0, OP)
    pool.deallocate(memory)
    assert not memory.is_live
    assert pool.stats().bytes_in_use == 256
    with pytest.raises(InvalidArgumentError, match="was deallocated"):
        pool.deallocate(memory)
    again = pool.allocate(1000, OP)
    del memory
    assert pool.stats().bytes_in_use == 1024 + 256
    assert {again.address % 256, other.address % 256, other.nbytes} == {0}


def test_an_observer_sees_each_piece_go_and_come_back(pool):
    calls = record(pool)
    first, second = pool.allocate(1000, OP), pool.allocate(20, OP)
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(17 * MIB, OP)
    pool.deallocate(first)
    del second
    assert pool.stats().bytes_in_use == 0  # what came back is taken in now
    assert calls == [(0, 1000), (1, 20), (0, None), (1, None)]


def test_foreign_memory_is_refused(pool, executor):
    mine, others = pool.allocate(1000, OP), MemoryPool(executor).allocate(1000, OP)
    for memory in (others, mine.slice(0, 100), executor.allocate(256)):
        with pytest.raises(InvalidArgumentError, match="expected memory allocated by this pool"):
            pool.deallocate(memory)
    assert pool.stats().bytes_in_use == 1024


def test_a_size_that_is_none_and_a_foreign_stream_are_refused(pool):
    for size in (-5, 1.5, "5"):
        with pytest.raises(InvalidArgumentError, match=f"expected 0 bytes or more; got {size!r}"):
            pool.allocate(size, OP)
    with pytest.raises(InvalidArgumentError, match="expected a stream of this device"):
        pool.allocate(5, OP, Stream(FakeExecutor(), "foreign"))
    assert pool.stats().num_allocs == 0


def test_a_holder_that_dies_inside_the_pool_does_not_stop_it():
    dying: list[Any] = []

    def refuses(number: int, nbytes: int) -> bool:
        dying.clear()  # while the pool has its lock
        return False

    pool = MemoryPool(FakeExecutor(refuses=refuses))
    dying.append(pool.allocate(MIB, OP))
    kept = pool.allocate(MIB, OP)
    assert not dying
    assert pool.stats().bytes_in_use == kept.nbytes == MIB


def test_an_owner_that_holds_its_memory_does_not_keep_it_forever(pool):
    class Plan:
        def tensors(self) -> list[LiveTensor]:
            return []

    plan = Plan()
    plan.memory = pool.allocate(1000, Owner("plan", None, plan.tensors))
    del plan
    gc.collect()
    assert pool.stats().bytes_in_use == 0


# --- limits and refusals


@pytest.mark.parametrize("limit, expected", [(None, 100), (70, 70), (200, 100)])
def test_the_limit_is_at_most_what_the_device_has(limit, expected):
    limit_bytes = None if limit is None else limit * MIB
    pool = MemoryPool(FakeExecutor(100 * MIB), limit_bytes)
    assert pool.stats().bytes_limit == expected * MIB


def test_the_limit_holds_and_the_pool_is_usable_after_it(pool, executor):
    held = [pool.allocate(4 * MIB, OP) for _ in range(4)]
    with pytest.raises(
        ResourceExhaustedError, match=r"expected 1 B of memory; got a largest free piece of 0 B"
    ) as caught:
        pool.allocate(1, OP)
    assert (caught.value.op, caught.value.source) == ("dense/MatMul", "train.py:12")
    assert sum(executor.regions.values()) == 16 * MIB
    held.pop()
    assert pool.allocate(4 * MIB, OP).nbytes == 4 * MIB


def test_a_device_that_refuses_is_asked_for_a_tenth_less_each_time():
    most = FIRST_REGION * 3 // 4
    pool = MemoryPool(executor := FakeExecutor(refuses=lambda number, nbytes: nbytes > most))
    pool.allocate(1000, OP)
    assert executor.asked[0] == FIRST_REGION
    assert all(after == before * 9 // 10 & -256 for before, after in pairwise(executor.asked))
    assert executor.asked[-1] <= most < executor.asked[-2]
    pool.check()


@pytest.mark.parametrize("every", [2, 3])
def test_planted_refusals_leak_nothing_and_stop_nothing(every):
    executor = FakeExecutor(refuses=lambda number, nbytes: number % every == 0)
    pool, held, refused = MemoryPool(executor), [], 0
    for count in range(1, 200):
        size = count % 7 * MIB + count
        try:
            held.append(pool.allocate(size, OP))
        except ResourceExhaustedError:
            refused += 1
            held.append(pool.allocate(size // 2, OP))
        if count % 3 == 0:
            del held[count % len(held)]
        pool.check()
    assert refused > 5
    assert pool.stats().bytes_in_use == sum(-(-memory.nbytes // 256) * 256 for memory in held)
    held.clear()
    pool.close()
    assert executor.regions == {}


def test_free_regions_go_back_before_a_request_fails(pool, executor):
    small = [pool.allocate(MIB, OP) for _ in range(8)]
    small.clear()
    assert len(executor.regions) > 4
    pool.allocate(16 * MIB, OP)
    assert list(executor.regions.values()) == [16 * MIB]


def test_free_regions_go_back_when_the_device_refuses():
    executor = FakeExecutor()
    executor.refuses = lambda number, nbytes: sum(executor.regions.values()) + nbytes > 20 * MIB
    pool = MemoryPool(executor)
    small = [pool.allocate(MIB, OP) for _ in range(19)]
    del small[:-1]
    pool.allocate(16 * MIB, OP)
    assert small[0].is_live
    pool.check()


def test_a_pool_that_is_closed_gives_back_all_that_nobody_holds(executor):
    pool = MemoryPool(executor)
    stream = executor.create_stream()
    first, second = pool.allocate(MIB, OP), pool.allocate(9 * MIB, OP, stream)
    del first
    pool.close()
    pool.close()
    assert list(executor.regions.values()) == [9 * MIB]
    executor.close()
    with pytest.raises(FailedPreconditionError, match="it was closed"):
        pool.allocate(1, OP)
    del second
    assert executor.regions == {}


# --- the report


def test_the_report_says_who_has_the_memory():
    pool = MemoryPool(SynchronousExecutor(), 8 * MIB)
    tensors = [LiveTensor(f"layer{i}/y", (i + 1) * 10 * KIB, f"model.py:{i}") for i in range(12)]
    arena = pool.allocate(MIB, Owner("plan of step 1", None, lambda: tensors))
    weight = pool.allocate(5 * MIB, Owner("kernel", "model.py:99"))
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate(4 * MIB, OP)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "'dense/MatMul' (train.py:12): fake:0: expected 4.0 MiB of memory; got a largest free piece of 0 B "
        "and 2.0 MiB not reserved yet, with 6.0 MiB in use and a limit of 8.0 MiB. "
        "A smaller batch, or a higher limit?"
    )
    assert lines[1].startswith("fake:0: 6.0 MiB in use (at most 6.0 MiB), 6.0 MiB reserved, limit 8.0 MiB")
    assert lines[2] == "The largest 10 of 13 live tensors:"
    assert lines[3:5] == ["     5.0 MiB  kernel  model.py:99", "   120.0 KiB  layer11/y  model.py:11"]
    assert lines[-1] == f"[{'#' * 100}]"
    assert arena.is_live
    assert weight.is_live


def test_the_refusal_of_a_plan_lists_its_tensors_and_nothing_that_is_empty():
    pool = MemoryPool(SynchronousExecutor(), 8 * MIB)
    tensors = [LiveTensor("y", 5 * MIB, "model.py:2"), LiveTensor("x", 4 << 40, "model.py:1")]
    with pytest.raises(ResourceExhaustedError) as caught:
        pool.allocate((4 << 40) + 5 * MIB, Owner("y", "model.py:2", lambda: tensors))
    first, *rest = str(caught.value).splitlines()
    assert "expected 4.0 TiB of memory for the plan of a step; got" in first
    assert (
        "8.0 MiB not reserved yet, with 0 B in use and a limit of 8.0 MiB. This exceeds the limit." in first
    )
    assert rest[:3] == [
        "The largest 2 of 2 tensors that the plan must hold simultaneously:",
        "     4.0 TiB  x  model.py:1",
        "     5.0 MiB  y  model.py:2",
    ]
    assert len(rest) == 4
    assert rest[3].startswith("fake:0: 0 B in use")


def test_the_refusal_says_what_may_help():
    pool = MemoryPool(FakeExecutor(refuses=lambda number, nbytes: number > 1), 2 * MIB)
    pool.allocate(MIB, OP)  # one region, free again
    held = [pool.allocate(MIB // 4, OP) for _ in range(4)]
    del held[::2]
    for nbytes, hint in (
        (3 * MIB, "This exceeds the limit."),
        (MIB, "The device has no more: is it used by other processes?"),
        (MIB * 3 // 2, "A smaller batch, or a higher limit?"),
    ):
        with pytest.raises(ResourceExhaustedError) as caught:
            pool.allocate(nbytes, OP)
        assert hint in str(caught.value).splitlines()[0]


def test_the_refusal_says_that_memory_is_in_pieces(executor):
    pool = MemoryPool(executor, MIB)
    pool.allocate(MIB, OP)  # one region, free again
    held = [pool.allocate(MIB // 4, OP) for _ in range(4)]
    del held[::2]
    with pytest.raises(ResourceExhaustedError, match=r"512\.0 KiB are free, but not contiguous"):
        pool.allocate(MIB // 2, OP)


# --- streams


def test_a_pool_of_one_stream_records_no_event(pool, executor):
    stream = executor.create_stream()
    addresses = {pool.allocate(MIB, OP, stream).address for _ in range(5)}
    assert len(addresses) == 1
    assert executor.recorded == []


def test_another_stream_gets_memory_when_the_event_behind_its_last_use_is_complete(pool, executor):
    first, second = executor.create_stream("first"), executor.create_stream("second")
    freed = pool.allocate(MIB, OP, first).address
    other = pool.allocate(MIB, OP, second)
    assert other.address != freed
    assert [stream for stream, _ in executor.recorded] == [first]
    assert pool.allocate(MIB, OP, first).address == freed  # its own meanwhile
    third = pool.allocate(MIB, OP)
    assert third.address != freed
    executor.finish(first)
    assert pool.allocate(MIB, OP, second).address == freed


def test_a_synchronous_device_needs_no_events():
    pool = MemoryPool(executor := SynchronousExecutor())
    first, second = executor.create_stream(), executor.create_stream()
    freed = pool.allocate(MIB, OP, first).address
    assert pool.allocate(MIB, OP, second).address == freed
    assert executor.recorded == []


def test_a_request_waits_for_the_streams_before_it_fails(pool, executor):
    first, second = executor.create_stream("first"), executor.create_stream("second")
    pool.allocate(16 * MIB, OP, first)
    executor.stuck.add(first)
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(16 * MIB, OP, second)
    executor.stuck.clear()
    assert pool.allocate(16 * MIB, OP, second).nbytes == 16 * MIB


@pytest.mark.parametrize("when", ["before the event", "after it"])
def test_memory_of_a_failed_stream_is_free(pool, executor, when):
    first, second = executor.create_stream("first"), executor.create_stream("second")
    executor.stuck.add(first)
    freed = pool.allocate(MIB, OP, first).address
    if when == "after it":
        assert pool.allocate(MIB, OP, second).address != freed
        executor.recorded[0][1].status = EventStatus.ERROR
    first.fail(InternalError("the kernel broke"))
    assert pool.allocate(MIB, OP).address == freed


# --- waiting


def test_a_request_waits_until_another_thread_lets_go(pool):
    held = [pool.allocate(16 * MIB, OP)]
    got: list[DeviceMemory] = []
    thread = threading.Thread(target=lambda: got.append(pool.allocate(MIB, OP, retry_s=LONG_S)))
    thread.start()
    while not pool._waiters:
        thread.join(0.001)
    held.clear()
    thread.join(LONG_S)
    assert got[0].nbytes == MIB
    assert pool._waiters == ()


def test_each_of_several_that_wait_is_asked_again(pool):
    held = [pool.allocate(4 * MIB, OP) for _ in range(4)]
    got: list[int] = []
    results: list[DeviceMemory] = []

    def want(nbytes: int) -> None:
        results.append(pool.allocate(nbytes, OP, retry_s=LONG_S))
        got.append(nbytes)

    threads = [threading.Thread(target=want, args=(nbytes,)) for nbytes in (12 * MIB, 4 * MIB)]
    for thread in threads:
        thread.start()
    while len(pool._waiters) < 2:
        threads[0].join(0.001)
    del held[0]
    threads[1].join(LONG_S)
    assert got == [4 * MIB]
    held.clear()
    threads[0].join(LONG_S)
    assert got == [4 * MIB, 12 * MIB]


def test_a_request_waits_no_longer_than_it_may(pool):
    held = pool.allocate(16 * MIB, OP)
    with pytest.raises(ResourceExhaustedError):
        pool.allocate(MIB, OP, retry_s=0.001)
    assert pool._waiters == ()
    assert held.is_live


def test_threads_share_a_pool():
    pool = MemoryPool(SynchronousExecutor(), 64 * MIB)
    pieces: set[int] = set()
    clashes: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for nbytes in rng.integers(1, MIB, 300):
            memory = pool.allocate(int(nbytes), OP, retry_s=LONG_S)
            if memory.address in pieces:
                clashes.append(memory.address)
            pieces.add(memory.address)
            pieces.discard(memory.address)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.check()
    assert clashes == []
    assert pool.stats().bytes_in_use == 0


# --- any order


class PoolOnAWilfulDevice(RuleBasedStateMachine):
    """No two holders share a byte, no stream gets what another has not passed, and nothing is lost."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.wilful = False
        self.executor = FakeExecutor(refuses=lambda number, nbytes: self.wilful and number % 2 == 0)
        self.pool = MemoryPool(self.executor, 8 * MIB)
        self.streams = [None, *(self.executor.create_stream(f"stream{i}") for i in range(2))]
        self.owned: dict[int, int] = {}
        self.unpassed: list[tuple[int, int, Stream, int]] = []  # from, to, stream, events recorded before

    @rule(target=held, nbytes=st.integers(0, 3 * MIB), index=st.integers(0, 2))
    def allocate(self, nbytes: int, index: int) -> Any:
        stream = self.streams[index]
        self.executor.stuck = {stream for stream in self.streams if stream is not None}
        try:
            memory = self.pool.allocate(nbytes, OP, stream)
        except ResourceExhaustedError:
            return multiple()
        end = memory.address + max(nbytes, 1)
        for address, size in self.owned.items():
            assert address >= end or address + size <= memory.address
        for start, stop, other, _ in self.unpassed:
            assert other is stream or start >= end or stop <= memory.address
        self.owned[memory.address] = max(nbytes, 1)
        return memory, stream

    @rule(piece=consumes(held))
    def free(self, piece: tuple[DeviceMemory, Stream | None]) -> None:
        memory, stream = piece
        size = self.owned.pop(memory.address)
        if stream is not None:
            recorded = len(self.executor.recorded)
            self.unpassed.append((memory.address, memory.address + size, stream, recorded))
        self.pool.deallocate(memory)
        with pytest.raises(InvalidArgumentError):
            self.pool.deallocate(memory)

    @rule(index=st.integers(1, 2))
    def finish(self, index: int) -> None:
        stream = self.streams[index]
        assert stream is not None
        self.executor.finish(stream)
        recorded = [i for i, (other, _) in enumerate(self.executor.recorded) if other is stream]
        last = max(recorded, default=-1)
        self.unpassed = [entry for entry in self.unpassed if entry[2] is not stream or last < entry[3]]

    @rule(wilful=st.booleans())
    def refuse(self, wilful: bool) -> None:
        self.wilful = wilful

    @invariant()
    def adds_up(self) -> None:
        self.pool.check()
        stats = self.pool.stats()
        assert stats.bytes_in_use == sum(-(-size // 256) * 256 for size in self.owned.values())
        assert stats.bytes_reserved == sum(self.executor.regions.values()) <= 8 * MIB

    def teardown(self) -> None:
        self.executor.stuck = set()
        self.pool.close()
        for start, nbytes in self.executor.regions.items():
            assert any(start <= address < start + nbytes for address in self.owned)


TestPoolOnAWilfulDevice = PoolOnAWilfulDevice.TestCase
TestPoolOnAWilfulDevice.settings = settings(stateful_step_count=40)
