"""Two programs on one cluster whose steps use one group: neither mixes up nor holds up the other."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.distribute.collectives import Group, all_reduce, join
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import InvalidArgumentError, OpError
from tests.contracts.check_transport import wait_until
from tests.distribute import gang_program
from tests.distribute.gang_program import build, join_here
from tests.distribute.processes import SOON_S
from tests.forks import ForkedScript

SOURCE = Path(gang_program.__file__)
DEADLINE_S = 300.0


@contextmanager
def tasks(count_here: int) -> Iterator[list[tf.train.Server]]:
    """Two tasks that have joined a group; the first ``count_here`` are servers of this process."""
    with ReservedPorts(2) as reserved, ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        for index in range(count_here, 2):
            stack.enter_context(ForkedScript(SOURCE, "worker", json.dumps(addresses), str(index)))
        servers = []
        for index in range(count_here):
            servers.append(tf.train.Server({"worker": addresses}, "worker", index))
            stack.callback(servers[-1].stop)
        stack.enter_context(join_here(addresses, *range(count_here)))
        yield servers


def begin(*clients: ForkedScript) -> None:
    """Wait until all ``clients`` are ready, and let them run their steps."""
    for client in clients:
        assert client.stdout.readline() == "begins\n"
    for client in clients:
        client.stdin.write("\n")


def wait_until_gated(client: ForkedScript, server: Any) -> None:
    """Wait until the step of ``client`` waits at the gate; it has run another one before."""
    begin(client)
    wait_until(lambda: server.num_running_steps > 0, "it waits at the gate", SOON_S)


def initialize(target: str) -> None:
    with tf.Graph().as_default():
        build()
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())


@pytest.mark.parametrize("steps", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("masters", [(0, 0), (0, 1)], ids=["one master", "two masters"])
def test_two_clients_in_two_processes_get_their_own_results(masters: Sequence[int], steps: int) -> None:
    with tasks(2) as servers, ExitStack() as stack:
        initialize(servers[0].target)
        clients = [
            stack.enter_context(
                ForkedScript(SOURCE, "client", servers[master].target, factor, str(steps), "free")
            )
            for master, factor in zip(masters, ("1", "1000"), strict=True)
        ]
        begin(*clients)
        answers = [json.loads(client.printed()) for client in clients]
    assert [wrong for wrong, _ in answers] == [[], []]
    check_turns(*(times for _, times in answers))


def check_turns(one: Sequence[int], other: Sequence[int]) -> None:
    """While both clients have steps left, each has one in two or three of all steps."""
    first, last = max(one[0], other[0]), min(one[-1], other[-1])
    shared = [sum(first <= time <= last for time in times) for times in (one, other)]
    assert sum(shared) > len(one), "they ran at the same time"
    assert min(shared) > sum(shared) / 3, shared


def run_until(stopped: threading.Event, target: str) -> None:
    """Six threads run steps of one session."""
    with tf.Graph().as_default():
        busy = build()
    with tf.Session(target, busy.x.graph) as session, ThreadPoolExecutor(6) as pool:

        def run() -> None:
            while not stopped.is_set():
                assert busy.wrong(session, 1.0) == []

        for future in [pool.submit(run) for _ in range(6)]:
            future.result(DEADLINE_S)


def test_a_client_with_many_threads_leaves_every_other_turn_to_one_with_one() -> None:
    """The clock counts the steps of both. If turns came in the order of requests, seven would pass."""
    stopped = threading.Event()
    with tasks(2) as servers, ThreadPoolExecutor(1) as pool, tf.Graph().as_default():
        initialize(servers[0].target)
        busy = pool.submit(run_until, stopped, servers[0].target)
        rare = build()
        times, options = [], tf.RunOptions(timeout_in_ms=round(1000 * SOON_S))
        with tf.Session(servers[1].target) as session:
            try:
                for step in range(40):
                    fetches, feed = [*rare.results, rare.clock], {rare.x: float(step)}
                    *_, time = session.run(fetches, feed, options)
                    times.append(int(time))
            finally:
                stopped.set()
        busy.result(DEADLINE_S)
    assert times[-1] - times[0] > len(times)  # the other client ran, too
    assert statistics.median(after - before for before, after in itertools.pairwise(times)) <= 4


def test_a_client_that_is_killed_in_its_turn_leaves_the_group_whole() -> None:
    """Its step still ends. Steps without collectives do not wait for it, those with collectives do."""
    with tasks(1) as (server,), ThreadPoolExecutor(1) as pool, tf.Graph().as_default():
        initialize(server.target)
        other = build()
        with tf.Session(server.target) as session:
            assert other.wrong(session, 1.0) == []
            own_sessions = len(server._master._sessions)
            with ForkedScript(SOURCE, "client", server.target, "1", "1", "gated") as client:
                wait_until_gated(client, server)
                waiting = pool.submit(other.wrong, session, 5.0)
                client.send_signal(signal.SIGKILL)
                client.status()
            wait_until(lambda: len(server._master._sessions) == own_sessions, "its loss is known", SOON_S)
            assert not waiting.done()
            session.run(other.open_gate)
            assert waiting.result(SOON_S) == []
            assert other.wrong(session, 7.0) == []


def test_a_killed_clients_step_that_does_not_end_is_ended() -> None:
    """With it ends its group, which says why."""
    with tasks(1) as (server,), tf.Graph().as_default():
        initialize(server.target)
        other = build()
        with tf.Session(server.target) as session:
            with ForkedScript(SOURCE, "client", server.target, "1", "1", "gated") as client:
                wait_until_gated(client, server)
                client.send_signal(signal.SIGKILL)
                client.status()
            with pytest.raises(OpError, match="the client of this step is gone"):
                session.run(other.results, {other.x: 1.0})


def test_steps_of_one_process_that_meet_in_a_group_are_an_error_and_never_mixed_up() -> None:
    """Without a cluster nothing orders the steps of two threads."""
    group = Group("threads", 2, (0, 1))
    config = tf.ConfigProto(device_count={"CPU": 2})
    results: list[Any] = []

    def run(session: tf.Session, value: float) -> None:
        try:
            results.extend((value, session.run(totals, {x: value})) for _ in range(300))
        except InvalidArgumentError as error:
            results.append(error)
        except OpError:  # the other thread's error has ended the group
            pass

    with join(group, kind="local"), tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [])
        values = []
        for device in range(2):
            with tf.device(f"/cpu:{device}"):
                values.append(tf.fill([10], x))
        totals = [tf.reduce_max(t) for t in all_reduce(values, group=group, lowering="native")]
        with tf.Session(config=config) as session, ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(run, session, value) for value in (1.0, 100.0)]:
                future.result(SOON_S)
    for result in results:
        if isinstance(result, OpError):
            assert "of step" in str(result)
        else:
            assert result[1] == [2 * result[0]] * 2
