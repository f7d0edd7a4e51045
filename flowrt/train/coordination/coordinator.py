"""`Coordinator`: several threads that stop together, and report the first error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError

GRACE_S = 120.0


class Coordinator:
    """Signals a group of threads to stop.

    Threads work ``while not coordinator.should_stop()``; any of them ends it for all by `request_stop`;
    `join` waits for them and raises the first error that one of them reported. Errors of the types
    ``clean_stop_exception_types`` (`OutOfRangeError`: the data is used up) stop all but are not raised.
    """

    def __init__(self, clean_stop_exception_types: tuple[type[BaseException], ...] | None = None) -> None:
        clean = (OutOfRangeError,) if clean_stop_exception_types is None else clean_stop_exception_types
        self._clean = tuple(clean)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._registered: set[threading.Thread] = set()
        self._joined = False

    def should_stop(self) -> bool:
        return self._stop.is_set()

    def request_stop(self, ex: Any = None) -> None:
        """Request a stop of all threads; `join` raises ``ex``, an exception or the result of `sys.exc_info`.

        Raises ``ex`` itself, unless it is a clean one, if `join` has already returned.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if error is not None and not isinstance(error, self._clean):
                if self._joined:
                    raise error
                self._error = self._error or error
            self._stop.set()

    def clear_stop(self) -> None:
        """Clear the stop request and its error."""
        with self._lock:
            self._stop.clear()
            self._error = None
            self._joined = False

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested, ``timeout`` seconds at most. Returns whether one was."""
        return self._stop.wait(timeout)

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context that requests a stop with an exception raised in it, and suppresses the exception."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again by `join`
            self.request_stop(error)

    def register_thread(self, thread: threading.Thread) -> None:
        """Make `join` wait for ``thread`` too."""
        with self._lock:
            self._registered.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = GRACE_S,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for ``threads`` and the registered ones, then raise the error that was reported, if there is
        one.

        After a stop was requested they have ``stop_grace_period_secs`` to end. Raises
        `FailedPreconditionError`, with their names, if some have not, unless ``ignore_live_threads``.
        """
        with self._lock:
            waited = [*self._registered.union(threads or ())]
        if threading.current_thread() in waited:
            raise InvalidArgumentError("join: expected threads other than the calling one")
        while any(thread.is_alive() for thread in waited) and not self._stop.wait(0.05):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in waited:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._joined = True
            self._registered.clear()
            error = self._error
        if error is not None:
            raise error
        alive = [thread.name for thread in waited if thread.is_alive()]
        if alive and not ignore_live_threads:
            raise FailedPreconditionError(
                f"join: expected all threads to end within {stop_grace_period_secs:g} s of the stop request; "
                f"still running: {', '.join(alive)}"
            )

    def raise_requested_exception(self) -> None:
        """Raise the error that was reported, if there is one."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    @property
    def joined(self) -> bool:
        return self._joined
