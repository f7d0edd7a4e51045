"""`Timeline`: traced steps as Chrome trace JSON, for Perfetto and chrome://tracing.

    Step --> tracks (process per task, thread per stream) --> events: slices, arrows, counters, transfers

Rules of this file, imposed by the viewers:

  1. Slices of one thread are nested or disjoint. A stream does one thing at a time, but steps may overlap:
     overlapping slices go to another lane of the stream.
  2. Transfers and steps, which may overlap, are asynchronous events ("b" and "e"): viewers arrange them.
  3. Times are microseconds since the first slice. Since the epoch they would need more digits than a double
     has: adjacent slices would overlap by rounding.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.profiler.costs import live_bytes
from flowrt.profiler.steps import Edge, Operation, Step, Transfer, device_in_task, read_step, several, task_of
from flowrt.version import VERSION

Event: TypeAlias = dict[str, Any]

STEPS_PROCESS = 0
"""The number of the process that shows the steps; those of the tasks follow."""


class Track(NamedTuple):
    """A thread of the trace: a lane of a stream of a device."""

    device: str
    stream: int
    lane: int


class Placed(NamedTuple):
    """An operation of step number ``step`` on its track."""

    operation: Operation
    track: Track
    step: int


@final
class Timeline:
    """``step_stats`` of a `RunMetadata` filled by a run with ``trace_level=FULL_TRACE``, or those of several
    successive runs. ``graph`` is accepted for compatibility. Raises `DTypeError` for
    anything else.
    """

    def __init__(self, step_stats: Any, graph: Any = None) -> None:
        messages = several(step_stats, "Timeline")
        self._steps = [step for step in map(read_step, messages) if step.operations]

    def generate_chrome_trace_format(self, show_dataflow: bool = True, show_memory: bool = False) -> str:
        """JSON text. ``show_dataflow``: arrows for tensors that pass between streams or devices.
        ``show_memory``: counters of each device's memory, by its pool and by the live tensors.
        """
        start = min((step.start for step in self._steps), default=0)
        writer = _Writer(self._steps, start)
        events = writer.names() + writer.slices() + writer.steps() + writer.transfers()
        if show_dataflow:
            events += writer.arrows()
        if show_memory:
            events += writer.counters()
        about = {
            "producer": f"flowrt {VERSION}",
            "start": datetime.fromtimestamp(start / 1e9, UTC).isoformat(),
            "start_ns": str(start),  # more digits than JavaScript's numbers have
        }
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})


@final
class _Writer:
    """The events of ``steps``, with times relative to ``start``."""

    def __init__(self, steps: Sequence[Step], start: int) -> None:
        self._steps, self._start = steps, start
        self._placed = list(place(steps))
        self._stream_names = {key: name for step in steps for key, name in step.stream_names.items()}
        tracks = sorted({placed.track for placed in self._placed})
        tasks = dict.fromkeys(task_of(track.device) for track in tracks)
        tasks |= dict.fromkeys(task_of(t.edge.target) for step in steps for t in step.transfers)
        self._pids = {task: number for number, task in enumerate(tasks, STEPS_PROCESS + 1)}
        self._tids = {track: number for number, track in enumerate(tracks, 1)}
        self._serial = itertools.count(1)

    def _us(self, nanos: int) -> float:
        return (nanos - self._start) / 1000

    def _at(self, track: Track) -> Event:
        return {"pid": self._pids[task_of(track.device)], "tid": self._tids[track]}

    # --- names of tracks

    def names(self) -> list[Event]:
        events = [named("process_name", "steps", STEPS_PROCESS)] if self._steps else []
        for task, pid in self._pids.items():
            events.append(named("process_name", task, pid))
            events.append(sorted_as("process_sort_index", pid, pid))
        for track, tid in self._tids.items():
            pid = self._pids[task_of(track.device)]
            events.append(named("thread_name", self._track_name(track), pid, tid))
            events.append(sorted_as("thread_sort_index", tid, pid, tid))
        return events

    def _track_name(self, track: Track) -> str:
        stream = self._stream_names.get((track.device, track.stream), f"stream {track.stream}")
        is_only = stream == "stream 0" and (track.device, 1) not in self._stream_names
        lane = f" ({track.lane + 1})" if track.lane else ""
        return device_in_task(track.device) + ("" if is_only else f" {stream}") + lane

    # --- slices

    def slices(self) -> list[Event]:
        return [
            {
                "ph": "X",
                "cat": each.operation.op,
                "name": _title(each.operation),
                **self._at(each.track),
                "ts": self._us(each.operation.start),
                "dur": (each.operation.end - each.operation.start) / 1000,
                "args": _arguments(each.operation, each.step),
            }
            for each in self._placed
        ]

    def steps(self) -> list[Event]:
        """One slice around each step."""
        return [
            event
            for number, step in enumerate(self._steps)
            for event in self._span(f"step {number}", "Step", STEPS_PROCESS, step.start, step.end, {})
        ]

    def transfers(self) -> list[Event]:
        """Transfers from other tasks: the wait for the producer, and the time in transit."""
        events: list[Event] = []
        for step in self._steps:
            taken = _taken(step.operations)
            for each in step.transfers:
                times = taken[each.edge]
                events += self._transfer(each, times.popleft() if times else each.arrived)
        return events

    def _transfer(self, transfer: Transfer, taken: int) -> list[Event]:
        edge, pid = transfer.edge, self._pids[task_of(transfer.edge.target)]
        phases = phases_of(transfer, taken)
        arguments = {"from": edge.source, "to": edge.target, "bytes": transfer.nbytes}
        arguments |= {f"{name}_us": (end - start) / 1000 for name, start, end in phases}
        name, number = f"{edge.tensor} from {edge.source}", next(self._serial)
        begin, end = self._span(
            name, "Transfer", pid, transfer.asked, max(taken, transfer.arrived), arguments, number
        )
        inner = [self._span(phase, "Transfer", pid, start, end, {}, number) for phase, start, end in phases]
        return [begin, *itertools.chain.from_iterable(inner), end]

    def _span(
        self,
        name: str,
        category: str,
        pid: int,
        start: int,
        end: int,
        arguments: Mapping[str, Any],
        number: int | None = None,
    ) -> list[Event]:
        """An asynchronous slice. Those of one ``number`` are inside each other."""
        about = {"cat": category, "name": name, "id": next(self._serial) if number is None else number}
        about |= {"pid": pid, "tid": 0}
        return [
            {"ph": "b", **about, "ts": self._us(start), "args": dict(arguments)},
            {"ph": "e", **about, "ts": self._us(end)},
        ]

    # --- arrows between streams

    def arrows(self) -> list[Event]:
        pairs = itertools.chain(sent_and_received(self._placed), made_and_read(self._placed))
        return [event for pair in pairs for event in self._arrow(*pair)]

    def _arrow(self, source: Placed, target: Placed, tensor: str) -> list[Event]:
        """An arrow from the slice that produced ``tensor`` to the end of the slice that received it."""
        about = {"cat": "Dataflow", "name": tensor, "id": next(self._serial)}
        left = self._us(source.operation.start)
        arrives = self._us(max(target.operation.start, target.operation.end - 1))
        return [
            {"ph": "s", **about, **self._at(source.track), "ts": left},
            {"ph": "f", "bp": "e", **about, **self._at(target.track), "ts": arrives},
        ]

    # --- memory

    def counters(self) -> list[Event]:
        events = [
            self._counter(each.operation.device, "pool", each.operation.end, each.operation.pool_bytes)
            for each in self._placed
            if each.operation.pool_bytes
        ]
        for step in self._steps:
            for device, samples in live_bytes(step).items():
                events += [self._counter(device, "tensors", at, nbytes) for at, nbytes in samples]
        return events

    def _counter(self, device: str, what: str, at: int, nbytes: int) -> Event:
        return {
            "ph": "C",
            "name": f"{device_in_task(device)} {what}",
            "pid": self._pids[task_of(device)],
            "ts": self._us(at),
            "args": {"bytes": nbytes},
        }


# --- pure parts


def place(steps: Sequence[Step]) -> Iterator[Placed]:
    """The operations of all steps on tracks: rule 1."""
    free_at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        by_stream: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for operation in step.operations:
            by_stream[operation.device, operation.stream].append(operation)
        for key, operations in by_stream.items():
            ends, start = free_at[key], operations[0].start
            lane = next((i for i, end in enumerate(ends) if end <= start), len(ends))
            ends[lane : lane + 1] = [max(operation.end for operation in operations)]
            yield from (Placed(operation, Track(*key, lane), number) for operation in operations)


def phases_of(transfer: Transfer, taken: int) -> list[tuple[str, int, int]]:
    """The phases (name, start, end) of a transfer, in order: waiting for its producer, on the wire, and until
    the receiving program took it.
    """
    arrived = max(transfer.asked, transfer.arrived)
    if transfer.sent is None:
        phases = [("queue and wire", transfer.asked, arrived)]
    else:
        sent = min(max(transfer.asked, transfer.sent), arrived)
        phases = [("queue", transfer.asked, sent), ("wire", sent, arrived)]
    return [*phases, ("copy", arrived, max(arrived, taken))]


def sent_and_received(placed: Iterable[Placed]) -> Iterator[tuple[Placed, Placed, str]]:
    """The sends with their receives, and the tensor. An edge in a loop is used once per iteration, in the
    same order at both ends.
    """
    sends: dict[tuple[int, Edge], deque[Placed]] = defaultdict(deque)
    receives: list[Placed] = []
    for each in placed:
        if each.operation.is_send:
            sends[each.step, each.operation.edge].append(each)
        elif each.operation.is_receive:
            receives.append(each)
    for each in receives:
        if waiting := sends[each.step, each.operation.edge]:
            yield waiting.popleft(), each, each.operation.edge.tensor


def made_and_read(placed: Sequence[Placed]) -> Iterator[tuple[Placed, Placed, str]]:
    """The producer of a tensor with each consumer on another stream of the device, and the tensor."""
    made: dict[tuple[int, str, str], Placed] = {}
    for each in sorted(placed, key=lambda each: each.operation.start):
        if not each.operation.is_send and not each.operation.is_receive:
            for operand in dict.fromkeys(each.operation.operands):
                maker = made.get((each.step, each.operation.device, operand))
                if maker is not None and maker.track != each.track:
                    yield maker, each, operand
        made[each.step, each.operation.device, each.operation.name] = each


def _taken(operations: Iterable[Operation]) -> dict[Edge, deque[int]]:
    """The times when the programs received the tensors of each edge."""
    taken: dict[Edge, deque[int]] = defaultdict(deque)
    for operation in operations:
        if operation.is_receive:
            taken[operation.edge].append(operation.end)
    return taken


def _title(operation: Operation) -> str:
    """The name of a slice: the operation's, or what is sent and received."""
    if operation.is_send or operation.is_receive:
        return f"{'send' if operation.is_send else 'receive'} {operation.edge.tensor}"
    return operation.name


def _arguments(operation: Operation, step: int) -> Event:
    """Arguments that a viewer shows for a slice."""
    arguments: Event = {"name": operation.name, "op": operation.op, "step": step}
    arguments |= {f"input{i}": operand for i, operand in enumerate(operation.operands)}
    arguments |= {f"output{i}": str(output) for i, output in enumerate(operation.outputs)}
    arguments["bytes"] = sum(output.nbytes for output in operation.outputs)
    return arguments


def named(what: str, name: str, pid: int, tid: int = 0) -> Event:
    """A name of a process or thread: ``what`` is ``process_name`` or ``thread_name``."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def sorted_as(what: str, index: int, pid: int, tid: int = 0) -> Event:
    """The place of a process or thread: ``what`` is ``process_sort_index`` or ``thread_sort_index``."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"sort_index": index}}
