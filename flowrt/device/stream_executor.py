"""`StreamExecutor`: one device's memory and streams, the hardware interface under the executor.

The public methods check their arguments and are the same for every device; a device implements the hooks
(``_…``). An operation on a stream runs after all earlier operations of that stream, unordered with those of
other streams unless an `Event` orders them.

Rules of this file:

  1. Errors on a stream are sticky: later operations on it are rejected with the first error. Other streams,
     and the device, continue.
  2. Memory belongs to the executor that allocated it, until it is deallocated; sizes are checked when an
     operation is issued.
  3. Bad arguments raise before anything is issued, so the stream and the memory are unchanged.
"""

from __future__ import annotations

import enum
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, final

import numpy as np

from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    OpError,
    UnimplementedError,
    copy_to_raise,
)

ALIGNMENT = 64
"""Bytes: a cache line, and the width of an AVX-512 register. Every array of a plan starts at a multiple."""


class EventStatus(enum.Enum):
    """`UNKNOWN` before the event is recorded, `ERROR` when the stream failed before reaching it."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    COMPLETE = "complete"
    ERROR = "error"


class Event(ABC):
    """A point in a stream's work. Recording it again moves it."""

    @abstractmethod
    def poll(self) -> EventStatus:
        """Current status of the event; never blocks."""


class Stream:
    """A queue of a device's work, in order."""

    def __init__(self, executor: StreamExecutor, name: str) -> None:
        self.executor, self.name = executor, name
        self._error: OpError | None = None

    @property
    def error(self) -> OpError | None:
        """The first error of the stream, or None. It is sticky."""
        return self._error

    def fail(self, error: BaseException) -> None:
        """Note ``error``, if it is the first."""
        if self._error is None:
            known = error if isinstance(error, OpError) else InternalError(f"{self.name}: {error!r}")
            if known is not error:
                known.__cause__ = error
            self._error = known

    def check(self) -> None:
        """Raises the stream's error, if it failed."""
        if self._error is not None:
            raise copy_to_raise(self._error)

    def __repr__(self) -> str:
        return f"<Stream {self.name}{'' if self._error is None else ' failed'}>"


@final
class DeviceMemory:
    """``nbytes`` bytes at ``address`` of ``executor``'s memory: a region, a pool's piece of one, or a slice.

    ``whole`` is the memory that a slice is part of, ``keep`` an object kept alive with this one: a pool's
    lease, which frees the bytes when it is destroyed, or the array that owns them.
    """

    __slots__ = ("__weakref__", "_whole", "address", "executor", "is_live", "keep", "nbytes")

    def __init__(
        self,
        executor: StreamExecutor,
        address: int,
        nbytes: int,
        *,
        whole: DeviceMemory | None = None,
        keep: object = None,
    ) -> None:
        self.executor, self.address, self.nbytes = executor, address, nbytes
        self._whole = whole  # None where it is this: a reference to itself would keep it until a collection
        self.keep = keep
        self.is_live = True
        """Whether the whole memory has not been deallocated."""

    @property
    def whole(self) -> DeviceMemory:
        return self if self._whole is None else self._whole

    def slice(self, offset: int, nbytes: int) -> DeviceMemory:
        """A part of this memory. Raises `InvalidArgumentError` for a part that is not inside."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidArgumentError(
                f"DeviceMemory.slice: expected a part of {self.nbytes} bytes; got offset {offset}, "
                f"{nbytes} bytes"
            )
        return DeviceMemory(self.executor, self.address + offset, nbytes, whole=self.whole)

    def __repr__(self) -> str:
        return f"<DeviceMemory {self.executor.name} {self.address:#x} {self.nbytes} bytes>"


class StreamExecutor(ABC):
    """A device's memory and streams. Any thread may call anything; a stream is used by one at a time."""

    platform: ClassVar[str]
    """``host``, ``cuda`` or ``null``."""
    xp: Any
    """The array module that kernels are called with."""
    is_asynchronous: ClassVar[bool]
    """Whether kernels return before their work is done: then one thread feeds all streams of the device."""
    computes: ClassVar[bool] = True
    """Whether kernels run. A device that only pretends has no values, and needs every shape beforehand."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_closed = False
        self._regions: dict[int, DeviceMemory] = {}
        """The live allocations, by address."""

    # --- memory

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Bytes that are free, and bytes that there are."""

    @final
    def allocate(self, nbytes: int) -> DeviceMemory:
        """``nbytes`` bytes of uninitialised memory, aligned to 256 bytes, for the regions of a pool.

        Raises `ResourceExhaustedError` if the device has less, `InvalidArgumentError` unless ``nbytes`` > 0.
        """
        self._check_open()
        if nbytes <= 0:
            raise InvalidArgumentError(f"{self.name}: allocate: expected at least 1 byte; got {nbytes}")
        memory = DeviceMemory(self, self._allocate(nbytes), nbytes)
        self._regions[memory.address] = memory
        return memory

    @final
    def deallocate(self, memory: DeviceMemory) -> None:
        """Free memory from `allocate`. Raises `InvalidArgumentError` for anything else, or a second time."""
        self._check_memory("deallocate", memory)
        if self._regions.get(memory.address) is not memory:
            raise InvalidArgumentError(
                f"{self.name}: deallocate: expected the whole memory of an allocate() call; got a part of "
                f"it, {memory!r}"
            )
        del self._regions[memory.address]
        memory.is_live = False
        self._deallocate(memory.address, memory.nbytes)

    @final
    def array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
        """An ``xp`` array in C order over ``memory``, ``offset`` bytes from its start. The array keeps the
        object ``memory`` alive, but not its allocation, which is freed explicitly.

        Raises `InvalidArgumentError` for a negative dimension and if it does not fit, `DTypeError` for an
        invalid shape and for a dtype of references.
        """
        self._check_memory("array", memory)
        dtype = self._plain_dtype("array", dtype)
        nbytes = self._size(shape) * dtype.itemsize
        if offset < 0 or offset + nbytes > memory.nbytes:
            raise InvalidArgumentError(
                f"{self.name}: array: expected {nbytes} bytes at offset {offset} inside the memory; got "
                f"{memory.nbytes} bytes"
            )
        return self._array(memory, shape, dtype, offset)

    @abstractmethod
    def memory_of(self, array: Any) -> DeviceMemory:
        """The memory of a C-contiguous ``xp`` array, as a `DeviceMemory` that keeps ``array`` alive.

        Raises `InvalidArgumentError` for an array that is not contiguous or not of this device.
        """

    # --- streams and events

    @abstractmethod
    def create_stream(self, name: str = "compute") -> Stream:
        """A new stream, idle."""

    @abstractmethod
    def create_event(self) -> Event:
        """A new event, not recorded yet."""

    def create_timed_event(self) -> Event | None:
        """A new event that records when the device passed it, for `elapsed_ns`; None if unsupported."""
        return None

    def elapsed_ns(self, first: Event, last: Event) -> int:
        """Nanoseconds of the device's clock from one timed event to another, both of which are complete."""
        raise UnimplementedError(f"{self.name}: elapsed_ns: this device has no timed events")

    # --- work on a stream

    @final
    def memcpy_to_device(self, stream: Stream, target: DeviceMemory, source: np.ndarray[Any, Any]) -> None:
        """Copy a C-contiguous host array into ``target``. The caller must not modify ``source`` until the
        stream has passed the copy. Raises `DTypeError` for anything but a NumPy array, or for one of
        references.
        """
        self._check_host_copy("memcpy_to_device", stream, target, source)
        self._memcpy_to_device(stream, target, source)

    @final
    def memcpy_to_host(self, stream: Stream, target: np.ndarray[Any, Any], source: DeviceMemory) -> None:
        """Copy ``source`` into a C-contiguous, writable host array, which is valid when the stream has passed
        the copy. Raises `DTypeError` for anything but a NumPy array, or for one of references.
        """
        self._check_host_copy("memcpy_to_host", stream, source, target)
        if not target.flags.writeable:
            raise InvalidArgumentError(f"{self.name}: memcpy_to_host: expected a writable array")
        self._memcpy_to_host(stream, target, source)

    @final
    def memcpy(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None:
        """Copy ``source`` to ``target``, both of this device and of one size."""
        self._check_stream(stream)
        self._check_memory("memcpy", target)
        self._check_memory("memcpy", source)
        if target.nbytes != source.nbytes:
            raise InvalidArgumentError(
                f"{self.name}: memcpy: expected two equal sizes; got {source.nbytes} bytes to copy into "
                f"{target.nbytes}"
            )
        self._memcpy(stream, target, source)

    @final
    def memset(self, stream: Stream, memory: DeviceMemory, value: int) -> None:
        """Set every byte to ``value``, 0 to 255."""
        self._check_stream(stream)
        self._check_memory("memset", memory)
        if value not in range(256):
            raise InvalidArgumentError(f"{self.name}: memset: expected a byte, 0 to 255; got {value!r}")
        self._memset(stream, memory, int(value))

    @final
    def launch(self, stream: Stream, function: Callable[..., Any], *arguments: Any) -> None:
        """Call ``function(*arguments)`` in the stream's order, with the stream as the current one. What it
        raises becomes the stream's error.
        """
        self._check_stream(stream)
        self._launch(stream, function, arguments)

    @final
    def record(self, stream: Stream, event: Event) -> None:
        """Record ``event`` after the current work of ``stream``."""
        self._check_stream(stream)
        self._record(stream, event)

    @final
    def wait_for(self, stream: Stream, other: Event | Stream) -> None:
        """Have ``stream`` wait, without the host, until ``other`` is done: an event that was recorded, or all
        that is on another stream now.
        """
        self._check_stream(stream)
        if isinstance(other, Stream):
            event = other.executor.create_event()
            other.executor.record(other, event)
            other = event
        elif other.poll() is EventStatus.UNKNOWN:
            raise FailedPreconditionError(f"{self.name}: wait_for: expected an event that was recorded")
        self._wait_for(stream, other)

    @final
    def host_callback(self, stream: Stream, function: Callable[[], Any]) -> None:
        """Call ``function()`` on the host when the stream gets there. It must not use the device. What it
        raises becomes the stream's error. The device's own work does not wait for it; events, other
        callbacks and the host do.
        """
        self._check_stream(stream)
        self._host_callback(stream, function)

    @abstractmethod
    def when_done(self, event: Event, function: Callable[[], Any]) -> None:
        """Call ``function()`` on the host, in some thread, when ``event``, which was recorded, is complete or
        has failed. It must be short and not use the device. What it raises is logged.
        """

    @final
    def block_host_until_done(self, stream: Stream, timeout_s: float | None = None) -> None:
        """Wait until the stream has finished its work. Raises its error, and `DeadlineExceededError` after
        ``timeout_s`` seconds; the work then continues.
        """
        self._check_stream(stream)
        self._block_host_until_done(stream, timeout_s)
        stream.check()

    # --- interface for programs

    def kernel(self, name: str, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """The function that a program calls for the kernel ``function`` of the operation ``name``, which
        takes about ``seconds``: the kernel itself, except on a simulated device.
        """
        return function

    def compiles_loops(self) -> bool:
        """Whether groups of operations, and updates of variables, can be compiled for this device."""
        return False

    def capture(self, stream: Stream, run: Callable[[], Any]) -> Callable[[], None] | None:
        """Capture the work of ``run()`` on ``stream``, to be launched by calling the result, any number of
        times; None if the device or the work does not allow it. Nothing is executed yet.
        """
        return None

    @abstractmethod
    def activate(self, stream: Stream) -> AbstractContextManager[Any]:
        """Inside the context, ``xp`` calls of this thread run on ``stream`` and allocate on this device."""

    @abstractmethod
    def use(self, stream: Stream) -> None:
        """Inside an `activate` context: ``xp`` calls run on ``stream`` from here on."""

    @property
    def current_stream(self) -> Stream | None:
        """Stream of this thread's ``xp`` calls; None outside `activate`, and if it makes no difference."""
        return None

    def is_idle(self, stream: Stream) -> bool:
        """Whether the device does nothing any more for a stream that is idle or has failed; never blocks."""
        return True

    # --- the end

    @final
    def close(self) -> None:
        """Wait for the streams and end them. Everything but `close` and `deallocate` raises
        `FailedPreconditionError` from now on.
        """
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FailedPreconditionError(f"{self.name}: expected an open device; it was closed")

    def _check_stream(self, stream: Stream) -> None:
        self._check_open()
        if stream.executor is not self:
            raise InvalidArgumentError(
                f"{self.name}: expected a stream of this device; got {stream.name} of {stream.executor.name}"
            )
        stream.check()

    def _check_memory(self, action: str, memory: DeviceMemory) -> None:
        if memory.executor is not self:
            raise InvalidArgumentError(
                f"{self.name}: {action}: expected memory of this device; got {memory!r}"
            )
        if not memory.whole.is_live:
            raise InvalidArgumentError(
                f"{self.name}: {action}: expected memory in use; {memory!r} was deallocated"
            )

    def _plain_dtype(self, action: str, dtype: Any) -> np.dtype[Any]:
        """``dtype`` as NumPy's. Its elements are bytes that may be copied, no references to objects."""
        try:
            found: np.dtype[Any] = np.dtype(dtype)
        except TypeError as error:
            message = f"{self.name}: {action}: expected a dtype; got {dtype!r}"
            raise DTypeError(message) from error
        if found.hasobject:
            raise DTypeError(f"{self.name}: {action}: expected a dtype of plain bytes; got {found}")
        return found

    def _size(self, shape: tuple[int, ...]) -> int:
        """The number of elements of an array of ``shape``."""
        try:
            sizes = [operator.index(n) for n in shape]
        except TypeError:
            message = f"{self.name}: array: expected a shape of integers; got {shape!r}"
            raise DTypeError(message) from None
        if min(sizes, default=0) < 0:
            raise InvalidArgumentError(
                f"{self.name}: array: expected a shape of at least 0 in each dimension; got {shape}"
            )
        return math.prod(sizes)

    def _check_host_copy(
        self, action: str, stream: Stream, memory: DeviceMemory, array: np.ndarray[Any, Any]
    ) -> None:
        self._check_stream(stream)
        self._check_memory(action, memory)
        if not isinstance(array, np.ndarray):
            raise DTypeError(f"{self.name}: {action}: expected a NumPy array; got {type(array).__name__}")
        self._plain_dtype(action, array.dtype)
        if not array.flags.c_contiguous:
            raise InvalidArgumentError(f"{self.name}: {action}: expected a C-contiguous array")
        if array.nbytes != memory.nbytes:
            raise InvalidArgumentError(
                f"{self.name}: {action}: expected two equal sizes; got {memory.nbytes} bytes on the device "
                f"and {array.nbytes} on the host"
            )

    # --- hooks: arguments are checked

    @abstractmethod
    def _allocate(self, nbytes: int) -> int: ...

    @abstractmethod
    def _deallocate(self, address: int, nbytes: int) -> None: ...

    @abstractmethod
    def _array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int) -> Any: ...

    @abstractmethod
    def _memcpy_to_device(
        self, stream: Stream, target: DeviceMemory, source: np.ndarray[Any, Any]
    ) -> None: ...

    @abstractmethod
    def _memcpy_to_host(self, stream: Stream, target: np.ndarray[Any, Any], source: DeviceMemory) -> None: ...

    @abstractmethod
    def _memcpy(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None: ...

    @abstractmethod
    def _memset(self, stream: Stream, memory: DeviceMemory, value: int) -> None: ...

    @abstractmethod
    def _launch(self, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None: ...

    @abstractmethod
    def _record(self, stream: Stream, event: Event) -> None: ...

    @abstractmethod
    def _wait_for(self, stream: Stream, event: Event) -> None: ...

    @abstractmethod
    def _host_callback(self, stream: Stream, function: Callable[[], Any]) -> None: ...

    @abstractmethod
    def _block_host_until_done(self, stream: Stream, timeout_s: float | None) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...
