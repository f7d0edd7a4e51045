"""`Device`: a name, an executor, a pool and transfers; what the executor knows of CPU, GPU and pretended
hardware.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from flowrt.device.memory_pool import MemoryPool, Owner
from flowrt.device.spec import DeviceSpec
from flowrt.device.stream_executor import ALIGNMENT, DeviceMemory, Stream, StreamExecutor
from flowrt.device.transfer import PendingTransfer, TransferManager
from flowrt.errors import OpError

MIN_POOLED = 65536
"""Bytes: on the host a smaller array is NumPy's own, 0.3 us; one from the pool takes about 6, which the page
faults of new memory (about 0.2 us a 4 KiB page) outweigh from here on.
"""

ANYBODY = Owner("flowrt", None)


@final
class Device:
    """One device of a session.

    ``num_streams``: how many streams a step may spread over. ``memory_limit``: bytes of its pool, None for
    what there is. ``captures``: whether steps that allow it are launched as one, where the device can.
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
        self.pool.add_cache(self.transfer)
        self.captures = captures

    @property
    def is_remote(self) -> bool:
        """Whether its memory is not the host's: values are copied to it and from it, in streams."""
        return self.executor.is_asynchronous

    # --- memory

    def allocate(self, nbytes: int, owner: Owner = ANYBODY) -> DeviceMemory:
        """Memory of the pool, which gets it back when nobody holds it. Raises `ResourceExhaustedError`."""
        return self.pool.allocate(nbytes, owner, self.streams[0] if self.is_remote else None)

    def empty(self, shape: tuple[int, ...], dtype: Any, owner: Owner = ANYBODY) -> Any:
        """An uninitialised array in C order, aligned to `ALIGNMENT` bytes."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if not self.is_remote and (nbytes < MIN_POOLED or dtype.kind == "O"):
            return _small_array(shape, dtype, nbytes)
        return self.executor.array(self.allocate(max(nbytes, 1), owner), shape, dtype)

    # --- streams

    @functools.cached_property
    def streams(self) -> list[Stream]:
        """The compute streams, where one thread feeds them all; a step begins and ends on the first."""
        return [self.executor.create_stream(f"compute{i}") for i in range(self.num_streams)]

    def activate(self) -> AbstractContextManager[Any]:
        """The context in which kernels are called: they go to the first stream until another is used."""
        return self.executor.activate(self.streams[0])

    # --- values: for a remote device

    def feed(self, memory: DeviceMemory, value: Any) -> None:
        """Copy a host array to ``memory``: in the order of the first stream, and done with ``value``."""
        self.transfer.to_device(self.streams[0], memory, value)

    def put(self, value: Any, owner: Owner = ANYBODY) -> Any:
        """A new array of the device with the host array's elements."""
        memory = self.allocate(max(value.nbytes, 1), owner)
        if value.nbytes:
            self.feed(memory.slice(0, value.nbytes), value)
        return self.executor.array(memory, value.shape, value.dtype)

    def to_device(self, value: Any) -> Any:
        """A host array as one of this device; on the host, the same memory."""
        return self.put(value) if self.is_remote else value

    def fetch(self, array: Any) -> np.ndarray[Any, Any]:
        """A host array with ``array``'s elements: waits for the first stream."""
        return self._to_host(self.streams[0], array).wait()

    def to_host(self, array: Any) -> Any:
        """``array`` of this device as one of NumPy; on the host, the same memory."""
        return self.fetch(array) if self.is_remote else np.asarray(array)

    def send(
        self,
        stream: Stream,
        array: Any,
        done: Callable[[Any], object],
        fail: Callable[[OpError], object],
    ) -> None:
        """Call ``done(host array)`` when ``stream`` has computed ``array`` and it has arrived, or
        ``fail(error)``.
        """
        pending = self._to_host(stream, array)
        pending.when_done(lambda: done(pending.array) if pending.error is None else fail(pending.error))

    def _to_host(self, stream: Stream, array: Any) -> PendingTransfer:
        contiguous = self.xp.ascontiguousarray(array)
        memory = self.executor.memory_of(contiguous)
        return self.transfer.to_host(stream, memory, array.shape, np.dtype(array.dtype))

    def close(self) -> None:
        """Give the memory back that nobody holds, and the rest as its holders let go; end a remote device's
        streams. Nothing can be allocated from now on.
        """
        self.pool.close()
        if self.is_remote:
            self.executor.close()

    def __repr__(self) -> str:
        return f"<Device {self.name}>"


def _small_array(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
    """Memory of NumPy's, aligned."""
    if dtype.kind == "O":
        return np.empty(shape, dtype)
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array: np.ndarray[Any, Any] = raw[start : start + nbytes].view(dtype).reshape(shape)
    return array
