"""A stand-in for CuPy over host memory: enough of it for `CudaExecutor`, and as lazy as a GPU.

Nothing that is put on a stream happens before somebody asks an event or waits: then one step is made, of a
stream drawn at random from a seed, so that a wait that is missing, or memory that is used again too early,
shows as a wrong result. New and freed memory is filled with `GARBAGE`. Copies from and to host memory that is
not pinned have been made when the call returns, as CUDA does it.

`Cupy` is the module; each test makes its own. Array functions are NumPy's: the arrays are a subclass of
NumPy's whose ufuncs put themselves on the current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

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
        assert disable_timing
        self._cupy, self.ptr, self.mark = cupy, cupy.new_address(), Mark(None)
        cupy.events[self.ptr] = self

    def record(self, stream: Stream) -> None:
        with self._cupy.lock:
            self.mark = mark = Mark(stream.graph)
            self._cupy.recorded_on[mark] = stream
            if stream.graph is None:
                stream.put(lambda: setattr(mark, "is_passed", True))


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
        self.is_blocked = False
        """While true, nothing on any stream happens."""
        self._random, self._addresses = random.Random(seed), itertools.count(1)
        self.ndarray = type("ndarray", (Array,), {"_cupy": self})
        self.compute_types: dict[Any, int] = {}
        linalg = SimpleNamespace(
            COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_TF32=7, set_compute_type=self.compute_types.__setitem__
        )
        self._core = SimpleNamespace(_routines_linalg=linalg)
        self.cuda = SimpleNamespace(
            runtime=self._runtime(),
            Device=lambda ordinal: Device(self, ordinal),
            Stream=self._new_stream,
            Event=lambda disable_timing: Event(self, disable_timing),
            UnownedMemory=UnownedMemory,
            MemoryPointer=MemoryPointer,
            alloc_pinned_memory=self._pin,
            using_allocator=self._using_allocator,
        )

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        return partial(self._make, function) if function in MAKERS else function

    def _make(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """An array of what may be on the device or on the host, which is copied at once."""
        hosts, options = _as_numpys(arguments), {k: _as_numpys(v) for k, v in options.items()}
        hosts = [
            _as_numpy(a).copy() if type(a) is np.ndarray else h for a, h in zip(arguments, hosts, strict=True)
        ]
        like = function(*hosts, **options)  # of what is there now: only shape and dtype
        result = self.empty(like.shape, like.dtype)
        self.thread.stream.put(partial(_compute, function, hosts, options, _as_numpy(result)))
        return result

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(malloc=lambda size: self._pointer(self._malloc(size), size))

    def empty(self, shape: tuple[int, ...], dtype: Any = float) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        allocate = self.thread.allocator or self.get_default_memory_pool().malloc
        return self.ndarray(shape, dtype, allocate(size))

    def asarray(self, array: Any, *arguments: Any, **options: Any) -> Any:
        """Of a ``__cuda_array_interface__`` an array over its memory."""
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            return np.asarray(array, *arguments, **options)
        dtype, (address, _) = np.dtype(interface["typestr"]), interface["data"]
        size = int(np.prod(interface["shape"])) * dtype.itemsize
        self._check_inside(address, size)
        return self.ndarray(interface["shape"], dtype, self._pointer(address, size))

    def ascontiguousarray(self, array: Any) -> Any:
        if array.flags.c_contiguous:
            return array
        copy = self.empty(array.shape, array.dtype)
        self.thread.stream.put(partial(np.copyto, _as_numpy(copy), _as_numpy(array)))
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
                "name": b"Pretend", "totalGlobalMem": self.total, "major": 9, "minor": 0,
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
            stream = self._stream(ptr)
            if stream.graph is not None:
                stream.graph.error = stream.graph.error or CAPTURE_UNSUPPORTED
                return CAPTURE_UNSUPPORTED
            if stream.queue and not self.lost:
                self.step()
            return self.lost or (NOT_READY if stream.queue else SUCCESS)

    def _check_inside(self, address: int, size: int, device: int | None = None) -> None:
        blocks = list(self.blocks.items())
        assert any(
            start <= address and address + size <= start + length and device in (None, owner)
            for start, (_, length, owner) in blocks
        ), f"{address:#x} is not memory of device {device}"

    def _stream(self, ptr: int) -> Stream:
        return next(stream for stream in self.streams if stream.ptr == ptr)

    def _memcpy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        with self.lock:
            if kind in (TO_DEVICE, ON_DEVICE):
                self._check_inside(target, size)
            if kind in (TO_HOST, ON_DEVICE):
                self._check_inside(source, size)
            queue = self._stream(stream)
            if kind == TO_DEVICE and queue.graph is None and not self._is_pinned(source):
                staged = ctypes.string_at(source, size)
                queue.put(lambda: _move(target, staged, size))
            else:
                queue.put(lambda: _move(target, source, size))
            if kind == TO_HOST and queue.graph is None and not self._is_pinned(target):
                queue.synchronize()

    def _memcpy_peer(self, target: int, into: int, source: int, of: int, size: int, stream: int) -> None:
        with self.lock:
            self._check_inside(target, size, into)
            self._check_inside(source, size, of)
            self._stream(stream).put(lambda: _move(target, source, size))

    def _memset(self, address: int, value: int, size: int, stream: int) -> None:
        with self.lock:
            self._check_inside(address, size)
            self._stream(stream).put(lambda: _fill(address, value, size))


def _move(target: int, source: int | bytes, size: int) -> None:
    ctypes.memmove(target, source, size)


def _fill(address: int, value: int, size: int) -> None:
    ctypes.memset(address, value, size)


# --- arrays


class Array(np.ndarray):
    """An array over memory of the device; what is done to it happens on the current stream, later."""

    _cupy: Cupy

    def __new__(cls, shape: tuple[int, ...], dtype: Any, memptr: MemoryPointer) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = (ctypes.c_ubyte * size).from_address(memptr.ptr)
        array = np.ndarray.__new__(cls, shape, dtype, buffer=np.frombuffer(raw, np.uint8) if size else None)
        array._memory = memptr.mem
        return array

    def __array_finalize__(self, whole: Any) -> None:
        self._memory = getattr(whole, "_memory", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        hosts = [_as_numpy(x) for x in inputs]
        if method == "at":
            self._cupy.thread.stream.put(partial(_compute, ufunc.at, hosts, options, None))
            return None
        with np.errstate(all="ignore"):
            like = getattr(ufunc, method)(*hosts, **options)  # of what is there now: only shape and dtype
        result = out[0] if out else self._cupy.empty(like.shape, like.dtype)
        target = _as_numpy(result)

        def work() -> None:
            with np.errstate(all="ignore"):
                getattr(ufunc, method)(*hosts, out=target, **options)

        self._cupy.thread.stream.put(work)
        return result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Views at once; everything else is computed later, too."""
        if function in SIZED_BY_VALUES:
            self._cupy.thread.stream.synchronize()
        hosts, options = _as_numpys(args), {k: _as_numpys(v) for k, v in kwargs.items() if k != "out"}
        function = _take if function is np.take else function
        with np.errstate(all="ignore"):
            like = None if function is np.copyto else function(*hosts, **options)
        if _is_view(like, hosts):
            return super().__array_function__(function, types, args, kwargs)
        if like is not None and not isinstance(like, np.ndarray | np.generic):
            return like
        result = kwargs.get("out")
        if result is None and like is not None:
            result = self._cupy.empty(like.shape, like.dtype)
        self._cupy.thread.stream.put(partial(_compute, function, hosts, options, _as_numpy(result)))
        return result

    def __getitem__(self, key: Any) -> Any:
        arrays = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, np.ndarray)]
        if not arrays:  # a view, also of one element
            found = super().__getitem__(key)
            is_element = isinstance(found, np.generic)
            return (
                super().__getitem__((*key, ...) if isinstance(key, tuple) else (key, ...))
                if is_element
                else found
            )
        if any(k.dtype == bool for k in arrays):  # the size depends on values, and CuPy waits for them
            self._cupy.thread.stream.synchronize()
        host, key = _as_numpy(self), _as_numpys(key)
        like = host[_as_zeros(key)]  # only shape and dtype: the indices may not be there yet
        result = self._cupy.empty(like.shape, like.dtype)
        self._cupy.thread.stream.put(partial(_compute, host.__getitem__, [key], {}, _as_numpy(result)))
        return result

    def __setitem__(self, key: Any, value: Any) -> None:
        arguments = [_as_numpys(key), _as_numpys(value)]
        self._cupy.thread.stream.put(partial(_compute, _as_numpy(self).__setitem__, arguments, {}, None))

    def get(self) -> Any:
        """On the host, when all streams are done."""
        for stream in self._cupy.streams:
            stream.synchronize()
        return _as_numpy(self).copy()

    def item(self, *args: Any) -> Any:
        self._cupy.thread.stream.synchronize()
        return _as_numpy(self).item(*args)

    def tolist(self) -> Any:
        self._cupy.thread.stream.synchronize()
        return _as_numpy(self).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    @property
    def device(self) -> Device:
        return Device(self._cupy, self._memory.device_id)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0], mem=self._memory)


MAKERS = {np.array, np.full, np.zeros, np.ones, np.arange, np.eye, np.linspace}

SIZED_BY_VALUES = {np.nonzero, np.flatnonzero, np.argwhere, np.unique, np.compress, np.extract, np.bincount}
"""Functions that CuPy waits in: how much they give depends on what is in the array."""


def _is_view(value: Any, of: tuple[Any, ...]) -> bool:
    return isinstance(value, np.ndarray) and any(
        isinstance(a, np.ndarray) and np.may_share_memory(value, a) for a in of
    )


def _compute(function: Any, arguments: Any, options: Any, target: Any) -> None:
    with np.errstate(all="ignore"):
        value = function(*arguments, **options)
        if target is not None:
            np.copyto(target, value)


def _as_numpys(value: Any) -> Any:
    return type(value)(map(_as_numpys, value)) if isinstance(value, list | tuple) else _as_numpy(value)


def _take(array: Any, indices: Any, axis: int) -> Any:
    """Indices are wrapped around, as by CuPy (NumPy's ``mode="wrap"`` takes n steps for n times around)."""
    return np.take(array, indices % array.shape[axis], axis=axis)


def _as_zeros(key: Any) -> Any:
    """An index with 0 for every number in its arrays."""
    if isinstance(key, tuple):
        return tuple(map(_as_zeros, key))
    return np.zeros_like(key) if isinstance(key, np.ndarray) and key.dtype != bool else key


def _as_numpy(value: Any) -> Any:
    """A view of an array's bytes that does not keep them, as a kernel's pointer does not."""
    if not isinstance(value, np.ndarray):
        return value
    return np.asarray(SimpleNamespace(__array_interface__=value.__array_interface__)).view(value.dtype)
