"""Logs: records as JSON, files that rotate, and logs that cannot be written."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flowrt.base.log_records import JsonFormatter, LogFile, add_log, log_name
from flowrt.base.rotating_file import KEPT, MIN_BYTES, RotatingFile, log_bytes
from flowrt.errors import InvalidArgumentError
from tests.distribute.processes import SOON_S, cluster

ROOT = Path(__file__).resolve().parents[1]


def contents(path: Path) -> list[bytes]:
    """The files of a log, oldest first."""
    older = [path.with_name(f"{path.name}.{i}") for i in range(KEPT + 1, 0, -1)]
    return [each.read_bytes() for each in (*older, path) if each.exists()]


def test_files_rotate_between_lines_and_the_oldest_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    with RotatingFile(path, 100, appends=False) as file:
        lines = [b"line %03d\n" % i for i in range(200)]
        for line in lines:
            file.write(line)
    files = contents(path)
    assert len(files) == KEPT + 1
    assert all(len(each) <= 100 for each in files)
    assert b"".join(lines).endswith(b"".join(files))
    assert all(each.endswith(b"\n") and each.startswith(b"line") for each in files)


@pytest.mark.parametrize("seed", range(20))
def test_no_byte_is_lost_whatever_the_pieces(seed: int, tmp_path: Path) -> None:
    draw, path = random.Random(seed), tmp_path / "a.log"
    data = b"".join(bytes([97 + i % 26]) * draw.randrange(30) + b"\n" for i in range(20))
    with RotatingFile(path, 150, appends=False) as file:
        left = data
        while left:
            size = draw.randrange(1, 60)
            file.write(left[:size])
            left = left[size:]
    files = contents(path)
    assert b"".join(files) == data
    assert all(each.endswith(b"\n") for each in files if each)  # the newest may have just begun


def test_a_line_without_an_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    with RotatingFile(tmp_path / "a.log", 100, appends=False) as file:
        for _ in range(1000):
            file.write(b"x" * 50)
    assert all(len(each) <= 300 for each in contents(tmp_path / "a.log"))


def test_a_log_is_continued_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for appends, expected in ((False, b"1"), (True, b"11"), (False, b"1")):
        with RotatingFile(path, 100, appends) as file:
            file.write(b"1")
        assert path.read_bytes() == expected


def test_two_processes_with_one_log_lose_no_line(tmp_path: Path) -> None:
    """A task and its child, whose environment is the same: each rotates the files of the other."""
    path = tmp_path / "worker_0.log"
    with RotatingFile(path, 300, appends=True) as first:
        for number in range(40):
            first.write(b"before %d\n" % number)
        with RotatingFile(path, 300, appends=True) as second:
            for number in range(30):
                first.write(b"first %d\n" % number)
                second.write(b"second %d\n" % number)
    found = b"".join(file.read_bytes() for file in tmp_path.iterdir()).splitlines()
    assert {line for line in found if not line.startswith(b"before")} == {
        b"%s %d" % (name, number) for name in (b"first", b"second") for number in range(30)
    }


def test_a_quiet_process_leaves_the_files_that_a_busy_one_drops(tmp_path: Path) -> None:
    path = tmp_path / "worker_0.log"
    with RotatingFile(path, 100, appends=True) as quiet, RotatingFile(path, 100, appends=True) as busy:
        quiet.write(b"begin\n")
        for number in range(200):
            busy.write(b"busy %d\n" % number)
        quiet.write(b"in the end\n")
    assert b"in the end\n" in contents(path)[-1]
    assert all(len(each) <= 100 for each in contents(path))


def test_two_that_rotate_at_once_drop_no_file(tmp_path: Path) -> None:
    """The second finds the file too long, and waits for the first, which renames it."""
    path = tmp_path / "worker_0.log"
    with RotatingFile(path, 100, appends=True) as first, RotatingFile(path, 100, appends=True) as second:
        first.write(b"x" * 98 + b"\n")
        first.write(b"from the first\n")
        second._rotate()  # as decided before
        second.write(b"from the second\n")
    assert contents(path) == [b"x" * 98 + b"\n", b"from the first\nfrom the second\n"]


@pytest.mark.parametrize("text", ["0", "4095", "-1", "64M", "1e6", "²"])
def test_a_wrong_size_is_told(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWRT_LOG_BYTES", text)
    with pytest.raises(InvalidArgumentError, match=r"^FLOWRT_LOG_BYTES: expected bytes, 4096 or more; got"):
        LogFile(tmp_path / "a.log", "")
    monkeypatch.setenv("FLOWRT_LOG_BYTES", str(MIN_BYTES))
    assert log_bytes() == MIN_BYTES


def test_a_record_is_one_line_of_json() -> None:
    record = logging.LogRecord("flowrt.x", logging.WARNING, "x.py", 1, 'a "%s"\nb é', ("c",), None)
    record.created = datetime(2026, 1, 31, 9, 30, 0, 125000, UTC).timestamp()
    line = JsonFormatter("worker:0").format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-31T09:30:00.125Z",
        "level": "WARNING",
        "logger": "flowrt.x",
        "message": 'a "c"\nb é',
        "task": "worker:0",
        "pid": os.getpid(),
    }
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    found = json.loads(JsonFormatter("").format(record))
    assert found["error"].splitlines()[-1] == "ValueError: why"
    assert "task" not in found


def test_a_log_that_cannot_be_written_is_given_up_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile(Path("/dev/full"), "")
    record = logging.LogRecord("flowrt", logging.INFO, "", 0, "text", (), None)
    for _ in range(3):
        handler.handle(record)
    handler.close()
    assert capsys.readouterr().err == (
        "flowrt: /dev/full is no longer written: [Errno 28] No space left on device\n"
    )


def test_the_console_shows_no_more_than_without_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("a logger of this test")
    logger.propagate = False
    add_log(logger, tmp_path / log_name("worker:3"), "worker:3")
    logger.debug("no")
    logger.info("file")
    logger.warning("both")
    for handler in logger.handlers:
        handler.close()
    assert capsys.readouterr().err == "both\n"
    lines = (tmp_path / "worker_3.log").read_text().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["file", "both"]


def run(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOWRT_")}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=kept | environ, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip


def test_a_script_logs_as_its_environment_says(tmp_path: Path) -> None:
    script = "import flowrt as tf; tf.logging.info('told'); tf.logging.warning('warned')"
    done = run(script, FLOWRT_LOG_FORMAT="json", FLOWRT_LOG_DIR=str(tmp_path), FLOWRT_TASK="ps:1")
    shown = [json.loads(line) for line in done.stderr.splitlines()]
    written = [json.loads(line) for line in (tmp_path / "ps_1.log").read_text().splitlines()]
    assert [each["message"] for each in shown] == ["warned"]
    assert [(each["message"], each["task"]) for each in written] == [("told", "ps:1"), ("warned", "ps:1")]
    done = run("import flowrt", FLOWRT_LOG_FORMAT="xml")
    assert done.stderr.splitlines()[-1].endswith("FLOWRT_LOG_FORMAT: expected text or json; got 'xml'")


def test_a_wrong_setting_is_the_last_thing_that_is_said(tmp_path: Path) -> None:
    done = run("import flowrt", FLOWRT_LOG_DIR=str(tmp_path), FLOWRT_LOG_BYTES="lots")
    assert done.stderr.splitlines()[-1].endswith("FLOWRT_LOG_BYTES: expected bytes, 4096 or more; got 'lots'")
    done = run("import flowrt", FLOWRT_LOG_DIR="/proc/wrong")
    assert "FLOWRT_LOG_DIR: expected a directory for logs; got '/proc/wrong'" in done.stderr.splitlines()[-1]


def test_a_worker_logs_json_and_nothing_else(tmp_path: Path) -> None:
    with cluster(0, 1, "--log-dir", str(tmp_path), environ={"FLOWRT_LOG_FORMAT": "json"}) as tasks:
        tasks.workers[0].wait_for_steps(0)
        ended = tasks.workers[0].end(signal.SIGTERM, SOON_S)
    shown = [json.loads(line) for line in ended.errors.splitlines()]
    written = [json.loads(line) for line in (tmp_path / "worker_0.log").read_text().splitlines()]
    for records in (shown, written):
        assert records[0]["message"].startswith("worker 0 listens at")
        assert records[-1]["message"] == "ended: got SIGTERM"
        assert {each["task"] for each in records} == {"worker:0"}
