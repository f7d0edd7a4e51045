"""`Lifeline`: the state of a connection (open, lost or closed), and its notification.

    OPEN --lose(reason)--> LOST      the first reason is kept; the receiver is notified once, after all frames
    OPEN --close()-------> CLOSED    the receiver is not notified
    LOST --close()-------> LOST      and the receiver, if not notified yet, never is

Every connection has one, through which its threads agree on its state.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from flowrt.errors import FailedPreconditionError, OpError, UnavailableError
from flowrt.rendezvous.channel.channel import Connection, Receiver
from flowrt.rendezvous.channel.rare_log import RareLog

BROKEN = RareLog(logging.getLogger(__name__))
"""Connections that ended because their frames were malformed."""

CLOSED = "closed by the peer"
"""Reason of a regular end by the peer."""

DIED = "closed without a goodbye: the process or its network died"
"""The reason where the peer did not close it."""

CLOSE_S = 1.0
"""Seconds for which closing a connection waits for queued frames, and then for a thread."""


@final
class Lifeline:
    """The state of one connection. Any thread may call anything."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reason = "closed by this task"
        self._cause: BaseException | None = None
        self._is_read = False
        self._is_open = self.wants_frames = True
        """``wants_frames``: this task has not closed the connection."""

    def check(self) -> None:
        """Raises `UnavailableError` unless open, `FailedPreconditionError` in a forked child."""
        if os.getpid() != self._pid:
            raise self._forked()
        if not self._is_open:
            raise self._error()

    def start(self) -> None:
        """The receiver is there. Raises `FailedPreconditionError` the second time."""
        self._check_process()
        if not self.claim_reading():
            raise FailedPreconditionError(f"{self._what}: expected one call of start(), before close()")

    def claim_reading(self) -> bool:
        """Claim reading for the caller; False if another thread has done so."""
        with self._lock:
            is_first, self._is_read = not self._is_read, True
            return is_first

    def lose(self, reason: str, cause: BaseException | None = None) -> None:
        """Record that the peer is gone."""
        with self._lock:
            if self._is_open:
                self._is_open, self._reason, self._cause = False, reason, cause

    def close(self) -> bool:
        """Record that this task closes it. Returns False if it did so before."""
        self._check_process()
        with self._lock:
            is_first, self.wants_frames, self._is_open = self.wants_frames, False, False
            return is_first

    @contextmanager
    def reading(
        self, connection: Connection, receiver: Receiver | None, release: Callable[[], None]
    ) -> Iterator[None]:
        """Context of a reader thread: any end of it ends the connection. Then ``release`` is called, and the
        receiver is notified, unless this task closed the connection.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # noqa: BLE001 (carried to the receiver)
            error = raised
        self.end(connection, receiver, release, error)

    def end(
        self,
        connection: Connection,
        receiver: Receiver | None,
        release: Callable[[], None],
        error: Exception | None,
    ) -> None:
        """Reading has ended, by ``error`` or because the peer closed. See `reading`."""
        if self.wants_frames and error is not None and not isinstance(error, (OSError, UnavailableError)):
            BROKEN.warn("%s: closed, since what came is not valid: %s", self._what, error)
        if error is None:
            self.lose(CLOSED)
        else:
            # Without its traceback, since its frames hold the last arrays: these hold their memory, which
            # holds this connection, a cycle that the garbage collector cannot see.
            self.lose(reason_of(error), error.with_traceback(None))
        release()
        if receiver is not None and self.wants_frames:
            receiver.on_lost(connection, self._error())

    def _error(self) -> UnavailableError:
        error = UnavailableError(f"{self._what}: {self._reason}")
        error.__cause__ = self._cause
        return error

    def _check_process(self) -> None:
        """Threads do not live through a fork, and locks stay as they were: a child must touch nothing."""
        if os.getpid() != self._pid:
            raise self._forked()

    def _forked(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self._what}: expected a call in process {self._pid}, which opened it; got one in its "
            f"forked child {os.getpid()}. Start processes by spawn, or connect after the fork"
        )


def reason_of(error: Exception) -> str:
    """The reason of a loss by ``error``. A process that dies with bytes that it has not read resets its
    connections; one without ends them.
    """
    if isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE):
        return DIED
    return str(error) if isinstance(error, (OSError, OpError)) else repr(error)


def join(thread: threading.Thread | None, timeout_s: float) -> None:
    """Wait for ``thread`` to end, unless it is this one."""
    if thread is not None and thread is not threading.current_thread():
        thread.join(max(timeout_s, 0))
