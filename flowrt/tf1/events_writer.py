"""`EventsWriter`: event files under the names of TensorFlow's inner class."""

from __future__ import annotations

import os
from typing import Any

from flowrt.summary.event_file import EventFileWriter

__all__ = ["EventsWriter"]


class EventsWriter:
    """Writes events to a new file in the folder of ``filename_prefix``, such as ``b"logs/events"``."""

    def __init__(self, filename_prefix: str | bytes) -> None:
        self._writer = EventFileWriter(os.path.dirname(os.fsdecode(filename_prefix)) or ".")

    def WriteEvent(self, event: Any) -> None:
        self._writer.add_event(event)

    def Flush(self) -> bool:
        self._writer.flush()
        return True

    def Close(self) -> bool:
        self._writer.close()
        return True
