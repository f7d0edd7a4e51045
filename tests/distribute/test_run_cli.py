"""``flowrt-run``: decisions without processes, then scripts that end well, fail, hang and are killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.cli import run as run_cli
from flowrt.cli.run import main
from flowrt.distribute.launch import launcher
from flowrt.distribute.launch.local_cluster import ReservedPorts, threads_each
from flowrt.distribute.launch.supervision import (
    Action,
    AwaitCause,
    AwaitEnds,
    CauseOver,
    Event,
    Exited,
    Finish,
    GraceOver,
    Interrupted,
    Kill,
    Lingered,
    Note,
    Report,
    Start,
    Supervisor,
    Terminate,
)
from flowrt.distribute.launch.task_output import TAIL_LINES, TaskOutput, follows_another, last_error
from flowrt.distribute.resolvers import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


# --- decisions


def outcome(supervisor: Supervisor, *events: Event) -> list[Action]:
    """The actions after ``events``, from the start on."""
    actions = supervisor.start()
    for event in events:
        actions += supervisor.handle(event)
        supervisor.check()
    return actions


def test_all_end_well() -> None:
    assert outcome(Supervisor(2, 0), Exited(1, 0), Exited(0, 0)) == [Start(0), AwaitEnds(), Finish(0)]


def test_the_first_failure_ends_the_others_and_gives_the_status() -> None:
    cause = Exited(1, 3)
    assert outcome(Supervisor(3, 0), cause, Exited(0, -15), Exited(2, -15)) == [
        Start(0), Terminate((0, 2)), Report(cause, 0), Finish(3),
    ]  # fmt: skip


def test_who_does_not_end_is_killed() -> None:
    actions = outcome(Supervisor(2, 0), Exited(0, 1), GraceOver(), Exited(1, -9))
    assert actions[1:3] == [Terminate((1,)), Kill((1,))]


def test_the_root_cause_is_not_the_one_that_lost_its_peer() -> None:
    lost, cause = Exited(0, 1, follows=True), Exited(1, -signal.SIGSEGV)
    actions = outcome(Supervisor(2, 0), lost, cause)
    assert actions[-2:] == [Report(cause, 0), Finish(128 + signal.SIGSEGV)]
    assert outcome(Supervisor(2, 0), lost, Exited(1, 0))[-2] == Report(lost, 0)


def test_who_lost_a_peer_does_not_end_the_others_before_the_cause_could_show() -> None:
    lost, cause = Exited(0, 1, follows=True), Exited(1, 1)
    actions = outcome(Supervisor(3, 0), lost, cause, CauseOver(), Exited(2, -15))
    assert actions == [Start(0), AwaitCause(), Terminate((2,)), Report(cause, 0), Finish(1)]
    actions = outcome(Supervisor(2, 0), lost, CauseOver(), Exited(1, -15))
    assert actions == [Start(0), AwaitCause(), Terminate((1,)), Report(lost, 0), Finish(1)]


def test_who_ended_well_is_named_while_others_run() -> None:
    actions = outcome(Supervisor(3, 0), Exited(0, 0), Lingered(), Exited(1, 0), Exited(2, 0), Lingered())
    assert actions == [Start(0), AwaitEnds(), Note((0,), (1, 2)), Finish(0)]


def test_all_start_again() -> None:
    actions = outcome(Supervisor(1, 1), Exited(0, 1), Exited(0, 2))
    assert actions == [Start(0), Report(Exited(0, 1), 0), Start(1), Report(Exited(0, 2), 1), Finish(2)]


def test_an_interrupted_job_does_not_start_again() -> None:
    actions = outcome(
        Supervisor(1, 5), Interrupted(signal.SIGTERM), Interrupted(signal.SIGTERM), Exited(0, -9)
    )
    assert actions == [Start(0), Terminate((0,)), Kill((0,)), Finish(143)]


EVENTS = st.one_of(
    st.builds(Exited, st.integers(0, 3), st.sampled_from([0, 1, 4, -9, -15]), st.booleans()),
    st.builds(Interrupted, st.sampled_from([signal.SIGINT, signal.SIGTERM])),
    st.sampled_from([GraceOver(), CauseOver(), Lingered()]),
)


@given(st.integers(1, 4), st.integers(0, 2), st.lists(EVENTS, max_size=40))
def test_any_events_keep_the_rules(size: int, max_restarts: int, events: list[Event]) -> None:
    supervisor = Supervisor(size, max_restarts)
    actions = outcome(supervisor, *events)
    assert [each.attempt for each in actions if isinstance(each, Start)] == list(
        range(sum(isinstance(each, Start) for each in actions))
    )
    assert sum(isinstance(each, Start) for each in actions) <= max_restarts + 1
    assert not any(isinstance(each, Finish) for each in actions[:-1])  # nothing comes after it
    if not isinstance(actions[-1], Finish):  # whatever happened: when all have ended, so has the job
        ends = [Exited(rank, 0) for _ in range(max_restarts + 1) for rank in range(size)]
        assert any(isinstance(each, Finish) for end in ends for each in supervisor.handle(end))


# --- what tasks print


def test_output_goes_to_the_log_as_it_is_and_to_the_console_in_lines(tmp_path: Path) -> None:
    with (tmp_path / "console").open("wb") as console:
        output = TaskOutput(tmp_path / "logs" / "a.log", (console, console), "[a] ")
        for stream, data in ((0, b"on"), (1, b"err\n"), (0, b"e\ntwo"), (0, b"\n\xff")):
            output.write(stream, data)
        output.close()
    assert (tmp_path / "logs" / "a.log").read_bytes() == b"onerr\ne\ntwo\n\xff"
    assert (tmp_path / "console").read_bytes() == b"[a] err\n[a] one\n[a] two\n[a] \xff\n"
    assert output.tail() == ["err", "one", "two", "\ufffd"]


def test_the_end_of_a_long_output_is_kept() -> None:
    output = TaskOutput(None)
    output.write(0, b"".join(b"%d\n" % i for i in range(1000)))
    output.write(1, b"x" * 100_000)
    output.close()
    assert len(output.tail()) == TAIL_LINES
    assert max(map(len, output.tail())) <= 4096


def test_a_console_that_is_gone_is_left_alone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as console:
        output = TaskOutput(None, (console, console))
        output.write(0, b"one\n")
        output.write(0, b"two\n")
    assert output.tail() == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "error", "follows"),
    [
        ("ValueError: boom", "ValueError: boom", False),
        ("flowrt.errors.InvalidArgumentError: MatMul: x", "InvalidArgumentError: MatMul: x", False),
        ("flowrt.errors.UnavailableError: lost", "UnavailableError: lost", True),
        ("KeyboardInterrupt", "KeyboardInterrupt", False),
        ("    raise ValueError: no", None, False),
    ],
)
def test_the_error_of_a_traceback(line: str, error: str | None, follows: bool) -> None:
    assert last_error(["Traceback (most recent call last):", line, "goodbye"]) == error
    assert follows_another(error) is follows


# --- ports


def test_reserved_ports_are_for_who_asks_for_them_only() -> None:
    with ReservedPorts(2) as reserved, socket.socket() as listener, socket.socket() as stranger:
        assert len(set(reserved.ports)) == 2
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", reserved.ports[0]))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", reserved.ports[0]))
        listener.listen()
        with socket.create_connection(("127.0.0.1", reserved.ports[0]), timeout=DEADLINE_S):
            pass
    with socket.socket() as after:
        after.bind(("127.0.0.1", reserved.ports[1]))


def test_threads_are_shared_out() -> None:
    assert [threads_each(8, tasks) for tasks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


# --- scripts


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text("import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n" + text)
        return str(path)

    return write


def test_each_task_knows_who_it_is(script: Callable[[str], str], capfd: pytest.CaptureFixture[str]) -> None:
    names = ("FLOWRT_TASK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "RESTART_COUNT", "OMP_NUM_THREADS")
    path = script(
        f"print(*(os.environ[name] for name in {names}), sys.argv[1:])\n"
        "open(sys.argv[0] + '.cluster', 'w').write(os.environ['FLOWRT_CLUSTER'])"
    )
    assert main(["--standalone", "--nproc", "2", path, "--max_restarts", "-x"]) == 0
    out, err = capfd.readouterr()
    first = json.loads(Path(f"{path}.cluster").read_text())["worker"][0]
    threads = threads_each(len(os.sched_getaffinity(0)), 2)
    assert sorted(out.splitlines()) == [
        f"[worker {r}] worker:{r} {r} 2 127.0.0.1 0 {threads} ['--max_restarts', '-x']" for r in range(2)
    ]
    assert re.search(
        rf"2 workers, 2 of them here with .* each, the first at grpc://{re.escape(first)}\n", err
    )


def test_a_failure_has_one_summary_with_the_root_cause(
    script: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script("if rank == 1: raise ValueError('boom')\nprint('waiting')\ntime.sleep(600)")
    assert main(["--nproc", "2", "--log_dir", str(tmp_path / "logs"), path]) == 1
    err = capfd.readouterr().err
    assert err.count("failed") == 1
    assert "attempt 0 failed: worker 1 exited with status 1\n  error: ValueError: boom" in err
    log = tmp_path / "logs" / "attempt_0" / "worker_1.log"
    assert str(log) in err
    assert log.read_text().endswith("ValueError: boom\n")


def test_a_script_that_said_nothing_has_no_last_lines(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--standalone", script("os._exit(3)")]) == 3
    *_, last = capfd.readouterr().err.splitlines()
    assert last == "flowrt-run: attempt 0 failed: worker 0 exited with status 3"


def test_the_cause_is_named_though_who_lost_it_ends_first(
    script: Callable[[str], str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "CAUSE_S", 60.0)
    path = script(
        "gone = sys.argv[1]\n"
        "if rank == 0:\n"
        "    open(gone, 'w').close()\n"
        "    raise type('UnavailableError', (Exception,), {'__module__': 'builtins'})('rank 1 was lost')\n"
        "while not os.path.exists(gone): time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "raise ValueError('my own bug')"
    )
    assert main(["--nproc", "2", "--tee", "none", path, str(tmp_path / "gone")]) == 1
    err = capfd.readouterr().err
    assert "failed: worker 1 exited with status 1\n  error: ValueError: my own bug" in err


def test_it_says_who_has_ended_while_another_runs(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "LINGER_S", 0.0)
    path = script(
        "said = f'/proc/{os.getppid()}/fd/2'  # of the launcher\n"
        "while rank == 1 and 'still runs' not in open(said).read(): time.sleep(0.01)"
    )
    assert main(["--nproc", "2", path]) == 0
    assert "flowrt-run: worker 0 ended with 0; worker 1 still runs" in capfd.readouterr().err


def test_a_restart_that_works(
    script: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(
        "print('attempt', os.environ['RESTART_COUNT'], os.environ['FLOWRT_CLUSTER'])\n"
        "if os.environ['RESTART_COUNT'] == '0': os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert main(["--max-restarts", "3", "--log-dir", str(tmp_path), path]) == 0
    out, err = capfd.readouterr()
    first, second = out.splitlines()
    assert first.replace("attempt 0", "attempt 1") == second  # the ports are the same
    assert "worker 0 was killed by SIGKILL" in err
    assert (tmp_path / "attempt_1" / "worker_0.log").exists()


def test_who_ignores_sigterm_is_killed(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 0.1)
    path = script(
        "ready = sys.argv[1]\n"
        "if rank == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open(ready, 'w').close()\n"
        "    time.sleep(60)\n"
        "while not os.path.exists(ready): time.sleep(0.01)\n"
        "sys.exit(7)"
    )
    assert main(["--nproc", "2", "--tee", "none", path, str(Path(path).with_name("ready"))]) == 7


def test_a_task_takes_its_own_children_along(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script(
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    )
    assert main([path]) == 0
    wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())))


def is_gone(pid: int) -> bool:
    """Whether the process has ended; nobody may have waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flowrt.cli.run", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_launcher(script: Callable[[str], str], tmp_path: Path, number: int) -> None:
    path = script(
        f"name = {str(tmp_path)!r} + f'/pid{{rank}}'\n"
        "open(name + '.new', 'w').write(str(os.getpid()))\n"
        "os.rename(name + '.new', name)\n"
        "time.sleep(60)"
    )
    launched = start("--nproc", "2", path)
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in files))
    launched.send_signal(number)
    launched.communicate(timeout=DEADLINE_S)
    assert launched.returncode == (128 + number if number == signal.SIGTERM else -number)
    for file in files:
        pid = int(file.read_text())
        wait_until(lambda pid=pid: is_gone(pid))


def test_hosts_share_a_cluster(script: Callable[[str], str], capfd: pytest.CaptureFixture[str]) -> None:
    path = script("print(os.environ['FLOWRT_TASK'], os.environ['LOCAL_RANK'], os.environ['FLOWRT_CLUSTER'])")
    port = random.Random(os.getpid()).randrange(10_000, 20_000)
    cluster = f'{{"worker": ["127.0.0.1:{port}", "127.0.0.1:{port + 10}"]}}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWRT_CLUSTER", cluster)
        patch.setenv("FLOWRT_TASK", "1")
        assert main(["--nnodes", "2", "--nproc", "2", "--tee", "all", path]) == 0
        assert main(["--nnodes", "3", path]) == 3
    lines = sorted(capfd.readouterr().out.splitlines())
    assert [line.split(" ", 4)[2:4] for line in lines] == [["worker:2", "0"], ["worker:3", "1"]]
    assert f'"127.0.0.1:{port + 1}", "127.0.0.1:{port + 10}"' in lines[0]


# --- the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-script.py"], "expected a Python file; got 'no-such-script.py'"),
        (["--nproc", "0", "x.py"], "expected an integer >= 1; got 0"),
        (["--max-restarts", "-1", "x.py"], "expected an integer >= 0"),
        ([], "the following arguments are required: script\n"),
        (
            ["--log-dir", __file__, __file__],
            f"--log-dir: expected a directory that can be created; got '{__file__}'",
        ),
        (["--nope", "x.py"], "unrecognized arguments: --nope"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_how_an_end_is_told() -> None:
    assert run_cli.ending(3) == "exited with status 3"
    assert run_cli.ending(-11) == "was killed by SIGSEGV"
    assert run_cli.ending(-40) == "was killed by signal 40"
