"""A session on a master controls each task by one message per step, whatever the task has to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.connection_manager import ConnectionManager
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.wire.messages import Message
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.protos import cluster_pb2 as pb
from tests.distribute.gang_program import build, join_here

STEPS = 20


@pytest.fixture
def servers() -> Iterator[list[tf.train.Server]]:
    """Two tasks of two CPUs each, which have joined a group."""
    config = tf.ConfigProto(device_count={"CPU": 2})
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        found = [tf.train.Server({"worker": addresses}, "worker", i, config=config) for i in range(2)]
        with join_here(addresses, 0, 1):
            yield found
        for server in found:
            server.stop()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The messages between the tasks, but for those with which they exchange tensors."""
    counts: Counter[str] = Counter()
    ask, tell = ConnectionManager.ask, ConnectionManager.tell

    def count(message: Message) -> None:
        if type(message.body) is not pb.RecvTensor:
            counts[type(message.body).__name__] += 1

    def asked(self: Any, task: str, message: Message, dones: Sequence[Any], wait_s: float = 0.0) -> None:
        count(message)
        ask(self, task, message, dones, wait_s)

    def told(self: Any, task: str, message: Message) -> None:
        count(message)
        tell(self, task, message)

    monkeypatch.setattr(ConnectionManager, "ask", asked)
    monkeypatch.setattr(ConnectionManager, "tell", told)
    return counts


def test_a_step_in_layouts_is_one_message_to_each_other_task(
    servers: list[tf.train.Server], sent: Counter[str]
) -> None:
    mesh = tf.distribute.Mesh([("dp", 2), ("tp", 2)])
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(mesh, batch="dp").scope():
            x = tf.placeholder(tf.float32, [8, 6])
            w = tf.get_variable("w", [6, 4], layout=[None, "tp"])
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
            train = tf.train.AdamOptimizer(0.01).minimize(loss)
        with tf.Session(servers[0].target) as session:
            session.run(tf.global_variables_initializer())
            feed = {x: np.ones((8, 6))}
            session.run([loss, train], feed)
            sent.clear()
            for _ in range(STEPS):
                session.run([loss, train], feed)
            assert sent == {"RunGraph": STEPS}


@pytest.mark.parametrize("master", [0, 1])
def test_a_turn_takes_no_message_of_the_first_tasks_master_and_two_of_others(
    servers: list[tf.train.Server], sent: Counter[str], master: int
) -> None:
    with tf.Graph().as_default():
        program = build()
        with tf.Session(servers[master].target) as session:
            session.run(tf.global_variables_initializer())
            program.wrong(session, 1.0)
            sent.clear()
            for _ in range(STEPS):
                assert program.wrong(session, 1.0) == []
            turns = {"TakeTurn": STEPS, "EndTurn": STEPS} if master else {}
            assert sent == {"RunGraph": STEPS, **turns}


def test_two_programs_that_ask_for_more_devices_than_there_are_get_one_error_each(
    servers: list[tf.train.Server],
) -> None:
    """And the cluster serves others."""
    for server in servers:
        with tf.Graph().as_default():
            with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 5)]), batch="dp").scope():
                total = tf.reduce_sum(tf.get_variable("w", [10], layout=["dp"]))
            with (
                tf.Session(server.target) as session,
                pytest.raises(InvalidArgumentError, match=r"mesh \[dp=5\]: expected 5 devices; got 4"),
            ):
                session.run(total)
    with tf.Graph().as_default(), tf.Session(servers[0].target) as session:
        assert session.run(tf.constant(20) + 1) == 21


def test_of_two_programs_that_ask_for_more_memory_than_there_is_the_second_gets_the_error() -> None:
    """It says what was asked for, what there is, and who has the rest; the first goes on."""
    limit = tf.ConfigProto.Experimental(cpu_memory_limit_mb=[5])
    server = tf.train.Server.create_local_server(config=tf.ConfigProto(experimental=limit))
    sessions: dict[str, tf.Session] = {}
    for name in ("first", "second"):
        with tf.Graph().as_default() as graph:
            tf.get_variable(name, [1 << 19], initializer=tf.ones_initializer())  # 2 MiB, and 2 of ones
        sessions[name] = tf.Session(server.target, graph=graph)
    sessions["first"].run("first/Assign")
    with pytest.raises(ResourceExhaustedError) as caught:
        sessions["second"].run("second/Assign")
    what = r"'second' \(.*expected 2.0 MiB of memory; got .* limit of 5.0 MiB(?s:.*)2.0 MiB  first  "
    assert re.match(what, str(caught.value))
    assert sessions["first"].run("first/Read/ReadVariableOp:0").tolist() == [1.0] * (1 << 19)
    for session in sessions.values():
        session.close()
    server.stop()
