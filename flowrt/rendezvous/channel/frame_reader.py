"""`FrameReader`: the frames of one byte stream, in order, each handled once, by one thread at a time.

    the reader thread    reads until the last frame
    a leader             a thread that waits for a frame of this stream, and reads it itself

A frame that a leader reads wakes one thread. One that the reader thread hands over wakes two, and the second
waits until the first lets go of the interpreter (Schmidt et al., "Leader/Followers: A Design Pattern for
Efficient Multi-Threaded Event Demultiplexing and Dispatching", PLoP 2000).

Once a thread has asked to lead, both sleep until the socket is readable, each in an epoll of its own with
EPOLLEXCLUSIVE. Linux then wakes one: of those registered, the first in which a thread sleeps; so the leader,
if there is one. Only time depends on that: a thread that wakes takes the lock, and reads what is there. What
does matter: a leader that leaves has seen the socket empty, since Linux tells the other of new bytes only.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.byte_stream import ByteStream
from flowrt.rendezvous.channel.channel import Lead
from flowrt.rendezvous.channel.framing import Frame, FrameDecoder
from flowrt.rendezvous.channel.lifeline import DIED

READ_BYTES = 64 << 10
"""Size of one read, many small frames; a larger rest of an array is read directly to its memory."""

_READABLE = select.EPOLLIN | select.EPOLLEXCLUSIVE


@final
class FrameReader:
    """``handle(frame)`` is called with each frame; it returns False if that is the last. At most
    ``read_bytes`` of an array are read at a time.
    """

    def __init__(
        self, stream: ByteStream, decoder: FrameDecoder, read_bytes: int, handle: Callable[[Frame], bool]
    ) -> None:
        self._stream, self._decoder, self._read_bytes, self._handle = stream, decoder, read_bytes, handle
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._lock = threading.Lock()
        self._owner = 0  # the thread that reads, or last did
        self._reader = 0  # the reader thread
        self._has_answered = False
        """Whether the reader thread has written itself since it last read."""
        self._turns: _Turns | None = None
        self._is_over = False
        self._error: Exception | None = None
        self._timeout_s: float | None = None

    def run(self) -> None:
        """Read until the last frame. Raises what ends the stream before. To be called once, by the reader
        thread.
        """
        self._reader = self._owner = threading.get_ident()
        try:
            while self._turns is None and not self._is_over:
                is_due, self._has_answered = self._has_answered, False
                self._read(partial(self._stream.read, is_due=is_due))
            if self._turns is not None:
                self._owner = 0
                self._run_behind_leaders(self._turns)
        finally:
            with self._lock:
                self._is_over, self._turns = True, None  # its files are closed with the last leader
        error, self._error = self._error, None
        if error is not None:
            raise error

    def note_send(self) -> None:
        """The calling thread sends to the peer. If it is the reader, the next frame is expected soon."""
        if threading.get_ident() == self._reader:
            self._has_answered = True

    def is_read_here(self) -> bool:
        """Whether the calling thread reads, so that others cannot now."""
        return threading.get_ident() == self._owner

    def limit(self, timeout_s: float) -> None:
        """Make the reader thread raise `TimeoutError` after ``timeout_s`` seconds without a byte."""
        self._timeout_s = timeout_s
        if self._turns is None:
            self._stream.limit_reads(timeout_s)

    def lead(self) -> Lead | None:
        """See `Connection.lead`."""
        turns = self._turns
        if turns is None:
            with self._lock:
                if self._is_over:
                    return None
                turns = self._turns = self._turns or _turns_at(self._stream, self._read_as_leader)
        return turns if turns is not None and turns.begin() else None

    def _run_behind_leaders(self, turns: _Turns) -> None:
        turns.admit()
        while not self._is_over:
            if not turns.sleep_behind(self._timeout_s):
                raise TimeoutError(f"expected the peer's end within {self._timeout_s} s")
            with self._lock:
                if not self._is_over:
                    self._read_all()

    def _read_as_leader(self) -> bool:
        """Read what is there; False at the end. The reader thread raises what ends the stream."""
        with self._lock:
            if self._is_over:
                return False
            try:
                self._read_all()
            except Exception as error:  # noqa: BLE001 (raised by the reader)
                self._error, self._is_over = error, True
            except BaseException:  # a signal's, after which nobody knows what was read
                self._error, self._is_over = UnavailableError("interrupted while a frame was read"), True
                raise
            finally:
                if self._is_over:
                    self._stream.end_reading()  # wakes the reader thread
            return not self._is_over

    def _read_all(self) -> None:
        self._owner = threading.get_ident()
        try:
            while not self._is_over and self._read(self._stream.read_now):
                pass
        finally:
            self._owner = 0

    def _read(self, read: Callable[[memoryview], int | None]) -> bool:
        """Read once by ``read``; whether there may be more to read now. Raises `UnavailableError` at the end
        of the stream.
        """
        room = self._decoder.room
        is_direct = len(room) >= READ_BYTES
        place = room[: self._read_bytes] if is_direct else self._buffer
        had_descriptors = len(self._stream.descriptors)
        count = read(place)
        if count is None:
            return False
        if not count:
            raise UnavailableError(self._why_it_ended())
        frames = self._decoder.written(count) if is_direct else self._decoder.feed(place[:count])
        # A read of a Unix socket stops behind bytes that came with descriptors.
        is_more = count == len(place) or len(self._stream.descriptors) != had_descriptors
        for frame in frames:
            if not self._handle(frame):
                self._is_over = True
                break
        return is_more

    def _why_it_ended(self) -> str:
        if self._decoder.is_between_frames:
            return DIED
        return "closed in the middle of a frame: the process or its network died"


def _turns_at(stream: ByteStream, read: Callable[[], bool]) -> _Turns | None:
    """None if ``stream`` cannot be waited for, or there are too many open files."""
    with contextlib.suppress(OSError):
        return _Turns(stream.fileno(), read) if stream.wakes_when_readable else None
    return None


@final
class _Turns(Lead):
    """The choice of the thread that wakes when ``socket`` is readable. ``read()``: see
    `FrameReader._read_as_leader`.
    """

    def __init__(self, socket: int, read: Callable[[], bool]) -> None:
        """Raises `OSError`."""
        self._socket, self._read = socket, read
        self._is_admitted = False
        self._leading = threading.Lock()
        self._leader = 0
        self._is_seen = True
        """Whether all that woke a leader was read."""
        self._front, self._back = select.epoll(), select.epoll()
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._front.register(socket, _READABLE)
        self._front.register(self._wakes, select.EPOLLIN)
        self._back.register(socket, _READABLE)

    def __del__(self) -> None:
        # Not earlier: while it can be woken, its number must not become another file's.
        if hasattr(self, "_wakes"):
            os.close(self._wakes)

    # --- the reader thread

    def admit(self) -> None:
        """The reader thread sleeps by `sleep_behind` from now on."""
        self._is_admitted = True

    def sleep_behind(self, timeout_s: float | None) -> bool:
        """Sleep until the socket is readable and no leader wakes; False after ``timeout_s``."""
        return bool(self._back.poll(timeout_s, 1))

    # --- a leader

    def begin(self) -> bool:
        """Make the calling thread the leader, if it may be."""
        if not self._is_admitted or not self._leading.acquire(blocking=False):
            return False
        self._leader = threading.get_ident()
        return True

    def wait(self, timeout_s: float | None) -> None:
        self._is_seen = False
        for file, _ in self._front.poll(timeout_s, 2):
            if file == self._wakes:
                os.eventfd_read(self._wakes)
            elif not self._read():
                with contextlib.suppress(OSError, ValueError):  # closed
                    self._front.unregister(self._socket)
        self._is_seen = True

    def wake(self) -> None:
        if threading.get_ident() != self._leader:  # else it is about to return from `wait`
            os.eventfd_write(self._wakes, 1)

    def release(self) -> None:
        if not self._is_seen:  # a signal's exception came between waking and reading
            self._is_seen = True
            with contextlib.suppress(OSError, ValueError):
                self._back.unregister(self._socket)
                self._back.register(self._socket, _READABLE)
        self._leader = 0
        self._leading.release()
