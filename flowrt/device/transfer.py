"""`TransferManager`: copies between host and devices, each byte exactly once and in stream order.

An asynchronous executor copies on separate streams of the manager, one for each direction, so that copies
overlap with computation:

    to the device    the copy waits for the stream that will read it, and that stream for the copy
    to the host      the copy waits for the stream that wrote it, which may continue
    between devices  the copy waits for both streams, and both for the copy

A synchronous executor (the host's) copies on the caller's stream, before the call returns.

Rules of this file:

  1. The caller may modify a value when `to_device` returns: the device reads a staging copy, in pinned memory
     if the executor has it (``pinned_empty``).
  2. Host and device memory of a copy stay alive until its event has passed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.device.deadline import finish
from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import InternalError, InvalidArgumentError, OpError

HostArray: TypeAlias = np.ndarray[Any, Any]

COPY_DEADLINE_S = 10.0
"""Time that a request that does not fit waits for the copies of each direction."""


MAX_STAGED = 64
"""Copies to a device that may be under way; the next waits for them. A training step has about two."""

MAX_SWAPPING = 64 << 20
"""Bytes in flight in one direction while swapping: until a copy has ended it keeps its device memory, which
swapping is meant to save. They take 2.7 ms at 25 GB/s, against 0.1 ms of waiting for them.
"""


class TransferStats(NamedTuple):
    """Totals of a manager's copies. ``copies_on_host`` counts values that were first copied in plain host
    memory: the device has no pinned memory to stage them in, or the value was not C-contiguous.
    """

    transfers_to_device: int = 0
    bytes_to_device: int = 0
    transfers_to_host: int = 0
    bytes_to_host: int = 0
    transfers_between: int = 0
    bytes_between: int = 0
    copies_on_host: int = 0


@final
class PendingTransfer:
    """A copy to the host in flight. ``array`` is valid after `is_done` or `wait`.

    Writers of the source must wait for ``event``, or until then.
    """

    __slots__ = ("_manager", "_stream", "array", "event")

    def __init__(self, manager: TransferManager, stream: Stream, array: HostArray, event: Event) -> None:
        self._manager, self._stream, self.array, self.event = manager, stream, array, event

    def is_done(self) -> bool:
        """Whether the copy has ended, well or not; never blocks."""
        return self.event.poll() is not EventStatus.PENDING

    def wait(self, timeout_s: float | None = None) -> HostArray:
        """The array, when it is valid.

        Raises the stream's error if the copy failed, and `DeadlineExceededError` after ``timeout_s`` seconds,
        or at the thread's deadline if that is None; the copy then continues, and can be awaited again.
        """
        if not self.is_done():
            if timeout_s is None:
                finish(self._stream)
            else:
                self._stream.executor.block_host_until_done(self._stream, timeout_s)
        self._manager.release_passed()
        if self.event.poll() is EventStatus.COMPLETE:
            return self.array
        self._stream.check()
        raise InternalError(f"{self._stream.name}: a copy to the host ended as {self.event.poll().value}")

    @property
    def error(self) -> OpError | None:
        """The error of the copy, once it has failed."""
        if self.event.poll() is not EventStatus.ERROR:
            return None
        return self._stream.error or InternalError(f"{self._stream.name}: a copy to the host failed")

    def when_done(self, function: Callable[[], Any]) -> None:
        """Call ``function()`` once the array is whole or the copy has failed; it must not use the device."""
        self._stream.executor.when_done(self.event, function)


@final
class TransferManager:
    """The transfers of ``executor``. Any thread may call anything."""

    def __init__(self, executor: StreamExecutor) -> None:
        self.executor = executor
        self._pinned_empty: Callable[..., HostArray] | None = getattr(executor, "pinned_empty", None)
        names = ("h2d", "d2h", "d2d") if executor.is_asynchronous else ()
        self._streams = {name: executor.create_stream(name) for name in names}
        self._in_flight: dict[str, deque[tuple[Event, tuple[HostArray | DeviceMemory, ...]]]] = {
            name: deque() for name in names
        }
        """Rule 2; the copies of each stream in order."""
        self._bytes_in_flight = dict.fromkeys(names, 0)
        self.stats = TransferStats()
        self._lock = threading.Lock()

    def to_device(self, stream: Stream, target: DeviceMemory, value: HostArray) -> None:
        """Copy the elements of ``value``, in C order, to ``target``, for later work on ``stream``. The caller
        may modify ``value`` afterwards.

        Raises `InvalidArgumentError` if the sizes differ, and `DeadlineExceededError` if `MAX_STAGED` copies
        are still in flight at the thread's deadline; nothing is copied then.
        """
        _check_size("to_device", target, value.nbytes)
        if not value.nbytes:
            return
        if self.executor.is_asynchronous:
            self.executor.wait_for(stream, self.to_device_ahead(stream, target, value))
            return
        with self._lock:
            self.executor.memcpy_to_device(stream, target, self._contiguous(value))
            self.executor.block_host_until_done(stream)
            self._count("to_device", value.nbytes)

    def to_device_ahead(self, stream: Stream, target: DeviceMemory, value: HostArray) -> Event:
        """`to_device` for an asynchronous device, but ``stream`` does not wait, and its current work may
        still use ``target``. Readers must wait for the event.
        """
        _check_size("to_device", target, value.nbytes)
        self._wait_for_room()  # without the lock: others have their own deadlines
        with self._lock:
            staging, copying = self._staged(value), self._copying("h2d")
            self.executor.wait_for(copying, stream)
            self.executor.memcpy_to_device(copying, target, staging)
            self._count("to_device", value.nbytes)
            return self._keep("h2d", copying, staging, target)

    def to_host(
        self, stream: Stream, source: DeviceMemory, shape: tuple[int, ...], dtype: Any
    ) -> PendingTransfer:
        """Begin to copy ``source``, after the current work of ``stream``, into a new host array.

        Raises `InvalidArgumentError` if the array has another size.
        """
        array = self._empty(shape, dtype)
        _check_size("to_host", source, array.nbytes)
        with self._lock:
            copying = stream
            if self.executor.is_asynchronous:
                copying = self._copying("d2h")
                self.executor.wait_for(copying, stream)
            if array.nbytes:
                self.executor.memcpy_to_host(copying, array, source)
            event = self._keep("d2h", copying, array, source)
            if not self.executor.is_asynchronous:
                self.executor.block_host_until_done(stream)
            self._count("to_host", array.nbytes)
        return PendingTransfer(self, copying, array, event)

    # --- values that wait in host memory

    def swap_out(
        self, stream: Stream, source: DeviceMemory, shape: tuple[int, ...], dtype: Any
    ) -> PendingTransfer:
        """The same as `to_host`, with at most `MAX_SWAPPING` bytes or one copy in flight."""
        self._limit_bytes("d2h", source.nbytes)
        return self.to_host(stream, source, shape, dtype)

    def swap_in(self, stream: Stream, target: DeviceMemory, source: PendingTransfer) -> Event:
        """Begin to copy the array of ``source``, once it is valid, into ``target``, which the current work of
        ``stream`` may still use. Readers must wait for the event, until which the array must not be modified.
        At most `MAX_SWAPPING` bytes or one copy are in flight.
        """
        _check_size("swap_in", target, source.array.nbytes)
        self._limit_bytes("h2d", target.nbytes)
        with self._lock:
            copying = self._copying("h2d")
            self.executor.wait_for(copying, source.event)
            self.executor.wait_for(copying, stream)
            self.executor.memcpy_to_device(copying, target, source.array)
            self._count("to_device", target.nbytes)
            return self._keep("h2d", copying, source.array, target)

    def _limit_bytes(self, name: str, nbytes: int) -> None:
        """Wait until ``nbytes`` more may be copied on the stream ``name``."""
        self._wait_if(
            name, lambda: self._in_flight[name] and self._bytes_in_flight[name] + nbytes > MAX_SWAPPING
        )

    def between(
        self,
        stream: Stream,
        target: DeviceMemory,
        source_manager: TransferManager,
        source_stream: Stream,
        source: DeviceMemory,
    ) -> None:
        """Copy ``source``, of another device or of this one, after the current work of ``source_stream``,
        into ``target``, for later work on ``stream``.

        Devices without peer access copy through the host, and the call returns when the bytes have arrived.
        Raises `InvalidArgumentError` if the sizes differ; nothing is copied then.
        """
        _check_size("between", target, source.nbytes)
        copy = self._copy_from(source.executor)
        if copy is None:
            pending = source_manager.to_host(source_stream, source, (source.nbytes,), np.uint8)
            self.to_device(stream, target, pending.wait())
            return
        with self._lock:
            copying = self._copying("d2d") if self.executor.is_asynchronous else stream
            others = [s for s in dict.fromkeys((stream, source_stream)) if s is not copying]
            for other in others:
                self.executor.wait_for(copying, _recorded(other))
            if source.nbytes:
                copy(copying, target, source)
            done = self._keep("d2d", copying, target, source)
            for other in others:
                other.executor.wait_for(other, done)
            self._count("between", source.nbytes)

    def _copy_from(self, other: StreamExecutor) -> Callable[..., None] | None:
        """The function by which ``executor`` copies directly from the memory of ``other``."""
        if other is self.executor:
            return self.executor.memcpy
        if other.platform != self.executor.platform:
            return None
        return getattr(self.executor, "memcpy_from_peer", None)

    # --- for `MemoryPool`

    def let_go(self) -> None:
        """Wait for the copies in flight, and release their memory."""
        for stream in list(self._streams.values()):
            with suppress(OpError):  # a failed stream's copies are over, too
                self.executor.block_host_until_done(stream, COPY_DEADLINE_S)
        self.release_passed()

    # --- for `PendingTransfer`

    def release_passed(self) -> None:
        """Release the memory of completed copies."""
        with self._lock:
            self._release_passed()

    def _wait_for_room(self) -> None:
        """Throttle the host: otherwise one that fetches nothing would run ahead without limit."""
        self._wait_if("h2d", lambda: len(self._in_flight["h2d"]) >= MAX_STAGED)

    def _wait_if(self, name: str, is_too_much: Callable[[], object]) -> None:
        """Wait for the copies on the stream ``name`` if there are too many."""
        with self._lock:
            self._release_passed()
            copying = self._copying(name) if is_too_much() else None
        if copying is not None:
            finish(copying)
            self.release_passed()

    # --- under the lock

    def _copying(self, name: str) -> Stream:
        """The stream for one direction; a new one where the last one failed with a stream it waited for."""
        if self._streams[name].error is not None:
            self._streams[name] = self.executor.create_stream(name)
        return self._streams[name]

    def _keep(self, name: str, stream: Stream, *ends: HostArray | DeviceMemory) -> Event:
        """An event after the copy just issued, until which its source and target stay alive."""
        event = _recorded(stream)
        if self.executor.is_asynchronous:
            self._in_flight[name].append((event, ends))
            self._bytes_in_flight[name] += ends[0].nbytes
        return event

    def _release_passed(self) -> None:
        for name, copies in self._in_flight.items():
            while copies and copies[0][0].poll() is not EventStatus.PENDING:
                _, ends = copies.popleft()
                self._bytes_in_flight[name] -= ends[0].nbytes

    def _staged(self, value: HostArray) -> HostArray:
        """A copy of ``value`` that the device may read when it gets there."""
        if self._pinned_empty is None:
            self._count_host_copy()
        staging = self._empty(value.shape, value.dtype)
        np.copyto(staging, value)
        return staging

    def _contiguous(self, value: HostArray) -> HostArray:
        if value.flags.c_contiguous:
            return value
        self._count_host_copy()
        return np.ascontiguousarray(value)

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        return np.empty(shape, dtype) if self._pinned_empty is None else self._pinned_empty(shape, dtype)

    def _count(self, direction: str, nbytes: int) -> None:
        transfers, total = f"transfers_{direction}", f"bytes_{direction}"
        stats = self.stats
        changes = {transfers: getattr(stats, transfers) + 1, total: getattr(stats, total) + nbytes}
        self.stats = stats._replace(**changes)

    def _count_host_copy(self) -> None:
        self.stats = self.stats._replace(copies_on_host=self.stats.copies_on_host + 1)


def _recorded(stream: Stream) -> Event:
    """An event after the current work of ``stream``, from its own device: a GPU records only its own."""
    event = stream.executor.create_event()
    stream.executor.record(stream, event)
    return event


def _check_size(action: str, memory: DeviceMemory, nbytes: int) -> None:
    if memory.nbytes != nbytes:
        raise InvalidArgumentError(
            f"TransferManager.{action}: expected {memory.nbytes} bytes, the size of {memory!r}; got {nbytes}"
        )
