"""A stand-in for CuPy over host memory: enough of it for `CudaExecutor`, and as lazy as a GPU.

Nothing that is put on a stream happens before somebody asks an event or waits: then one step is made, of a
stream drawn at random from a seed, so that a wait that is missing, or memory that is used again too early,
shows as a wrong result. New and freed memory is filled with `GARBAGE`. Copies from and to host memory that is
not pinned have been made when the call returns, as CUDA does it.

`Cupy` is the module; each test makes its own. Array functions are NumPy's: the arrays are a subclass of
NumPy's whose ufuncs put themselves on the current stream. `Cupy.cublas` is the library below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.device.pretend_arrays import MAKERS, ON_GPU, Array, as_numpy, as_numpys, compute, extent
from tests.device.pretend_cublas import REFUSAL, Cublas, Wrappers
from tests.device.pretend_kernels import CompileException, RawModule

GARBAGE = 0xAB
SUCCESS, OUT_OF_MEMORY, NOT_READY, ILLEGAL_ADDRESS = 0, 2, 600, 700
CAPTURE_UNSUPPORTED, CAPTURE_UNJOINED, CAPTURE_ISOLATION, CAPTURED_EVENT = 900, 904, 905, 907
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
PAGE = 4096

Work = Callable[[], None]


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"


class Mark:
    """One recording of an event: where it is, and whether the stream has passed it."""

    def __init__(self, graph: Graph | None) -> None:
        self.is_passed, self.graph = False, graph


class Graph:
    """Captured work, in the order of issue. `launch` puts it on a stream."""

    def __init__(self, origin: Stream) -> None:
        self.work: list[Work] = []
        self.streams, self.unjoined, self.error = [origin], set[Stream](), 0

    def launch(self, stream: Stream) -> None:
        for work in self.work:
            stream.put(work)


class Stream:
    def __init__(self, cupy: Cupy, ptr: int, device_id: int) -> None:
        self._cupy, self.ptr, self.device_id = cupy, ptr, device_id
        self.queue: deque[Work | Mark] = deque()
        self.graph: Graph | None = None

    def put(self, work: Work) -> None:
        self._cupy.check_alive()
        if self.graph is None:
            self.queue.append(work)
        else:
            self.graph.work.append(work)
            if self is not self.graph.streams[0]:
                self.graph.unjoined.add(self)

    def put_wait(self, mark: Mark) -> None:
        if mark.graph is not None and self.graph is None:
            self.graph = mark.graph
            self.graph.streams.append(self)
        elif mark.graph is not self.graph:
            self._cupy.break_capture(self.graph, CAPTURE_ISOLATION)
        if self.graph is None:
            self.queue.append(mark)
        else:
            self.graph.unjoined -= {self._cupy.recorded_on[mark]}

    def step(self) -> bool:
        """Do what is next, if that does not wait. Whether something was done."""
        if not self.queue or (isinstance(self.queue[0], Mark) and not self.queue[0].is_passed):
            return False
        work = self.queue.popleft()
        if not isinstance(work, Mark):
            work()
        return True

    def wait_event(self, event: Event) -> None:
        with self._cupy.lock:
            self.put_wait(event.mark)

    def synchronize(self) -> None:
        with self._cupy.lock:
            if self.graph is not None:
                self._cupy.break_capture(self.graph, CAPTURE_UNSUPPORTED)
            while self.queue:
                assert self._cupy.step(), "the streams wait for each other"
            self._cupy.check_alive()

    def begin_capture(self, mode: int) -> None:
        assert mode == self._cupy.cuda.runtime.streamCaptureModeRelaxed
        self.graph = Graph(self)

    def end_capture(self) -> Graph:
        graph = self.graph
        assert graph is not None
        for stream in graph.streams:
            stream.graph = None
        if graph.error or graph.unjoined:
            raise CUDARuntimeError(graph.error or CAPTURE_UNJOINED)
        return graph

    def use(self) -> Stream:
        assert self.device_id == self._cupy.thread.device
        self._cupy.thread.stream = self
        return self

    def __enter__(self) -> Stream:
        self._cupy.thread.outer.append(self._cupy.thread.stream)
        return self.use()

    def __exit__(self, *error: object) -> None:
        self._cupy.thread.stream = self._cupy.thread.outer.pop()


class Event:
    def __init__(self, cupy: Cupy, disable_timing: bool) -> None:
        self._cupy, self.ptr, self.mark = cupy, cupy.new_address(), Mark(None)
        self.has_timing, self.passed_at_s = not disable_timing, math.nan
        cupy.events[self.ptr] = self

    def record(self, stream: Stream) -> None:
        with self._cupy.lock:
            self.mark = mark = Mark(stream.graph)
            self._cupy.recorded_on[mark] = stream
            if stream.graph is None:
                stream.put(lambda: self._pass(mark))

    def _pass(self, mark: Mark) -> None:
        mark.is_passed = True
        self.passed_at_s = time.perf_counter()


def elapsed_ms(first: Event, last: Event) -> float:
    assert first.has_timing
    assert last.has_timing
    return 1e3 * (last.passed_at_s - first.passed_at_s)


class Device:
    """A context: inside, this is the thread's device."""

    def __init__(self, cupy: Cupy, ordinal: int) -> None:
        self._cupy, self.id = cupy, ordinal

    def __enter__(self) -> Device:
        self._cupy.thread.devices.append(self._cupy.thread.device)
        self._cupy.thread.device = self.id
        return self

    def __exit__(self, *error: object) -> None:
        self._cupy.thread.device = self._cupy.thread.devices.pop()


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class _Thread(threading.local):
    """What CuPy keeps of each thread."""

    def __init__(self) -> None:
        self.device, self.devices = 0, list[int]()
        self.stream, self.outer = None, list[Any]()
        self.allocator: Callable[[int], MemoryPointer] | None = None


class Cupy:
    """The module ``cupy``, with ``count`` devices of ``total`` bytes each."""

    def __init__(self, seed: int = 0, count: int = 2, total: int = 1 << 26) -> None:
        self.lock, self.thread = threading.RLock(), _Thread()
        self.count, self.total = count, total
        self.free_bytes = [total] * count
        self.blocks: dict[int, tuple[Any, int, int]] = {}
        """By address: the bytes, their number, the device."""
        self._freed: deque[Any] = deque(maxlen=16)
        """Who uses memory after it was freed shall see garbage, not end the process."""
        self._pinned: list[tuple[int, Any]] = []
        self.streams: list[Stream] = []
        self.events: dict[int, Event] = {}
        self.recorded_on: dict[Mark, Stream] = {}
        self.lost = 0
        """The status that every call returns once the device is broken."""
        self.launches = 0
        """Of kernels of `RawModule`s."""
        self.is_blocked = False
        """While true, nothing on any stream happens."""
        self._random, self._addresses = random.Random(seed), itertools.count(1)
        self.ndarray = type("ndarray", (Array,), {"_cupy": self})
        self.RawModule = partial(RawModule, self)
        self.capability = (9, 0)
        self.cublas = Cublas(self)
        self._handles: dict[tuple[int, int], int] = {}
        self._default_streams: dict[int, Stream] = {}
        self.cuda = SimpleNamespace(
            runtime=self._runtime(),
            cublas=Wrappers(self),
            get_cublas_handle=self._cublas_handle,
            get_current_stream=self._current_stream,
            Device=lambda ordinal: Device(self, ordinal),
            Stream=self._new_stream,
            Event=lambda disable_timing: Event(self, disable_timing),
            get_elapsed_time=elapsed_ms,
            compiler=SimpleNamespace(CompileException=CompileException),
            UnownedMemory=UnownedMemory,
            MemoryPointer=MemoryPointer,
            alloc_pinned_memory=self._pin,
            using_allocator=self._using_allocator,
        )

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        return partial(self._make, function) if function in MAKERS else function

    def _make(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """An array of what may be on the device or on the host, which is copied at once; not in a capture."""
        if (
            arguments
            and type(arguments[0]) is np.ndarray
            and self.cuda.get_current_stream().graph is not None
        ):
            raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")
        hosts, options = as_numpys(arguments), {k: as_numpys(v) for k, v in options.items()}
        hosts = [
            as_numpy(a).copy() if type(a) is np.ndarray else h for a, h in zip(arguments, hosts, strict=True)
        ]
        like = function(*hosts, **options)  # of what is there now: only shape and dtype
        result = self.empty(like.shape, like.dtype)
        self.thread.stream.put(partial(compute, function, hosts, options, as_numpy(result)))
        return result

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(malloc=lambda size: self._pointer(self._malloc(size), size))

    def empty(self, shape: tuple[int, ...], dtype: Any = float) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        allocate = self.thread.allocator or self.get_default_memory_pool().malloc
        return self.ndarray(shape, dtype, allocate(size))

    def asarray(self, array: Any, *arguments: Any, **options: Any) -> Any:
        """Of a ``__cuda_array_interface__`` an array over its memory, when the stream it names is done."""
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None or isinstance(array, self.ndarray):
            is_there = isinstance(array, self.ndarray)
            return array if is_there else self._make(np.array, array, *arguments, **options)
        if interface.get("stream") is not None:
            self.stream_of(interface["stream"]).synchronize()
        return self._over(interface, array)

    def from_dlpack(self, array: Any) -> Any:
        """Of a producer that gives a ``__cuda_array_interface__``, and has the stream wait for its own."""
        kind, ordinal = array.__dlpack_device__()
        if kind != ON_GPU:
            raise TypeError(f"Unsupported array type: {kind}")
        with Device(self, ordinal):
            return self._over(array.__dlpack__(stream=self._current_stream().ptr), array)

    def _over(self, interface: dict[str, Any], owner: object) -> Any:
        """An array over what ``interface`` describes, on whichever device it is."""
        dtype, (address, _) = np.dtype(interface["typestr"]), interface["data"]
        shape, strides = interface["shape"], interface.get("strides")
        self.check_inside(address, extent(shape, strides, dtype))
        memory = UnownedMemory(address, 0, owner, self._device_of(address))
        return self.ndarray(shape, dtype, MemoryPointer(memory, 0), strides)

    def broadcast_to(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape, subok=True)

    def ascontiguousarray(self, array: Any, dtype: Any = None) -> Any:
        dtype = array.dtype if dtype is None else np.dtype(dtype)
        if array.flags.c_contiguous and array.dtype == dtype:
            return array
        copy = self.empty(array.shape, dtype)
        self.thread.stream.put(partial(np.copyto, as_numpy(copy), as_numpy(array)))
        return copy

    # --- the machine

    def new_address(self) -> int:
        return next(self._addresses)

    def check_alive(self) -> None:
        if self.lost:
            raise CUDARuntimeError(self.lost)

    def break_capture(self, graph: Graph | None, status: int) -> None:
        if graph is not None:
            graph.error = graph.error or status
        raise CUDARuntimeError(status)

    def refuse_in_capture(self) -> None:
        """As every function of CuPy's that calls cuBLAS."""
        if self.cuda.get_current_stream().graph is not None:
            raise NotImplementedError(REFUSAL)

    def step(self) -> bool:
        """Make one step of one stream that can. Whether there was one."""
        order = self._random.sample(self.streams, len(self.streams))
        return not self.is_blocked and any(stream.step() for stream in order)

    def illegal_access(self) -> None:
        """A kernel that breaks the device."""
        self.thread.stream.put(lambda: setattr(self, "lost", ILLEGAL_ADDRESS))

    def _new_stream(self, non_blocking: bool) -> Stream:
        assert non_blocking
        with self.lock:
            stream = Stream(self, self.new_address(), self.thread.device)
            self.streams.append(stream)
        return stream

    def _current_stream(self) -> Stream:
        """Of this thread on its current device: one that was entered, or else the device's default stream."""
        device, current = self.thread.device, self.thread.stream
        if current is not None and current.device_id == device:
            return current
        if device not in self._default_streams:
            self._default_streams[device] = self._new_stream(non_blocking=True)
        return self._default_streams[device]

    def _cublas_handle(self) -> int:
        """One a thread and device."""
        return self._handles.setdefault((threading.get_ident(), self.thread.device), self.new_address())

    @contextlib.contextmanager
    def _using_allocator(self, allocator: Callable[[int], MemoryPointer]) -> Iterator[None]:
        outer, self.thread.allocator = self.thread.allocator, allocator
        try:
            yield
        finally:
            self.thread.allocator = outer

    # --- cupy.cuda.runtime

    def _runtime(self) -> SimpleNamespace:
        return SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            streamCaptureModeRelaxed=2,
            memcpyHostToDevice=TO_DEVICE,
            memcpyDeviceToHost=TO_HOST,
            memcpyDeviceToDevice=ON_DEVICE,
            getDeviceCount=lambda: self.count,
            getDeviceProperties=lambda i: {
                "name": b"Pretend", "totalGlobalMem": self.total,
                "major": self.capability[0], "minor": self.capability[1],
            },
            deviceGetPCIBusId=lambda i: f"0000:0{i}:00.0",
            memGetInfo=lambda: (self.free_bytes[self.thread.device], self.total),
            malloc=self._malloc,
            free=self._free,
            eventQuery=self._query,
            streamQuery=self._query_stream,
            memcpyAsync=self._memcpy,
            memcpyPeerAsync=self._memcpy_peer,
            memsetAsync=self._memset,
        )  # fmt: skip

    def _malloc(self, size: int) -> int:
        with self.lock:
            self.check_alive()
            device = self.thread.device
            if size > self.free_bytes[device]:
                raise CUDARuntimeError(OUT_OF_MEMORY)
            self.free_bytes[device] -= size
            raw = np.full(size + PAGE, GARBAGE, np.uint8)
            address = -(-raw.ctypes.data // 512) * 512
            self.blocks[address] = (raw, size, device)
        return address

    def _pin(self, size: int) -> Any:
        """As CuPy, which rounds up."""
        memory = np.full(size + 100, GARBAGE, np.uint8)
        self._pinned.append((memory.ctypes.data, weakref.ref(memory)))
        return memory

    def _is_pinned(self, address: int) -> bool:
        return any(
            start <= address < start + memory.nbytes
            for start, found in self._pinned
            if (memory := found()) is not None
        )

    def _free(self, address: int) -> None:
        with self.lock:
            while self.step():  # cudaFree waits for the device
                pass
            raw, size, device = self.blocks.pop(address)
            self.free_bytes[device] += size
            raw[:] = GARBAGE
            self._freed.append(raw)

    def _pointer(self, address: int, size: int) -> MemoryPointer:
        return MemoryPointer(UnownedMemory(address, size, None, self.thread.device), 0)

    def _query(self, ptr: int) -> int:
        with self.lock:
            mark = self.events[ptr].mark
            if mark.graph is not None:
                mark.graph.error = mark.graph.error or CAPTURED_EVENT
                return CAPTURED_EVENT
            if not mark.is_passed and not self.lost:
                self.step()
            return self.lost or (SUCCESS if mark.is_passed else NOT_READY)

    def _query_stream(self, ptr: int) -> int:
        with self.lock:
            stream = self.stream_of(ptr)
            if stream.graph is not None:
                stream.graph.error = stream.graph.error or CAPTURE_UNSUPPORTED
                return CAPTURE_UNSUPPORTED
            if stream.queue and not self.lost:
                self.step()
            return self.lost or (NOT_READY if stream.queue else SUCCESS)

    def check_inside(self, address: int, size: int, device: int | None = None) -> None:
        blocks = list(self.blocks.items())
        assert any(
            start <= address and address + size <= start + length and device in (None, owner)
            for start, (_, length, owner) in blocks
        ), f"{address:#x} is not memory of device {device}"

    def _device_of(self, address: int) -> int:
        found = [d for start, (_, size, d) in self.blocks.items() if start <= address < start + size]
        return found[0] if found else self.thread.device

    def stream_of(self, ptr: int) -> Stream:
        return next(stream for stream in self.streams if stream.ptr == ptr)

    def _memcpy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        with self.lock:
            if kind in (TO_DEVICE, ON_DEVICE):
                self.check_inside(target, size)
            if kind in (TO_HOST, ON_DEVICE):
                self.check_inside(source, size)
            queue = self.stream_of(stream)
            if kind == TO_DEVICE and queue.graph is None and not self._is_pinned(source):
                staged = ctypes.string_at(source, size)
                queue.put(lambda: _move(target, staged, size))
            else:
                queue.put(lambda: _move(target, source, size))
            if kind == TO_HOST and queue.graph is None and not self._is_pinned(target):
                queue.synchronize()

    def _memcpy_peer(self, target: int, into: int, source: int, of: int, size: int, stream: int) -> None:
        with self.lock:
            self.check_inside(target, size, into)
            self.check_inside(source, size, of)
            self.stream_of(stream).put(lambda: _move(target, source, size))

    def _memset(self, address: int, value: int, size: int, stream: int) -> None:
        with self.lock:
            self.check_inside(address, size)
            self.stream_of(stream).put(lambda: _fill(address, value, size))


def _move(target: int, source: int | bytes, size: int) -> None:
    ctypes.memmove(target, source, size)


def _fill(address: int, value: int, size: int) -> None:
    ctypes.memset(address, value, size)
