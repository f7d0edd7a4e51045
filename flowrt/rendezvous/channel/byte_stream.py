"""`ByteStream`: a connected socket, plain or with TLS, that one thread reads and one at a time writes."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, final
from weakref import WeakSet

from flowrt.device.llvm.host_pool import usable_cpus
from flowrt.rendezvous.channel.framing import Buffer

MAX_DESCRIPTORS = 64
"""File descriptors passed in one write; Linux allows 253."""
_RIGHTS_BYTES = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
_NOW, _CLOSED_ON_EXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)
"""Numbers, since to join two enumeration members takes a microsecond."""
MAX_PIECES = 512
"""Buffers in one write; Linux allows 1024."""

SPIN_S = 200e-6 if usable_cpus() > 1 else 0.0
"""Spin time of a read. Waking a thread on a sleeping processor takes 28 us; when two tasks alternate in parts
of 20 us, that is most of the time (competitive spinning: Karlin et al., "Empirical Studies of Competitive
Spinning for a Shared-Memory Multiprocessor", SOSP 1991).
"""
GLANCE_S = 20e-6
"""Duration of one poll, which takes 2 us if no other thread wants to run."""

_open_sockets: WeakSet[socket.socket] = WeakSet()


def _close_in_child() -> None:
    """A forked child's copies would keep connections alive after this process died."""
    for forked in list(_open_sockets):
        os.close(forked.detach())


os.register_at_fork(after_in_child=_close_in_child)


class ByteStream(ABC):
    """A socket as a byte stream. Errors of the socket are raised as `OSError`."""

    wakes_when_readable: ClassVar[bool]
    """Whether `read_now` finds bytes whenever the socket is readable, and only then."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.descriptors: deque[int] = deque()
        """Descriptors received with the bytes read, oldest first; their consumer closes them."""
        self._was_soon = False
        _open_sockets.add(connected)

    def read(self, room: Buffer | bytearray, *, is_due: bool = False) -> int:
        """Fill the front of ``room``; waits until there is at least one byte. Returns 0 at the end.
        ``is_due``: the peer was just answered, so its next message is expected soon, if the last one was:
        then this polls for `SPIN_S` before it sleeps.
        """
        began = time.perf_counter()
        count = self._spin(room, began) if is_due and self._was_soon else None
        if count is None:
            count = self._read(room, wait=True)
        self._was_soon = time.perf_counter() - began < SPIN_S
        return count or 0

    def _spin(self, room: Buffer | bytearray, began: float) -> int | None:
        """Poll; None if nothing arrived, or another thread wants the processor or the GIL."""
        tried, end = began, began + SPIN_S
        while tried < end:
            count = self._read(room, wait=False)
            if count is not None:
                return count
            last, tried = tried, time.perf_counter()
            if tried - last > GLANCE_S:
                break
        return None

    def read_now(self, room: Buffer | bytearray) -> int | None:
        """`read` without waiting: None if there is no byte yet."""
        return self._read(room, wait=False)

    def fileno(self) -> int:
        """The socket's number, to wait for it. Raises `OSError` if it is closed."""
        if (number := self._socket.fileno()) < 0:
            raise OSError(errno.EBADF, "closed")
        return number

    @abstractmethod
    def _read(self, room: Buffer | bytearray, *, wait: bool) -> int | None:
        """`read` once; without ``wait``, None if there is no byte yet."""

    @abstractmethod
    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], *, wait: bool) -> int:
        """Write from the front of ``buffers``, as many bytes as the kernel accepts now; with ``wait``, at
        least one. Descriptors are sent with the first byte: none were if this returns 0.
        """

    def end_writing(self) -> None:
        """Make the peer read an end after the bytes written so far."""
        self._shutdown(socket.SHUT_WR)

    def end_reading(self) -> None:
        """Make `read` return the bytes that have arrived, and then an end."""
        self._shutdown(socket.SHUT_RD)

    def end(self) -> None:
        """Wake all readers and writers."""
        self._shutdown(socket.SHUT_RDWR)

    def limit_reads(self, timeout_s: float) -> None:
        """Make `read` raise `TimeoutError` after ``timeout_s`` seconds without a byte."""
        with contextlib.suppress(OSError):  # closed
            self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """Idempotent. No other thread may be reading or writing."""
        while self.descriptors:
            os.close(self.descriptors.popleft())
        self._socket.close()

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            # Not SSLSocket's own, after which it would read and write plain text.
            socket.socket.shutdown(self._socket, how)


@final
class PlainStream(ByteStream):
    """A TCP or a Unix socket."""

    wakes_when_readable = True

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        connected.settimeout(None)
        self._passes_descriptors = connected.family == socket.AF_UNIX

    def _read(self, room: Buffer | bytearray, *, wait: bool) -> int | None:
        flags = 0 if wait else _NOW
        try:
            if not self._passes_descriptors:
                return self._socket.recv_into(room, 0, flags)
            count, messages, _, _ = self._socket.recvmsg_into([room], _RIGHTS_BYTES, flags | _CLOSED_ON_EXEC)
        except BlockingIOError:
            return None
        for level, kind, data in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors.extend(array("i", data[: len(data) // 4 * 4]))
        return count

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], *, wait: bool) -> int:
        flags = 0 if wait else _NOW
        try:
            if len(buffers) == 1 and not descriptors:
                return self._socket.send(buffers[0], flags)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
            return self._socket.sendmsg(buffers[:MAX_PIECES], rights, flags)
        except BlockingIOError:
            return 0


@final
class TlsStream(ByteStream):
    """TLS over TCP.

    OpenSSL allows one thread at a time in a connection, so none may block in it: both directions call it in
    non-blocking mode, under one lock, and wait for the socket outside of it.
    """

    wakes_when_readable = False  # it keeps bytes that are decrypted

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._tls = connected
        self._lock = threading.Lock()
        self._timeout_s: float | None = None
        connected.setblocking(False)

    def _read(self, room: Buffer | bytearray, *, wait: bool) -> int | None:
        while True:
            try:
                with self._lock:
                    return self._tls.recv_into(room)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not wait:
                    return None
                wants_read = isinstance(error, ssl.SSLWantReadError)
                self._wait(select.POLLIN if wants_read else select.POLLOUT, self._timeout_s)

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], *, wait: bool) -> int:
        while True:
            try:
                with self._lock:
                    return self._tls.send(buffers[0])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not wait:
                    return 0
                wants_read = isinstance(error, ssl.SSLWantReadError)
                self._wait(select.POLLIN if wants_read else select.POLLOUT, None)

    def limit_reads(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def _wait(self, event: int, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._tls, event)
        if not poll.poll(None if timeout_s is None else 1e3 * timeout_s):
            raise TimeoutError(f"expected the peer to be ready within {timeout_s} s")


def as_stream(connected: socket.socket) -> ByteStream:
    """The stream class for the kind of socket."""
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsStream(connected) if isinstance(connected, ssl.SSLSocket) else PlainStream(connected)
