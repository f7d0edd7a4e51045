"""Tasks that die, networks that fail, bytes that lie: what the survivors see, and what their variables hold.

Numbers in brackets are those of the faults in the project's list of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import server
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.launch.check import probe
from flowrt.distribute.master import pending_replies
from flowrt.distribute.wire import messages
from flowrt.distribute.wire.messages import Message, encode
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.framing import MAX_HEADER
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import open_files, random_bytes, wait_until
from tests.distribute.processes import SOON_S, cluster, cluster_with_proxy, dial_as_client, wait_until_idle
from tests.each import nightly

NOTICED_S = 6.0  # before a task that is silent is given up: its end is noticed, not its silence
COMMITTED = 3


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """gRPC keeps some descriptors and threads for the next connection."""
    with cluster(1, 1) as tasks, tf.Graph(), tf.Session(tasks.target) as session:
        session.list_devices()


@pytest.fixture(autouse=True)
def nothing_is_left(warm: None) -> Iterator[None]:
    """No descriptor, no thread, no segment. Processes are reaped by `cluster`."""
    files, threads = open_files(), set(threading.enumerate())
    yield
    wait_until(lambda: open_files() <= files, "descriptors are closed", SOON_S)
    wait_until(lambda: set(threading.enumerate()) <= threads, "threads have ended", SOON_S)
    wait_until(lambda: "memfd:flowrt" not in Path("/proc/self/maps").read_text(), "segments are unmapped")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def on(task: int) -> str:
    return f"/job:worker/task:{task}"


def options(timeout_s: float = SOON_S) -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(timeout_s * 1000))


class Counters:
    """``here`` on task 0 and ``there`` on the last task; task 1 says by how much they grow."""

    def __init__(self, last: int = 0) -> None:
        with tf.device(on(0)):
            self.here = tf.get_variable("here", initializer=0.0)
        with tf.device(on(last)):
            self.there = tf.get_variable("there", initializer=0.0)
        with tf.device(on(1)):
            one = tf.identity(tf.placeholder_with_default(1.0, []))
        self.step = tf.group(self.here.assign_add(one), self.there.assign_add(one))
        added = self.here.assign_add(one)
        with tf.device(on(1)):
            endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [added])
        self.step_that_hangs = self.there.assign_add(endless)
        """`here` grows, then task 1 computes for ever, and with the result `there` would grow."""

    def commit(self, session: tf.Session) -> None:
        session.run(tf.variables_initializer([self.here, self.there]))
        for _ in range(COMMITTED):
            session.run(self.step, options=options())

    def read(self, target: str, *tasks: int) -> list[float]:
        """Their values, by a session that needs none but ``tasks`` and the master's."""
        config = tf.ConfigProto(device_filters=[on(task) for task in tasks] or [on(0)])
        with tf.Session(target, graph=self.here.graph, config=config) as session:
            return list(session.run([self.here, self.there]))


def run_beside(pool: ThreadPoolExecutor, session: tf.Session, fetch: Any) -> Future[Any]:
    return pool.submit(session.run, fetch, options=options())


def check_lost(run: Callable[[], Any], task: str) -> tf.errors.OpError:
    """``run`` raises the error of all who need ``task``; its connection told, not the lack of heartbeats."""
    with pytest.raises(tf.errors.UnavailableError, match=task) as info:
        run()
    assert "no sign of life" not in str(info.value)
    return info.value


# --- a step fails


def test_a_step_that_fails_on_one_task_leaves_nothing_on_the_others() -> None:
    with cluster(3, 0) as tasks, tf.Graph():
        x = tf.placeholder(tf.float32, [20_000])  # too large to be copied before it leaves
        fed = np.zeros(20_000, np.float32)
        fed[0] = np.inf
        with tf.device(on(1)):
            made = x + 1.0
            checked = tf.check_numerics(made, "planted")
        with tf.device(on(0)):
            here = made * 2.0 + checked
        with tf.device(on(2)):  # it waits for nobody, so nothing but the master's word ends it
            start = tf.placeholder_with_default(0.0, [])
            there = tf.while_loop(lambda y: y >= 0.0, lambda y: tf.abs(y) + 1.0, [start])
        with tf.Session(tasks.target) as session:
            for _ in range(3):
                with pytest.raises(tf.errors.InvalidArgumentError, match="planted"):
                    session.run([here, there], {x: fed}, options())
                for server in tasks.servers:
                    wait_until_idle(server)
            assert session.run(made, {x: fed}, options())[1] == 1.0


# --- a task is killed (1)


def test_killed_between_two_steps() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            tasks.workers[0].end(signal.SIGKILL)
            check_lost(lambda: session.run(counters.step, options=options()), tasks.workers[0].task)
        assert counters.read(tasks.target) == [COMMITTED, COMMITTED]


@pytest.mark.slow
def test_a_killed_worker_is_noticed_before_its_silence_is(pool: ThreadPoolExecutor) -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            step = run_beside(pool, session, counters.step_that_hangs)
            tasks.workers[0].wait_for_steps(1)
            killed = time.monotonic()
            tasks.workers[0].end(signal.SIGKILL)
            check_lost(lambda: step.result(SOON_S), tasks.workers[0].task)
            assert time.monotonic() - killed < NOTICED_S


def test_killed_in_the_middle_of_a_steps_updates(pool: ThreadPoolExecutor) -> None:
    """One variable has grown and one has not, and it stays so: nothing of the step is done again."""
    with cluster(1, 2) as tasks, tf.Graph():
        counters = Counters(last=2)
        victim, survivor = tasks.workers
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            step = run_beside(pool, session, counters.step_that_hangs)
            wait_until(lambda: session.run(counters.here) == COMMITTED + 1, "the first update", SOON_S)
            victim.end(signal.SIGKILL)
            check_lost(lambda: step.result(SOON_S), victim.task)
            survivor.wait_for_steps(0)
        assert counters.read(tasks.target, 2) == [COMMITTED + 1, COMMITTED]


def test_killed_between_send_and_recv(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value waits in its producer's table, and the request for it has not come."""
    monkeypatch.setenv("FLOWRT_FAULTS", "RecvTensor:drop=1")
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            session.run(tf.global_variables_initializer())
            step = run_beside(pool, session, counters.step)
            tasks.workers[0].wait_for_steps(1)
            tasks.workers[0].end(signal.SIGKILL)
            check_lost(lambda: step.result(SOON_S), tasks.workers[0].task)
        assert counters.read(tasks.target) == [0, 0]


def test_killed_while_its_variables_are_saved(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """It sleeps before, so that the save cannot end."""
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters(last=1)
        saver = tf.train.Saver([counters.here, counters.there])
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            whole = saver.save(session, str(tmp_path / "model"), 1)
            files = sorted(tmp_path.iterdir())
            session.run(counters.step, options=options())
            tasks.workers[0].freeze()
            save = pool.submit(saver.save, session, str(tmp_path / "model"), 2)
            wait_until(lambda: tasks.servers[0]._master._pending, "the save has begun", SOON_S)
            tasks.workers[0].end(signal.SIGKILL)
            check_lost(lambda: save.result(SOON_S), tasks.workers[0].task)
        assert tf.train.latest_checkpoint(str(tmp_path)) == whole
        assert sorted(tmp_path.iterdir()) == files
        tasks.workers[0].start()
        with tf.Session(tasks.target) as session:
            saver.restore(session, whole)
            assert session.run([counters.here, counters.there]) == [COMMITTED, COMMITTED]


def test_killed_while_it_drains(pool: ThreadPoolExecutor) -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            step = run_beside(pool, session, counters.step_that_hangs)
            wait_until(lambda: session.run(counters.here) == COMMITTED + 1, "the first update", SOON_S)
            tasks.workers[0].wait_for_steps(1)  # without one it would end at once
            tasks.workers[0].send_signal(signal.SIGTERM)
            wait_until(lambda: tasks.workers[0].status().is_draining, "it drains", SOON_S)
            tasks.workers[0].end(signal.SIGKILL)
            check_lost(lambda: step.result(SOON_S), tasks.workers[0].task)
        assert counters.read(tasks.target) == [COMMITTED + 1, COMMITTED]


def test_all_survivors_and_the_client_name_the_task_that_was_killed(pool: ThreadPoolExecutor) -> None:
    """The master is another process than the session's, and not the victim."""
    with cluster(0, 3, "--no-exit-with-job") as tasks, tf.Graph():
        counters = Counters(last=2)
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            step = run_beside(pool, session, counters.step_that_hangs)
            wait_until(lambda: session.run(counters.here) == COMMITTED + 1, "the first update", SOON_S)
            tasks.workers[1].end(signal.SIGKILL)
            error = check_lost(lambda: step.result(SOON_S), tasks.workers[1].task)
            assert (error.op or "").startswith("while"), error
            assert "test_failures.py" in (error.source or ""), error
            for survivor in (tasks.workers[0], tasks.workers[2]):
                survivor.wait_for_steps(0)
        assert counters.read(tasks.target, 2) == [COMMITTED + 1, COMMITTED]


@pytest.mark.slow
def test_a_task_that_sleeps_is_given_up_and_ends_when_it_wakes(pool: ThreadPoolExecutor) -> None:
    """(2) What it says afterwards is of a life that nobody waits for."""
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            slept = time.monotonic()
            tasks.workers[0].freeze()
            step = run_beside(pool, session, counters.step)
            with pytest.raises(tf.errors.UnavailableError, match=r"task:1 was lost: no sign of life"):
                step.result(2 * SOON_S)
            assert time.monotonic() - slept > 7
            assert tasks.workers[0].end(signal.SIGCONT).status == 4
        assert counters.read(tasks.target) == [COMMITTED, COMMITTED]


@pytest.mark.slow
def test_how_long_silence_may_last_is_a_setting(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in less time."""
    monkeypatch.setenv("FLOWRT_HEARTBEAT", "0.5")
    monkeypatch.setenv("FLOWRT_LOST_AFTER", "3")
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            tasks.workers[0].freeze()
            step = run_beside(pool, session, counters.step)
            with pytest.raises(tf.errors.UnavailableError, match="no sign of life for 3 s"):
                step.result(SOON_S)
            assert tasks.workers[0].end(signal.SIGCONT).status == 4
        assert counters.read(tasks.target) == [COMMITTED, COMMITTED]


STEPS_OF_A_CLIENT = """
import sys
import flowrt as tf
with tf.device("/job:worker/task:0"):
    here = tf.random_uniform([])
with tf.device("/job:worker/task:1"):
    there = here + 1.0
with tf.Session(sys.argv[1]) as session:
    while True:
        session.run(there)
        print("a step", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "grpc"])
def test_a_cluster_that_stands_still_as_a_whole_and_goes_on_loses_nobody(transport: str) -> None:
    """As a container that is paused, or a virtual machine that moves: nobody was silent."""
    variables = {"FLOWRT_HEARTBEAT": "0.5", "FLOWRT_LOST_AFTER": "3", "FLOWRT_TRANSPORT": transport}
    with cluster(0, 2, "--no-exit-with-job", environ=variables) as tasks, ExitStack() as stack:
        client = subprocess.Popen(
            [sys.executable, "-c", STEPS_OF_A_CLIENT, tasks.target],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
        )
        for end in (client.stdout.close, client.wait, client.kill):  # type: ignore[union-attr]
            stack.callback(end)
        everybody = [client.pid, *(worker.pid for worker in tasks.workers)]
        for pause_s in (4.0, 4.0, 0.0):
            for _ in range(20):
                assert client.stdout.readline() == b"a step\n"  # type: ignore[union-attr]
            for pid in everybody:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(pause_s)
            for pid in everybody:
                os.kill(pid, signal.SIGCONT)
        assert not any(worker.has_ended for worker in tasks.workers)


# --- frames are lost, repeated and out of order (7, 8)


@pytest.mark.parametrize("faults", ["*:duplicate=0.3;seed=1", "RunGraph:duplicate=1;RecvTensor:duplicate=1"])
def test_what_comes_twice_is_done_once(monkeypatch: pytest.MonkeyPatch, faults: str) -> None:
    monkeypatch.setenv("FLOWRT_FAULTS", faults)
    with cluster(2, 0) as tasks, tf.Graph():
        counters = Counters(last=1)
        with tf.Session(tasks.target) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(50):
                session.run(counters.step, options=options())
            assert session.run([counters.here, counters.there]) == [50, 50]


def test_what_is_lost_now_and_then_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, steps and tensors, on the way there and on the way back: no step notices, none is run twice."""
    kinds = ("RegisterGraph", "RunGraph", "RecvTensor", "CreateWorkerSession")
    monkeypatch.setenv("FLOWRT_FAULTS", ";".join(f"{kind}:drop=0.2,drop_reply=0.2" for kind in kinds))
    monkeypatch.setenv("FLOWRT_HEARTBEAT", "0.05")
    monkeypatch.setattr(server, "TICK_S", 0.05)
    with cluster(2, 0) as tasks, tf.Graph():
        counters = Counters(last=1)
        with tf.Session(tasks.target) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(20):
                session.run(counters.step, options=options())
            assert session.run([counters.here, counters.there]) == [20, 20]


@pytest.mark.parametrize("lost", ["RunGraph:drop=1", "RecvTensor:drop=1", "RecvTensor:drop_reply=1"])
def test_what_is_lost_is_a_step_that_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setenv("FLOWRT_FAULTS", lost)
    monkeypatch.setattr(pending_replies, "GRACE_S", 0.5)
    with cluster(2, 0) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(counters.step, options=options(0.3))
            assert session.run([counters.here, counters.there]) == [0, 0]


@pytest.mark.parametrize("kind", nightly(["tcp", "unix", "grpc"], 1))
def test_a_tensor_that_is_cut_off_is_never_seen(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("FLOWRT_TRANSPORT", kind)
    with cluster(1, 1, environ={"FLOWRT_FAULTS": "RecvTensor:cut_reply=1"}) as tasks, tf.Graph():
        with tf.device(on(0)):
            seen = tf.get_variable("seen", shape=[16 << 20], initializer=tf.zeros_initializer())
        with tf.device(on(1)):
            large = tf.fill([16 << 20], tf.placeholder_with_default(7.0, []))
        with tf.Session(tasks.target) as session:
            session.run(seen.initializer)
            with pytest.raises(tf.errors.UnavailableError, match="task:1"):
                session.run(seen.assign(large), options=options())
        with tf.Session(tasks.target) as session:  # the task lives, and what it was asked for is over
            values = session.run(seen)
        assert values.min() == values.max()  # all of it or nothing: the cut may have come behind its end


# --- the network is slow, or silent (5, 6)


@pytest.fixture
def by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends are on one host: left alone they would go round the proxy."""
    monkeypatch.setenv("FLOWRT_TRANSPORT", "grpc")


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [{"delay_s": 0.02}, {"delay_s": 0.2}, {"bytes_per_s": 1e6}, {"piece_bytes": 1}], ids=str
)
def test_a_slow_network_is_no_failure(by_grpc: None, network: dict[str, float]) -> None:
    with cluster_with_proxy(**network) as (server, worker, proxy), tf.Graph():
        counters = Counters()
        with tf.device(on(1)):
            large = tf.range(tf.placeholder_with_default(30_000, []))
        with tf.device(on(0)):
            total = tf.reduce_sum(large)
        with tf.Session(server.target) as session:
            counters.commit(session)
            assert session.run(total, options=options()) == 30_000 * 29_999 // 2
        assert counters.read(server.target) == [COMMITTED, COMMITTED]
        assert proxy.connections
        assert probe(new_transport(), worker.address, SOON_S).kind == "grpc"


@pytest.mark.slow
@pytest.mark.parametrize("directions", [("there",), ("back",), ("there", "back")], ids=" ".join)
def test_a_short_silence_is_no_failure(
    by_grpc: None, pool: ThreadPoolExecutor, directions: tuple[str, ...]
) -> None:
    with cluster_with_proxy() as (server, _, proxy), tf.Graph():
        counters = Counters()
        with tf.Session(server.target) as session:
            counters.commit(session)
            proxy.silence(*directions)
            step = run_beside(pool, session, counters.step)
            with pytest.raises(TimeoutError):
                step.result(5.0)
            proxy.heal()
            step.result(SOON_S)
        assert counters.read(server.target) == [COMMITTED + 1, COMMITTED + 1]


@pytest.mark.slow
@pytest.mark.parametrize("directions", [("there",), ("back",), ("there", "back")], ids=" ".join)
def test_a_long_silence_is_the_same_failure_at_both_ends(
    by_grpc: None, pool: ThreadPoolExecutor, directions: tuple[str, ...]
) -> None:
    with cluster_with_proxy() as (server, worker, proxy), tf.Graph():
        counters = Counters()
        with tf.Session(server.target) as session:
            counters.commit(session)
            silent = time.monotonic()
            proxy.silence(*directions)
            step = run_beside(pool, session, counters.step)
            with pytest.raises(tf.errors.UnavailableError, match="task:1 was lost"):
                step.result(SOON_S)
            assert time.monotonic() - silent > 7
            assert worker.end().status == 4
        assert counters.read(server.target) == [COMMITTED, COMMITTED]


# --- bytes that lie (9, 16)


def test_a_graph_beyond_the_limit_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_HEADER > messages.MAX_GRAPH_BYTES  # else the error would be of frames, which nobody knows
    monkeypatch.setattr(messages, "MAX_GRAPH_BYTES", 1000)
    with cluster(2, 0) as tasks, tf.Graph(), tf.device(on(1)):
        x = y = tf.placeholder_with_default(1.0, [])
        for _ in range(100):
            y = y + x
        with tf.Session(tasks.target) as session:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 1000 bytes"):
                session.run(y, options=options())
            assert session.run(x + 1.0, options=options()) == 2.0  # by the same connection


def _lies(random: Random, number: int) -> list[tuple[bytes, list[Any]]]:
    """Frames that no task sends, with request numbers from ``number`` on: noise, wrong order, changed bits,
    lengths that are not so.
    """
    run = encode(number, Message(pb.RunGraph(graph=1 << 40, step=3), [np.arange(5000.0)]))
    asks = encode(number + 1, Message(pb.RecvTensor(step=3, keys=["no key at all", "x;" * 1000])))
    graph = encode(number + 3, Message(pb.RegisterGraph(session="x", graph=b"\xff{" * 50)))
    lies: list[tuple[bytes, list[Any]]] = []
    for frame in (run, asks, graph):
        lies += [frame, (frame.header, []), (frame.header, [random_bytes(7)])]
        for _ in range(20):
            changed = bytearray(frame.header)
            for _ in range(random.randint(1, 4)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            lies.append((bytes(changed), frame.payload))
    return lies + [(random.randbytes(length), []) for length in (0, 1, 50, 5000)]


def test_lies_harm_nobody_but_who_tells_them() -> None:
    """A stranger who has the way in sends nonsense; the steps of others go on."""
    with cluster(1, 1) as tasks, tf.Graph():
        counters = Counters()
        with tf.Session(tasks.target) as session:
            counters.commit(session)
            for i in range(len(_lies(Random(16), 1))):
                stranger = dial_as_client(tasks.workers[0].address)
                header, payload = _lies(Random(16), stranger.next_id())[i]
                with suppress(tf.errors.UnavailableError):  # what it said first has ended the connection
                    stranger.connection.send(header, payload)
                    stranger.connection.send(header, payload)
                if i % 5 == 0:
                    session.run(counters.step, options=options())
                stranger.close("it has said enough")
            assert tasks.workers[0].status().sessions == 1
            steps = session.run(counters.here)
        assert counters.read(tasks.target) == [steps, steps]
        assert not tasks.workers[0].has_ended


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 50, bytes(5000)]
)
def test_noise_at_the_port(noise: bytes) -> None:
    with cluster(1, 0) as tasks, tf.Graph(), socket.socket() as stranger:
        address = parse_address(tasks.servers[0].address)
        stranger.connect((address.host, address.port))
        stranger.sendall(noise)
        with tf.Session(tasks.target) as session:
            assert session.run(tf.constant(2.0) * 2.0, options=options()) == 4.0
