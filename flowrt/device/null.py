"""The null device: a simulated device that records calls and keeps a virtual clock.

It runs everything except arithmetic, without hardware: plans, memory, copies and streams are as on an
asynchronous device, calls are checked and recorded, data are zeros, and time is virtual. Two kernels of 200
ms end at 0.2 s on two streams, and at 0.4 s on one. A loop or a branch follows its predicate if the host
computes it or the trip count is constant; any other predicate is false.

Each stream has a clock, the end of its work, and the host has one, which advances when the host waits for a
stream (`block_host_until_done`) or calls `advance`. Work starts when the stream is free and the host has
issued it, whichever is later. A program takes no virtual time on the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast, final

import numpy as np

from flowrt.device.event_manager import call_and_log
from flowrt.device.host_memory import ONLY_ZEROS, Array, HostMemory, memory_of
from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)

BAR_COLUMNS = 40


class Call(NamedTuple):
    """Something that was issued to a stream: ``kind`` is the method (``memcpy``, ``kernel``, ``wait_for`` …),
    ``name`` a kernel's or launched function's name, or the bytes that are copied or set. Times are virtual.
    """

    kind: str
    stream: str
    name: str
    start_s: float
    seconds: float


@final
class NullStream(Stream):
    """A stream's name and clock."""

    now_s = 0.0
    """Virtual time at which the stream has finished its work."""


@final
class NullEvent(Event):
    """An event that is complete once the host's clock has reached it. It is never `ERROR`: work fails, if at
    all, when it is issued, and no event is recorded after a failure.
    """

    def __init__(self, executor: NullExecutor) -> None:
        self._executor = executor
        self.at_s: float | None = None

    def poll(self) -> EventStatus:
        if self.at_s is None:
            return EventStatus.UNKNOWN
        return EventStatus.COMPLETE if self.at_s <= self._executor.now_s else EventStatus.PENDING


@final
class NullExecutor(StreamExecutor):
    """Records calls and counts memory and time. ``memory_bytes`` is the amount that can be allocated,
    ``bandwidth`` the bytes per second of copies and fills.

    Each device has its own clocks. One thread issues at a time, as on other asynchronous devices.
    """

    platform = "null"
    xp: Any = np
    is_asynchronous = True
    computes = False

    def __init__(self, name: str, memory_bytes: int = 16 << 30, bandwidth: float = 25e9) -> None:
        super().__init__(name)
        self.memory_bytes, self.bandwidth = memory_bytes, bandwidth
        self.now_s = 0.0
        """The host's clock."""
        self.calls: list[Call] = []
        """Recorded calls in order of issue. To be cleared when it is too long."""
        self._bytes_in_use = 0
        self._lock = threading.Lock()
        self._memory = HostMemory(name, ONLY_ZEROS)
        self._current = threading.local()

    def advance(self, seconds: float) -> None:
        """Move the host's clock on, as if the host had been busy with something else."""
        if not seconds >= 0:
            raise InvalidArgumentError(f"{self.name}: advance: expected seconds >= 0; got {seconds}")
        self.now_s += seconds

    def timeline(self) -> str:
        """The calls as text: a line each with start and length in ms, and a bar, in order of issue."""
        end_s = max((call.start_s + call.seconds for call in self.calls), default=0.0)
        lines = [f"{self.name}: {len(self.calls)} calls, {end_s * 1e3:.3f} ms"]
        return "\n".join(lines + [_row(call, end_s) for call in self.calls])

    def __str__(self) -> str:
        return self.timeline()

    def memory_info(self) -> tuple[int, int]:
        return self.memory_bytes - self._bytes_in_use, self.memory_bytes

    def memory_of(self, array: Any) -> DeviceMemory:
        # Also of one that NumPy allocated: a kernel's temporary would be the device's, if there were one.
        return memory_of(self, array)

    def create_stream(self, name: str = "compute") -> NullStream:
        self._check_open()
        return NullStream(self, name)

    def create_event(self) -> NullEvent:
        return NullEvent(self)

    def create_timed_event(self) -> NullEvent:
        return self.create_event()

    def elapsed_ns(self, first: Event, last: Event) -> int:
        """Difference of virtual times."""
        start_s, end_s = _own(first).at_s, _own(last).at_s
        assert start_s is not None  # both were recorded
        assert end_s is not None
        return round(1e9 * (end_s - start_s))

    def kernel(self, name: str, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """A stand-in for ``function``: it records a call of ``seconds`` on the current stream and returns its
        argument ``out``, or None.

        Calling it raises `FailedPreconditionError` outside `activate`.
        """

        def pretend(*arguments: Any, out: Any = None, **attributes: Any) -> Any:
            stream = self.current_stream
            if stream is None:
                raise FailedPreconditionError(
                    f"{self.name}: expected kernel {name!r} to be called in activate()"
                )
            self._check_stream(stream)
            self._add("kernel", stream, name, seconds)
            return out

        return pretend

    @contextmanager
    def activate(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def use(self, stream: Stream) -> None:
        self._current.stream = stream

    @property
    def current_stream(self) -> Stream | None:
        return getattr(self._current, "stream", None)

    def _allocate(self, nbytes: int) -> int:
        with self._lock:
            if nbytes > self.memory_bytes - self._bytes_in_use:
                raise ResourceExhaustedError(
                    f"{self.name}: expected room for {nbytes} bytes; got "
                    f"{self.memory_bytes - self._bytes_in_use} free of {self.memory_bytes}"
                )
            address = self._memory.map(nbytes)
            self._bytes_in_use += nbytes
        return address

    def _deallocate(self, address: int, nbytes: int) -> None:
        with self._lock:
            self._memory.unmap(address)
            self._bytes_in_use -= nbytes

    def _array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int) -> Array:
        """A read-only array of zeros."""
        return self._memory.array(memory, shape, dtype, offset)

    def _memcpy_to_device(self, stream: Stream, target: DeviceMemory, source: Array) -> None:
        self._add_bytes("memcpy_to_device", stream, target.nbytes)

    def _memcpy_to_host(self, stream: Stream, target: Array, source: DeviceMemory) -> None:
        """Write zeros, at once."""
        self._add_bytes("memcpy_to_host", stream, source.nbytes)
        target.fill(0)

    def _memcpy(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None:
        self._add_bytes("memcpy", stream, source.nbytes)

    def _memset(self, stream: Stream, memory: DeviceMemory, value: int) -> None:
        self._add_bytes("memset", stream, memory.nbytes)

    def _launch(self, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Recorded; the function is not called."""
        self._add("launch", stream, getattr(function, "__name__", repr(function)), 0.0)

    def _record(self, stream: Stream, event: Event) -> None:
        at_s = self._add("record", stream, "", 0.0)
        _own(event).at_s = at_s

    def _wait_for(self, stream: Stream, event: Event) -> None:
        at_s = _own(event).at_s
        assert at_s is not None  # it was recorded
        own = cast(NullStream, stream)
        own.now_s = max(own.now_s, at_s)
        self._add("wait_for", stream, "", 0.0)

    def _host_callback(self, stream: Stream, function: Callable[[], Any]) -> None:
        """Call at once: the host's clock need not have reached the stream's."""
        self._add("host_callback", stream, getattr(function, "__name__", repr(function)), 0.0)
        try:
            function()
        except Exception as error:  # noqa: BLE001 (raised at the stream's next use)
            stream.fail(error)

    def when_done(self, event: Event, function: Callable[[], Any]) -> None:
        """Call at once: work is complete when it is issued."""
        call_and_log(function)

    def _block_host_until_done(self, stream: Stream, timeout_s: float | None) -> None:
        """Takes no real time; a timeout is of virtual seconds."""
        done_s = cast(NullStream, stream).now_s
        if timeout_s is not None and done_s > self.now_s + timeout_s:
            self.now_s += timeout_s
            raise DeadlineExceededError(
                f"{stream.name}: expected the stream's work done within {timeout_s} s; "
                f"{done_s - self.now_s:g} s are left"
            )
        self.now_s = max(self.now_s, done_s)

    def _close(self) -> None:
        """No-op: there is nothing to wait for."""

    def _add_bytes(self, kind: str, stream: Stream, nbytes: int) -> None:
        self._add(kind, stream, f"{nbytes} bytes", nbytes / self.bandwidth)

    def _add(self, kind: str, stream: Stream, name: str, seconds: float) -> float:
        """Record a call and move the stream's clock to its end, which is returned."""
        own = cast(NullStream, stream)
        start_s = max(own.now_s, self.now_s)
        self.calls.append(Call(kind, stream.name, name, start_s, seconds))
        own.now_s = start_s + seconds
        return own.now_s


def _own(event: Event) -> NullEvent:
    if not isinstance(event, NullEvent):
        raise InvalidArgumentError(f"expected an event of a null device; got a {type(event).__name__}")
    return event


def _row(call: Call, end_s: float) -> str:
    first = round(BAR_COLUMNS * call.start_s / end_s) if end_s else 0
    last = round(BAR_COLUMNS * (call.start_s + call.seconds) / end_s) if end_s else 0
    bar = (" " * first + ("#" * (last - first) or "|")).ljust(BAR_COLUMNS + 1)
    start_ms, length_ms = call.start_s * 1e3, call.seconds * 1e3
    return f"{bar} {start_ms:10.3f} {length_ms:10.3f}  {call.stream:12} {call.kind} {call.name}".rstrip()
