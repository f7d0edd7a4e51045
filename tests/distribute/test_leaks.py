"""What a cluster holds does not grow: descriptors, threads, memory, over many steps, sessions and servers.

Numbers in brackets are those of the faults in the project's list of them.
"""

from __future__ import annotations

import gc
import os
import socket
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.cluster.cluster_spec import parse_address
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import SOON_S, cluster, wait_until_idle

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
MAX_GROWTH_BYTES = 1 << 20
AT_ONCE = 4
"""Steps that overlap."""


class Held(NamedTuple):
    """What a process holds."""

    files: int
    threads: int
    resident_bytes: int


def held_by(pid: int) -> Held:
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return Held(len(os.listdir(process / "fd")), len(os.listdir(process / "task")), pages * PAGE_BYTES)


def on(task: int) -> str:
    return f"/job:worker/task:{task}"


def options() -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(SOON_S * 1000))


class Ring:
    """A graph of two devices with a counter on each: tensors small and large, back and forth."""

    def __init__(self, here: str = on(0), there: str = on(1)) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            with tf.device(here):
                self.here = tf.get_variable("here", initializer=0.0)
            with tf.device(there):
                self.there = tf.get_variable("there", initializer=0.0)
                large = tf.fill([40_000], self.there + 1.0)
            with tf.device(here):
                back = tf.reduce_mean(large * 2.0) - self.here
            self.step = tf.group(self.here.assign_add(1.0), self.there.assign_add(back * 0.0 + 1.0))
            self.start = tf.global_variables_initializer()


def check_steps(session: tf.Session, ring: Ring, pids: Sequence[int], warm_up: int, steps: int) -> None:
    """The first steps overlap: no later one, on a machine however busy, needs a thread, or memory in an arena
    of the C library's, that they did not.
    """
    session.run(ring.start)

    def run(count: int) -> None:
        for _ in range(count):
            session.run(ring.step, options=options())

    def hold() -> list[Held]:
        gc.collect()
        return [held_by(pid) for pid in pids]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, [warm_up // AT_ONCE] * AT_ONCE))
    run(AT_ONCE)  # the pool's threads have ended meanwhile
    before = hold()
    run(steps)
    after = hold()
    assert session.run([ring.here, ring.there]) == [warm_up + AT_ONCE + steps] * 2
    for old, new in zip(before, after, strict=True):
        assert new.files == old.files
        assert new.threads <= old.threads  # gRPC ends some that it did not need for a while
        assert new.resident_bytes - old.resident_bytes <= MAX_GROWTH_BYTES


def check_steps_of_two_tasks(warm_up: int, steps: int) -> None:
    ring = Ring()
    with cluster(1, 1) as tasks, tf.Session(tasks.target, graph=ring.graph) as session:
        (server,), (worker,) = tasks
        check_steps(session, ring, [os.getpid(), worker.pid], warm_up, steps)
        worker.wait_for_steps(0)
        wait_until_idle(server)


def check_steps_of_two_devices(warm_up: int, steps: int) -> None:
    ring = Ring("/cpu:0", "/cpu:1")
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Session(graph=ring.graph, config=config) as session:
        check_steps(session, ring, [os.getpid()], warm_up, steps)


def test_a_thousand_steps_hold_no_more_than_the_first() -> None:
    """(20)"""
    check_steps_of_two_tasks(500, 500)


def test_a_thousand_steps_of_one_process_hold_no_more_than_the_first() -> None:
    check_steps_of_two_devices(500, 500)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "tcp", "grpc"])
def test_ten_thousand_steps_hold_no_more_than_the_first(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first are more than the steps whose numbers a worker remembers."""
    monkeypatch.setenv("FLOWRT_TRANSPORT", transport)
    check_steps_of_two_tasks(5000, 10_000)


@pytest.mark.slow
def test_ten_thousand_steps_of_one_process_hold_no_more_than_the_first() -> None:
    check_steps_of_two_devices(5000, 10_000)


def check_sessions(count: int) -> None:
    """(21) Every other one has a step that fails. The first overlap, as the steps above."""
    ring = Ring()
    with ring.graph.as_default(), tf.device(on(1)):
        fails = tf.constant([1.0, 2.0])[tf.placeholder_with_default(5, [])]
    with cluster(1, 1) as tasks:
        (worker,) = tasks.workers

        def open_and_close(number: int) -> None:
            with tf.Session(tasks.target, graph=ring.graph) as session:
                session.run(ring.start)
                session.run(ring.step, options=options())
                if number % 2 == 0:
                    with pytest.raises(tf.errors.InvalidArgumentError, match="out of bounds"):
                        session.run(fails, options=options())

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(open_and_close, range(2 * AT_ONCE)))
        open_and_close(0)
        pids = [os.getpid(), worker.pid]
        before = [held_by(pid) for pid in pids]
        for number in range(count):
            open_and_close(number)
        wait_until(lambda: worker.status().sessions == 0, "its sessions are closed", SOON_S)
        gc.collect()
        for pid, old in zip(pids, before, strict=True):
            wait_until(lambda: held_by(pid).files <= old.files, "descriptors are closed", SOON_S)  # noqa: B023
            wait_until(lambda: held_by(pid).threads <= old.threads, "threads have ended", SOON_S)  # noqa: B023


def test_sessions_leave_nothing() -> None:
    check_sessions(20)


@pytest.mark.slow
def test_two_hundred_sessions_leave_nothing() -> None:
    check_sessions(200)


def check_servers(count: int) -> None:
    """(21) Both tasks' ports are free again each time."""
    ring = Ring()

    def start_and_stop() -> None:
        with cluster(2, 0) as tasks:
            addresses = [parse_address(server.address) for server in tasks.servers]
            with tf.Session(tasks.target, graph=ring.graph) as session:
                session.run(ring.start)
                session.run(ring.step, options=options())
        for address in addresses:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address.host, address.port))
                listener.listen()

    for _ in range(3):
        start_and_stop()
    gc.collect()
    before = held_by(os.getpid())
    for _ in range(count):
        start_and_stop()
    gc.collect()
    wait_until(lambda: held_by(os.getpid()).files <= before.files, "descriptors are closed", SOON_S)
    wait_until(lambda: held_by(os.getpid()).threads <= before.threads, "threads have ended", SOON_S)


def test_a_failed_step_leaves_its_message_only() -> None:
    """Not its arrays, which the frames of the error's traceback hold: 14 KB a step."""
    with cluster(2, 0) as tasks, tf.Graph():
        fed = tf.placeholder(tf.float32, [4, 4])
        with tf.device("/job:worker/task:1"):
            fails = tf.check_numerics(fed, "fed") + 1.0
        with tf.Session(tasks.target) as session:

            def fail(times: int) -> int:
                """Bytes that Python holds after ``times`` failed steps."""
                for _ in range(times):
                    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
                        session.run(fails, {fed: np.full([4, 4], np.nan)}, options=options())
                gc.collect()
                return tracemalloc.get_traced_memory()[0]

            fail(20)
            tracemalloc.start()
            try:
                before = fail(20)
                assert (fail(100) - before) / 100 < 4096
            finally:
                tracemalloc.stop()


def test_servers_leave_nothing() -> None:
    check_servers(5)


@pytest.mark.slow
def test_fifty_servers_leave_nothing() -> None:
    check_servers(50)
