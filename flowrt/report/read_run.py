"""The files of a run's directory: event files, facts, records of tasks, plans, traces.

Rules of this file: a damaged file is an error, or is read up to the damage, and a note names the place. A
file without read permission is a note, and so is a damaged record of facts, which holds no measured value. A
directory with nothing to show is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from flowrt.distribute.observe.flight_recorder import SUFFIX, Record, read_record
from flowrt.errors import DataLossError, NotFoundError, OpError
from flowrt.graph.messages.tensor_proto import decode_tensor
from flowrt.plan import plan_record
from flowrt.plan.plan_record import PlanRecord
from flowrt.profiler.costs import live_bytes
from flowrt.profiler.steps import Step, read_step
from flowrt.protos.event_pb2 import Event, SessionLog
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.summary.event_file import WRITE_S, read_events
from flowrt.summary.run_facts import RunFacts, is_facts_file, read_facts

MAX_TRACES = 50
"""Maximum number of traced steps to read, the last ones: each may have 100,000 operations."""


HEAD_BYTES = 4096
TIMELINE = re.compile(rb'\s*(\{\s*("[^"]*"\s*:\s*"[^"]*"\s*,\s*)*"traceEvents"\s*:|\[\s*\{\s*"ph")')
"""The beginning of a Chrome trace: an object with its events, or the bare list."""


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
    """The contents of a report. ``directory``: names of files and folders are from there on."""

    directory: Path
    skip_damaged: bool = False
    curves: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    """Points by step for each scalar's tag and folder of event files. A file that restarts at an earlier step
    has a separate line, ``train (2)``.
    """
    folders: list[str] = field(default_factory=list)
    """Names of the folders with event files or facts."""
    facts: list[tuple[str, RunFacts]] = field(default_factory=list)
    """The records of processes, each with the folder that it is in."""
    traces: list[Trace] = field(default_factory=list)
    peaks: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    """Peak bytes of live results in each traced step, including those not read, by device and folder."""
    records: list[Record] = field(default_factory=list)
    plans: list[PlanRecord] = field(default_factory=list)
    """Plans that ``flowrt plan`` made."""
    trace_files: list[Path] = field(default_factory=list)
    """Traces for Perfetto."""
    files: list[Path] = field(default_factory=list)
    """The files that were read, at least in part."""
    notes: list[str] = field(default_factory=list)
    """One line per file that could not be read."""
    first_time: float | None = None
    last_time: float | None = None
    """Seconds since the epoch."""


@dataclass
class _Source:
    """An event file that is read: the name of its ``folder``, and the lines that its points are added to."""

    path: Path
    folder: str
    curves: dict[str, list[Point]] = field(default_factory=dict)
    peaks: dict[str, list[Point]] = field(default_factory=dict)
    restart: int = 0
    """The step from which a session resumes, if the file has it."""


def read_run(*directories: Path, skip_damaged: bool = False) -> Run:
    """Read all below ``directories``; with ``skip_damaged`` only the intact part, with notes. Several runs
    have names from `common_directory` on.

    Raises `NotFoundError` if one is not a directory or there is nothing to show, and `DataLossError`, with
    file and offset, for a damaged event file or flight record.
    """
    for directory in directories:
        if not directory.is_dir():
            what = "a file" if directory.exists() else "no such directory"
            raise NotFoundError(f"{directory}: expected the directory of a run; got {what}")
    run = Run(common_directory(directories), skip_damaged)
    parts = directories if len(directories) == 1 else [directory.resolve() for directory in directories]
    files = {path for part in parts for path in _files_below(run, part)}
    for path in sorted(files, key=lambda path: (len(path.parts), path)):
        if "tfevents" in path.name and path.is_file():
            _read_events(run, path)
        elif path.name.endswith(SUFFIX):
            _read_record(run, path)
        elif is_facts_file(path):
            _read_facts(run, path)
        elif path.suffix == ".json" and path.is_file():
            _look_at_json(run, path)
    if not (run.files or run.trace_files):
        raise NotFoundError(
            f"{', '.join(map(str, directories))}: expected event files, flight records, plans or traces; "
            "got none" + "".join(f". {note}" for note in run.notes)
        )
    dropped = len(run.traces) - MAX_TRACES
    if dropped > 0:
        run.notes.append(f"{dropped} traced steps are not shown: only the last {MAX_TRACES} are looked at")
        del run.traces[:dropped]
    return run


def common_directory(directories: Sequence[Path]) -> Path:
    """The directory itself, or that which several are all below."""
    if len(directories) == 1:
        return directories[0]
    return Path(os.path.commonpath([directory.resolve() for directory in directories]))


def _files_below(run: Run, directory: Path) -> Iterator[Path]:
    """All files in ``directory`` and its folders; of a folder that cannot be read there is a note."""

    def note(error: OSError) -> None:
        run.notes.append(f"{_inside(run, error.filename)}: cannot read it: {error.strerror or error}.")

    for folder, _, names in os.walk(directory, onerror=note):
        yield from (Path(folder, name) for name in names)


def _look_at_json(run: Run, path: Path) -> None:
    """Add the file if its content is a plan or a timeline: ``FLOWRT_TRACE=run.json`` may have any name."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        run.notes.append(f"{path.relative_to(run.directory)}: cannot read it: {error.strerror or error}.")
        return
    if TIMELINE.match(head):
        run.trace_files.append(path)
    elif head.startswith(plan_record.HEAD.encode()):
        _read_plan(run, path)


def _read_plan(run: Run, path: Path) -> None:
    try:
        run.plans.append(plan_record.read_record(path))
    except DataLossError as error:
        _take_damage(run, error, f"{error.message}.")
    else:
        run.files.append(path)


def _read_events(run: Run, path: Path) -> None:
    """One event file, up to where it breaks."""
    source = _Source(path, _folder(run, path))
    count = 0
    try:
        for event in read_events(path, WRITE_S):
            count += 1
            _take(run, source, event)
        if not count:
            raise DataLossError(f"{path}: expected an event file; got one of 0 bytes.")
    except OpError as error:
        shown = f" Shown are the {count} events before." if count else ""
        _take_damage(run, error, f"{error.message.rstrip('.')}.{shown}")
    if count:
        run.files.append(path)


def _folder(run: Run, path: Path) -> str:
    """The name of the folder of ``path``, which the run has from now on."""
    is_top = path.parent == run.directory
    folder = run.directory.resolve().name if is_top else str(path.parent.relative_to(run.directory))
    if folder not in run.folders:
        run.folders.append(folder)
    return folder


def _read_facts(run: Run, path: Path) -> None:
    """A damaged record is a note only: nothing that was measured is in it."""
    try:
        facts = read_facts(path)
    except DataLossError as error:
        run.notes.append(f"{_inside(run, error.message)}.")
    else:
        run.facts.append((_folder(run, path), facts))
        run.files.append(path)


def _take_damage(run: Run, error: OpError, note: str) -> None:
    """Raises ``error`` unless damaged files are skipped."""
    if isinstance(error, DataLossError) and not run.skip_damaged:
        raise error
    run.notes.append(_inside(run, note))


def _take(run: Run, source: _Source, event: Event) -> None:
    _take_times(run, [event.wall_time])
    if event.session_log.status == SessionLog.START:
        source.restart = event.step
    if event.HasField("tagged_run_metadata"):
        _take_trace(run, source, event)
    for value in event.summary.value:
        number = _scalar(value)
        if number is not None:
            if value.tag not in source.curves:
                source.curves[value.tag] = _line(run.curves.setdefault(value.tag, {}), source, event.step)
            _append(source.curves[value.tag], Point(event.step, event.wall_time, number))


def _line(lines: dict[str, list[Point]], source: _Source, first: int) -> list[Point]:
    """The line for points of ``source`` from step ``first`` on: the last line of its folder if they continue
    it, or a session resumes it from a checkpoint; else a new one. Points after the checkpoint of the previous
    session are dropped, as in TensorBoard.
    """
    count, name = 1, source.folder
    while (following := f"{source.folder} ({count + 1})") in lines:
        count, name = count + 1, following
    points = lines.setdefault(name, [])
    if source.restart:
        _cut(points, source.restart)
    if points and points[-1].step >= first:
        points = lines[following] = []
    return points


def _append(points: list[Point], point: Point) -> None:
    """Append a point; a repeated step replaces all points from it on."""
    _cut(points, point.step)
    points.append(point)


def _cut(points: list[Point], step: int) -> None:
    """Remove the points from ``step`` on."""
    while points and points[-1].step >= step:
        points.pop()


def _scalar(value: Any) -> float | None:
    """A summary value's scalar; None if it is something else. TensorFlow 2 writes scalars as tensors."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.metadata.plugin_data.plugin_name == "scalars" and value.HasField("tensor"):
        return float(decode_tensor(value.tensor))
    return None


def _take_trace(run: Run, source: _Source, event: Event) -> None:
    tagged = event.tagged_run_metadata
    try:
        metadata = RunMetadata.FromString(tagged.run_metadata)
    except DecodeError as error:
        what = f"{source.path}: {tagged.tag}: expected a RunMetadata message; got {error}"
        _take_damage(run, DataLossError(what), f"{what}.")
        return
    step = read_step(metadata.step_stats)
    if step.operations:
        run.traces.append(Trace(tagged.tag, step))
        _take_peaks(run, source, event, step)


def _take_peaks(run: Run, source: _Source, event: Event, step: Step) -> None:
    for device, samples in live_bytes(step).items():
        peak = max(nbytes for _, nbytes in samples)
        if device not in source.peaks:
            source.peaks[device] = _line(run.peaks.setdefault(device, {}), source, event.step)
        _append(source.peaks[device], Point(event.step, event.wall_time, float(peak)))


def _read_record(run: Run, path: Path) -> None:
    try:
        run.records.append(read_record(path))
    except OpError as error:
        _take_damage(run, error, f"{error.message}.")
    else:
        run.files.append(path)
        _take_times(run, [event.time for event in run.records[-1].events])


def _take_times(run: Run, times: Iterable[float]) -> None:
    known = [time for time in (run.first_time, run.last_time, *times) if time]
    run.first_time, run.last_time = min(known, default=None), max(known, default=None)


def _inside(run: Run, message: str) -> str:
    """A message about a file, which it names from the run's directory on."""
    return message.replace(f"{run.directory}/", "")
