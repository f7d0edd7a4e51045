"""`CudaExecutor` on a pretended CuPy, whose streams are as late as they can be, and on a GPU where there is
one.
"""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from flowrt.device.cuda import cuda
from flowrt.device.cuda.cuda import CudaExecutor, GpuDescription
from flowrt.device.host.host import HostExecutor
from flowrt.device.stream_executor import DeviceMemory, EventStatus, Stream
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from tests.contracts.check_stream_executor import QueuedStreamsContract
from tests.contracts.stream_executor_case import Case
from tests.device.pretend_cupy import ILLEGAL_ADDRESS, Cupy

SOON_S = 60.0
SEEDS = itertools.count()


def pretend(ordinal: int = 0, cupy: Cupy | None = None) -> CudaExecutor:
    with mock.patch.object(cuda, "load_cupy", return_value=cupy or Cupy(next(SEEDS))):
        return CudaExecutor(ordinal, f"/device:GPU:{ordinal}")


def real() -> CudaExecutor:
    return CudaExecutor(0, "/device:GPU:0")


class TestPretendedGpu(QueuedStreamsContract):
    case = Case(pretend)


@pytest.mark.gpu
class TestGpu(QueuedStreamsContract):
    case = Case(real)


@pytest.fixture(params=[pretend, pytest.param(real, marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[CudaExecutor]:
    executor = request.param()
    yield executor
    executor.close()


@pytest.fixture
def stream(executor: CudaExecutor) -> Stream:
    return executor.create_stream("compute")


@pytest.fixture
def machine() -> Cupy:
    return Cupy(next(SEEDS))


def put(executor: CudaExecutor, stream: Stream, values: list[float]) -> Any:
    """A float32 array of the device."""
    host = np.array(values, np.float32)
    memory = executor.allocate(max(host.nbytes, 1))
    executor.memcpy_to_device(stream, memory.slice(0, host.nbytes), host)
    executor.block_host_until_done(stream, SOON_S)
    return executor.array(memory, host.shape, host.dtype)


def get(executor: CudaExecutor, stream: Stream, array: Any) -> list[float]:
    host = np.empty(array.shape, array.dtype)
    executor.memcpy_to_host(stream, host, executor.memory_of(array))
    executor.block_host_until_done(stream, SOON_S)
    return host.tolist()


# --- whether there is a GPU


def test_cupy_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FailedPreconditionError, match=r"not installed.*flowrt\[cuda12\].*flowrt\[cuda13\]"):
        CudaExecutor(0, "/device:GPU:0")
    assert cuda.visible_devices() == []


@pytest.mark.parametrize("visible", ["", "-1", "-1,0"])
def test_hidden_devices_are_said_to_be_hidden(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(FailedPreconditionError, match=f"CUDA_VISIBLE_DEVICES='{visible}' hides all"):
        cuda.load_cupy()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cuda.ctypes, "CDLL", mock.Mock(side_effect=OSError("libcuda.so.1: not there")))
    with pytest.raises(FailedPreconditionError, match="no NVIDIA driver"):
        cuda.load_cupy()


@pytest.mark.parametrize(
    ("count", "message"), [(0, "finds none"), (RuntimeError("driver too old"), "driver too old")]
)
def test_what_cupy_says_is_said(monkeypatch: pytest.MonkeyPatch, count: Any, message: str) -> None:
    asked = mock.Mock(side_effect=[count])
    runtime = SimpleNamespace(getDeviceCount=asked)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(cuda, "_reason_against_cuda", lambda: None)
    with pytest.raises(FailedPreconditionError, match=message):
        cuda.load_cupy()


def test_devices_are_described(monkeypatch: pytest.MonkeyPatch, machine: Cupy) -> None:
    monkeypatch.setattr(cuda, "load_cupy", lambda: machine)
    assert cuda.visible_devices() == [
        GpuDescription(0, "Pretend", machine.total, (9, 0), "0000:00:00.0"),
        GpuDescription(1, "Pretend", machine.total, (9, 0), "0000:01:00.0"),
    ]


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_an_ordinal_is_one_of_the_devices(machine: Cupy, ordinal: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a GPU of 0 to 1"):
        pretend(ordinal, machine)


def test_a_process_that_may_see_no_device_gets_none_and_no_driver_error() -> None:
    script = (
        "from flowrt.device.cuda.cuda import visible_devices; import sys; "
        "print(visible_devices(), 'cupy' in sys.modules)"
    )
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[] False\n", "")


@pytest.mark.gpu
def test_a_real_device_is_described() -> None:
    for i, found in enumerate(cuda.visible_devices()):
        assert found.ordinal == i
        assert found.name
        assert found.memory_bytes > 1 << 30
        assert found.compute_capability >= (5, 0)


# --- memory


def test_memory_can_be_had_after_it_ran_out(machine: Cupy) -> None:
    executor = pretend(cupy=machine)
    whole = executor.allocate(machine.total)
    for take in (lambda: executor.allocate(512), lambda: executor.allocate(machine.total)):
        with pytest.raises(ResourceExhaustedError, match="GPU:0: allocate"):
            take()
    executor.deallocate(whole)
    assert executor.memory_info() == (machine.total, machine.total)
    executor.allocate(512)
    executor.close()


@pytest.mark.parametrize("shape", [(), (0,), (7, 3)])
def test_pinned_memory_there_and_back(executor: CudaExecutor, stream: Stream, shape: tuple[int, ...]) -> None:
    source, target = executor.pinned_empty(shape, np.int16), executor.pinned_empty(shape, np.int16)
    source[...], target[...] = 5, 0
    memory = executor.allocate(64).slice(0, source.nbytes)
    executor.memcpy_to_device(stream, memory, source)
    executor.memcpy_to_host(stream, target, memory)
    executor.block_host_until_done(stream, SOON_S)
    np.testing.assert_array_equal(target, source)
    assert target.flags.c_contiguous
    assert target.flags.writeable


class Pool:
    """Hands out memory for CuPy's arrays and counts what is out."""

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor
        self.asked: list[tuple[int, Stream]] = []
        self.bytes_in_use = 0

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        self.asked.append((nbytes, stream))
        self.bytes_in_use += nbytes
        region = self._executor.allocate(nbytes)
        piece = DeviceMemory(self._executor, region.address, nbytes)
        weakref.finalize(piece, self._take_back, region)
        return piece

    def _take_back(self, region: DeviceMemory) -> None:
        self.bytes_in_use -= region.nbytes
        self._executor.deallocate(region)


def test_arrays_of_cupy_take_their_memory_from_the_pool(executor: CudaExecutor, stream: Stream) -> None:
    pool, other = Pool(executor), executor.create_stream("other")
    executor.set_allocator(pool.allocate)
    source = put(executor, stream, [1.0, 2.0, 3.0])
    executor.block_host_until_done(other, SOON_S)
    with executor.activate(stream):
        first = source + source
        executor.use(other)
        second = source * source
    assert [asked for _, asked in pool.asked] == [stream, other]
    assert pool.bytes_in_use == sum(nbytes for nbytes, _ in pool.asked) >= 24
    assert get(executor, stream, first) == [2.0, 4.0, 6.0]
    assert get(executor, other, second) == [1.0, 4.0, 9.0]
    view = first[1:]
    del first, second
    gc.collect()
    assert pool.bytes_in_use == pool.asked[0][0]
    del view
    gc.collect()
    assert pool.bytes_in_use == 0


def test_an_allocator_that_has_no_more_fails_the_stream(executor: CudaExecutor, stream: Stream) -> None:
    def refuse(nbytes: int, stream: Stream) -> DeviceMemory:
        raise ResourceExhaustedError(f"no {nbytes} bytes")

    source = put(executor, stream, [1.0])
    executor.set_allocator(refuse)
    executor.launch(stream, lambda: source + source)
    with pytest.raises(ResourceExhaustedError, match=r"no \d+ bytes"):
        executor.block_host_until_done(stream, SOON_S)


def test_outside_the_context_cupy_is_as_it_was(machine: Cupy) -> None:
    executor = pretend(1, machine)
    streams = [executor.create_stream(name) for name in "abc"]
    with executor.activate(streams[0]):
        executor.use(streams[1])
        with executor.activate(streams[2]):
            assert machine.thread.stream is streams[2].native
        assert machine.thread.stream is streams[1].native
        assert machine.thread.device == 1
    assert (machine.thread.device, machine.thread.stream, machine.thread.allocator) == (0, None, None)
    executor.close()


# --- several executors


def test_two_virtual_devices_of_one_gpu_have_their_own_memory(machine: Cupy) -> None:
    first, second = pretend(0, machine), pretend(0, machine)
    pools = [Pool(first), Pool(second)]
    for executor, pool in zip((first, second), pools, strict=True):
        executor.set_allocator(pool.allocate)
        stream = executor.create_stream()
        source = put(executor, stream, [2.0])
        with executor.activate(stream):
            assert get(executor, stream, source + source) == [4.0]
    assert [len(pool.asked) for pool in pools] == [1, 1]
    with pytest.raises(InvalidArgumentError, match="memory of this device"):
        first.memset(first.create_stream(), second.allocate(4), 0)
    first.close()
    second.close()


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_copy_from_another_executor(machine: Cupy, ordinal: int) -> None:
    near, far = pretend(0, machine), pretend(ordinal, machine)
    here, there = near.create_stream("here"), far.create_stream("there")
    source, target = far.allocate(8), near.allocate(8)
    far.memset(there, source, 3)
    near.wait_for(here, there)
    near.memcpy_from_peer(here, target, source)
    assert get(near, here, near.array(target, (8,), np.uint8)) == [3] * 8
    with pytest.raises(InvalidArgumentError, match="two equal sizes"):
        near.memcpy_from_peer(here, target, source.slice(0, 4))
    with pytest.raises(InvalidArgumentError, match="memory of this device"):
        near.memcpy_from_peer(here, source, target)
    near.close()
    far.close()


def test_what_is_not_a_gpus_is_refused(executor: CudaExecutor, stream: Stream) -> None:
    host = HostExecutor("/device:CPU:0")
    with pytest.raises(InvalidArgumentError, match="an event of a GPU"):
        executor.wait_for(stream, host.create_stream("host"))
    with pytest.raises(InvalidArgumentError, match="a GPU's memory"):
        executor.memcpy_from_peer(stream, executor.allocate(8), host.allocate(8))
    host.close()


# --- waiting and failing


def test_nothing_is_waited_for_that_is_not_asked_for(machine: Cupy) -> None:
    """The pretended device takes one step a question, so whoever does not ask sees what was there before."""
    executor = pretend(cupy=machine)
    stream, host = executor.create_stream(), executor.pinned_empty((4,), np.uint8)
    memory, host[:] = executor.allocate(4), 0
    executor.memset(stream, memory, 7)
    executor.memcpy_to_host(stream, host, memory)
    assert host.tolist() == [0] * 4
    executor.block_host_until_done(stream, SOON_S)
    assert host.tolist() == [7] * 4
    executor.close()


def test_a_stream_that_does_not_move_meets_the_deadline(machine: Cupy) -> None:
    executor = pretend(cupy=machine)
    stream = executor.create_stream()
    machine.is_blocked = True
    with pytest.raises(DeadlineExceededError, match=r"compute: expected .* within 0\.01 s"):
        executor.block_host_until_done(stream, 0.01)
    machine.is_blocked = False
    executor.block_host_until_done(stream, SOON_S)
    executor.close()


def test_a_function_is_called_when_an_event_has_passed(executor: CudaExecutor, stream: Stream) -> None:
    called, event = list[EventStatus](), executor.create_event()
    executor.record(stream, event)
    executor.when_done(event, lambda: called.append(event.poll()))
    executor.close()
    assert called == [EventStatus.COMPLETE]


def test_a_broken_device_fails_all_streams_and_wakes_who_waits(machine: Cupy) -> None:
    executor = pretend(cupy=machine)
    stream, other = executor.create_stream("compute"), executor.create_stream("other")
    called, event = list[int](), executor.create_event()
    executor.launch(stream, machine.illegal_access)
    executor.host_callback(stream, lambda: called.append(1))
    executor.record(other, event)
    with pytest.raises(InternalError, match=f"cudaError{ILLEGAL_ADDRESS}.*device is lost") as caught:
        executor.block_host_until_done(stream, SOON_S)
    assert isinstance(caught.value.__cause__, machine.cuda.runtime.CUDARuntimeError)
    assert event.poll() is EventStatus.ERROR
    with pytest.raises(InternalError, match="GPU:0"):
        executor.block_host_until_done(other, SOON_S)
    executor.close()
    assert called == []


def test_closing_waits_for_copies(executor: CudaExecutor, stream: Stream) -> None:
    host, memory = executor.pinned_empty((4,), np.uint8), executor.allocate(4)
    host[:] = 0
    executor.memset(stream, memory, 7)
    executor.memcpy_to_host(stream, host, memory)
    executor.close()
    assert host.tolist() == [7] * 4


# --- CUDA graphs


def warm(executor: CudaExecutor, stream: Stream, run: Callable[[], Any]) -> Callable[[], Any]:
    executor.launch(stream, run)
    executor.block_host_until_done(stream, SOON_S)
    return run


def test_a_graph_is_replayed_with_other_inputs(executor: CudaExecutor, stream: Stream) -> None:
    pool = Pool(executor)
    executor.set_allocator(pool.allocate)
    source, target = put(executor, stream, [1.0, 2.0]), put(executor, stream, [0.0, 0.0])
    run = warm(
        executor, stream, lambda: executor.xp.add((source * source) * np.float32(2), source, out=target)
    )
    executor.memset(stream, executor.memory_of(target), 0)
    pool.asked.clear()
    replay = executor.capture(stream, run)
    assert replay is not None
    assert get(executor, stream, target) == [0.0, 0.0]  # capturing does nothing
    assert len(pool.asked) == 2
    temporaries = pool.bytes_in_use
    for values in ([1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]):
        host = np.array(values, np.float32)
        executor.memcpy_to_device(stream, executor.memory_of(source), host)
        replay()
        assert get(executor, stream, target) == (host * host * 2 + host).tolist()
    assert pool.bytes_in_use == temporaries >= 16
    del replay, run
    gc.collect()
    assert pool.bytes_in_use == 0


def test_a_graph_has_the_work_of_streams_that_come_back(executor: CudaExecutor, stream: Stream) -> None:
    other = executor.create_stream("other")
    source, target = put(executor, stream, [3.0]), put(executor, stream, [0.0])
    event, multiply = executor.create_event(), executor.xp.multiply

    def run() -> None:
        multiply(source, source, out=target)
        executor.record(stream, event)
        assert event.poll() is EventStatus.PENDING
        executor.wait_for(other, event)
        executor.use(other)
        multiply(target, target, out=target)
        executor.wait_for(stream, other)
        executor.use(stream)
        multiply(target, target, out=target)

    warm(executor, stream, lambda: multiply(source, source, out=target))
    replay = executor.capture(stream, run)
    assert replay is not None
    for _ in range(2):
        replay()
        assert get(executor, stream, target) == [3.0**8]
    executor.block_host_until_done(other, SOON_S)
    assert event.poll() is EventStatus.COMPLETE


def test_a_graph_keeps_the_host_memory_it_copies_from(executor: CudaExecutor, stream: Stream) -> None:
    source = executor.pinned_empty((4,), np.uint8)
    source[:] = 5
    memory, gone = executor.allocate(4), weakref.ref(source)
    replay = executor.capture(stream, partial(executor.memcpy_to_device, stream, memory, source))
    assert replay is not None
    del source
    gc.collect()
    assert gone() is not None
    replay()
    assert get(executor, stream, executor.array(memory, (4,), np.uint8)) == [5] * 4
    del replay
    gc.collect()
    assert gone() is None


def raising(executor: CudaExecutor, stream: Stream) -> None:
    raise ZeroDivisionError


def launching_what_raises(executor: CudaExecutor, stream: Stream) -> None:
    executor.launch(stream, lambda: 1 / 0)


def calling_back(executor: CudaExecutor, stream: Stream) -> None:
    executor.host_callback(stream, lambda: None)


def waiting(executor: CudaExecutor, stream: Stream) -> None:
    executor.block_host_until_done(stream)


def waiting_in_cupy(executor: CudaExecutor, stream: Stream) -> None:
    stream.native.synchronize()  # type: ignore[attr-defined]


def copying_from_the_host(executor: CudaExecutor, stream: Stream) -> None:
    executor.xp.asarray(np.ones(3))  # by pinned memory that CuPy uses again


def waiting_for_what_was_before(executor: CudaExecutor, stream: Stream) -> None:
    executor.wait_for(stream, executor.create_stream("before"))


def leaving_a_stream_behind(executor: CudaExecutor, stream: Stream) -> None:
    other = executor.create_stream("other")
    executor.wait_for(other, stream)
    executor.memset(other, executor.allocate(8), 0)


def capturing(executor: CudaExecutor, stream: Stream) -> None:
    executor.capture(stream, lambda: None)


@pytest.mark.parametrize(
    "work",
    [
        raising,
        launching_what_raises,
        calling_back,
        waiting,
        waiting_in_cupy,
        copying_from_the_host,
        waiting_for_what_was_before,
        leaving_a_stream_behind,
        capturing,
    ],
)
def test_what_cannot_be_captured_gives_none_and_the_stream_goes_on(
    executor: CudaExecutor, stream: Stream, work: Callable[[CudaExecutor, Stream], None]
) -> None:
    assert executor.capture(stream, lambda: work(executor, stream)) is None
    assert stream.error is None
    array = put(executor, stream, [1.0])
    assert get(executor, stream, array) == [1.0]
    replay = executor.capture(stream, lambda: executor.memset(stream, executor.memory_of(array), 0))
    assert replay is not None
    replay()
    assert get(executor, stream, array) == [0.0]


def test_an_interrupt_ends_the_capture(executor: CudaExecutor, stream: Stream) -> None:
    def run() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.capture(stream, run)
    assert get(executor, stream, put(executor, stream, [1.0])) == [1.0]


def test_a_graph_of_a_failed_stream_is_not_launched(executor: CudaExecutor, stream: Stream) -> None:
    memory = executor.allocate(8)
    replay = executor.capture(stream, lambda: executor.memset(stream, memory, 0))
    assert replay is not None
    executor.launch(stream, lambda: 1 / 0)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        replay()
