"""Diagnosis of hangs from the flight records of the tasks: the chains of waiting tasks, and their root
causes.

    worker 0 waits for w of worker 1, which waits itself for x of ps 0, which left no record: it is the one

A tensor that was requested and has not arrived is looked up in its producer's record. The producer may itself
be waiting in the same step: tasks that wait for no other, or are silent, come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from flowrt.device.spec import parse_device
from flowrt.distribute.observe.flight_recorder import Event, Record, What
from flowrt.rendezvous.matching.key import parse_key


class Cause(Enum):
    """Reason why a tensor did not arrive."""

    SILENT = "{0} left no record: it was killed, it hangs, or its files are in another place"
    RESTARTED = "{0} was restarted, and has no requests of its previous incarnation"
    NOT_STARTED = "{0} never started the step"
    NOT_REQUESTED = "the request never arrived at {0}"
    NOT_SENT = "{0} received the request and never sent the tensor"
    LOST = "{0} sent the tensor, and it never arrived"
    WAITS = "{0} is itself waiting for another task"


class MissingTensor(NamedTuple):
    """``consumer`` requested ``key`` from ``producer`` at ``asked_at`` and has not received it; ``last`` is
    the producer's last event, if known.
    """

    step: int
    key: str
    consumer: str
    producer: str
    asked_at: float
    cause: Cause
    last: Event | None


def find_missing(records: Iterable[Record]) -> list[MissingTensor]:
    """The tensors that were requested and have not arrived; those with a waiting producer come last. Only the
    latest record of each task counts.
    """
    latest = {record.task: record for record in sorted(records, key=lambda record: record.written_at)}
    waits = {task: _waits(record) for task, record in latest.items()}
    found = [_look_for(task, wait, latest, waits) for task in latest for wait in waits[task]]
    return sorted(found, key=lambda missing: (missing.cause is Cause.WAITS, missing.asked_at))


def _waits(record: Record) -> list[Event]:
    """The unanswered requests of a task. Those of an aborted step count unless another was started: then the
    record is about the abort.
    """
    waits: dict[tuple[int, str], Event] = {}
    aborted: set[int] = set()
    for event in record.events:
        if event.what is What.ASKED:
            waits[event.step, event.key] = event
        elif event.what is What.ARRIVED:
            waits.pop((event.step, event.key), None)
        elif event.what is What.ABORTED:
            aborted.add(event.step)
        elif event.what is What.STARTED:
            waits = {place: wait for place, wait in waits.items() if place[0] not in aborted}
    return list(waits.values())


def _look_for(
    consumer: str, wait: Event, records: Mapping[str, Record], waits: Mapping[str, list[Event]]
) -> MissingTensor:
    producer = records.get(wait.peer)
    last = None
    cause = Cause.SILENT
    if producer is not None:
        last = producer.events[-1] if producer.events else None
        cause = _cause(producer, wait, any(other.step == wait.step for other in waits[wait.peer]))
    return MissingTensor(wait.step, wait.key, consumer, wait.peer, wait.time, cause, last)


def _cause(producer: Record, wait: Event, waits_itself: bool) -> Cause:
    """The cause according to the producer's record. If events were dropped, missing ones may exist."""
    if parse_key(wait.key).src_incarnation != producer.incarnation:
        return Cause.RESTARTED
    seen = {
        event.what for event in producer.events if event.step == wait.step and event.key in ("", wait.key)
    }
    if What.SENT in seen:
        return Cause.LOST
    if waits_itself:
        return Cause.WAITS
    if producer.dropped == 0 and What.STARTED not in seen:
        return Cause.NOT_STARTED
    if producer.dropped == 0 and What.REQUESTED not in seen:
        return Cause.NOT_REQUESTED
    return Cause.NOT_SENT


# --- for people


def explain(records: Iterable[Record]) -> Iterator[str]:
    """Lines that describe the results of `find_missing`, and the first error of each aborted step."""
    records = list(records)
    missing = find_missing(records)
    for each in missing:
        yield from _explain_missing(each, records)
    if not missing:
        yield "no task waits for another's tensor"
    for step in dict.fromkeys(each.step for each in missing):
        aborts = [(event, r.task) for r in records for event in r.events if _is_abort(event, step)]
        if aborts:
            event, task = min(aborts)
            yield f"step {step:x} was aborted first in {short_name(task)}: {event.key}"


def _is_abort(event: Event, step: int) -> bool:
    return event.what is What.ABORTED and event.step == step


def _explain_missing(missing: MissingTensor, records: Iterable[Record]) -> Iterator[str]:
    consumer, producer = short_name(missing.consumer), short_name(missing.producer)
    waited = (
        max(record.written_at for record in records if record.task == missing.consumer) - missing.asked_at
    )
    edge, why = parse_key(missing.key).edge_name, missing.cause.value.format(producer)
    yield f"step {missing.step:x}: {consumer} has waited {waited:.1f} s for {edge!r}: {why}"
    yield f"  key {missing.key}"
    if missing.last is not None:
        yield f"  {producer}'s last: {describe(missing.last)}, {missing.last.time - missing.asked_at:+.1f} s"


def describe(event: Event) -> str:
    """Text such as ``asked worker 1 for 'w:0' of step 7``."""
    peer = short_name(event.peer) if event.peer else ""
    step = f"step {event.step:x}"
    match event.what:
        case What.STARTED | What.ENDED:
            return f"{event.what} {step}"
        case What.ABORTED:
            return f"aborted {step}: {event.key}"
    edge = f"{parse_key(event.key).edge_name!r} of {step}"
    match event.what:
        case What.ASKED:
            return f"asked {peer} for {edge}"
        case What.REQUESTED:
            return f"was asked by {peer} for {edge}"
        case What.SENT:
            return f"sent {peer} {edge}"
    return f"got {edge} from {peer}"


def short_name(task: str) -> str:
    """``worker 0`` for ``/job:worker/replica:0/task:0``."""
    spec = parse_device(task)
    return f"{spec.job} {spec.task}"
