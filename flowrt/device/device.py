"""`Device`: a name, an executor, a pool and transfers; the executor is a CPU, GPU or simulated hardware."""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.deadline import finish
from flowrt.device.event_manager import wait_until_idle
from flowrt.device.memory_pool import STREAM_DEADLINE_S, MemoryPool, Owner
from flowrt.device.spec import DeviceSpec
from flowrt.device.stream_executor import DeviceMemory, Event, Stream, StreamExecutor
from flowrt.device.transfer import PendingTransfer, TransferManager
from flowrt.device.workspace import Workspace, new_bytes
from flowrt.errors import OpError

MIN_POOLED = 65536
"""Minimum size in bytes of a pooled host array. Smaller ones are NumPy's own, 0.3 us; one from the pool takes
about 6, which the page faults of new memory (about 0.2 us per 4 KiB page) outweigh from here on.
"""

RETRY_S = 5.0
"""Time that a step waits for memory held by steps of other threads."""

ANYBODY = Owner("flowrt", None)
KERNELS = Owner("workspace", None)


class DeviceArray(NamedTuple):
    """A C-contiguous array of an asynchronous device, valid after the current work of ``stream``."""

    device: Device
    stream: Stream
    array: Any
    is_lent: bool = False
    """Whether it may be modified elsewhere as soon as it was copied."""


class ArrivingArray(NamedTuple):
    """An array of a remote device that is being copied to it until ``event``."""

    device: Device
    array: Any
    event: Event

    def take(self) -> Any:
        """The array, for work submitted to the current stream from now on."""
        self.device.executor.wait_for(self.device.current_stream, self.event)
        return self.array


@final
class Device:
    """One device of a session.

    ``num_streams``: maximum number of streams of a step. ``memory_limit``: bytes of its pool, None for all
    memory. ``captures``: whether suitable steps are launched as one graph, if the device supports it.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        executor: StreamExecutor,
        *,
        num_streams: int = 1,
        memory_limit: int | None = None,
        captures: bool = True,
    ) -> None:
        self.spec, self.name, self.device_type = spec, spec.to_string(), spec.device_type or ""
        self.executor, self.xp, self.num_streams = executor, executor.xp, num_streams
        self.pool = MemoryPool(executor, memory_limit)
        self.transfer = TransferManager(executor)
        self.workspace = Workspace(functools.partial(_new_bytes, self.pool))
        """Scratch memory of host kernels, from the pool."""
        for cache in (self.transfer, self.workspace):
            self.pool.add_cache(cache)
        self.captures = captures
        self.is_asynchronous: bool = executor.is_asynchronous
        """Whether its memory is not the host's: values are copied to it and from it, in streams."""
        self._steps = _Steps()
        self._streams: list[Stream] | None = None

    # --- memory

    def allocate(self, nbytes: int, owner: Owner = ANYBODY) -> DeviceMemory:
        """Memory of the pool, freed with its last holder. Raises `ResourceExhaustedError`."""
        if not self.is_asynchronous:
            return self.pool.allocate(nbytes, owner)
        retry_s = RETRY_S if self._steps.are_others_running() else 0.0
        return self.pool.allocate(nbytes, owner, self.current_stream, retry_s)

    def empty(self, shape: tuple[int, ...], dtype: Any, owner: Owner = ANYBODY) -> Any:
        """An uninitialised array in C order, aligned to `ALIGNMENT` bytes."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if not self.is_asynchronous and (nbytes < MIN_POOLED or dtype.kind == "O"):
            return _small_array(shape, dtype, nbytes)
        return self.executor.array(self.allocate(max(nbytes, 1), owner), shape, dtype)

    # --- streams

    @property
    def streams(self) -> list[Stream]:
        """The compute streams of a remote device, the same list until one of them fails; a step begins and
        ends on the first.
        """
        if self._streams is None:
            self._streams = [self.executor.create_stream(f"compute{i}") for i in range(self.num_streams)]
        return self._streams

    def replace_failed_streams(self) -> None:
        """Take new streams if one has failed, once the device has left the old ones. What is bound to those
        is of no use any more.
        """
        if self._streams is not None and any(stream.error is not None for stream in self._streams):
            for stream in self._streams:
                wait_until_idle(stream, STREAM_DEADLINE_S)
            self._streams = None

    @property
    def current_stream(self) -> Stream:
        """Current stream of this thread on an asynchronous device; outside `activate` the first."""
        return self.executor.current_stream or self.streams[0]

    def activate(self, stream: Stream | None = None) -> AbstractContextManager[Any]:
        """Context for calling kernels, on ``stream`` (None: the current one) until another is selected."""
        return self.executor.activate(stream or self.current_stream)

    def step(self) -> AbstractContextManager[None]:
        """Context in which a thread submits work to an asynchronous device, shared by all threads."""
        return self._steps

    def alone(self) -> AbstractContextManager[bool]:
        """Inside `step`: whether this thread's step is the only one; then others wait until the context ends.
        A capture includes all work on the streams.
        """
        return self._steps.alone()

    # --- values: for a remote device

    def feed(self, memory: DeviceMemory, value: Any) -> None:
        """Copy ``value``, a host array or a `DeviceArray`, to ``memory``: in the order of the current stream,
        and done with a host array or one that is lent when it returns.
        """
        if isinstance(value, DeviceArray):
            source = value.device.executor.memory_of(value.array)
            self.transfer.between(self.current_stream, memory, value.device.transfer, value.stream, source)
            if value.is_lent:
                finish(value.stream)  # it waits for the copy
        else:
            self.transfer.to_device(self.current_stream, memory, value)

    def put(self, value: Any, owner: Owner = ANYBODY) -> Any:
        """A new array of the device with the elements of ``value``, a host array or a `DeviceArray`."""
        array = value.array if isinstance(value, DeviceArray) else value
        memory = self.allocate(max(array.nbytes, 1), owner)
        if array.nbytes:
            self.feed(memory.slice(0, array.nbytes), value)
        return self.executor.array(memory, array.shape, array.dtype)

    def put_ahead(self, value: np.ndarray[Any, Any]) -> ArrivingArray:
        """Begin to copy a host array to a new one of the device, after the current work of the current stream
        and concurrently with later work. Thread-safe; the caller may modify ``value`` afterwards.
        """
        source = np.asarray(value) if value.nbytes else np.zeros(1, np.uint8)  # a copy to wait for
        with self.step(), self.activate():
            memory = self.allocate(source.nbytes)
            event = self.transfer.to_device_ahead(self.current_stream, memory, source)
            return ArrivingArray(self, self.executor.array(memory, value.shape, value.dtype), event)

    def adopt(self, array: Any) -> DeviceArray | None:
        """``array``, of any library, to be fed where it is; None if it is not in this device's memory. Its
        owner may change it when it has been fed.
        """
        adopt = getattr(self.executor, "adopt", None)
        if adopt is None:
            return None
        with self.step():
            found = adopt(self.current_stream, array)
            return None if found is None else DeviceArray(self, self.current_stream, found, is_lent=True)

    def to_device(self, value: Any) -> Any:
        """A host array, or a `DeviceArray`, as one of this device; on the host, the same memory."""
        return self.put(value) if self.is_asynchronous else value

    def fetch(self, array: Any) -> np.ndarray[Any, Any]:
        """A host array with ``array``'s elements: waits for the current stream."""
        return self._to_host(self.current_stream, array).wait()

    def finish(self) -> None:
        """Wait for the current stream."""
        finish(self.current_stream)

    def to_host(self, array: Any) -> Any:
        """``array`` of this device as one of NumPy; on the host, the same memory."""
        return self.fetch(array) if self.is_asynchronous else np.asarray(array)

    def send(
        self, stream: Stream, array: Any, done: Callable[[Any], object], fail: Callable[[OpError], object]
    ) -> None:
        """Call ``done(host array)`` when ``stream`` has computed ``array`` and it has arrived, or
        ``fail(error)``.
        """
        pending = self._to_host(stream, array)
        pending.when_done(lambda: done(pending.array) if pending.error is None else fail(pending.error))

    def swap_out(self, array: Any) -> PendingTransfer:
        """Begin to copy ``array``, as the current stream leaves it, to host memory, to be fetched with
        `swap_in`. Waits where too much is under way.
        """
        memory = self.executor.memory_of(self.xp.ascontiguousarray(array))
        return self.transfer.swap_out(self.current_stream, memory, array.shape, np.dtype(array.dtype))

    def swap_in(self, swapped: PendingTransfer, owner: Owner = ANYBODY) -> ArrivingArray:
        """Begin to copy ``swapped`` back, into a new array."""
        host = swapped.array
        memory = self.allocate(host.nbytes, owner)
        event = self.transfer.swap_in(self.current_stream, memory.slice(0, host.nbytes), swapped)
        return ArrivingArray(self, self.executor.array(memory, host.shape, host.dtype), event)

    def share(self, stream: Stream, array: Any) -> DeviceArray:
        """``array`` for other devices of this type, to be copied as ``stream`` leaves it."""
        with self.activate(stream):
            return DeviceArray(self, stream, self.xp.ascontiguousarray(array))

    def _to_host(self, stream: Stream, array: Any) -> PendingTransfer:
        with self.activate(stream):
            memory = self.executor.memory_of(self.xp.ascontiguousarray(array))
            return self.transfer.to_host(stream, memory, array.shape, np.dtype(array.dtype))

    def close(self) -> None:
        """Free memory without holders now, and the rest with its holders; end an asynchronous device's
        streams. Nothing can be allocated from now on.
        """
        self.workspace.let_go()
        self.pool.close()
        if self.is_asynchronous:
            self.executor.close()

    def __repr__(self) -> str:
        return f"<Device {self.name}>"


@final
class _Steps:
    """The steps that run on a device, by thread. A context: one step of this thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[int] = Counter()
        self._alone: int | None = None
        """The thread with exclusive access."""

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone in (None, me))
            self._running[me] += 1

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._running[me] -= 1
            if not self._running[me]:
                del self._running[me]

    def are_others_running(self) -> bool:
        return bool(self._running.keys() - {threading.get_ident()})

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """See `Device.alone`."""
        with self._changed:
            is_alone = self._alone is None and not self.are_others_running()
            if is_alone:
                self._alone = threading.get_ident()
        try:
            yield is_alone
        finally:
            if is_alone:
                with self._changed:
                    self._alone = None
                    self._changed.notify_all()


def _new_bytes(pool: MemoryPool, nbytes: int) -> Any:
    return pool.executor.array(pool.allocate(nbytes, KERNELS), (nbytes,), np.uint8)


def _small_array(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
    """Memory of NumPy's, aligned."""
    return np.empty(shape, dtype) if dtype.kind == "O" else new_bytes(nbytes).view(dtype).reshape(shape)
