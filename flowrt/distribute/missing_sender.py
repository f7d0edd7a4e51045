"""Why a run hangs, by the flight records of its tasks: who waits for whose tensor, and who is the cause.

    worker 0 asked worker 1 for w:0 of step 7 ── worker 1 never sent it ── it waits for x:0 of ps 0 ── ps 0 is silent

Each tensor that was asked for and has not arrived is followed to its producer, from there to what that one
waits for in the same step, and so on to the task that waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from flowrt.distribute.flight_recorder import Event, Record, What
from flowrt.rendezvous.key import parse_key


class Cause(Enum):
    """Why a tensor did not arrive."""

    SILENT = "{producer} left no record: it was killed, hangs, or cannot be reached"
    RESTARTED = "{producer} was started again since: the life that was asked is over"
    NOT_STARTED = "{producer} never started the step"
    NOT_REQUESTED = "the request never came to {producer}"
    WAITING = "{producer} waits itself, for other tasks"
    ABORTED = "{producer} had aborted the step before"
    NOT_SENT = "{producer} was asked for it and never sent it"
    LOST = "{producer} sent it, and it never arrived"


class MissingTensor(NamedTuple):
    """``consumer`` asked ``producer`` for ``key`` at ``asked_at`` and has not got it. ``last`` is the last
    event of the producer.
    """

    step: int
    key: str
    consumer: str
    producer: str
    asked_at: float
    cause: Cause
    last: Event | None


def find_missing(records: Iterable[Record]) -> list[MissingTensor]:
    """All tensors that were asked for and did not arrive, those that others wait for last (see
    `Cause.WAITING`) first; empty where nobody waits.
    """
    latest = {record.task: record for record in sorted(records, key=lambda record: record.written_at)}
    found = [
        _missing(record, event, latest) for record in latest.values() for event in _waits(record).values()
    ]
    return sorted(found, key=lambda missing: (missing.cause is Cause.WAITING, missing.asked_at))


def _waits(record: Record) -> dict[tuple[int, str], Event]:
    """The requests without an answer. An abort ends the waits of its step, which are what it tells about: the
    steps that ended well have none.
    """
    waits: dict[tuple[int, str], Event] = {}
    for event in record.events:
        match event.what:
            case What.ASKED:
                waits[event.step, event.key] = event
            case What.ARRIVED:
                waits.pop((event.step, event.key), None)
            case What.ENDED:
                waits = {wait: asked for wait, asked in waits.items() if wait[0] != event.step}
    return waits


def _missing(record: Record, asked: Event, latest: Mapping[str, Record]) -> MissingTensor:
    producer = latest.get(asked.peer)
    cause = Cause.SILENT if producer is None else _cause(producer, asked)
    last = producer.events[-1] if producer is not None and producer.events else None
    return MissingTensor(asked.step, asked.key, record.task, asked.peer, asked.time, cause, last)


def _cause(producer: Record, asked: Event) -> Cause:
    if parse_key(asked.key).src_incarnation != producer.incarnation:
        return Cause.RESTARTED
    of_step = [event for event in producer.events if event.step == asked.step]
    about = {event.what for event in of_step if event.key == asked.key}
    if What.SENT in about:
        return Cause.LOST
    kinds = {event.what for event in of_step}
    if producer.dropped == 0 or kinds:  # otherwise its record begins too late to tell
        if any(wait[0] == asked.step for wait in _waits(producer)):
            return Cause.WAITING
        if What.STARTED not in kinds and producer.dropped == 0:
            return Cause.NOT_STARTED
        if What.REQUESTED not in about and producer.dropped == 0:
            return Cause.NOT_REQUESTED
    return Cause.NOT_SENT


# --- text


def explain(records: Sequence[Record]) -> str:
    """What `find_missing` finds, for people: the root first."""
