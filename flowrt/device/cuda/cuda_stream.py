"""`CudaStream` and `CudaEvent`: CUDA's own, with sticky errors and ordered host callbacks.

Rules of this file:

  1. An event is polled, never waited for: a thread that blocks in the driver cannot meet a deadline.
  2. The driver never calls Python. CuPy queries an event with the GIL held, so a driver thread that needs the
     GIL inside ``cudaLaunchHostFunc`` may wait for a thread that waits for the driver. Instead the device's
     `EventManager` calls a `Callback` when an event before it has passed.
  3. So the device does not wait for callbacks: later work on a stream may run before one. On the host the
     order is kept: later events are pending until the callback has returned, and later callbacks, on its
     stream and on streams that waited for it, run after it and fail if it failed.
  4. Work issued during a capture must not change the stream: errors are raised, not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

from flowrt.device.stream_executor import Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import FailedPreconditionError, InternalError, OpError, ResourceExhaustedError

OUT_OF_MEMORY, NOT_READY = 2, 600
"""cudaErrorMemoryAllocation and cudaErrorNotReady. CuPy exports no names for them."""


@final
class Capture:
    """The work of some streams on its way into one CUDA graph."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        """Memory that the graph has the addresses of."""
        self.streams: list[CudaStream] = []
        self.events: list[tuple[CudaStream, CudaEvent]] = []
        """Events recorded during the capture: they cannot be polled until recorded again after it."""

    def add_stream(self, stream: CudaStream) -> None:
        """Make work issued on ``stream`` from here on part of the capture."""
        stream.capture = self
        self.streams.append(stream)

    def end(self) -> None:
        """Restore the streams. To be called when the driver has ended the capture."""
        for stream in self.streams:
            stream.capture = None
        for stream, event in self.events:
            event.record(stream)


@final
class CudaStream(Stream):
    """A CUDA stream that does not synchronise with the default one."""

    def __init__(
        self, executor: StreamExecutor, name: str, native: Any, device: AbstractContextManager[Any]
    ) -> None:
        """``native`` is CuPy's stream, ``device`` the context in which its device is the current one."""
        super().__init__(executor, name)
        self.native, self._device = native, device
        self.behind: tuple[Callback, ...] = ()
        """The callbacks that new work must follow; earlier ones precede one of these."""
        self.capture: Capture | None = None

    def issue(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call ``function(*arguments)``, which puts work on the stream. What it raises fails the stream."""
        try:
            with self._device:
                function(*arguments)
        except Exception as error:
            if self.capture is not None:
                raise
            self.fail(as_op_error(f"{self.executor.name}: {self.name}", error))

    def wait_for(self, event: CudaEvent) -> None:
        """Make later work wait for ``event``.

        Raises `FailedPreconditionError` in a capture for an event from outside: a replay could not wait.
        """
        if self.capture is None and event.capture is not None:
            event.capture.add_stream(self)
        elif self.capture is not event.capture:
            raise FailedPreconditionError(
                f"{self.executor.name}: {self.name}: expected an event of the capture; got another one"
            )
        self.issue(self.native.wait_event, event.native)
        self.behind = tuple(dict.fromkeys(self.behind + event.behind))


@final
class CudaEvent(Event):
    """A CUDA event without timing, and the callbacks that it follows."""

    def __init__(
        self, native: Any, query: Callable[[int], int], error_of: Callable[[int], Exception]
    ) -> None:
        """``native`` is CuPy's event; ``query(native.ptr)`` returns its CUDA status, and ``error_of`` the
        exception for one. ``native.done`` is unusable: it stays false if the device has failed.
        """
        self.native, self._query, self._error_of = native, query, error_of
        self._stream: CudaStream | None = None
        self.capture: Capture | None = None
        """The capture under way that the event was recorded in."""
        self.behind: tuple[Callback, ...] = ()

    def record(self, stream: CudaStream) -> None:
        """Record the event after the current work of ``stream``."""
        self._stream, self.capture = stream, stream.capture
        stream.behind = self.behind = tuple(call for call in stream.behind if not call.has_succeeded)
        if stream.capture is not None:
            stream.capture.events.append((stream, self))
        stream.issue(self.native.record, stream.native)

    @property
    def error(self) -> OpError | None:
        """The error of a callback that the event follows."""
        return next((call.error for call in self.behind if call.error is not None), None)

    def poll(self) -> EventStatus:
        if self._stream is None:
            return EventStatus.UNKNOWN
        if self.capture is not None:
            return EventStatus.PENDING  # polling is not allowed, and would invalidate the capture
        status = self._query(self.native.ptr)
        if status == NOT_READY:  # even if a callback has failed: the device continues with its work
            return EventStatus.PENDING
        if self.error is not None:
            return EventStatus.ERROR
        if status:
            self._stream.fail(as_op_error(self._stream.executor.name, self._error_of(status)))
            return EventStatus.ERROR
        return (
            EventStatus.COMPLETE if all(call.has_succeeded for call in self.behind) else EventStatus.PENDING
        )

    def settle(self, stream: CudaStream) -> None:
        """Have ``stream``, which the event is on or which waited for it, fail if the event failed."""
        if self.error is not None:
            stream.fail(self.error)


@final
class Callback:
    """A function that is called on the host when a stream gets there, or left out when it does not."""

    def __init__(self, stream: CudaStream, event: CudaEvent, function: Callable[[], Any]) -> None:
        """``event`` is recorded at the function's position on ``stream``."""
        self._stream, self._event, self._function = stream, event, function
        self.has_succeeded = False
        self.error: OpError | None = None

    def __call__(self) -> None:
        """Call the function if ``event`` is complete; else fail as the event did."""
        if self._event.poll() is EventStatus.COMPLETE:
            self._call()
        else:
            self.error = self._event.error or self._stream.error

    def _call(self) -> None:
        try:
            self._function()
        except Exception as error:  # noqa: BLE001 - raised by the stream
            self._stream.fail(error)
            self.error = self._stream.error
        else:
            self.has_succeeded = True


def as_op_error(where: str, error: Exception) -> Exception:
    """``error`` with flowrt's type if it is one of CuPy's (the runtime, driver and libraries each have their
    own), else as it is.
    """
    if not type(error).__module__.startswith("cupy"):
        return error
    if isinstance(error, MemoryError) or getattr(error, "status", None) == OUT_OF_MEMORY:
        known: OpError = ResourceExhaustedError(f"{where}: the device has not that much memory: {error}")
    else:
        known = InternalError(
            f"{where}: {error}. After an illegal access or a failed launch the device is lost to this process"
        )
    known.__cause__ = error
    return known
