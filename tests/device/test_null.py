"""`NullExecutor`: the contract as far as a device goes that does not compute, its record and its clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flowrt.device.null import Call, NullExecutor
from flowrt.device.stream_executor import EventStatus, Stream
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from tests.contracts.check_stream_executor import QueuedStreamsContract
from tests.contracts.stream_executor_case import Case

NAME = "/device:NULL:0"
GIB = 1 << 30


class KernelRecorder:
    """Work that is a short kernel, and the device's own record of it."""

    def __init__(self, executor: NullExecutor) -> None:
        self._executor = executor

    def put(self, stream: Stream, label: int) -> None:
        run(self._executor, stream, str(label), 1 / 64)  # no rounding

    def spans(self) -> dict[int, tuple[float, float]]:
        kernels = [call for call in self._executor.calls if call.kind == "kernel" and call.name != "held"]
        return {int(call.name): (call.start_s, call.start_s + call.seconds) for call in kernels}


class HeldKernel:
    """A kernel of a second, which is over when the host has been busy for so long."""

    def __init__(self, executor: NullExecutor, stream: Stream) -> None:
        run(executor, stream, "held", 1.0)
        self._executor = executor

    def release(self) -> None:
        self._executor.advance(1.0)


def run(executor: NullExecutor, stream: Stream, name: str, seconds: float) -> None:
    with executor.activate(stream):
        executor.kernel(name, np.add, seconds)()


class TestNull(QueuedStreamsContract):
    case = Case(lambda: NullExecutor(NAME), recorder=KernelRecorder, hold=HeldKernel)


@pytest.fixture
def executor() -> Iterator[NullExecutor]:
    executor = NullExecutor(NAME, bandwidth=1e9)
    yield executor
    executor.close()


# --- time


def test_two_kernels_on_two_streams_run_side_by_side(executor: NullExecutor) -> None:
    streams = [executor.create_stream(name) for name in "ab"]
    for stream in streams:
        run(executor, stream, "matmul", 0.2)
    for stream in streams:
        executor.block_host_until_done(stream)
    assert executor.now_s == 0.2


def test_two_kernels_on_one_stream_run_one_after_the_other(executor: NullExecutor) -> None:
    stream = executor.create_stream()
    for _ in range(2):
        run(executor, stream, "matmul", 0.2)
    executor.block_host_until_done(stream)
    assert executor.now_s == 0.4


def test_a_wait_puts_two_streams_one_after_the_other(executor: NullExecutor) -> None:
    first, second = (executor.create_stream(name) for name in "ab")
    run(executor, first, "matmul", 0.2)
    executor.wait_for(second, first)
    run(executor, second, "matmul", 0.2)
    executor.block_host_until_done(second)
    assert executor.now_s == 0.4


def test_work_does_not_start_before_the_host_has_issued_it(executor: NullExecutor) -> None:
    stream = executor.create_stream()
    executor.advance(3.0)
    run(executor, stream, "late", 0.5)
    assert executor.calls == [Call("kernel", "compute", "late", 3.0, 0.5)]
    assert stream.now_s == 3.5


def test_a_copy_takes_its_bytes_by_the_bandwidth(executor: NullExecutor) -> None:
    stream, memory = executor.create_stream(), executor.allocate(500_000_000)
    executor.memset(stream, memory, 1)
    executor.memcpy(stream, memory, memory)
    assert stream.now_s == 1.0
    assert [(call.kind, call.name) for call in executor.calls] == [
        ("memset", "500000000 bytes"),
        ("memcpy", "500000000 bytes"),
    ]


def test_an_event_is_pending_until_the_hosts_clock_is_there(executor: NullExecutor) -> None:
    stream, event = executor.create_stream(), executor.create_event()
    run(executor, stream, "matmul", 0.5)
    executor.record(stream, event)
    executor.advance(0.4)
    assert event.poll() is EventStatus.PENDING
    executor.advance(0.1)
    assert event.poll() is EventStatus.COMPLETE


def test_a_timeout_is_of_virtual_time(executor: NullExecutor) -> None:
    stream = executor.create_stream()
    run(executor, stream, "matmul", 3600.0)
    with pytest.raises(DeadlineExceededError, match="3590 s are left"):
        executor.block_host_until_done(stream, 10.0)
    assert executor.now_s == 10.0
    executor.block_host_until_done(stream, 3590.0)
    assert executor.now_s == 3600.0


def test_the_hosts_clock_does_not_go_back(executor: NullExecutor) -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(InvalidArgumentError, match="seconds >= 0"):
            executor.advance(seconds)
    executor.advance(1.0)
    executor.block_host_until_done(executor.create_stream())
    assert executor.now_s == 1.0


# --- kernels


def test_a_kernel_takes_anything_and_returns_out(executor: NullExecutor) -> None:
    kernel, out = executor.kernel("Add", np.add, 1e-6), np.ones(3)
    with executor.activate(executor.create_stream()):
        assert kernel(np, 1, 2, out=out, axis=3) is out
        assert kernel(np, object()) is None
    np.testing.assert_array_equal(out, np.ones(3))


def test_a_kernel_is_recorded_on_the_current_stream(executor: NullExecutor) -> None:
    first, second, third = (executor.create_stream(name) for name in "abc")
    kernel = executor.kernel("Add", np.add, 1e-6)
    with executor.activate(first):
        kernel()
        executor.use(second)
        kernel()
        with executor.activate(third):
            kernel()
        kernel()
    assert [call.stream for call in executor.calls] == ["a", "b", "c", "b"]
    with pytest.raises(FailedPreconditionError, match="activate"):
        kernel()


def test_a_kernel_needs_a_sound_stream(executor: NullExecutor) -> None:
    stream = executor.create_stream()
    stream.fail(ResourceExhaustedError("boom"))
    with executor.activate(stream), pytest.raises(ResourceExhaustedError, match="boom"):
        executor.kernel("Add", np.add, 1e-6)()
    assert executor.calls == []


def test_a_launched_function_is_recorded_and_not_called(executor: NullExecutor) -> None:
    def program() -> None:
        raise AssertionError("called")

    executor.launch(executor.create_stream(), program)
    assert executor.calls == [Call("launch", "compute", "program", 0.0, 0.0)]


# --- memory


def test_memory_is_counted(executor: NullExecutor) -> None:
    first = executor.allocate(10 * GIB)
    assert executor.memory_info() == (6 * GIB, 16 * GIB)
    with pytest.raises(ResourceExhaustedError, match=f"{6 * GIB} free of {16 * GIB}"):
        executor.allocate(6 * GIB + 1)
    executor.deallocate(first)
    assert executor.memory_info() == (16 * GIB, 16 * GIB)


def test_a_hundred_gibibytes_cost_nothing_and_can_be_viewed() -> None:
    executor = NullExecutor(NAME, memory_bytes=200 * GIB)
    memory = executor.allocate(100 * GIB)
    array = executor.array(memory, (100, GIB), np.uint8)
    assert array.T[-1, :5].tolist() == [0] * 5
    part = executor.memory_of(array[99])
    assert (part.address, part.nbytes) == (memory.address + 99 * GIB, GIB)


def test_arrays_cannot_be_written(executor: NullExecutor) -> None:
    array = executor.array(executor.allocate(64), (64,), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_fetch_gives_zeros(executor: NullExecutor) -> None:
    target = np.ones((2, 3), np.float32)
    executor.memcpy_to_host(executor.create_stream(), target, executor.allocate(24))
    assert not target.any()


# --- the record as text


def test_the_timeline_is_a_line_a_call(executor: NullExecutor) -> None:
    first, second = (executor.create_stream(name) for name in ("one", "two"))
    run(executor, first, "matmul", 0.2)
    executor.wait_for(second, first)
    run(executor, second, "relu", 0.2)
    title, *rows = str(executor).splitlines()
    assert title == "/device:NULL:0: 4 calls, 400.000 ms"
    assert [row.split() for row in rows] == [
        ["#" * 20, "0.000", "200.000", "one", "kernel", "matmul"],
        ["|", "200.000", "0.000", "one", "record"],
        ["|", "200.000", "0.000", "two", "wait_for"],
        ["#" * 20, "200.000", "200.000", "two", "kernel", "relu"],
    ]
    assert [row.index("#") for row in rows if "#" in row] == [0, 20]


def test_the_timeline_of_nothing_is_its_title(executor: NullExecutor) -> None:
    assert executor.timeline() == "/device:NULL:0: 0 calls, 0.000 ms"
