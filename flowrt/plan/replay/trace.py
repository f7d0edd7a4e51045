"""`trace_of`: a played step as Chrome trace JSON, for Perfetto and chrome://tracing.

A process for each position of a pipeline, for its busiest device: one thread with what the device does, and
one with what its links do. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message, Work
from flowrt.plan.replay.program_checks import is_received
from flowrt.plan.replay.spans import Row, spans_of
from flowrt.plan.replay.step_times import Played
from flowrt.profiler.timeline import Event, named, sorted_as
from flowrt.version import VERSION

DEVICE, LINKS = 1, 2
"""The threads of a process."""


def trace_of(programs: Sequence[ClassProgram], played: Played) -> str:
    """The JSON text of ``programs``, which were played in detail."""
    events: list[Event] = []
    for program, row in zip(programs, spans_of(programs, played), strict=True):
        pid = program.position + 1
        events += [named("process_name", f"position {row.position}, device {row.device} of it", pid),
                   sorted_as("process_sort_index", pid, pid), named("thread_name", "device", pid, DEVICE),
                   named("thread_name", "links", pid, LINKS)]  # fmt: skip
        events += _of_device(row, pid)
        events += _of_links(program, row, played, pid)
    about = {"producer": f"flowrt {VERSION}", "step": "played, not run"}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})


def _of_device(row: Row, pid: int) -> list[Event]:
    return [_slice(span.kind, span.start, span.end, pid, DEVICE, span.name) for span in row.spans]


def _of_links(program: ClassProgram, row: Row, played: Played, pid: int) -> list[Event]:
    each = next(each for each in played.classes if each.position == program.position)
    assert each.start is not None
    assert each.end is not None
    found = []
    for number, work in enumerate(program.works):
        start, end = float(each.start[number, row.device]), float(each.end[number, row.device])
        if work.lane is Lane.LINK and not is_received(work) and end > start:
            found.append(_slice(_name(work), start, end, pid, LINKS, work.name))
    return found


def _name(work: Work) -> str:
    meets = work.meets
    if isinstance(meets, Meeting):
        return f"{meets.kind} {'x'.join(meets.axes)} {meets.nbytes} bytes"
    assert isinstance(meets, Message)
    return f"message to position {meets.position}, {meets.nbytes} bytes"


def _slice(name: str, start: float, end: float, pid: int, tid: int, what: str) -> Event:
    at = {"pid": pid, "tid": tid, "ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "cat": "Played", "name": name, **at, "args": {"work": what}}
