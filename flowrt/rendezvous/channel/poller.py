"""`Progress`: the thread that polls the links of a process.

MPI provides nothing to block on, so it is polled, and UCX too. After a round without progress the thread
sleeps, 0.1 ms while there is traffic, else 2 ms, which takes 3 % of a core. (Exponential back-off is worse:
each end's pause grows while it waits for the other, and an exchange of 0.5 ms takes 4.)
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Protocol, final

from flowrt.rendezvous.channel.lifeline import CLOSE_S, join

BUSY_S = 0.1
"""Time after any progress during which more is likely."""
BUSY_PAUSE_S, IDLE_PAUSE_S = 20e-6, 2e-3
"""Linux makes 0.1 ms of the first."""


class Pollable(Protocol):
    """A link to poll. ``is_over``: no longer."""

    is_over: bool

    def poll(self) -> bool:
        """Make progress without waiting; returns whether there was any. Never raises."""


@final
class Progress:
    """Has a thread as long as it has links. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: list[Pollable] = []
        self._poked = threading.Event()
        self._thread: threading.Thread | None = None
        atexit.register(self._stop)

    def add(self, link: Pollable) -> None:
        """Poll ``link`` until it is over."""
        with self._lock:
            self._links = [*self._links, link]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flowrt messages", daemon=True)
                self._thread.start()

    def poke(self) -> None:
        """Wake the thread, since there is work."""
        self._poked.set()

    def _run(self) -> None:
        moved_at = time.monotonic()
        while links := self._current():
            if sum(link.poll() for link in links):  # not any(): all are polled
                moved_at = time.monotonic()
            elif self._poked.wait(BUSY_PAUSE_S if time.monotonic() - moved_at < BUSY_S else IDLE_PAUSE_S):
                self._poked.clear()

    def _current(self) -> list[Pollable]:
        with self._lock:
            self._links = [link for link in self._links if not link.is_over]
            if not self._links:
                self._thread = None
            return self._links

    def _stop(self) -> None:
        """MPI is finalised after this: no thread may be in it then."""
        with self._lock:
            self._links, thread = [], self._thread
        join(thread, CLOSE_S)
