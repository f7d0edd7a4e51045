"""`CudaExecutor`: an NVIDIA GPU through CuPy. The only module that imports CuPy.

It runs on CuPy 13 and 14 for CUDA 12 and 13. Matrix products are cuBLAS's (`flowrt.device.cuda.cuda_blas`).
CuPy 14 no longer supports cuDNN, and CuPy 13 only cuDNN 8, so convolutions are flowrt's own: patches and a
matrix product (``flowrt/graph/ops/nn/conv.py``).

Rules of this file:

  1. Nothing is imported, and no driver is loaded, before a device is requested.
  2. Several executors may share one GPU: all state belongs to the executor, except CuPy's own (the current
     stream, the allocator of a thread, cuBLAS's handles, pinned memory).
  3. An `activate` context sets the thread's CuPy state (device, stream and allocator) and restores it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, cast, final
from weakref import WeakSet

import numpy as np

from flowrt.device.cuda.cuda_blas import ArrayModule, CudaBlas
from flowrt.device.cuda.cuda_graph import CudaGraph, capture
from flowrt.device.cuda.cuda_stream import NOT_READY, Callback, CudaEvent, CudaStream, as_op_error
from flowrt.device.event_manager import MANY_POLLS, EventManager, pauses, rest
from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, InternalError, InvalidArgumentError

ArrayAllocator: TypeAlias = Callable[[int, Stream], DeviceMemory]


# --- discovery


class GpuDescription(NamedTuple):
    """One GPU that this process sees; ``ordinal`` counts those."""

    ordinal: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    pci_bus_id: str


def visible_devices() -> list[GpuDescription]:
    """The GPUs that this process may use; empty if there is none, for whatever reason."""
    try:
        cupy = load_cupy()
    except FailedPreconditionError:
        return []
    return [_describe(cupy.cuda.runtime, ordinal) for ordinal in range(cupy.cuda.runtime.getDeviceCount())]


def _describe(runtime: Any, ordinal: int) -> GpuDescription:
    found = runtime.getDeviceProperties(ordinal)
    capability = (found["major"], found["minor"])
    bus = runtime.deviceGetPCIBusId(ordinal)
    return GpuDescription(ordinal, found["name"].decode(), found["totalGlobalMem"], capability, bus)


def load_cupy() -> Any:
    """The module ``cupy``, with at least one usable device. Raises `FailedPreconditionError` with the reason
    otherwise, as from `why_no_gpu`.
    """
    reason = why_no_gpu()
    if reason is not None:
        raise FailedPreconditionError(f"GPU: expected a CUDA device; {reason}")
    import cupy

    return cupy


def load_nccl() -> Any:
    """The module ``cupy.cuda.nccl``. Raises `FailedPreconditionError` without a GPU, or NCCL's library."""
    load_cupy()
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise FailedPreconditionError(
            f"NCCL: expected its library; {error}. Install nvidia-nccl-cu12 or nvidia-nccl-cu13"
        ) from None
    return nccl


def why_no_gpu() -> str | None:
    """Reason why this process has no GPU: CuPy is not installed or cannot be imported, no driver,
    ``CUDA_VISIBLE_DEVICES`` hides all. None if it has one.

    The cheap checks (0.1 ms) come first; importing CuPy takes about a second.
    """
    reason = _reason_against_cuda()
    if reason is not None:
        return reason
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() else "CuPy finds none"
    except (ImportError, RuntimeError) as error:
        return f"CuPy finds none: {error}"


def _reason_against_cuda() -> str | None:
    """Reason why there can be no GPU, as far as it is known without CuPy."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides all of them"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed. Install flowrt[cuda12] or flowrt[cuda13], to match your driver's CUDA"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    return None


def cuda_array_to_host(array: Any) -> np.ndarray[Any, Any]:
    """A host copy of ``array``, of any library, by its ``__cuda_array_interface__``: one transfer, ordered
    after the stream that the interface names, and complete on return.

    Raises `FailedPreconditionError` without CuPy or a GPU, `InvalidArgumentError` if CuPy cannot read it.
    """
    cupy = load_cupy()
    try:
        return cupy.asarray(array).get()
    except Exception as error:
        raise InvalidArgumentError(
            f"expected a __cuda_array_interface__ that CuPy can read; got a {type(array).__name__} ({error})"
        ) from error


# --- one device


@final
class CudaExecutor(StreamExecutor):
    """The GPU ``ordinal`` of `visible_devices`. Several executors of one GPU are virtual devices.

    Raises `FailedPreconditionError` without any GPU, `InvalidArgumentError` without one of this ordinal.

    After an illegal access, CUDA rejects all work of the process: then every stream of all executors fails.
    """

    platform = "cuda"
    is_asynchronous = True

    def __init__(self, ordinal: int, name: str) -> None:
        super().__init__(name)
        cupy = load_cupy()
        self.ordinal = ordinal
        self._runtime = cupy.cuda.runtime
        count = self._runtime.getDeviceCount()
        if not 0 <= ordinal < count:
            raise InvalidArgumentError(f"{name}: expected a GPU of 0 to {count - 1}; got {ordinal}")
        self.xp = ArrayModule(cupy, CudaBlas(cupy, _describe(self._runtime, ordinal).compute_capability))
        self._device = self.xp.cuda.Device(ordinal)
        """A context: inside, the device is the thread's current one, which CUDA calls use implicitly."""
        self._event_manager = EventManager(name)
        self._streams: WeakSet[CudaStream] = WeakSet()
        self._allocate_array: ArrayAllocator | None = None
        self._thread = threading.local()
        """``stream``: that of the innermost `activate` on this thread, as `use` changed it."""

    # --- memory

    def memory_info(self) -> tuple[int, int]:
        self._check_open()
        with self._device:
            free, total = self._runtime.memGetInfo()
        return free, total

    def set_allocator(self, allocate: ArrayAllocator) -> None:
        """Make CuPy's arrays inside `activate` take their memory from ``allocate(nbytes, stream)``.

        The array holds the `DeviceMemory`, freed through its ``keep``, possibly while work of the stream
        still uses it. Without an allocator, CuPy's own pool is used.
        """
        self._allocate_array = allocate

    def pinned_empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """An uninitialised host array in C order that the device copies without a detour. Its memory is
        pooled: hold the array until a copy from or to it has passed.

        Raises `ResourceExhaustedError` when the system pins no more.
        """
        self._check_open()
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            with self._device:
                memory = self.xp.cuda.alloc_pinned_memory(max(nbytes, 1))
        except self._runtime.CUDARuntimeError as error:
            raise as_op_error(f"{self.name}: pinned_empty: {nbytes} bytes", error) from error
        return np.ndarray(shape, dtype, buffer=memory)

    def memory_of(self, array: Any) -> DeviceMemory:
        if not isinstance(array, self.xp.ndarray):
            raise InvalidArgumentError(
                f"{self.name}: memory_of: expected a CuPy array; got {type(array).__name__}"
            )
        if not array.flags.c_contiguous:
            raise InvalidArgumentError(f"{self.name}: memory_of: expected a C-contiguous array")
        if array.device.id != self.ordinal:
            raise InvalidArgumentError(
                f"{self.name}: memory_of: expected an array of GPU {self.ordinal}; "
                f"got one of {array.device.id}"
            )
        return DeviceMemory(self, array.data.ptr, array.nbytes, keep=array)

    def adopt(self, stream: Stream, array: Any) -> Any | None:
        """``array``, of any library, as one of CuPy's over the same memory; a copy, if it is not in C order.
        What is on ``stream`` from now on may read it; its owner may change it when ``stream`` has passed
        that. None if it is not in this GPU's memory, or CuPy cannot read it.

        To be called outside `activate`: a CuPy array is in the order of the stream that its user has entered.
        """
        with self._device:
            try:
                found = self._over(array)
            except Exception:  # noqa: BLE001 (the array's library may raise anything)
                return None
            if found.device.id != self.ordinal:
                return None
            written = self.xp.cuda.Event(disable_timing=True)
            written.record(self.xp.cuda.get_current_stream())
        stream = cast(CudaStream, stream)
        stream.issue(stream.native.wait_event, written)
        with self.activate(stream):
            return self.xp.ascontiguousarray(found)

    def _over(self, array: Any) -> Any:
        """An array of CuPy's over ``array``, to be read in the order of the thread's current stream."""
        return self.xp.from_dlpack(array) if hasattr(array, "__dlpack__") else self.xp.asarray(array)

    def _allocate(self, nbytes: int) -> int:
        try:
            with self._device:
                return cast(int, self._runtime.malloc(nbytes))
        except self._runtime.CUDARuntimeError as error:
            raise as_op_error(f"{self.name}: allocate: {nbytes} bytes", error) from error

    def _deallocate(self, address: int, nbytes: int) -> None:
        try:
            with self._device:
                self._runtime.free(address)
        except self._runtime.CUDARuntimeError as error:
            raise as_op_error(f"{self.name}: deallocate", error) from error

    def _array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int) -> Any:
        return self.xp.ndarray(shape, dtype, self._pointer(memory, offset))

    def _pointer(self, memory: DeviceMemory, offset: int = 0) -> Any:
        """CuPy's pointer into ``memory``, which keeps it alive."""
        cuda = self.xp.cuda
        whole = cuda.UnownedMemory(memory.address, memory.nbytes, memory, self.ordinal)
        return cuda.MemoryPointer(whole, offset)

    def _allocate_for_cupy(self, nbytes: int) -> Any:
        """CuPy's allocator inside `activate`."""
        stream = self._thread.stream
        if self._allocate_array is None or not nbytes:
            pointer = self.xp.get_default_memory_pool().malloc(nbytes)
        else:
            pointer = self._pointer(self._allocate_array(nbytes, stream))
        if stream.capture is not None:
            stream.capture.kept.append(pointer)
        return pointer

    # --- streams and events

    def create_stream(self, name: str = "compute") -> CudaStream:
        self._check_open()
        with self._device:
            native = self.xp.cuda.Stream(non_blocking=True)
        stream = CudaStream(self, name, native, self._device)
        self._streams.add(stream)
        return stream

    def create_event(self) -> CudaEvent:
        return self._new_event(disable_timing=True)  # those with timing take longer to record

    def create_timed_event(self) -> CudaEvent:
        return self._new_event(disable_timing=False)

    def _new_event(self, disable_timing: bool) -> CudaEvent:
        self._check_open()
        with self._device:
            native = self.xp.cuda.Event(disable_timing=disable_timing)
        return CudaEvent(native, self._runtime.eventQuery, self._runtime.CUDARuntimeError)

    def elapsed_ns(self, first: Event, last: Event) -> int:
        """Elapsed time, to half a microsecond: CUDA returns milliseconds, as a float."""
        events = cast(CudaEvent, first).native, cast(CudaEvent, last).native
        milliseconds: float = self.xp.cuda.get_elapsed_time(*events)
        return round(milliseconds * 1e6)

    def when_done(self, event: Event, function: Callable[[], Any]) -> None:
        """Call ``function()`` on the device's event thread when ``event``, which was recorded, is complete or
        has failed. It must be short and not use the device.
        """
        self._event_manager.when_done(event, function)

    def _record(self, stream: Stream, event: Event) -> None:
        cast(CudaEvent, event).record(cast(CudaStream, stream))

    def _wait_for(self, stream: Stream, event: Event) -> None:
        if not isinstance(event, CudaEvent):
            raise InvalidArgumentError(
                f"{self.name}: wait_for: expected an event of a GPU; got {type(event).__name__}"
            )
        cast(CudaStream, stream).wait_for(event)

    def _host_callback(self, stream: Stream, function: Callable[[], Any]) -> None:
        """The device continues meanwhile: rule 3 of `flowrt.device.cuda.cuda_stream`."""
        stream = cast(CudaStream, stream)
        self._check_not_captured("host_callback", stream)
        event = self.create_event()
        event.record(stream)
        callback = Callback(stream, event, function)
        stream.behind = (callback,)
        self._event_manager.when_done(event, callback)

    def _block_host_until_done(self, stream: Stream, timeout_s: float | None) -> None:
        stream = cast(CudaStream, stream)
        self._check_not_captured("block_host_until_done", stream)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        event = self.create_event()
        event.record(stream)
        for pause in pauses(MANY_POLLS):
            if event.poll() is not EventStatus.PENDING or stream.error is not None:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceededError(
                    f"{self.name}: {stream.name}: expected its work to be done within {timeout_s} s; it is "
                    "still running"
                )
            rest(pause)
        event.settle(stream)

    def _check_not_captured(self, action: str, stream: CudaStream) -> None:
        if stream.capture is not None:
            raise FailedPreconditionError(f"{self.name}: {action}: {stream.name} is being captured")

    # --- work

    def memcpy_from_peer(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None:
        """Copy ``source`` of another CUDA executor to ``target``: directly if the GPUs have peer access, else
        the driver copies through the host. Both have the same size. The caller makes ``stream`` wait for
        writes to ``source``, and keeps it alive until ``stream`` has passed.

        Raises `InvalidArgumentError` for memory of another kind.
        """
        self._check_stream(stream)
        self._check_memory("memcpy_from_peer", target)
        peer = source.executor
        if not isinstance(peer, CudaExecutor):
            raise InvalidArgumentError(
                f"{self.name}: memcpy_from_peer: expected a GPU's memory; got {source!r}"
            )
        peer._check_memory("memcpy_from_peer", source)
        if target.nbytes != source.nbytes:
            raise InvalidArgumentError(
                f"{self.name}: memcpy_from_peer: expected two equal sizes; got {source.nbytes} bytes to copy "
                f"into {target.nbytes}"
            )
        stream = cast(CudaStream, stream)
        ends = (target.address, self.ordinal, source.address, peer.ordinal)
        stream.issue(self._runtime.memcpyPeerAsync, *ends, source.nbytes, stream.native.ptr)

    def _memcpy_to_device(self, stream: Stream, target: DeviceMemory, source: np.ndarray[Any, Any]) -> None:
        kind = self._runtime.memcpyHostToDevice
        self._copy(stream, target.address, source.ctypes.data, target.nbytes, kind, source)

    def _memcpy_to_host(self, stream: Stream, target: np.ndarray[Any, Any], source: DeviceMemory) -> None:
        kind = self._runtime.memcpyDeviceToHost
        self._copy(stream, target.ctypes.data, source.address, source.nbytes, kind, target)

    def _memcpy(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None:
        kind = self._runtime.memcpyDeviceToDevice
        self._copy(stream, target.address, source.address, source.nbytes, kind, source)

    def _copy(self, stream: Stream, target: int, source: int, nbytes: int, kind: int, keep: object) -> None:
        """One copy; a graph that it is captured into keeps ``keep``, the end that may be the caller's."""
        stream = cast(CudaStream, stream)
        if stream.capture is not None:
            stream.capture.kept.append(keep)
        stream.issue(self._runtime.memcpyAsync, target, source, nbytes, kind, stream.native.ptr)

    def _memset(self, stream: Stream, memory: DeviceMemory, value: int) -> None:
        stream = cast(CudaStream, stream)
        stream.issue(self._runtime.memsetAsync, memory.address, value, memory.nbytes, stream.native.ptr)

    def _launch(self, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        cast(CudaStream, stream).issue(self._call_active, stream, function, arguments)

    def _call_active(self, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        with self.activate(stream):
            function(*arguments)

    @contextmanager
    def activate(self, stream: Stream) -> Iterator[None]:
        outer = self.current_stream
        native = cast(CudaStream, stream).native
        with self._device, native, self.xp.cuda.using_allocator(self._allocate_for_cupy):
            self._thread.stream = stream
            try:
                yield
            finally:
                self._thread.stream = outer

    def use(self, stream: Stream) -> None:
        cast(CudaStream, stream).native.use()
        self._thread.stream = stream

    @property
    def current_stream(self) -> Stream | None:
        return getattr(self._thread, "stream", None)

    def compiles_loops(self) -> bool:
        """Always true: CuPy includes or finds CUDA's compiler, which its own kernels need."""
        return True

    def compile_kernels(self, text: str, names: Sequence[str]) -> list[Callable[..., None]]:
        """The kernels ``names`` of ``text``, CUDA C, compiled by CuPy: once per process, and cached on disk.
        Inside `activate`, ``kernel((blocks,), (threads,), arrays)`` launches one on the current stream.

        Raises `InternalError`, with the compiler's message, for invalid text.
        """
        with self._device:
            module = self.xp.RawModule(code=text)
            try:
                kernels = [module.get_function(name) for name in names]
                for kernel in kernels:
                    kernel.compile()
            except self.xp.cuda.compiler.CompileException as error:
                raise InternalError(f"{self.name}: expected CUDA C of {', '.join(names)}; {error}") from error
        return kernels

    def is_idle(self, stream: Stream) -> bool:
        return bool(self._runtime.streamQuery(cast(CudaStream, stream).native.ptr) != NOT_READY)

    def capture(self, stream: Stream, run: Callable[[], Any]) -> CudaGraph | None:
        """Capture the work of ``run()`` on ``stream``, to be launched by calling the result, any number of
        times; None if it cannot be captured, which `flowrt.device.cuda.cuda_graph` explains. Nothing is
        executed yet.
        """
        self._check_stream(stream)
        stream = cast(CudaStream, stream)
        self._check_not_captured("capture", stream)
        # Relaxed: in other modes a cudaMalloc of the pool, or another thread's event query, invalidates it.
        with self.activate(stream):
            return capture(stream, run, self._runtime.streamCaptureModeRelaxed)

    # --- the end

    def _close(self) -> None:
        self._event_manager.close()
        for stream in list(self._streams):
            stream.issue(stream.native.synchronize)
