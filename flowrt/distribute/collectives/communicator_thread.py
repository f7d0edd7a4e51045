"""`CommunicatorThread`: the single thread on which a communicator's calls are made.

    a program      submit(call, done)      returns at once; the program waits for the key of the result
    the thread     call(communicator)      in the order of submission, and blocks for the other ranks
                   done(value, error)      sends the value to the step's rendezvous, or aborts it

So a collective that waits for a rank blocks neither a program nor a pool thread, and overlaps with
computation on the device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, final

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.errors import CancelledError, InternalError, OpError

Call: TypeAlias = Callable[[Communicator], Any]
Done: TypeAlias = Callable[[Any, OpError | None], object]
"""``done(value, None)`` or ``done(None, error)``, called once, on the thread or by `close`."""


@final
class CommunicatorThread:
    """Owns ``communicator``. Any thread may call anything."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._changed = threading.Condition()
        self._calls: deque[tuple[Call, Done]] = deque()
        self._is_busy = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"flowrt {communicator}", daemon=True)
        self._thread.start()

    def submit(self, call: Call, done: Done) -> None:
        """Queue ``call(communicator)`` after those submitted before. Its error is passed to ``done``; after
        an error, all later calls get it too.
        """
        with self._changed:
            if not self._is_closed:
                self._calls.append((call, done))
                self._changed.notify_all()
                return
        done(None, _closed(self.communicator))

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Whether no call is active or queued, within ``timeout_s`` seconds: then the memory of submitted
        arrays is no longer accessed.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls and not self._is_busy, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the communicator and the thread; queued calls get `CancelledError`. Idempotent."""
        with self._changed:
            self._is_closed = True
            calls, self._calls = list(self._calls), deque()
            self._changed.notify_all()
        self.communicator.abort(_closed(self.communicator)) if calls or self._is_busy else None
        for _, done in calls:
            done(None, _closed(self.communicator))
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        self.communicator.close()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            call, done = item
            value, error = None, None
            try:
                value = call(self.communicator)
            except OpError as raised:
                error = raised
            except Exception as raised:  # noqa: BLE001 (raised for the submitter)
                error = InternalError(f"{self.communicator}: {raised!r}")
                error.__cause__ = raised
                self.communicator.abort(error)
            done(value, error)
            del item, call, done, value  # do not keep their objects alive

    def _next(self) -> tuple[Call, Done] | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._calls or self._is_closed)
            if not self._calls:
                return None
            self._is_busy = True
            return self._calls.popleft()


def _closed(communicator: Communicator) -> CancelledError:
    return CancelledError(f"{communicator} was closed: expected no further calls")
