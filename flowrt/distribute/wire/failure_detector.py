"""`FailureDetector`: the tasks that were here and are gone, unless they had ended well.

Who had sessions and closed them has ended well, and others may take its place whenever they like. Who was cut
off in the midst of a session, or came and never had one, is missed by those who wait for it, for as long as a
new session waits for tasks that are not up yet: what is older is of another job.
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
    """Of the peers of one task. Any thread may call anything. ``clock()``: seconds that do not jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._missed_s = clock, connect_timeout_s()
        self._lock = threading.Lock()
        self._connections = Counter[str]()
        """That came and are not lost. Counted here: two that are lost at once are not both the last."""
        self._served: set[str] = set()
        """Had sessions since they came, and all that were lost had been closed."""
        self._missing: dict[str, tuple[OpError, float]] = {}
        """And since when."""

    def missing(self) -> dict[str, OpError]:
        """The tasks that are missed, and what became of them."""
        with self._lock:
            first = self._clock() - self._missed_s
            return {task: error for task, (error, since) in self._missing.items() if since >= first}

    def come(self, task: str) -> None:
        """There is a connection to it: the first, or one more."""
        with self._lock:
            self._connections[task] += 1
            self._missing.pop(task, None)

    def serve(self, task: str) -> None:
        """It has a session here."""
        with self._lock:
            self._served.add(task)

    def lose(self, task: str, error: OpError, in_midst: bool) -> bool:
        """A connection that came is lost, ``in_midst`` of a session. Whether the task is missed now."""
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
