"""What a viewer asks of Chrome trace JSON, as a check: the rules of Google's "Trace Event Format", and
Perfetto's, whose importer drops slices of a thread that overlap.

Perfetto's own trace processor would say the same with more authority; it is a binary that its Python package
downloads, and tests have no network.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "ts", "args"},
}

Event = dict[str, Any]


def read_trace(text: str) -> list[Event]:
    """The events of a trace, which keeps all rules."""
    trace = json.loads(text)
    events: list[Event] = trace["traceEvents"]
    for event in events:
        missing = REQUIRED[event["ph"]] - event.keys()
        assert not missing, (event, missing)
        if "ts" in event:
            assert event["ts"] >= 0, event
    _check_names(events)
    _check_slices(events)
    _check_spans(events)
    _check_arrows(events)
    assert all(isinstance(v, int) for e in events if e["ph"] == "C" for v in e["args"].values())
    return events


def named(events: list[Event], what: str) -> dict[tuple[int, int], str]:
    """The names of processes or threads, by (pid, tid)."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == what}


def ns(us: float) -> int:
    """The nanoseconds that a viewer makes of a time."""
    return round(us * 1000)


def ends_of(event: Event) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def _check_names(events: list[Event]) -> None:
    processes = {pid for pid, _ in named(events, "process_name")}
    assert {e["pid"] for e in events} <= processes
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(named(events, "thread_name"))


def _check_slices(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        track.sort(key=ends_of)  # a slice without length before the one that begins with it
        for one, other in pairwise(track):
            assert ends_of(one)[1] <= ends_of(other)[0], (one, other)


def _check_spans(events: list[Event]) -> None:
    """Each "b" has its "e", the inner ones before the outer."""
    spans: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            spans[event["cat"], event["id"]].append(event)
    for each in spans.values():
        stack: list[Event] = []
        for event in each:
            if event["ph"] == "b":
                assert not stack or event["ts"] >= stack[-1]["ts"]
                stack.append(event)
            else:
                begin = stack.pop()
                assert (begin["name"], begin["pid"]) == (event["name"], event["pid"])
                assert ns(event["ts"]) >= ns(begin["ts"])
        assert not stack


def _check_arrows(events: list[Event]) -> None:
    """Each begins and ends inside a slice of its track."""
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    slices = [e for e in events if e["ph"] == "X"]
    for event in [*starts.values(), *ends.values()]:
        assert _slices_at(event, slices), event


def _slices_at(event: Event, slices: list[Event]) -> list[Event]:
    return [
        each
        for each in slices
        if (each["pid"], each["tid"]) == (event["pid"], event["tid"])
        and ends_of(each)[0] <= ns(event["ts"]) <= ends_of(each)[1]
    ]


def arrows(events: list[Event]) -> list[tuple[Event, Event]]:
    """(slice, slice) for each arrow."""
    slices = [e for e in events if e["ph"] == "X"]
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    return [
        (_slices_at(e, slices)[0], _slices_at(ends[e["id"]], slices)[-1]) for e in events if e["ph"] == "s"
    ]
