"""The last events of a task's rendezvous, kept for diagnosis of a hang or an error.

Each task has a `FlightRecorder`, a ring buffer. It is written to a file of JSON lines when a step is aborted,
and `flowrt.distribute.observe.missing_sender` reads the records of all tasks of a run.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, final

from flowrt.errors import DataLossError, NotFoundError

CAPACITY = 1000
SUFFIX = ".flight.jsonl"


class What(StrEnum):
    """Kind of event in a task. ``peer`` of an event is the other task."""

    STARTED = "started"
    """A step's part began; no key."""
    ASKED = "asked"
    """The task requested the tensor of a key from ``peer``."""
    REQUESTED = "requested"
    """``peer`` requested it from the task."""
    SENT = "sent"
    """The task gave it to ``peer``."""
    ARRIVED = "arrived"
    """``peer`` gave it to the task."""
    ENDED = "ended"
    """A step's part is over; no key."""
    ABORTED = "aborted"
    """A step ended with an error, with its text in place of a key."""


class Event(NamedTuple):
    """``time``: in seconds, of the recorder's clock; in a `Record`, of the wall clock."""

    time: float
    what: What
    step: int
    key: str
    peer: str


class Record(NamedTuple):
    """A record written by one task. ``dropped``: number of events before the first of ``events``."""

    task: str
    incarnation: int
    dropped: int
    written_at: float
    events: tuple[Event, ...]


@final
class FlightRecorder:
    """Keeps the last ``capacity`` events. Thread-safe; `record` takes 0.2 us."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        # Plain tuples, numbered to count dropped ones: creating an `Event` takes 0.3 us more.
        self._events: deque[tuple[int, float, What, int, str, str]] = deque(maxlen=capacity)
        self._serial = itertools.count()

    def record(self, what: What, step: int, key: str = "", peer: str = "") -> None:
        """One event, which happens now."""
        self._events.append((next(self._serial), time.monotonic(), what, step, key, peer))

    def last_of(self, peer: str) -> Event | None:
        """The last event with ``peer``, at a time of the monotonic clock."""
        for _, when, what, step, key, other in reversed(list(self._events)):
            if other == peer:
                return Event(when, what, step, key, peer)
        return None

    def read(self, task: str, incarnation: int) -> Record:
        """The current contents, as the record of ``task``."""
        events = list(self._events)
        wall = time.time()
        offset = wall - time.monotonic()
        return Record(
            task,
            incarnation,
            events[0][0] if events else 0,
            wall,
            tuple(Event(when + offset, what, step, key, peer) for _, when, what, step, key, peer in events),
        )


# --- files


def write_record(folder: Path, record: Record) -> Path:
    """Write ``record`` into ``folder``, whole or not at all, in the place of an older one of the same life of
    its task. Its path. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = record.task.removeprefix("/job:").replace("/replica:0", "").replace("/task:", "_")
    path = folder / f"{name}_{record.incarnation:016x}{SUFFIX}"
    head = {name: value for name, value in record._asdict().items() if name != "events"}
    lines = [json.dumps(row) for row in (head, *map(Event._asdict, record.events))]
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_records(folder: Path) -> list[Record]:
    """The records in ``folder``, by task and time. Raises `NotFoundError` if there are none, and
    `DataLossError`, with the file, for an unreadable one.
    """
    records = [read_record(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not records:
        raise NotFoundError(
            f"{folder}: expected records, *{SUFFIX}; got none. Tasks with --log-dir write them on an abort"
        )
    return sorted(records, key=lambda record: (record.task, record.written_at))


def read_record(path: Path) -> Record:
    """Read a file of `write_record`. Raises `DataLossError` for any other file, or a damaged one."""
    lines = path.read_text("utf-8", "replace").splitlines() or [""]
    events = []
    try:
        record = Record(events=(), **json.loads(lines[0]))
        for line in lines[1:]:
            fields = json.loads(line)
            events.append(Event(**{**fields, "what": What(fields["what"])}))
    except (ValueError, TypeError, KeyError) as error:
        where = f"{path}, after {len(events)} events"
        raise DataLossError(f"{where}: expected events of a flight recorder; {error}") from None
    return record._replace(events=tuple(events))
