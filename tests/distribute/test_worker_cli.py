"""``flowrt-worker``: what it prints, when it ends and with which status; ``--check``."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowrt as tf
from flowrt.base.exit_codes import exit_code
from flowrt.cli.worker import main
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.launch import check, drain
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers import VARIABLES
from flowrt.distribute.server import Server
from flowrt.errors import (
    AbortedError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from flowrt.rendezvous.channel.security import Security

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, "FLOWRT_TOKEN", "FLOWRT_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no token there
    monkeypatch.setattr(check, "CHECK_S", 2.0)


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    with ReservedPorts(2) as reserved:
        yield [f"127.0.0.1:{port}" for port in reserved.ports]


def worker(task: int, addresses: list[str], *words: str) -> list[str]:
    return ["--cluster", json.dumps({"worker": addresses}), "--task", str(task), *words]


class Worker:
    """A process that is killed at the end of the block, if it has not ended."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "flowrt.cli.worker", *words]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_until_it_listens(self) -> None:
        assert self.process.stderr is not None
        assert "listens at" in self.process.stderr.readline()

    def end(self) -> tuple[int, str, str]:
        """Status, output and errors."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


# --- a worker's life


def test_it_ends_with_the_job(addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JOB_GRACE", "0.5")
    with Worker(*worker(0, addresses[:1], "--log_dir", str(tmp_path))) as process:
        process.wait_until_it_listens()
        with tf.Session(f"grpc://{addresses[0]}") as session:
            assert session.run(tf.constant(2.0) * 3.0) == 6.0
        status, out, err = process.end()
    assert status == 0
    assert out == f"cluster: 1 worker from --cluster; I am worker 0 at {addresses[0]}\n"
    assert "ended: the job of" in err
    assert "listens at" in (tmp_path / "worker_0.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(addresses: list[str], number: signal.Signals) -> None:
    with Worker(*worker(0, addresses[:1], "--no-exit-with-job")) as process:
        process.wait_until_it_listens()
        if number == signal.SIGTERM:
            for _ in range(2):  # the job ends, the worker does not
                with tf.Session(f"grpc://{addresses[0]}") as session:
                    session.run(tf.constant(1))
        process.process.send_signal(number)
        status, _, err = process.end()
    assert (status, err.splitlines()[-1]) == (0, f"flowrt-worker: ended: got {number.name}")
    assert "Traceback" not in err


@pytest.mark.parametrize("asks", ["--check", "--probe", "--drain"])
def test_ctrl_c_ends_a_question_in_silence(addresses: list[str], asks: str) -> None:
    """While the other task says nothing, which would take seconds."""
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", parse_address(addresses[0]).port))
        silent.listen()
        silent.settimeout(DEADLINE_S)
        words = ["--drain", addresses[0]] if asks == "--drain" else worker(1, addresses, asks)
        with Worker(*words) as process, silent.accept()[0]:
            process.process.send_signal(signal.SIGINT)
            status, out, err = process.end()
    assert (status, err) == (130, "")
    assert out.count("\n") == (asks != "--drain")  # which cluster it is


def test_a_taken_port(addresses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = addresses[0].split(":")
        other.bind((host, int(port)))
        other.listen()
        assert main(worker(0, addresses)) == 3
        assert main(worker(0, addresses, "--check")) == 3
    assert f"listen {addresses[0]}: expected a free port" in capsys.readouterr().err


TOKEN = "t" * 43


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_an_open_bind_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cluster", '{"worker": ["0.0.0.0:0"]}', *words]) == 6
    assert "listen 0.0.0.0:0: expected certificates" in capsys.readouterr().err
    assert main(["--cluster", '{"worker": ["0.0.0.0:0"]}', "--check", "--insecure_i_understand"]) == 0


def test_a_check_without_the_token_is_refused(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server({"worker": addresses}, "worker", 1, security=Security(token=TOKEN))
    try:
        assert main(worker(0, addresses, "--check")) == 6
        monkeypatch.setenv("FLOWRT_TOKEN", TOKEN)
        assert main(worker(0, addresses, "--check")) == 0
    finally:
        server.stop()
    said = capsys.readouterr()
    assert "auth refused" in said.out
    assert TOKEN not in said.out + said.err


# --- --drain


def test_a_task_drains_for_who_has_the_token(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--drain", addresses[0]]
    assert main(words) == 3
    assert "refused" in capsys.readouterr().err
    server = Server({"worker": addresses}, "worker", 0, security=Security(token=TOKEN))
    try:
        assert main(words) == 6
        assert "auth refused" in capsys.readouterr().err
        assert not server.join(0.0)
        monkeypatch.setenv("FLOWRT_TOKEN", TOKEN)
        assert main(words) == 0
        assert server.join(DEADLINE_S)
    finally:
        server.stop()
    said = capsys.readouterr().err
    assert "task:0 at " in said
    assert "is draining, 0 steps are running" in said


def test_a_task_that_does_not_end_is_not_waited_for_for_ever(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drain, "END_S", 0.3)
    server = Server({"worker": addresses}, "worker", 0)
    server.on_drain = lambda: None
    try:
        assert main(["--drain", addresses[0]]) == 1
    finally:
        server.stop()
    assert "expected its end within 0 s; it still answers" in capsys.readouterr().err


# --- --check


def test_check_is_content_with_a_worker(addresses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    server = Server({"worker": addresses}, "worker", 1)
    try:
        assert main(worker(0, addresses, "--check")) == 0
    finally:
        server.stop()
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"worker 1 at {addresses[1]}: ok, flowrt {tf.__version__}, by ")


def test_checks_find_each_other(addresses: list[str]) -> None:
    with Worker(*worker(1, addresses, "--check")) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "CHECK_S", DEADLINE_S)
        assert main(worker(0, addresses, "--check")) == 0
        status, out, err = other.end()
    assert (status, err) == (0, "")
    assert "worker 0 at" in out


@pytest.mark.parametrize(
    ("address", "reason"), [(None, "refused"), ("no-such-host.invalid:1", "no-such-host.invalid")]
)
def test_check_says_who_is_missing_and_why(
    addresses: list[str], address: str | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = address or addresses[1]
    assert main(worker(0, [addresses[0], peer], "--check")) == 3
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"worker 1 at {peer}: ")
    assert reason in line


def test_check_compares_versions_clusters_and_tasks(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(words: list[str]) -> str:
        assert main(words) == 3
        return capsys.readouterr().out.splitlines()[1]

    server = Server({"worker": addresses}, "worker", 1)
    try:
        assert "it has another cluster spec" in line(worker(0, [*addresses, "127.0.0.1:1"], "--check"))
        swapped = worker(1, addresses[::-1], "--check", "--bind", "127.0.0.1:0")
        assert "worker/replica:0/task:0; got /job:worker/replica:0/task:1" in line(swapped)
        moved = worker(0, ["127.0.0.1:1", addresses[1]], "--check", "--bind", addresses[0])
        assert "the same tasks at other addresses" in line(moved)
        monkeypatch.setattr(check, "PROTOCOL", check.PROTOCOL + 1)
        assert "Install one version everywhere" in line(worker(0, addresses, "--check"))
    finally:
        server.stop()


# --- the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "{"], "--cluster: cluster: expected JSON"),
        (["--cluster", '{"worker": ["a:1", "b:1"]}'], "expected a setting for this process's task"),
        (["--task", "1"], "expected a task of the cluster (0); got 1"),
        (["--cluster", '{"worker": ["a:1"]}', "--task", "3"], "expected a task of the cluster (0); got 3"),
        ([], "expected one described by --cluster, FLOWRT_CLUSTER, TF_CONFIG"),
        (["--job", "worker", "--task", "0", "--check"], "expected one described by --cluster"),
        (["--task", "x"], "argument --task: expected an integer >= 0; got x"),
        (["--task", "-1"], "expected an integer >= 0"),
        (["--drain", "a"], "expected host:port"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"flowrt-worker {tf.__version__}\n"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (InvalidArgumentError, 2), (UnavailableError, 4), (AbortedError, 5), (UnauthenticatedError, 6),
        (PermissionDeniedError, 6), (DataLossError, 7), (InternalError, 1),
    ],
)  # fmt: skip
def test_the_statuses_of_errors(kind: type[OpError], status: int) -> None:
    assert exit_code(kind("x")) == status
