"""``flowrt-run`` with a range of workers: real commands, whose workers are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.cli.elastic import Range, positive_range
from flowrt.cli.run import main
from flowrt.distribute.launch.elastic_supervision import ElasticSupervisor
from flowrt.distribute.launch.supervision import (
    Exited,
    Finish,
    GraceOver,
    Interrupted,
    Kill,
    Report,
    Restart,
    Start,
    Terminate,
)
from flowrt.distribute.resolvers import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "train" / "elastic_script.py"
STEPS = 20


@pytest.fixture(autouse=True)
def no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


# --- decisions


def test_a_worker_that_fails_starts_again_alone_while_restarts_are_left() -> None:
    supervisor = ElasticSupervisor(3, 1)
    assert supervisor.start() == [Start(0)]
    failure = Exited(1, -9)
    assert supervisor.handle(failure) == [Report(failure, 0), Restart(1, 1)]
    assert supervisor.handle(failure) == [Report(failure, 1)]
    assert supervisor.handle(Exited(0, 0)) == []
    assert supervisor.handle(Exited(2, 0)) == [Finish(0)]


def test_who_is_in_the_job_no_longer_does_not_start_again() -> None:
    supervisor = ElasticSupervisor(1, 5)
    supervisor.start()
    refused = Exited(0, 1, follows=True)
    assert supervisor.handle(refused) == [Report(refused, 0), Finish(1)]


def test_an_interrupted_job_ends_in_time() -> None:
    supervisor = ElasticSupervisor(2, 5)
    supervisor.start()
    assert supervisor.handle(Interrupted(signal.SIGTERM)) == [Terminate((0, 1))]
    assert supervisor.handle(Exited(0, 1)) == []
    assert supervisor.handle(GraceOver()) == [Kill((1,))]
    assert supervisor.handle(Exited(1, -9)) == [Finish(128 + signal.SIGTERM)]


def test_ranges() -> None:
    assert positive_range("4") == Range(4, 4)
    assert positive_range("2:4") == Range(2, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "4:2"], "expected MIN:MAX with MIN <= MAX; got 4:2"),
        (["--nproc", "0:2"], "expected an integer >= 1; got 0"),
        (["--nnodes", "a:b"], "expected an integer >= 1; got a:b"),
    ],
)
def test_what_is_no_range_is_refused(
    words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*words, str(SCRIPT), "1"])
    assert message in capsys.readouterr().err


def test_too_few_hosts_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_CLUSTER", '{"worker": ["127.0.0.1:2000", "127.0.0.1:3000"]}')
    monkeypatch.setenv("FLOWRT_TASK", "0")
    assert main(["--nnodes", "3:4", str(SCRIPT), "1"]) == 3
    assert "expected 3:4 hosts; got 2, from FLOWRT_CLUSTER" in capsys.readouterr().err


# --- jobs


def flowrt_run(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flowrt.cli.run", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = flowrt_run(*words)
    try:
        yield process
    finally:
        process.kill()  # its workers die with it
        process.communicate()


def results(text: str) -> list[Any]:
    """What workers printed last: weights, how often each record counted, and a total."""
    lines = re.findall(r"^\[worker \d+\] (\[\[.*)$", text, re.MULTILINE)
    return [json.loads(line) for line in lines]


def check_counts(text: str, workers: int) -> None:
    found = results(text)
    assert len(found) == workers, text
    for _, seen, total in found:
        assert seen == [STEPS * 12 / 60] * 60
        assert total == [STEPS * 12]


@pytest.fixture
def until(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, until which worker 0 waits before step 8; two workers begin together."""
    path = tmp_path / "until"
    monkeypatch.setenv("HOLD", "worker 0 8")
    monkeypatch.setenv("UNTIL", str(path))
    monkeypatch.setenv("TOGETHER", "2")
    return path


def test_a_killed_worker_starts_again_alone_and_is_taken_in(
    until: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS", json.dumps({"worker 1": {"kill": 3}}))
    with running("--standalone", "--nproc", "1:2", "--max-restarts", 1, SCRIPT, STEPS) as process:
        text = read_until(process, "worker 1 came; a new group after the next commit")
        until.touch()
        text += process.communicate(timeout=100)[0]
    assert process.returncode == 0, text
    check_counts(text, 2)
    assert "attempt 0 failed: worker 1 was killed by SIGKILL" in text
    assert text.count("was killed by") == 1


def test_a_job_that_is_told_to_end_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS", json.dumps({f"worker {number}": {"pause_s": 0.2} for number in (0, 1)}))
    with running("--standalone", "--nproc", "1:2", SCRIPT, 1000, tmp_path) as process:
        text = read_until(process, ": 2 workers")  # in epoch 1, or in 2 if one of them came late
        epoch = re.findall(r"epoch (\d+): 2 workers", text)[-1]
        for _ in range(2):
            text += read_until(process, f'", {epoch}, ')  # both train
        process.send_signal(signal.SIGTERM)
        text += process.communicate(timeout=200)[0]
    assert process.returncode == 128 + signal.SIGTERM, text
    assert "Traceback" not in text
    assert tf.train.latest_checkpoint(str(tmp_path)) is not None


def test_a_console_that_nobody_reads_any_more_ends_no_job() -> None:
    command = [sys.executable, "-m", "flowrt.cli.run", "--standalone", "--nproc", "1:2", str(SCRIPT), "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stderr is not None
        process.stderr.close()
        text, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert len(results(text)) == 2


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("False", "all workers ended before the job did. Does the script train in"),
        ("os.environ['LOCAL_RANK'] == '0'", "the job failed: expected at least 2 workers within 1 s; got 1"),
    ],
    ids=["none", "too few"],
)
def test_workers_that_take_no_part_are_told_of(
    condition: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "1")
    script = tmp_path / "script.py"
    script.write_text(f"import os, flowrt as tf\nif {condition}:\n    tf.train.run_elastic(print)\n")
    with running("--standalone", "--nproc", "2:3", script) as process:
        text, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert reason in text


@pytest.mark.slow
def test_a_script_that_does_not_train_in_run_elastic_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import flowrt as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n")
    with running("--standalone", "--nproc", "1:2", script) as process:
        text, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "expected the script of an elastic job to train in train.run_elastic()" in text


@pytest.mark.slow
def test_a_host_that_stands_still_and_goes_on_loses_nobody(
    until: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container that is paused, or a virtual machine that moves. On a busy machine a worker may get no
    processor for a second, and would be lost for that.
    """
    monkeypatch.setenv("FLOWRT_LOST_AFTER", "6")
    with running("--standalone", "--nproc", "1:2", SCRIPT, STEPS) as process:
        text = read_until(process, "epoch 1: 2 workers")
        for _ in range(2):
            text += read_until(process, '", 1, ')  # both train
        everybody = [process.pid, *descendants(process.pid)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in everybody:
                os.kill(pid, number)
            time.sleep(8.0)
        until.touch()
        text += process.communicate(timeout=100)[0]
    assert process.returncode == 0, text
    check_counts(text, 2)
    assert "silent" not in text


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def free_range(count: int) -> int:
    """The first of ``count`` ports in a row that are free now."""
    for first in range(20_000 + os.getpid() % 5000, 32_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def test_a_job_to_which_nobody_comes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of the first host end before they join, and the other host is never there."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('no such file')\n")
    first = free_range(4)
    monkeypatch.setenv(
        "FLOWRT_CLUSTER", json.dumps({"worker": [f"127.0.0.1:{first}", f"127.0.0.1:{first + 2}"]})
    )
    monkeypatch.setenv("FLOWRT_TASK", "worker:0")
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "1")
    with running("--nnodes", "1:2", "--nproc", 1, script) as process:
        text, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "the job failed: expected at least 1 workers within 1 s; got 0" in text


@pytest.mark.slow
def test_a_host_may_be_lost_and_come_again(until: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flowrt-run stands for a host, with one worker, which dies with it."""
    first = free_range(6)
    hosts = {"worker": [f"127.0.0.1:{first}", f"127.0.0.1:{first + 3}"]}
    monkeypatch.setenv("FLOWRT_CLUSTER", json.dumps(hosts))
    words = ("--nnodes", "1:2", "--nproc", 1, SCRIPT, STEPS)
    with ExitStack() as stack:
        processes = []
        for task in (0, 1):
            monkeypatch.setenv("FLOWRT_TASK", f"worker:{task}")
            processes.append(stack.enter_context(running(*words)))
        seen = read_until(processes[0], "epoch 1: 2 workers")
        processes[1].kill()
        seen += read_until(processes[0], "epoch 2: 1 worker,")
        again = stack.enter_context(running(*words))
        seen += read_until(processes[0], "worker 1 came")
        until.touch()
        text, _ = processes[0].communicate(timeout=100)
        other, _ = again.communicate(timeout=100)
    assert processes[0].returncode == again.returncode == 0, seen + text + other
    check_counts(text, 1)
    check_counts(other, 1)
    assert "epoch 3: 2 workers" in text


@pytest.mark.slow
def test_workers_wait_for_a_coordinator_that_comes_again(
    tmp_path: Path, until: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first host is lost, and its flowrt-run started again: the others' workers are still there."""
    first = free_range(6)
    hosts = {"worker": [f"127.0.0.1:{first}", f"127.0.0.1:{first + 3}"]}
    monkeypatch.setenv("FLOWRT_CLUSTER", json.dumps(hosts))
    monkeypatch.setenv("TOGETHER", "4")
    words = ("--nnodes", "2", "--nproc", "1:2", "--max-restarts", 1, SCRIPT, STEPS, tmp_path)
    with ExitStack() as stack:
        monkeypatch.setenv("FLOWRT_TASK", "worker:1")
        other = stack.enter_context(running(*words))
        monkeypatch.setenv("FLOWRT_TASK", "worker:0")
        doomed = stack.enter_context(running(*words))
        read_until(doomed, "epoch 1: 4 workers")
        seen = read_until(other, '", 1, ')
        doomed.kill()
        seen += read_until(other, "CoordinatorLostError")
        until.touch()
        text, _ = stack.enter_context(running(*words)).communicate(timeout=100)
        seen += other.communicate(timeout=100)[0]
    assert other.returncode == 0, text + seen
    check_counts(text, 2)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The output up to the line that has ``words``. A hang meets pytest's timeout."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"expected {words!r}; got {lines}")
