"""gRPC's calls as streams of messages: the only module of rendezvous that imports it.

A call has its own completion queue and one thread, which processes the queue's events; sending threads start
writes themselves. This uses gRPC's core directly (`cygrpc`, below grpcio's own Python layer). That layer uses
three or four threads per stream, two of which must wake up for each message: a message took 120 us one way
between two processes of a host, and takes 35 here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.lifeline import DIED, join

KEPT_BYTES = 32 << 20
"""Freed memory kept by the C library. By default it returns blocks from 128 KiB, and each message then pays a
page fault for every 4 KiB that gRPC copies: that was a third of the time for 64 MiB.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

_READ, _WRITE, _FINISH, _END, _BEGIN = "read", "write", "finish", "end", "begin"


class Status(NamedTuple):
    """Status at the end of a call: the name of gRPC's code, and its message."""

    code: str
    details: str


@functools.cache
def load_grpc() -> Any:
    """The package, imported on first use: it takes 0.1 s."""
    # It would log to stderr whenever a peer stops; failures are reported as errors anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A forked child may not use it here. Else gRPC starts threads there again, which end it now and then.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # The thread that waits for an event reads the socket itself; by default another thread reads it and wakes
    # that thread: a round trip takes 280 us instead of 430, 64 MiB 34 ms instead of 40.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    # Otherwise it polls idle sockets every 5 s, and the first timer that fires starts another thread. Here
    # each call has a thread that waits for its events: no socket is idle.
    os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0")
    import grpc

    _keep_freed_memory()
    return grpc


def load_core() -> Any:
    """gRPC's core as Python sees it."""
    load_grpc()
    from grpc._cython import cygrpc

    return cygrpc


def _keep_freed_memory() -> None:
    """Keep freed memory; only the GNU C library needs it and supports it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * KEPT_BYTES)


class _Call(ABC):
    """One end of a call, which carries ``stream``. See `flowrt.rendezvous.channel.frame_stream.Carrier`."""

    def __init__(self, stream: FrameStream) -> None:
        self._core = load_core()
        self._stream = stream
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"grpc {stream.peer}", daemon=True)

    def write(self, message: bytes) -> None:
        self._begin(_WRITE, self._core.SendMessageOperation(message, 0))

    def read(self) -> None:
        self._begin(_READ, self._core.ReceiveMessageOperation(0))

    @abstractmethod
    def finish(self) -> None: ...

    @abstractmethod
    def cancel(self) -> None: ...

    def join(self, timeout_s: float) -> None:
        join(self._thread, timeout_s)

    # --- differences between the two ends

    @abstractmethod
    def _start(self, operations: Sequence[Any], tag: str) -> bool:
        """Have the core do that. False where the call is over."""

    @abstractmethod
    def _next_event(self) -> Any:
        """Block until the core has done something."""

    @abstractmethod
    def _why_ended(self, operation: Any) -> Exception | None:
        """None where the other end has finished."""

    @abstractmethod
    def _has_finished(self, event: Any) -> bool:
        """Whether a read that gave nothing means that the other end has finished."""

    @abstractmethod
    def _release(self) -> None:
        """The call is over and the thread ends."""

    # --- events

    def _begin(self, tag: str, *operations: Any) -> None:
        with self._lock:  # the thread must not wait for an event of a rejected operation
            if not self._is_over and self._start(operations, tag):
                self._under_way += 1

    def _run(self) -> None:
        try:
            self._stream.end_reading(self._take_events())
        finally:
            self._stream.end()
        self._release()

    def _take_events(self) -> Exception | None:
        """Process events until the call is over; returns the reason."""
        error: Exception | None = None
        ended = False
        while not (ended and self._is_idle()):
            event = self._next_event()
            self._count_down()
            if event.tag == _END:
                ended, error = True, self._why_ended(event.batch_operations[-1])
            elif event.tag == _WRITE and not ended:
                self._stream.written()
            elif event.tag == _READ:
                self._take_message(event)
        return error

    def _take_message(self, event: Any) -> None:
        message = event.batch_operations[0].message()
        if message is not None:
            self._stream.received(message)
        elif self._has_finished(event):
            self._stream.end_reading(None)

    def _count_down(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _is_idle(self) -> bool:
        """Whether nothing is under way; then nothing begins any more."""
        with self._lock:
            self._is_over = not self._under_way
            return self._is_over


@final
class DialledCall(_Call):
    """A call of ``method`` at ``address``; ``explain(status)`` makes an error of how it failed."""

    def __init__(
        self,
        stream: FrameStream,
        address: str,
        options: Sequence[tuple[str, Any]],
        credentials: Any,
        method: str,
        metadata: Sequence[tuple[str, str]],
        explain: Any,
    ) -> None:
        super().__init__(stream)
        core, self._explain = self._core, explain
        self._channel = core.Channel(address.encode(), tuple(options), credentials)
        begin = (core.SendInitialMetadataOperation(metadata, 0),), _BEGIN
        greeted = (core.ReceiveInitialMetadataOperation(0),), _BEGIN
        end = (core.ReceiveStatusOnClientOperation(0),), _END
        self._under_way = 3
        self._call = self._channel.segregated_call(
            core.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(), None, None, metadata, None, (begin, greeted, end), None,
        )  # fmt: skip
        stream.attach(self)
        self._thread.start()

    def finish(self) -> None:
        self._begin(_FINISH, self._core.SendCloseFromClientOperation(0))

    def cancel(self) -> None:
        self._call.cancel(self._core.StatusCode.cancelled, "cancelled by this end")

    def _start(self, operations: Sequence[Any], tag: str) -> bool:
        return bool(self._call.operate(operations, tag))

    def _next_event(self) -> Any:
        return self._call.next_event()

    def _why_ended(self, operation: Any) -> Exception | None:
        code = _code_names()[operation.code()]
        error: Exception | None = None
        if code != "OK":
            error = self._explain(Status(code, operation.details() or ""))
        return error

    def _has_finished(self, event: Any) -> bool:
        return False  # the status has the reason

    def _release(self) -> None:
        self._channel.close(self._core.StatusCode.cancelled, "closed")


@final
class AcceptedCall(_Call):
    """A call accepted by a listener with ``event``, on the completion queue ``events``."""

    def __init__(self, stream: FrameStream, event: Any, events: Any) -> None:
        super().__init__(stream)
        self._call, self._events = event.call, events
        self._status = Status("OK", "")
        begin = self._core.SendInitialMetadataOperation((), 0)
        self._begin(_BEGIN, begin)
        self._begin(_END, self._core.ReceiveCloseOnServerOperation(0))
        stream.attach(self)
        self._thread.start()

    def refuse(self, status: Status) -> None:
        """End the call, with ``status``."""
        self._status = status
        self._stream.finish()

    def finish(self) -> None:
        code = getattr(self._core.StatusCode, self._status.code.lower())
        details = self._status.details.encode()
        self._begin(_FINISH, self._core.SendStatusFromServerOperation((), code, details, 0))

    def cancel(self) -> None:
        self._call.cancel()

    def _start(self, operations: Sequence[Any], tag: str) -> bool:
        self._call.start_server_batch(operations, tag)
        return True

    def _next_event(self) -> Any:
        return self._events.poll()

    def _why_ended(self, operation: Any) -> Exception | None:
        if not operation.cancelled():
            return None
        return UnavailableError(f"connection to {self._stream.peer}: {DIED}")

    def _has_finished(self, event: Any) -> bool:
        return bool(event.success)

    def _release(self) -> None:
        self._events.shutdown()


@functools.cache
def _code_names() -> Mapping[int, str]:
    return {code.value[0]: code.name for code in load_grpc().StatusCode}
