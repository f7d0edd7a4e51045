"""`FileReader`: records of files, of which a queue gives the names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

from flowrt.graph.resources.element_queue import ElementQueue

Records = Generator[tuple[bytes, bytes], None, None]
"""Pairs of a key and a value."""


class FileReader:
    """Reads file after file, for many threads, one at a time. ``records_of`` opens a file by name."""

    def __init__(self, records_of: Callable[[str], Records]) -> None:
        self._records_of, self._lock = records_of, threading.Lock()
        self._records: Records | None = None
        self.produced = self.completed = 0

    def read(self, queue: ElementQueue, most: int = 1) -> list[tuple[bytes, bytes]]:
        """The next record, or several: at most ``most``, all of one file. Takes a name from ``queue`` for
        each file; raises `OutOfRangeError` if it is closed and empty.
        """
        with self._lock:
            found: list[tuple[bytes, bytes]] = []
            while not found:
                found = self._of_file(queue, most)
            self.produced += len(found)
            return found

    def _of_file(self, queue: ElementQueue, most: int) -> list[tuple[bytes, bytes]]:
        if self._records is None:
            (element,) = queue.get(1)
            self._records = self._records_of(element[0].item().decode())
        found: list[tuple[bytes, bytes]] = []
        while len(found) < most:
            record = next(self._records, None)
            if record is None:
                self._records, self.completed = None, self.completed + 1
                break
            found.append(record)
        return found

    def reset(self) -> None:
        """Leave the file and forget what was counted."""
        with self._lock:
            self.close()
            self.produced = self.completed = 0

    def close(self) -> None:
        """Close the file. Called at the end of the session."""
        if self._records is not None:
            self._records.close()
            self._records = None
