"""`HostExecutor`: the contract, with inline and with threaded streams, and what is the host's own."""

from __future__ import annotations

import gc
import mmap
import os
import platform
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flowrt.device.host import host
from flowrt.device.host.host import HostExecutor, HostStream, InlineStream
from flowrt.device.host_memory import populate
from flowrt.device.stream_executor import DeviceMemory, EventStatus
from flowrt.errors import FailedPreconditionError, InternalError, InvalidArgumentError, ResourceExhaustedError
from tests.contracts.check_stream_executor import QueuedStreamsContract, StreamExecutorContract
from tests.contracts.stream_executor_case import SOON_S, Case, Held


def make() -> HostExecutor:
    return HostExecutor("/device:CPU:0")


def create_threaded(executor: HostExecutor, name: str = "compute") -> HostStream:
    return executor.create_stream(name, threaded=True)


class TestInlineStreams(StreamExecutorContract):
    case = Case(make)


class TestThreadedStreams(QueuedStreamsContract):
    case = Case(make, create_threaded)


@pytest.fixture
def executor() -> Iterator[HostExecutor]:
    executor = make()
    yield executor
    executor.close()


# --- memory


def test_new_memory_is_zero_and_can_be_written(executor: HostExecutor) -> None:
    array = executor.array(executor.allocate(64), (16,), np.float32)
    assert not array.any()
    array += 1
    assert array.sum() == 16


def test_an_array_outlives_its_region(executor: HostExecutor) -> None:
    memory = executor.allocate(1 << 20)
    array = executor.array(DeviceMemory(executor, memory.address + 4096, 4096), (1024,), np.float32)
    array[:] = 3
    executor.deallocate(memory)
    del memory
    others = [executor.array(executor.allocate(1 << 20), (1 << 20,), np.uint8) for _ in range(4)]
    for other in others:
        other.fill(255)
    gc.collect()
    np.testing.assert_array_equal(array, np.full(1024, 3, np.float32))


def test_a_region_is_unmapped_when_its_last_array_dies(executor: HostExecutor) -> None:
    nbytes = 1 << 30
    before = _mapped_bytes()
    memory = executor.allocate(nbytes)
    array = executor.array(memory, (4,), np.float32)
    executor.deallocate(memory)
    assert _mapped_bytes() - before > nbytes // 2
    del array, memory
    assert _mapped_bytes() - before < nbytes // 2


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14),
    reason="the kernel populates no pages on request",
)
def test_pages_that_are_populated_keep_what_is_stored(executor: HostExecutor) -> None:
    pages = 64
    memory = executor.allocate(pages * mmap.PAGESIZE)
    array = executor.array(memory, (pages, mmap.PAGESIZE), np.uint8)
    array[3, 0] = 5
    populate(memory.address + 1, memory.nbytes - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    array[:, 1] = 4
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < pages // 2
    assert array[3, 0] == 5


def test_memory_of_a_numpy_array_is_used_as_it_is(executor: HostExecutor) -> None:
    source, stream = np.arange(8, dtype=np.int32), executor.create_stream()
    memory = executor.memory_of(source)
    executor.memcpy(stream, memory.slice(0, 4), memory.slice(28, 4))
    assert source[0] == 7
    executor.array(memory, (8,), np.int32)[1] = 5
    assert source[1] == 5


def test_memory_of_a_read_only_array_cannot_be_written(executor: HostExecutor) -> None:
    memory, stream = executor.memory_of(np.frombuffer(b"constant", np.uint8)), executor.create_stream()
    assert not executor.array(memory, (8,), np.uint8).flags.writeable
    with pytest.raises(InvalidArgumentError, match="read-only"):
        executor.memset(stream, memory.slice(0, 4), 0)
    assert stream.error is None


def test_overlapping_memory_is_copied_as_if_through_a_buffer(executor: HostExecutor) -> None:
    memory, stream = executor.allocate(8), executor.create_stream()
    executor.memcpy_to_device(stream, memory, np.arange(8, dtype=np.uint8))
    executor.memcpy(stream, memory.slice(2, 6), memory.slice(0, 6))
    assert executor.array(memory, (8,), np.uint8).tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


def test_a_control_group_may_allow_less(
    executor: HostExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(line for line in Path("/proc/self/cgroup").read_text("ascii").splitlines() if "::" in line)
    group = tmp_path / path.removeprefix("0::/")
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{1 << 20}\n")
    (group / "memory.current").write_text(f"{1 << 18}\n")
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    assert executor.memory_info() == ((1 << 20) - (1 << 18), 1 << 20)
    (group / "memory.max").write_text("max\n")
    assert executor.memory_info()[1] > 1 << 20


# --- streams


@pytest.mark.parametrize("threaded", [False, True])
def test_numpy_does_not_warn_in_a_launch(executor: HostExecutor, threaded: bool) -> None:
    stream = executor.create_stream(threaded=threaded)
    results: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor.launch(stream, lambda: results.append(np.float32(1) / np.float32(0)))
        executor.block_host_until_done(stream, SOON_S)
    assert results == [np.inf]


def test_an_inline_stream_has_done_its_work_when_the_call_returns(executor: HostExecutor) -> None:
    stream, threads = executor.create_stream(), []
    executor.launch(stream, lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


def test_an_inline_stream_waits_for_a_threaded_one(executor: HostExecutor) -> None:
    inline, threaded, done = executor.create_stream(), create_threaded(executor), []
    executor.launch(threaded, lambda: done.append(1))
    executor.wait_for(inline, threaded)
    assert done == [1]


def test_streams_of_two_hosts_wait_for_each_other(executor: HostExecutor) -> None:
    second = HostExecutor("/device:CPU:1")
    first_stream, second_stream, order = create_threaded(executor), create_threaded(second), []
    held = Held(executor, first_stream)
    executor.launch(first_stream, order.append, 1)
    second.wait_for(second_stream, first_stream)
    second.launch(second_stream, order.append, 2)
    held.release()
    second.block_host_until_done(second_stream, SOON_S)
    assert order == [1, 2]
    second.close()


def test_ctrl_c_in_an_inline_stream_is_the_callers_too(executor: HostExecutor) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    stream = executor.create_stream()
    with pytest.raises(KeyboardInterrupt):
        executor.launch(stream, interrupted)
    with pytest.raises(InternalError, match="KeyboardInterrupt"):
        executor.launch(stream, interrupted)


def test_a_worker_survives_an_exit(executor: HostExecutor) -> None:
    stream = create_threaded(executor)
    executor.launch(stream, exit, 1)
    with pytest.raises(InternalError, match="SystemExit"):
        executor.block_host_until_done(stream, SOON_S)


def test_a_worker_starts_with_the_first_work_and_ends_with_the_stream(executor: HostExecutor) -> None:
    before = set(threading.enumerate())
    stream = create_threaded(executor)
    assert set(threading.enumerate()) <= before
    executor.launch(stream, len, ())
    executor.block_host_until_done(stream, SOON_S)
    (worker,) = set(threading.enumerate()) - before
    assert worker.daemon
    del stream
    gc.collect()
    worker.join(SOON_S)
    assert not worker.is_alive()


def test_a_thread_that_is_not_there_is_asked_for_again(
    executor: HostExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stream, done = create_threaded(executor), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ResourceExhaustedError, match="a thread for the stream"):
            executor.launch(stream, done.append, 1)
    executor.launch(stream, done.append, 2)
    executor.block_host_until_done(stream, SOON_S)
    assert done == [2]


def test_a_stream_that_is_let_go_does_its_work(executor: HostExecutor) -> None:
    stream, done = create_threaded(executor), threading.Event()
    held = Held(executor, stream)
    executor.launch(stream, done.set)
    del stream
    held.release()
    assert done.wait(SOON_S)


def test_a_stream_cannot_wait_for_itself_in_its_own_work(executor: HostExecutor) -> None:
    stream = create_threaded(executor)
    executor.launch(stream, executor.block_host_until_done, stream)
    with pytest.raises(FailedPreconditionError, match="another thread"):
        executor.block_host_until_done(stream, SOON_S)


def test_a_device_may_be_closed_by_its_own_work() -> None:
    executor = make()
    stream = create_threaded(executor)
    executor.launch(stream, executor.close)
    stream._worker.join(SOON_S)
    assert not stream._worker.is_alive()
    assert stream.error is None


def test_an_event_of_another_kind_is_refused(executor: HostExecutor) -> None:
    class Foreign(host.Event):
        def poll(self) -> EventStatus:
            return EventStatus.COMPLETE

    with pytest.raises(InvalidArgumentError, match="an event of the host"):
        executor.wait_for(executor.create_stream(), Foreign())


# --- fork


def in_child(check: Callable[[], bool]) -> bool:
    """Whether ``check()`` was true in a forked child, which has no other threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: fork with threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_an_idle_stream_works_in_a_forks_child(executor: HostExecutor) -> None:
    stream, done = create_threaded(executor), []
    executor.launch(stream, done.append, 1)
    executor.block_host_until_done(stream, SOON_S)

    def works() -> bool:
        executor.launch(stream, done.append, 2)
        executor.block_host_until_done(stream, SOON_S)
        executor.close()
        return done == [1, 2]

    assert in_child(works)
    assert done == [1]


def test_a_busy_stream_has_failed_in_a_forks_child(executor: HostExecutor) -> None:
    stream, other = create_threaded(executor), create_threaded(executor)
    held, event = Held(executor, stream), executor.create_event()
    executor.record(stream, event)

    def says_so() -> bool:
        try:
            executor.wait_for(other, event)
            executor.block_host_until_done(other, SOON_S)
        except FailedPreconditionError as error:
            return "fork" in str(error) and event.poll() is EventStatus.ERROR
        return False

    assert in_child(says_so)
    assert event.poll() is EventStatus.PENDING
    held.release()
    executor.block_host_until_done(stream, SOON_S)


def test_memory_is_not_shared_with_a_forks_child(executor: HostExecutor) -> None:
    array = executor.array(executor.allocate(64), (64,), np.uint8)

    def write() -> bool:
        array.fill(1)
        return bool(array.all())

    assert in_child(write)
    assert not array.any()


def test_streams_are_inline_unless_asked(executor: HostExecutor) -> None:
    assert isinstance(executor.create_stream(), InlineStream)
