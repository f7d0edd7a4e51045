"""The ring of the last steps, and ``FLOWRT_TRACE``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.observe.recent_steps import MAX_SLICES, RecentSteps, keep_recent_steps
from flowrt.profiler import recent_step_stats
from tests.distribute.processes import cluster
from tests.profiler.chrome_trace import read_trace

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


@pytest.fixture
def three_steps() -> Iterator[None]:
    keep_recent_steps(3)
    yield
    keep_recent_steps(0)


def names() -> list[list[str]]:
    return [[n.node_name for d in step.dev_stats for n in d.node_stats] for step in recent_step_stats()]


@pytest.mark.usefixtures("three_steps")
def test_the_last_steps_are_kept_without_being_asked_for() -> None:
    x = tf.placeholder(tf.float32, [2])
    fetches = [tf.sqrt(x, name=f"step{i}") for i in range(5)]
    with tf.Session() as session:
        for fetch in fetches:
            np.testing.assert_array_equal(session.run(fetch, {x: [4.0, 9.0]}), [2.0, 3.0])
    assert names() == [["step2"], ["step3"], ["step4"]]


@pytest.mark.usefixtures("three_steps")
def test_a_step_that_fails_is_the_last_one() -> None:
    x = tf.placeholder(tf.float32, [2])
    y = tf.sqrt(x, name="before")
    with tf.control_dependencies([y]):
        bad = tf.check_numerics(y, "no number", name="bad")
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError):
        session.run(bad, {x: [-1.0, 1.0]})
    assert names() == [["before"]]


def test_nothing_is_kept_where_nobody_asked() -> None:
    with tf.Session() as session:
        session.run(tf.constant(1.0) + tf.random_uniform([]))
    assert recent_step_stats() == []


def test_many_slices_push_old_steps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrt.executor.observe.recent_steps.MAX_SLICES", 10)
    recent = RecentSteps(100)
    with tf.Session() as session:
        device = session._runtime.devices[0]
        for _ in range(8):
            record = recent.begin().on(device, 0, "stream 0")
            for moment in range(4):
                record(None, moment, moment)
    assert MAX_SLICES > 10
    kept = [recorder.num_slices for recorder in recent.read()]
    assert kept == [4, 4, 4]  # ten at most, and the step that runs


SCRIPT = """
import flowrt as tf
x = tf.random_uniform([10], name="x")
with tf.Session() as session:
    for _ in range(4):
        session.run(x)
"""


def run(setting: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"FLOWRT_TRACE": setting, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize(
    ("setting", "pattern"), [("run.json", "run.json"), ("traces/", "traces/*.trace.json")]
)
def test_a_process_leaves_a_trace_of_its_last_steps(tmp_path: Path, setting: str, pattern: str) -> None:
    assert run(setting, tmp_path).returncode == 0
    (path,) = tmp_path.glob(pattern)
    events = read_trace(path.read_text())
    assert [e["args"]["name"] for e in events if e["ph"] == "X"] == ["x"] * 4
    assert [e["name"] for e in events if e["ph"] == "b"] == [f"step {i}" for i in range(4)]


def test_a_process_without_steps_leaves_the_trace_of_another(tmp_path: Path) -> None:
    assert run("run.json", tmp_path).returncode == 0
    written = (tmp_path / "run.json").read_bytes()
    environ = os.environ | {"FLOWRT_TRACE": "run.json", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "import flowrt"], check=True, env=environ, cwd=tmp_path)
    assert (tmp_path / "run.json").read_bytes() == written


def test_a_task_of_a_cluster_leaves_its_own(tmp_path: Path) -> None:
    with cluster(1, 1, environ={"FLOWRT_TRACE": f"{tmp_path}/"}) as tasks, tf.Graph():
        with tf.device("/job:worker/task:1"):
            x = tf.random_uniform([10], name="there")
        with tf.device("/job:worker/task:0"):
            y = tf.reduce_sum(x)
        with tf.Session(tasks.target) as session:
            for _ in range(3):
                session.run(y)
        (worker,) = tasks.workers
        assert worker.end(signal.SIGTERM, DEADLINE_S).status == 0
    (path,) = tmp_path.glob("*.trace.json")
    events = read_trace(path.read_text())
    assert [e["name"] for e in events if e.get("cat") == "RandomUniform"] == ["there"] * 3


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run("file/run.json", tmp_path)
    assert ended.returncode == 0
    assert len(ended.stderr.splitlines()) == 1
    assert "file/run.json could not be written" in ended.stderr
    os.mkfifo(tmp_path / "pipe")
    assert "pipe could not be written: expected a file" in run("pipe", tmp_path).stderr
    assert (tmp_path / "pipe").is_fifo()


def test_a_number_of_steps_is_positive(tmp_path: Path) -> None:
    ended = run("0", tmp_path)
    assert ended.returncode == 1
    assert "FLOWRT_TRACE: expected a number of steps" in ended.stderr
