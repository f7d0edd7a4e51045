"""`spans_of`: what a device of each position does during a played step, without gaps: it computes, waits for
communication, for the others of a meeting, or for other positions and the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message
from flowrt.plan.replay.program_checks import is_received, key_of
from flowrt.plan.replay.step_times import MESSAGE, Played, PlayedClass

BUBBLE, OTHERS = "bubble", "others"
COMPUTING, FORWARD, BACKWARD, OUTSIDE = "computing", "forward", "backward", "outside"
_OF_ACTION = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": BACKWARD}


class Span(NamedTuple):
    """Seconds ``start`` to ``end`` of a step, in which a device does one thing.

    ``kind`` is ``computing``, or in a pipeline ``forward``, ``backward``, or ``outside`` of both; the kind of
    communication that is waited for, such as ``all_reduce`` or ``message``; ``others``, until the last has
    come to a meeting; or ``bubble``. ``name`` is that of the work that is done or waited for.
    """

    kind: str
    start: float
    end: float
    name: str


class Row(NamedTuple):
    """The spans of the busiest device at ``position``, number ``device`` of its class."""

    position: int
    device: int
    spans: tuple[Span, ...]


def spans_of(programs: Sequence[ClassProgram], played: Played) -> tuple[Row, ...]:
    """A row for each of ``programs``, which were played in detail. The seconds of each kind are those that
    ``played`` has.
    """
    devices = {program.position: _Device(program, each)
               for program, each in zip(programs, played.classes, strict=True)}  # fmt: skip
    return tuple(_row(device, devices, played.makespan) for device in devices.values())


@final
class _Device:
    """A class, and its busiest device."""

    def __init__(self, program: ClassProgram, played: PlayedClass) -> None:
        assert played.start is not None
        assert played.end is not None
        self.program, self.number = program, int(played.busy.argmax())
        self.starts, self.ends = played.start, played.end
        self.sent = {key_of(program.position, work.meets): number
                     for number, work in enumerate(program.works)
                     if isinstance(work.meets, Message) and work.meets.is_sent}  # fmt: skip

    def busy_since(self, lane: int) -> dict[int, float]:
        """Since when the links have been busy without a pause at the end of each work of theirs."""
        found: dict[int, float] = {}
        free = since = 0.0
        for number, work in enumerate(self.program.works):
            if work.lane is Lane.LINK and not is_received(work):
                start = float(self.starts[number, lane])
                since = start if start > free else since
                free, found[number] = float(self.ends[number, lane]), since
        return found


def _row(device: _Device, devices: dict[int, _Device], makespan: float) -> Row:
    program, lane = device.program, device.number
    since = {position: each.busy_since(lane) for position, each in devices.items()}
    works, spans = program.works, list[Span]()
    other = OUTSIDE if any(work.action is not None for work in works) else COMPUTING
    now = 0.0

    def wait_for(number: int) -> float:
        """Add what the device waits for until work ``number`` ends; the time then."""
        work, end = works[number], float(device.ends[number, lane])
        if end <= now or work.lane is Lane.COMPUTE:
            return max(now, end)
        if is_received(work):
            assert isinstance(work.meets, Message)
            key = key_of(program.position, work.meets)
            busy = since[key[0]][devices[key[0]].sent[key]]
        else:
            busy = since[program.position][number]
        busy = min(max(now, busy), end)
        is_meeting = isinstance(work.meets, Meeting)
        kind = work.meets.kind if isinstance(work.meets, Meeting) else MESSAGE
        spans.append(Span(OTHERS if is_meeting else BUBBLE, now, busy, work.name))
        spans.append(Span(kind, busy, end, work.name))
        return end

    for number, work in enumerate(works):
        if work.lane is Lane.COMPUTE:
            for before in work.after:
                now = wait_for(before)
            end = float(device.ends[number, lane])
            kind = other if work.action is None else _OF_ACTION[work.action.kind]
            name = work.name if work.action is None else f"{work.action} {work.name}"
            spans.append(Span(kind, now, end, name))
            now = end
    links = list(since[program.position])
    now = wait_for(links[-1]) if links else now
    spans.append(Span(BUBBLE, now, makespan, "the end of the step"))
    return Row(program.position, lane, tuple(span for span in spans if span.end > span.start))


def merged(row: Row, shortest: float) -> Row:
    """``row`` with neighbours of one kind that are together shorter than ``shortest`` as one span."""
    found: list[Span] = []
    for span in row.spans:
        last = found[-1] if found else None
        if last is not None and last.kind == span.kind and span.end - last.start < shortest:
            found[-1] = last._replace(end=span.end, name="several")
        else:
            found.append(span)
    return row._replace(spans=tuple(found))
