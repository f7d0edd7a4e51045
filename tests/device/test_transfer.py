"""`TransferManager`: what waits for what, that each value is copied once, and whose memory is whose when."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from flowrt.device.cuda import cuda
from flowrt.device.host.host import HostExecutor
from flowrt.device.null import NullExecutor
from flowrt.device.stream_executor import DeviceMemory, Stream
from flowrt.device.transfer import TransferManager
from flowrt.errors import DeadlineExceededError, InternalError, InvalidArgumentError
from tests.device.pretend_cupy import Cupy

WAIT_S = 60.0
VALUE = np.arange(16, dtype=np.float32)


class AsynchronousExecutor(HostExecutor):
    """A device whose streams are threads: it does what a GPU does, with the host's memory."""

    is_asynchronous = True

    def create_stream(self, name: str = "compute", threaded: bool = True) -> Any:
        return super().create_stream(name, threaded)


class PinningExecutor(AsynchronousExecutor):
    """Notes what it gave out as pinned memory, as long as somebody has it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.pinned: list[weakref.ref[Any]] = []

    def pinned_empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        self.pinned.append(weakref.ref(array))
        return array

    def held(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self.pinned)


@pytest.fixture
def executor() -> Iterator[PinningExecutor]:
    opened = PinningExecutor("gpu")
    yield opened
    opened.close()


def contents(executor: HostExecutor, memory: DeviceMemory, like: Any = VALUE) -> list[Any]:
    found: list[Any] = executor.array(memory, like.shape, like.dtype).tolist()
    return found


def hold(executor: HostExecutor, stream: Stream) -> threading.Event:
    """Work on ``stream`` that lasts until the event is set."""
    gate = threading.Event()
    executor.launch(stream, gate.wait, WAIT_S)
    return gate


# --- to the device


def test_a_copy_to_the_device_waits_for_the_stream_and_the_caller_may_change_the_value(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    executor.array(memory, VALUE.shape, VALUE.dtype).fill(7)
    gate, value, before, after = hold(executor, stream), VALUE.copy(), [], []
    executor.launch(stream, lambda: before.extend(contents(executor, memory)))
    manager.to_device(stream, memory, value)
    executor.launch(stream, lambda: after.extend(contents(executor, memory)))
    value.fill(-1)
    gate.set()
    executor.block_host_until_done(stream, WAIT_S)
    assert before == [7.0] * 16
    assert after == VALUE.tolist()
    assert manager.stats[:2] == (1, 64)
    assert manager.stats.copies_on_host == 0


def test_a_value_that_is_not_contiguous_is_staged_in_its_order_by_the_one_copy(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    manager.to_device(stream, memory, VALUE.reshape(4, 4).T)
    executor.block_host_until_done(stream, WAIT_S)
    assert contents(executor, memory) == VALUE.reshape(4, 4).T.ravel().tolist()
    assert manager.stats.copies_on_host == 0


def test_staging_memory_comes_back_once_the_device_has_read_it(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    gate = hold(executor, stream)
    for _ in range(3):
        manager.to_device(stream, memory, VALUE)
    assert executor.held() == 3
    gate.set()
    executor.block_host_until_done(stream, WAIT_S)
    manager.to_device(stream, memory, VALUE)
    assert executor.held() == 1


def test_memory_that_is_not_pinned_is_counted():
    executor = AsynchronousExecutor("plain")
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    manager.to_device(stream, memory, VALUE)
    executor.block_host_until_done(stream, WAIT_S)
    assert manager.stats.copies_on_host == 1
    executor.close()


@pytest.mark.parametrize("executor_type", [HostExecutor, PinningExecutor, NullExecutor])
def test_sizes_that_differ_are_refused_and_empty_values_are_no_transfer(executor_type):
    executor = executor_type("device")
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    with pytest.raises(InvalidArgumentError, match=r"to_device: expected 64 bytes.*got 60"):
        manager.to_device(stream, memory, VALUE[1:])
    with pytest.raises(InvalidArgumentError, match="to_host: expected 64 bytes"):
        manager.to_host(stream, memory, (3,), np.float32)
    with pytest.raises(InvalidArgumentError, match="between: expected 64 bytes"):
        manager.between(stream, memory, manager, stream, memory.slice(0, 8))
    manager.to_device(stream, memory.slice(0, 0), VALUE[:0])
    assert manager.to_host(stream, memory.slice(0, 0), (0, 4), np.float32).wait().shape == (0, 4)
    assert manager.stats.transfers_to_device == 0
    executor.close()


# --- to the host


def test_a_copy_to_the_host_has_what_the_stream_had_computed(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    gate = hold(executor, stream)
    executor.launch(stream, lambda: np.copyto(executor.array(memory, (16,), np.float32), VALUE))
    pending = manager.to_host(stream, memory, (4, 4), np.float32)
    assert not pending.is_done()
    with pytest.raises(DeadlineExceededError):
        pending.wait(0.01)
    gate.set()
    assert pending.wait(WAIT_S).tolist() == VALUE.reshape(4, 4).tolist()
    assert pending.is_done()
    assert manager.stats.transfers_to_host == 1


def test_the_stream_goes_on_and_a_writer_waits_for_the_event(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    manager.to_device(stream, memory, VALUE)
    gate = hold(executor, manager._streams["d2h"])
    pending, passed = manager.to_host(stream, memory, (16,), np.float32), threading.Event()
    executor.launch(stream, passed.set)
    assert passed.wait(WAIT_S)
    executor.wait_for(stream, pending.event)
    executor.memset(stream, memory, 0)
    gate.set()
    assert pending.wait(WAIT_S).tolist() == VALUE.tolist()


def test_a_callback_comes_when_the_array_is_whole(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    found: list[Any] = []
    arrived = threading.Event()
    manager.to_device(stream, memory, VALUE)
    gate = hold(executor, stream)
    pending = manager.to_host(stream, memory, (16,), np.float32)
    pending.when_done(lambda: (found.extend(pending.array.tolist()), arrived.set()))
    assert not found
    gate.set()
    assert arrived.wait(WAIT_S)
    assert found == VALUE.tolist()


def test_memory_of_a_copy_lives_until_the_copy_is_done_though_nobody_else_has_it(executor):
    manager, stream = TransferManager(executor), executor.create_stream()
    memory = executor.memory_of(VALUE.copy())
    lives, gate = weakref.ref(memory), hold(executor, stream)
    pending = manager.to_host(stream, memory, (16,), np.float32)
    del memory
    gc.collect()
    assert lives() is not None
    gate.set()
    assert pending.wait(WAIT_S).tolist() == VALUE.tolist()
    gc.collect()
    assert lives() is None


def test_a_failed_stream_fails_the_copies_that_wait_for_it(executor):
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    gate = threading.Event()

    def fail() -> None:
        gate.wait(WAIT_S)
        raise ValueError("boom")

    executor.launch(stream, fail)
    pending = manager.to_host(stream, memory, (16,), np.float32)
    gate.set()
    with pytest.raises(InternalError, match="boom"):
        pending.wait(WAIT_S)
    assert pending.is_done()
    with pytest.raises(InternalError, match="boom"):
        manager.to_device(stream, memory, VALUE)
    healthy = executor.create_stream()
    manager.to_device(healthy, memory, VALUE)
    assert manager.to_host(healthy, memory, (16,), np.float32).wait(WAIT_S).tolist() == VALUE.tolist()


# --- between devices


def test_between_memory_of_one_device_both_streams_are_waited_for(executor):
    manager, source, target = TransferManager(executor), executor.allocate(64), executor.allocate(64)
    writer, reader = executor.create_stream("writer"), executor.create_stream("reader")
    gate, found = hold(executor, writer), []
    manager.to_device(writer, source, VALUE)
    manager.between(reader, target, manager, writer, source)
    executor.launch(reader, lambda: found.extend(contents(executor, target)))
    executor.memset(writer, source, 0)  # after the copy
    gate.set()
    executor.block_host_until_done(reader, WAIT_S)
    assert found == VALUE.tolist()
    assert manager.stats[4:6] == (1, 64)


def test_two_devices_meet_on_the_host(executor):
    other = AsynchronousExecutor("other")
    here, there = TransferManager(executor), TransferManager(other)
    source, target = executor.allocate(64), other.allocate(64)
    writer, reader = executor.create_stream(), other.create_stream()
    here.to_device(writer, source, VALUE)
    there.between(reader, target, here, writer, source)
    other.block_host_until_done(reader, WAIT_S)
    assert contents(other, target) == VALUE.tolist()
    assert here.stats.transfers_to_host == there.stats.transfers_to_device == 1
    other.close()


# --- other executors


def test_the_host_is_done_when_a_call_returns():
    executor = HostExecutor("cpu")
    manager, stream, memory = TransferManager(executor), executor.create_stream(), executor.allocate(64)
    manager.to_device(stream, memory, VALUE.reshape(4, 4).T)
    assert contents(executor, memory) == VALUE.reshape(4, 4).T.ravel().tolist()
    assert manager.stats.copies_on_host == 1
    pending = manager.to_host(stream, memory, (16,), np.float32)
    assert pending.is_done()
    assert pending.array.tolist() == contents(executor, memory)
    executor.close()


def test_a_64_mb_array_crosses_to_a_device_exactly_once_beside_its_kernels():
    executor = NullExecutor("null", bandwidth=1e9)
    manager, stream = TransferManager(executor), executor.create_stream()
    memory, nbytes = executor.allocate(64 << 20), 64 << 20
    kernel = executor.kernel("Busy", lambda: None, 0.05)
    with executor.activate(executor.create_stream("other")):
        kernel()
    manager.to_device(stream, memory, np.zeros(nbytes, np.uint8))
    copies = [call for call in executor.calls if call.kind.startswith("memcpy")]
    assert [(call.kind, call.start_s) for call in copies] == [("memcpy_to_device", 0.0)]
    assert manager.stats[:2] == (1, nbytes)
    assert stream.now_s == pytest.approx(nbytes / 1e9)


@pytest.mark.parametrize("seed", range(10))
def test_gpus_stage_in_pinned_memory_and_copy_from_each_other(seed):
    with mock.patch.object(cuda, "load_cupy", return_value=Cupy(seed)):
        near, far = (cuda.CudaExecutor(ordinal, f"gpu{ordinal}") for ordinal in range(2))
    here, there = TransferManager(near), TransferManager(far)
    source, target = near.allocate(64), far.allocate(64)
    writer, reader, value = near.create_stream(), far.create_stream(), VALUE.copy()
    near.memset(writer, source, 0)
    near.memcpy(writer, before := near.allocate(64), source)
    here.to_device(writer, source, value)
    value.fill(-1)
    there.between(reader, target, here, writer, source)
    near.memset(writer, source, 0)
    assert there.to_host(reader, target, (16,), np.float32).wait(WAIT_S).tolist() == VALUE.tolist()
    assert not here.to_host(writer, before, (16,), np.float32).wait(WAIT_S).any()
    assert here.stats == (1, 64, 1, 64, 0, 0, 0)
    assert there.stats == (0, 0, 1, 64, 1, 64, 0)
    near.close()
    far.close()
