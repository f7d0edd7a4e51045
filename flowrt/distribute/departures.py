"""`Departures`: the tasks that were here and are gone, unless they had ended well.

Who had sessions and closed them has ended well, and others may take its place whenever they like. Who was cut
off in the midst of a session, or came and never had one, is missed by those who wait for it.
"""

from __future__ import annotations

import threading
from typing import final

from flowrt.errors import OpError


@final
class Departures:
    """Of the peers of one task. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: set[str] = set()
        """Had sessions since they came, and all that were lost had been closed."""
        self._missing: dict[str, OpError] = {}

    def missing(self) -> dict[str, OpError]:
        """The tasks that are missed, and what became of them."""
        with self._lock:
            return dict(self._missing)

    def come(self, task: str) -> None:
        with self._lock:
            self._missing.pop(task, None)

    def serve(self, task: str) -> None:
        """It has a session here."""
        with self._lock:
            self._served.add(task)

    def lose(self, task: str, error: OpError, in_midst: bool, is_last: bool) -> bool:
        """A connection to it is lost; ``is_last`` of its connections. Whether it is missed now."""
        with self._lock:
            if in_midst:
                self._served.discard(task)
            if not is_last:
                return False
            ended_well = task in self._served
            self._served.discard(task)
            if not ended_well:
                self._missing[task] = error
            return not ended_well
