"""``flowrt report``: what a run has left, on one page."""

from __future__ import annotations

import contextlib
import html.parser
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrt.cli.main import main
from flowrt.errors import DataLossError, InvalidArgumentError, OpError
from flowrt.protos.event_pb2 import Event, SessionLog, TaggedRunMetadata
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.report import write_page
from flowrt.report.page import make_page
from flowrt.report.read_run import MAX_TRACES, read_run
from flowrt.report.step_times import activities, traffic
from flowrt.storage.records import encode_record
from flowrt.summary import FileWriter
from tests.profiler.made_stats import BASE, DEVICES, add
from tests.report.run_dirs import (
    STEPS,
    scalar,
    write_curves,
    write_flight,
    write_plan_record,
    write_trace,
    write_whole_run,
)

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


@pytest.fixture(autouse=True)
def patience(monkeypatch: Any) -> Callable[[float], None]:
    """Sets how long the rest of a record is waited for; not at all, unless it is called."""

    def wait(seconds: float) -> None:
        monkeypatch.setattr(sys.modules["flowrt.report.read_run"], "WRITE_S", seconds)

    wait(0.0)
    return wait


class Page(html.parser.HTMLParser):
    """The text of each section by its title, and all tags with their attributes."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self._open: list[str] = []
        self._title = ""
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "h2":
            self._title = ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "h2" in self._open:
            self._title += data
            self.sections[self._title] = ""
        elif not {"script", "style"} & set(self._open):
            self.sections[self._title] += f"{data} "


def page_of(directory: Path) -> Page:
    return Page(make_page(read_run(directory)))


def test_a_whole_run_is_on_one_page(tmp_path: Path) -> None:
    sections = page_of(write_whole_run(tmp_path)).sections
    assert list(sections)[1:] == [
        "Setup", "Comparison", "Curves", "Step time", "Slowest operations", "Transfers between devices",
        "Memory", "Cluster events", "Files",
    ]  # fmt: skip
    assert re.search(r"loss.*accuracy.*odd", sections["Curves"])
    assert "train" in sections["Curves"]
    assert "eval" in sections["Curves"]
    assert "6 us" in sections["Step time"]
    assert "net/a MatMul worker:0 CPU:0" in " ".join(sections["Slowest operations"].split())
    assert "400 B" in sections["Transfers between devices"]
    assert "worker 0 has waited 2.9 s for 'loss:0'" in sections["Cluster events"]
    assert "timeline-7.json" in sections["Files"]


def test_the_page_needs_nothing_beside_it(tmp_path: Path) -> None:
    for tag, attributes in page_of(write_whole_run(tmp_path)).tags:
        assert tag not in ("link", "img", "iframe")
        assert not {"src", "href"} & attributes.keys()


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\"'&<!-- body -->"]
)
def test_names_are_text(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "run"
    write_curves(directory, name, steps=3)
    write_trace(directory / "trace", name.replace("/", "_"))
    page = page_of(directory)
    assert name in page.sections["Curves"]
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]


def test_names_of_folders_may_be_no_text(tmp_path: Path) -> None:
    write_curves(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), "loss", steps=2)
    assert (
        "loss"
        in Page(write_page(read_run(tmp_path), tmp_path / "report.html").read_text()).sections["Curves"]
    )


def test_what_a_run_has_not_is_named(tmp_path: Path) -> None:
    write_curves(tmp_path, "loss", steps=2)
    sections = page_of(tmp_path).sections
    for title in ("Step time", "Slowest operations", "Transfers between devices", "Memory"):
        assert "no traced steps. Run steps with RunOptions" in sections[title]
    assert "no flight records" in sections["Cluster events"]
    (tmp_path / "logs").mkdir()
    only_events = tmp_path / "logs"
    write_flight(only_events)
    assert "no scalars" in page_of(only_events).sections["Curves"]


def test_of_a_truncated_event_file_the_whole_events_can_be_shown(tmp_path: Path) -> None:
    path = write_curves(tmp_path, "loss", steps=20)
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 20, len(whole) // 2):
        path.write_bytes(whole[:size])
        run = read_run(tmp_path, skip_damaged=True)
        ((note,), points) = run.notes, run.curves["loss"][tmp_path.name]
        assert re.match(rf"{path.name}: incomplete record at byte \d+", note)
        assert note.endswith(f"Shown are the {len(points) + 1} events before.")
        assert 0 < len(points) < 20
        assert note in Page(make_page(run)).sections["Unreadable files"]


def test_of_a_damaged_event_file_what_is_before_can_be_shown(tmp_path: Path) -> None:
    path = write_curves(tmp_path, "loss", steps=20)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    (note,) = read_run(tmp_path, skip_damaged=True).notes
    assert "damaged record at byte" in note
    assert re.search(r"got 0x\w+\. Shown are the \d+ events before\.$", note)


def test_a_damaged_flight_record_can_be_left_out(tmp_path: Path) -> None:
    write_curves(tmp_path, "loss", steps=2)
    write_flight(tmp_path)
    (path,) = tmp_path.glob("*.flight.jsonl")
    path.write_text(path.read_text()[:-20])
    run = read_run(tmp_path, skip_damaged=True)
    assert not run.records
    assert len(run.notes) == 1
    assert path.name in run.notes[0]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _bad_metadata(path: Path) -> None:
    tagged = TaggedRunMetadata(tag="step_1", run_metadata=b"none")
    with path.open("ab") as file:
        file.write(encode_record(Event(tagged_run_metadata=tagged).SerializeToString()))


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("events.*", _cut, r": incomplete record at byte \d+: expected \d+ bytes; got \d+\. "),
        ("events.*", _flip, r": damaged record at byte \d+: expected \w+ checksum 0x\w+; got 0x\w+\. "),
        ("events.*", _empty, r": expected an event file; got one of 0 bytes\. "),
        ("events.*", _bad_metadata, r": step_1: expected a RunMetadata message; got .*\. "),
        ("*.flight.jsonl", _cut, r", after 2 events: expected events of a flight recorder; .*\. "),
    ],
)
def test_a_damaged_file_is_one_line_and_no_page(
    tmp_path: Path, capsys: Any, name: str, damage: Callable[[Path], None], told: str
) -> None:
    write_curves(tmp_path, "loss", steps=20)
    write_flight(tmp_path)
    (path,) = tmp_path.glob(name)
    damage(path)
    before = set(tmp_path.iterdir())
    assert main(["report", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    line = rf"flowrt report: {re.escape(str(path))}{told}.*--skip-damaged reports the intact parts\.\n"
    assert re.fullmatch(line, err)
    assert not out
    assert set(tmp_path.iterdir()) == before
    assert main(["report", str(tmp_path), "--skip-damaged"]) == 0
    assert (tmp_path / "report.html").exists()


def test_a_run_that_is_being_written_can_be_reported(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path = write_curves(tmp_path, "loss", steps=20)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])

    def write_the_rest() -> None:
        with path.open("ab") as file:
            file.write(whole[-20:])

    writer = threading.Timer(0.1, write_the_rest)
    patience(DEADLINE_S)
    writer.start()
    run = read_run(tmp_path)
    writer.join()
    assert not run.notes
    assert len(run.curves["loss"][tmp_path.name]) == 20


def test_steps_of_a_restart_take_the_place_of_those_before(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        for step, value in [(0, 1.0), (10, 2.0), (20, 3.0), (10, 4.0), (15, 5.0)]:
            writer.add_summary(scalar("loss", value), step)
    points = read_run(tmp_path).curves["loss"][tmp_path.name]
    assert [(p.step, p.value) for p in points] == [(0, 1.0), (10, 4.0), (15, 5.0)]


def test_two_writers_in_one_folder_have_a_line_each(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as first, FileWriter(tmp_path) as second:
        for step in range(5):
            first.add_summary(scalar("loss", 1.0 + step), step)
            second.add_summary(scalar("loss", 10.0 + step), step)
            second.add_summary(scalar("accuracy", 0.5), step)
    name = tmp_path.name
    run = read_run(tmp_path)
    assert {line: [point.value for point in points] for line, points in run.curves["loss"].items()} == {
        name: [1.0, 2.0, 3.0, 4.0, 5.0],
        f"{name} (2)": [10.0, 11.0, 12.0, 13.0, 14.0],
    }
    assert list(run.curves["accuracy"]) == [name]
    assert f"{name} (2)" in page_of(tmp_path).sections["Curves"]


@pytest.mark.parametrize(("checkpoint", "start"), [(10, 11), (20, 21), (40, 41)])
def test_a_session_that_goes_on_from_a_checkpoint_goes_on_with_the_line(
    tmp_path: Path, checkpoint: int, start: int
) -> None:
    with FileWriter(tmp_path) as writer:
        for step in range(31):
            writer.add_summary(scalar("loss", 1.0), step)
    with FileWriter(tmp_path) as writer:
        writer.add_session_log(SessionLog(status=SessionLog.START), checkpoint)
        for step in range(start, start + 5):
            writer.add_summary(scalar("loss", 2.0), step)
    ((name, points),) = read_run(tmp_path).curves["loss"].items()
    assert name == tmp_path.name
    assert [p.step for p in points if p.value == 1.0] == list(range(min(checkpoint, 31)))
    assert [p.step for p in points if p.value == 2.0] == list(range(start, start + 5))


def test_time_and_traffic_are_means_of_the_traced_steps(tmp_path: Path) -> None:
    for i in range(3):
        write_trace(tmp_path / str(i))
    steps = [trace.step for trace in read_run(tmp_path).traces]
    here, there = activities(steps)
    assert here.nanos == pytest.approx({"compute": 4000, "send": 500, "wait": 0, "copy": 0, "idle": 1500})
    assert there.nanos == pytest.approx({"compute": 1000, "send": 0, "wait": 5000, "copy": 0, "idle": 0})
    ((source, target, tensors, nbytes),) = traffic(steps)
    assert (source, target) == ("worker:0 CPU:0", "worker:1 CPU:0")
    assert (tensors, nbytes) == (pytest.approx(1), pytest.approx(400))


def test_the_command_writes_the_page_into_the_run(tmp_path: Path) -> None:
    write_curves(tmp_path, "loss")
    ended = subprocess.run(
        [sys.executable, "-m", "flowrt", "report", str(tmp_path)],
        check=True, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert ended.stdout.strip() == str(tmp_path / "report.html")
    assert f"{STEPS - 1}" in Page((tmp_path / "report.html").read_text()).sections[""]


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty directory", "an empty event file"])
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, what: str, capsys: Any) -> None:
    directory, target = tmp_path / "run", tmp_path / "report.html"
    if what == "a file":
        directory.write_text("")
    elif what != "nothing":
        directory.mkdir()
    if what == "an empty event file":
        (directory / "events.out.tfevents.1").write_bytes(b"")
    assert main(["report", str(directory), "-o", str(target)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"flowrt report: {re.escape(str(directory))}\S*: expected ", line)
    assert not target.exists()


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path, capsys: Any) -> None:
    write_curves(tmp_path / "run", "loss", steps=2)
    target = tmp_path / "report.html"
    target.mkdir()
    with pytest.raises(InvalidArgumentError, match=r"report\.html: cannot write it"):
        write_page(read_run(tmp_path / "run"), target)
    os.mkfifo(tmp_path / "run" / "pipe")
    with pytest.raises(InvalidArgumentError, match="expected a file; got a device or a pipe"):
        write_page(read_run(tmp_path / "run"), tmp_path / "run" / "pipe")
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "none" / "report.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none/report.html: cannot write it" in line
    assert {path.name for path in tmp_path.iterdir()} == {"run", "report.html"}


def write_memory(directory: Path, steps: dict[int, int]) -> None:
    """By step the bytes of its one result."""
    with FileWriter(directory) as writer:
        for step, nbytes in steps.items():
            made = RunMetadata()
            add(made.step_stats, DEVICES[0], "a = MatMul()", BASE, BASE + 4000, nbytes=nbytes)
            writer.add_run_metadata(made, f"step_{step}", step)


def test_memory_is_told_over_the_run_and_of_the_last_step(tmp_path: Path) -> None:
    steps = {step: 1024 * (step + 1) for step in range(MAX_TRACES + 5)}
    write_memory(tmp_path, steps)
    run = read_run(tmp_path)
    ((device, peaks),) = run.peaks.items()
    assert device == DEVICES[0]
    assert {point.step: point.value for point in peaks[tmp_path.name]} == steps
    assert len(run.traces) == MAX_TRACES
    page = make_page(run)
    assert "Over the run" in page
    assert "1 KiB" in page  # of the first step, which is no longer looked at otherwise
    write_memory(tmp_path / "eval", {3: 2048})
    found = read_run(tmp_path).peaks[device]
    assert [len(points) for points in found.values()] == [len(steps), 1]
    assert "worker:0 CPU:0, eval" in make_page(read_run(tmp_path))


def test_what_cannot_be_read_is_told_on_the_terminal(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    path = write_curves(tmp_path, "loss", steps=20)
    _cut(path)
    (tmp_path / "locked").mkdir()
    real = os.scandir

    def scan(folder: Any) -> Any:
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scan)
    assert main(["report", str(tmp_path), "--skip-damaged"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == "flowrt report: locked: cannot read it: Permission denied."
    assert re.match(rf"flowrt report: {path.name}: incomplete record at byte", second)
    assert "locked: cannot read it" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("run.json", '{"traceEvents": [], "displayTimeUnit": "ns"}', True),
        ("run.json", '{"displayTimeUnit": "ns",\n "traceEvents": []}', True),
        ("run.json", '[{"ph": "M"}]', True),
        ("config.json", '{"learning_rate": 0.1}', False),
        ("metrics.json", '{"text": "\\"traceEvents\\":"}', False),
    ],
)
def test_a_timeline_is_known_by_its_content(tmp_path: Path, name: str, text: str, is_one: bool) -> None:
    write_curves(tmp_path, "loss", steps=2)
    (tmp_path / name).write_text(text)
    assert [path.name for path in read_run(tmp_path).trace_files] == [name] * is_one


def test_a_plan_has_sections_of_its_own(tmp_path: Path) -> None:
    write_plan_record(tmp_path)
    sections = page_of(tmp_path).sections
    assert list(sections)[1:] == ["Plan", "Rate", "Step", "Memory", "Why not", "Scaling", "Files"]
    assert "train.py" in sections["Plan"]
    assert "60.0%" in sections["Rate"]
    assert "1200" in sections["Rate"]  # 1,000 samples/s x 2 x 75% x 80%
    assert "bubble 1 ms (25 %)" in sections["Step"]
    assert "1 ms more of waiting for all-reduces" in sections["Why not"]
    assert "needs 2 GiB of 1 GiB" in sections["Why not"]
    assert "Amdahl: 66.67% of a step" in sections["Scaling"]


def test_a_plan_beside_a_run(tmp_path: Path) -> None:
    write_curves(tmp_path, "loss")
    write_plan_record(tmp_path)
    assert {"Plan", "Curves", "Memory"} <= page_of(tmp_path).sections.keys()


def test_text_of_a_plan_is_no_markup(tmp_path: Path) -> None:
    write_plan_record(tmp_path, "<script>alert(1)</script>.py")
    assert "<script>alert" not in make_page(read_run(tmp_path))


def test_damaged_records_of_plans(tmp_path: Path) -> None:
    path = write_plan_record(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"seconds"', b'"secomds"', 1))
    with pytest.raises(DataLossError, match="expected the record of a plan; got TypeError"):
        read_run(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(200):
        at, length = rng.integers(30, len(data)), rng.integers(1, 20)
        path.write_bytes(data[:at] + rng.bytes(int(rng.integers(0, 4))) + data[at + length :])
        with contextlib.suppress(OpError):
            make_page(read_run(tmp_path))
