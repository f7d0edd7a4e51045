"""`EventManager`: calls a function once a device's event has passed.

One daemon thread polls the pending events, in FIFO order, and runs due callbacks. It starts with the first
event and sleeps while there is none. TensorFlow's event manager polls every 10 us; here a sleep takes at
least about 60 us, so the pause starts shorter than that and doubles while nothing happens.
"""

from __future__ import annotations

import itertools
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, final

from flowrt.device.stream_executor import Event, EventStatus, Stream

LOGGER = logging.getLogger(__name__)
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 500e-6

FEW_POLLS, MANY_POLLS = 10, 300
"""Polls without a pause: about 30 us, as long as most small kernels, beside a thread that launches; and about
a millisecond, as long as most steps, for a thread that has nothing else to do.
"""


def call_and_log(function: Callable[[], Any]) -> None:
    """Call ``function()`` and log any error, so that further callbacks still run."""
    try:
        function()
    except Exception:
        LOGGER.exception("a function that waited for an event of a device failed")


def pauses(polls: int = FEW_POLLS) -> Iterator[float]:
    """Seconds between polls of an event: 0 for the first ``polls``, then increasing. Never ends."""
    yield from itertools.repeat(0.0, polls)
    pause = SHORTEST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


def rest(seconds: float) -> None:
    """Let other threads run for ``seconds``; for 0 only those that wait for the GIL.

    Up to Python 3.12, ``time.sleep(0)`` takes 55 us: the kernel's timer slack, measured beside a GPU.
    """
    if seconds:
        time.sleep(seconds)
    else:
        select.select((), (), (), 0)


def wait_until_idle(stream: Stream, timeout_s: float) -> bool:
    """Whether the device has left ``stream``, which may have failed, within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    for pause in pauses():
        if stream.executor.is_idle(stream) or time.monotonic() >= deadline:
            break
        rest(pause)
    return stream.executor.is_idle(stream)


@final
class EventManager:
    """The functions that wait for events of one device. Any thread may call anything."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._waiting: list[tuple[Event, Callable[[], Any]]] = []
        """Pending callbacks in FIFO order. Other threads append; this thread removes entries when their
        functions return.
        """
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def when_done(self, event: Event, function: Callable[[], Any]) -> None:
        """Call ``function()`` on the manager's thread when ``event``, which was recorded, is not pending any
        more: it is complete, or its stream failed.

        The function holds up all others of the device, so it must not block. What it raises is logged.
        """
        with self._changed:
            self._waiting.append((event, function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{self.name} events", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Wait for all events, run due callbacks and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait_for_work():
            for pause in pauses():
                if self._call_what_is_due():
                    break
                rest(pause)

    def _wait_for_work(self) -> bool:
        """Sleep until an event is pending. False if none will be added."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return bool(self._waiting)

    def _call_what_is_due(self) -> bool:
        """Go through the events once. Whether one was not pending."""
        with self._changed:
            known = self._waiting.copy()
        pending = [entry for entry in known if not _call_if_due(*entry)]
        with self._changed:
            self._waiting[: len(known)] = pending
        return len(pending) < len(known)


def _call_if_due(event: Event, function: Callable[[], Any]) -> bool:
    if _is_pending(event):
        return False
    call_and_log(function)
    return True


def _is_pending(event: Event) -> bool:
    """Whether to poll ``event`` again: not if polling fails, which is logged."""
    try:
        return event.poll() is EventStatus.PENDING
    except Exception:
        LOGGER.exception("an event of a device cannot be asked")
        return False
