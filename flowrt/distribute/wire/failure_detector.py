"""`FailureDetector`: failure detector: tasks that were connected and are lost, unless they ended regularly.

A task that closed its sessions has ended regularly, and may be replaced at any time. A task lost during a
session, or without ever having had one, is missing for those that wait for it, for as long as a new session
waits for tasks that are not up yet: older losses belong to another job.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import final

from flowrt.distribute.cluster.timeouts import connect_timeout_s
from flowrt.errors import OpError


@final
class FailureDetector:
    """Peers of one task. Thread-safe. ``clock()``: seconds of a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._missed_s = clock, connect_timeout_s()
        self._lock = threading.Lock()
        self._connections = Counter[str]()
        """Open connections. Counted here: of two lost at once, only one is the last."""
        self._served: set[str] = set()
        """Tasks that had sessions since they connected, with all lost ones closed before."""
        self._missing: dict[str, tuple[OpError, float]] = {}
        """Missing tasks with their errors and times."""

    def missing(self) -> dict[str, OpError]:
        """The missing tasks, with their errors."""
        with self._lock:
            first = self._clock() - self._missed_s
            return {task: error for task, (error, since) in self._missing.items() if since >= first}

    def come(self, task: str) -> None:
        """Record a connection to it: the first, or another."""
        with self._lock:
            self._connections[task] += 1
            self._missing.pop(task, None)

    def serve(self, task: str) -> None:
        """Record that it has a session here."""
        with self._lock:
            self._served.add(task)

    def lose(self, task: str, error: OpError, in_midst: bool) -> bool:
        """Record the loss of a connection, ``in_midst`` of a session. Returns whether the task is missing."""
        with self._lock:
            if in_midst:
                self._served.discard(task)
            self._connections[task] -= 1
            if self._connections[task]:
                return False
            ended_well = task in self._served
            self._served.discard(task)
            if not ended_well:
                self._missing[task] = error, self._clock()
            return not ended_well
