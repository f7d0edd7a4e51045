"""The life of a cluster's processes: signals, restarts, versions, forks, and tasks that are not equally fast.

Numbers in brackets are those of the faults in the project's list of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli.worker import main as worker_main
from flowrt.distribute import connection_manager
from flowrt.distribute.client import cluster_runtime
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers import VARIABLES
from flowrt.distribute.wire.messages import PROTOCOL
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import ROOT, SOON_S, cluster
from tests.forks import ForkedScript

SERVES = Path(__file__).with_name("serving_script.py")


def on(task: int) -> str:
    return f"/job:worker/task:{task}"


def options(timeout_s: float = SOON_S) -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(timeout_s * 1000))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


# --- signals (3, 4)


@pytest.mark.parametrize("by", ["SIGTERM", "--drain"])
def test_who_is_told_to_end_lets_the_running_step_end(
    by: str, pool: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step waits for the test, which lets it go when the worker drains."""
    monkeypatch.setenv("FLOWRT_DRAIN", str(SOON_S))
    entered, may_go = threading.Event(), threading.Event()

    def gate(x: np.ndarray) -> np.ndarray:
        entered.set()
        assert may_go.wait(SOON_S)
        return x

    with cluster(1, 1) as tasks, tf.Graph():
        with tf.device(on(0)):
            held = tf.py_func(gate, [tf.placeholder_with_default(2.0, [])], tf.float32)
        with tf.device(on(1)):
            doubled = held * 2.0
        with tf.Session(tasks.target) as session:
            step = pool.submit(session.run, doubled, options=options())
            assert entered.wait(SOON_S)
            (worker,) = tasks.workers
            worker.wait_for_steps(1)  # the step may be here before it is there
            if by == "SIGTERM":
                worker.send_signal(signal.SIGTERM)
            else:
                draining = pool.submit(worker_main, ["--drain", worker.address])
            wait_until(lambda: worker.status().is_draining, "it drains", SOON_S)
            with (
                tf.Session(tasks.target) as late,
                pytest.raises(tf.errors.UnavailableError, match="draining"),
            ):
                late.list_devices()
            if by == "--drain":
                worker.send_signal(signal.SIGTERM)  # the first signal, of a supervisor who ends all tasks
                assert worker.status().is_draining
            may_go.set()
            assert step.result(SOON_S) == 4.0
            status, errors = worker.end()
    assert status == 0
    if by == "SIGTERM":
        assert errors.splitlines()[-1] == "flowrt-worker: ended: got SIGTERM"
        return
    assert errors.splitlines()[-1] == "flowrt-worker: ended: it was asked to drain"
    assert draining.result(SOON_S) == 0
    first, last = capsys.readouterr().err.splitlines()[:2]
    assert first == f"flowrt-worker: {worker.task} at {worker.address} is draining, 1 step is running"
    assert last == f"flowrt-worker: {worker.address} has ended"


def test_a_second_sigterm_ends_it_at_once(pool: ThreadPoolExecutor) -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        with tf.device(on(1)):
            endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [0.0])
        with tf.Session(tasks.target) as session:
            step = pool.submit(session.run, endless, options=options())
            (worker,) = tasks.workers
            worker.wait_for_steps(1)
            worker.send_signal(signal.SIGTERM)
            wait_until(lambda: worker.status().is_draining, "it drains", SOON_S)
            status, errors = worker.end(signal.SIGTERM)
            with pytest.raises(tf.errors.UnavailableError, match=worker.task):
                step.result(SOON_S)
    assert status == -signal.SIGTERM
    assert "Traceback" not in errors


@pytest.mark.parametrize("at", [0, 1], ids=["the session's own task", "another task"])
def test_who_waits_for_a_step_that_is_cut_off_is_told_that_its_task_was_drained(
    at: int, pool: ThreadPoolExecutor
) -> None:
    with cluster(0, 2, environ={"FLOWRT_DRAIN": "0.1"}) as tasks, tf.Graph():
        with tf.device(on(at)):
            endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [0.0])
        with tf.Session(tasks.target) as session:
            step = pool.submit(session.run, endless, options=options())
            worker = tasks.workers[at]
            worker.wait_for_steps(1)
            status, errors = worker.end(signal.SIGTERM)
            with pytest.raises(
                tf.errors.UnavailableError, match=rf"{worker.task} was lost: it was drained, and FLOWRT_DRAIN"
            ):
                step.result(SOON_S)
    assert status == 0
    assert errors.splitlines()[-1].endswith("got SIGTERM; running steps were cancelled")


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        (signal.SIGKILL, r"closed without a goodbye: the process or its network died"),
        (signal.SIGTERM, r"it was told to drain, and has ended"),
    ],
)
def test_a_task_that_went_between_two_steps_is_said_to_be_lost(by: signal.Signals, reason: str) -> None:
    """In the step, in the next ones, and in a new session that waits for it."""
    with cluster(1, 1) as tasks, tf.Graph(), pytest.MonkeyPatch.context() as patch:
        with tf.device(on(1)):
            doubled = tf.placeholder_with_default(2.0, []) * 2.0
        with tf.Session(tasks.target) as session:
            assert session.run(doubled) == 4.0
            (worker,) = tasks.workers
            worker.end(by)
            linked = tasks.servers[0]._connections._connections
            wait_until(lambda: worker.task not in linked, "the loss is noticed", SOON_S)
            for _ in range(2):
                with pytest.raises(tf.errors.UnavailableError, match=f"{worker.task} was lost: .*{reason}$"):
                    session.run(doubled, options=options())
        patch.setenv("FLOWRT_CONNECT_TIMEOUT", "1")
        again = f"task:1 was lost: .*{reason}. It is not back after 1 s"
        with tf.Session(tasks.target) as late, pytest.raises(tf.errors.UnavailableError, match=again):
            late.list_devices()


def test_workers_end_with_the_chief_that_was_killed(pool: ThreadPoolExecutor) -> None:
    with cluster(0, 3, "--exit-with-job") as tasks, tf.Graph():
        with tf.device(on(1)):
            endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [0.0])
        chief, *others = tasks.workers
        with tf.Session(tasks.target) as session:
            step = pool.submit(session.run, endless, options=options())
            others[0].wait_for_steps(1)
            chief.end(signal.SIGKILL)
            with pytest.raises(tf.errors.UnavailableError, match=chief.address):
                step.result(SOON_S)
            for worker in others:
                status, errors = worker.end()
                assert status == 4
                assert f"{chief.task} was lost during a session. Start the job again" in errors


SCRIPT = """
import sys
import flowrt as tf
session = tf.Session(sys.argv[1])
print(session.run(tf.constant(20) + 1))
"""


def test_a_script_that_closes_nothing_has_ended_well() -> None:
    with cluster(0, 2, environ={"FLOWRT_JOB_GRACE": "0.5"}) as tasks:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, tasks.target],
            cwd=ROOT, capture_output=True, text=True, timeout=SOON_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "21\n", "")
        assert [worker.end().status for worker in tasks.workers] == [0, 0]


@contextmanager
def script_of(addresses: list[str], task: int, **environ: str) -> Iterator[ForkedScript]:
    """`serving_script` as ``task``."""
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        script = ForkedScript(SERVES, json.dumps(addresses), str(task))
    with script:
        yield script


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_script_that_joins_its_server_ends_with_the_job(is_killed: bool) -> None:
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        with script_of(addresses, 1) as joined, script_of(addresses, 0) as chief:
            assert chief.stdout.readline() == "21\n"
            if is_killed:
                chief.kill()
                last = "task /job:worker/replica:0/task:0 was lost: it died during a session"
            else:
                chief.stdin.close()
                last = "the job has ended True"
            assert last in joined.printed()
            assert joined.status() == 0


def test_a_script_that_joins_its_server_may_outlive_jobs() -> None:
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        with script_of(addresses, 1, FLOWRT_EXIT_WITH_JOB="0"):
            for _ in range(2):
                with script_of(addresses, 0) as chief:
                    chief.stdin.close()
                    assert chief.printed() == "21\n"
                    assert chief.status() == 0


# --- restarts and versions (18)


def test_a_restarted_worker_rejoins_and_the_old_session_says_so() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        with tf.device(on(1)):
            there = tf.get_variable("there", initializer=1.0)
        with tf.device(on(0)):
            here = tf.get_variable("here", initializer=1.0)
            step = here.assign_add(there)
        (worker,) = tasks.workers
        with tf.Session(tasks.target) as old:
            old.run(tf.global_variables_initializer())
            assert old.run(step) == 2.0
            life = worker.status().incarnation
            worker.end(signal.SIGKILL)
            with pytest.raises(tf.errors.UnavailableError):  # now the master knows, too
                old.run(step, options=options())
            worker.start()
            with tf.Session(tasks.target) as new:  # which waits until it is there
                with pytest.raises(tf.errors.FailedPreconditionError, match="'there' has no value"):
                    new.run(step, options=options())
                new.run(there.initializer)
                assert new.run(step) == 3.0
                assert worker.status().incarnation != life
                with pytest.raises((tf.errors.AbortedError, tf.errors.UnavailableError)) as info:
                    old.run(step, options=options())
                assert worker.task in str(info.value)
                assert "Create a new Session" in str(info.value)
                assert new.run(here) == 3.0


@pytest.mark.parametrize("other", [PROTOCOL - 1, PROTOCOL + 1])
def test_a_client_of_another_version_is_told_so(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    """(18) Before anything else."""
    monkeypatch.setattr(cluster_runtime, "PROTOCOL", other)
    with cluster(0, 1) as tasks, tf.Graph():
        both = rf"protocol {PROTOCOL} \(flowrt .*got {other} \(flowrt"
        with pytest.raises(tf.errors.FailedPreconditionError, match=both):
            tf.Session(tasks.target)


@pytest.mark.parametrize("other", [PROTOCOL - 1, PROTOCOL + 1])
def test_a_task_of_another_version_is_told_so(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    monkeypatch.setattr(connection_manager, "PROTOCOL", other)
    with cluster(1, 1) as tasks, tf.Graph(), tf.Session(tasks.target) as session:
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=rf"protocol {PROTOCOL} .*got {other} .*task:0"
        ):
            session.run(tf.constant(1.0) + 1.0)


# --- addresses and silence (22)


def test_a_cluster_may_speak_ipv6() -> None:
    try:
        server = tf.train.Server({"worker": ["[::1]:0"]})
    except tf.errors.UnavailableError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.target],
            cwd=ROOT, capture_output=True, text=True, timeout=SOON_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "21\n", "")
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpc", "unix", "tcp"])
def test_a_connection_may_be_idle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC asks every 10 s whether the other end is there; who does not allow that cuts it at the fourth."""
    monkeypatch.setenv("FLOWRT_TRANSPORT", kind)
    with cluster(1, 1) as tasks, tf.Graph(), tf.device(on(1)):
        x = tf.placeholder_with_default(2.0, [])
        with tf.Session(tasks.target) as session:
            assert session.run(x * 2.0) == 4.0
            pids = os.getpid(), tasks.workers[0].pid
            threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in pids]
            time.sleep(55.0)
            for pid, before in zip(pids, threads, strict=True):
                assert len(os.listdir(f"/proc/{pid}/task")) <= before
            assert session.run(x * 3.0) == 6.0


# --- forks (23)

FORKED = """
import os, sys
import flowrt as tf

with tf.Graph():
    with tf.device("/job:worker/task:0"):
        y = tf.placeholder_with_default(20, []) + 1
    session = tf.Session(sys.argv[1])
    assert session.run(y) == 21
    pid = os.fork()
    if pid == 0:
        try:
            session.run(y)
        except tf.errors.FailedPreconditionError as error:
            os._exit(0 if "forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert session.run(y) == 21
"""


def test_a_forked_child_gets_one_clear_error() -> None:
    with cluster(0, 1) as tasks:
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, tasks.target],
            cwd=ROOT, capture_output=True, text=True, timeout=SOON_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


# --- tasks that are not equally fast (24)


def test_a_straggler_is_waited_for(pool: ThreadPoolExecutor) -> None:
    """Two programs share a counter in task 1; one of them runs a tenth of the other's steps, and slowly."""
    with cluster(1, 1) as tasks:

        def train(steps: int, pause_s: float) -> None:
            def slow(x: np.ndarray) -> np.ndarray:
                time.sleep(pause_s)  # what a slow input does
                return x

            with tf.Graph():
                with tf.device(on(1)):
                    count = tf.get_variable("count", initializer=0.0)
                with tf.device(on(0)):
                    one = tf.py_func(slow, [tf.placeholder_with_default(1.0, [])], tf.float32)
                    one.set_shape([])
                step = count.assign_add(one)
                with tf.Session(tasks.target) as session:
                    for _ in range(steps):
                        session.run(step, options=options())

        with tf.Graph(), tf.device(on(1)):
            count = tf.get_variable("count", initializer=0.0)
            with tf.Session(tasks.target) as session:
                session.run(count.initializer)
                for done in [pool.submit(train, 100, 0.0), pool.submit(train, 10, 0.02)]:
                    done.result(SOON_S)
                assert session.run(count) == 110.0


def test_the_last_batch_may_be_smaller() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        x = tf.placeholder(tf.float32, [None, 3])
        with tf.device(on(1)):
            there = tf.reduce_sum(x * 2.0, 1)
        with tf.device(on(0)):
            total = tf.reduce_sum(there)
        with tf.Session(tasks.target) as session:
            for rows in (64, 64, 7, 1, 0):
                assert session.run(total, {x: np.ones((rows, 3), np.float32)}, options()) == 6.0 * rows


# --- sizes (9)


def test_nothing_travels_too() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        x = tf.placeholder(tf.float32, [None, 3])
        with tf.device(on(1)):
            there = x + 1.0
        with tf.device(on(0)):
            here = tf.concat([there, there], 1)
        with tf.Session(tasks.target) as session:
            assert session.run([here, there], {x: np.zeros((0, 3), np.float32)})[0].shape == (0, 6)


@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    """2 GiB here and 2 GiB there."""
    count = (1 << 31) + 5
    with cluster(1, 1) as tasks, tf.Graph():
        with tf.device(on(1)):
            large = tf.fill([count], tf.placeholder_with_default(np.int8(3), []))
        with tf.device(on(0)):
            end = tf.identity(large)[-2:]
        with tf.Session(tasks.target) as session:
            assert session.run(end, options=options(100.0)).tolist() == [3, 3]
