"""What a run has left in its directory: event files, records of tasks, traces.

Rule of this file: a file that is damaged is read as far as it goes, and a note says where it broke. Only a
directory that has nothing to show at all is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from flowrt.distribute.flight_recorder import SUFFIX, Record, read_record
from flowrt.errors import NotFoundError, OpError
from flowrt.graph.tensor_proto import decode_tensor
from flowrt.profiler.live_bytes import live_bytes
from flowrt.profiler.steps import Step, read_step
from flowrt.protos.event_pb2 import Event
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.summary.event_file import read_events

MAX_TRACES = 50
"""Traced steps that are looked at, the last ones: each may have 100,000 operations."""


HEAD_BYTES = 4096
TIMELINE = re.compile(rb'\s*(\{\s*("[^"]*"\s*:\s*"[^"]*"\s*,\s*)*"traceEvents"\s*:|\[\s*\{\s*"ph")')
"""How a Chrome trace begins: an object with its events, or these alone."""


class Point(NamedTuple):
    """A value of a curve. ``time``: seconds since the epoch."""

    step: int
    time: float
    value: float


class Trace(NamedTuple):
    """A traced step, and the ``tag`` that it was written with."""

    tag: str
    step: Step


@dataclass
class Run:
    """All that is to be shown."""

    directory: Path
    curves: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    """Of each scalar's tag, by the folder of the event file: points by step."""
    traces: list[Trace] = field(default_factory=list)
    peaks: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    """Of each device, by the folder of the event file: the most bytes of results that were alive at once in
    each traced step, also in those that are not looked at.
    """
    records: list[Record] = field(default_factory=list)
    trace_files: list[Path] = field(default_factory=list)
    """For Perfetto."""
    files: list[Path] = field(default_factory=list)
    """Those that were read, at least to a part."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, a line each."""
    first_time: float | None = None
    last_time: float | None = None
    """Seconds since the epoch."""


def read_run(directory: Path) -> Run:
    """What there is below ``directory``. Raises `NotFoundError` if that is no directory, or has nothing."""
    if not directory.is_dir():
        what = "a file" if directory.exists() else "nothing"
        raise NotFoundError(f"{directory}: expected the directory of a run; got {what}")
    run = Run(directory)
    for path in sorted(_files_below(run), key=lambda path: (len(path.parts), path)):
        if "tfevents" in path.name and path.is_file():
            _read_events(run, path)
        elif path.name.endswith(SUFFIX):
            _read_record(run, path)
        elif path.suffix == ".json" and path.is_file():
            _look_at_json(run, path)
    if not (run.files or run.trace_files):
        raise NotFoundError(
            f"{directory}: expected event files, flight records or traces; got none"
            + "".join(f". {note}" for note in run.notes)
        )
    dropped = len(run.traces) - MAX_TRACES
    if dropped > 0:
        run.notes.append(f"{dropped} traced steps are not shown: only the last {MAX_TRACES} are looked at")
        del run.traces[:dropped]
    return run


def _files_below(run: Run) -> Iterator[Path]:
    """All files in the run's directory and its folders; of a folder that cannot be read there is a note."""

    def note(error: OSError) -> None:
        run.notes.append(f"{_inside(run, error.filename)}: cannot read it: {error.strerror or error}.")

    for folder, _, names in os.walk(run.directory, onerror=note):
        yield from (Path(folder, name) for name in names)


def _look_at_json(run: Run, path: Path) -> None:
    """A timeline is told by how it begins, whatever its name: ``FLOWRT_TRACE=run.json`` gives it any."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        run.notes.append(f"{path.relative_to(run.directory)}: cannot read it: {error.strerror or error}.")
        return
    if TIMELINE.match(head):
        run.trace_files.append(path)


def _read_events(run: Run, path: Path) -> None:
    """One event file, up to where it breaks."""
    is_top = path.parent == run.directory
    name = run.directory.resolve().name if is_top else str(path.parent.relative_to(run.directory))
    count = 0
    try:
        for event in read_events(path):
            count += 1
            _take(run, name, event)
    except OpError as error:
        run.notes.append(f"{_inside(run, error.message).rstrip('.')}. Shown are the {count} events before.")
    if count:
        run.files.append(path)
    elif not path.stat().st_size:
        run.notes.append(f"{path.relative_to(run.directory)}: it is empty.")


def _take(run: Run, name: str, event: Event) -> None:
    _take_times(run, [event.wall_time])
    if event.HasField("tagged_run_metadata"):
        _take_trace(run, name, event)
    for value in event.summary.value:
        number = _scalar(value)
        if number is not None:
            points = run.curves.setdefault(value.tag, {}).setdefault(name, [])
            _append(points, Point(event.step, event.wall_time, number))


def _append(points: list[Point], point: Point) -> None:
    """A step that comes again, after a restart, takes the place of all that came behind it the first time."""
    while points and points[-1].step >= point.step:
        points.pop()
    points.append(point)


def _scalar(value: Any) -> float | None:
    """Of a summary's value; None if it is something else. TensorFlow 2 writes scalars as tensors."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.metadata.plugin_data.plugin_name == "scalars" and value.HasField("tensor"):
        return float(decode_tensor(value.tensor))
    return None


def _take_trace(run: Run, name: str, event: Event) -> None:
    tagged = event.tagged_run_metadata
    try:
        metadata = RunMetadata.FromString(tagged.run_metadata)
    except DecodeError as error:
        run.notes.append(f"run metadata {tagged.tag!r} of {name}: {error}.")
        return
    step = read_step(metadata.step_stats)
    if step.operations:
        run.traces.append(Trace(tagged.tag, step))
        _take_peaks(run, name, event, step)


def _take_peaks(run: Run, name: str, event: Event, step: Step) -> None:
    for device, samples in live_bytes(step).items():
        peak = max(nbytes for _, nbytes in samples)
        points = run.peaks.setdefault(device, {}).setdefault(name, [])
        _append(points, Point(event.step, event.wall_time, float(peak)))


def _read_record(run: Run, path: Path) -> None:
    try:
        run.records.append(read_record(path))
    except OpError as error:
        run.notes.append(_inside(run, f"{error.message}."))
    else:
        run.files.append(path)
        _take_times(run, [event.time for event in run.records[-1].events])


def _take_times(run: Run, times: Iterable[float]) -> None:
    known = [time for time in (run.first_time, run.last_time, *times) if time]
    run.first_time, run.last_time = min(known, default=None), max(known, default=None)


def _inside(run: Run, message: str) -> str:
    """A message about a file, which it names from the run's directory on."""
    return message.replace(f"{run.directory}/", "")
