"""A network that damages bits, below collectives and steps: right values or a typed error, never others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.rendezvous.transport import new_transport
from tests.distribute.collectives.ranks import run_threads
from tests.distribute.processes import SOON_S, cluster_with_proxy
from tests.distribute.tcp_proxy import Hosts, between_hosts

KINDS = ("tcp", "grpc")
WAIT_S = 60.0
LARGE = 50_000


@contextmanager
def two_ranks(hosts: Hosts, kind: str) -> Iterator[list[Communicator]]:
    """Rank 1 reaches rank 0 through a proxy."""
    with ReservedPorts(2) as reserved:
        own = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
        seen = (hosts.reach(own[0]), own[1]) if kind == "grpc" else own

        def open_one(rank: int) -> Communicator:
            membership = Membership("ranks", rank, 2, (own, seen)[rank], timeout_s=WAIT_S)
            return open_communicator("grpc", membership, new_transport())

        with ThreadPoolExecutor(2) as pool:
            communicators = list(pool.map(open_one, range(2)))
    try:
        yield communicators
    finally:
        for communicator in communicators:
            communicator.close()


def add_up(communicator: Communicator) -> list[Any]:
    """All-reduces of some sizes, twice."""
    values = [np.arange(n, dtype=np.float32) * (1 + communicator.rank) for n in (3, 3000, LARGE) * 2]
    return [communicator.all_reduce(value) for value in values]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", KINDS)
def test_collectives_give_the_right_value_or_an_error(kind: str, seed: int) -> None:
    random = Random(seed)
    with between_hosts(kind) as hosts, two_ranks(hosts, kind) as ranks:
        for direction in ("there", "back"):
            hosts.proxies[-1].flip(
                direction, random.choice([random.randrange(1000), random.randrange(8 * LARGE)])
            )
        for found in run_threads(ranks, add_up):
            if isinstance(found, tf.errors.OpError):
                assert isinstance(found, tf.errors.UnavailableError | tf.errors.DataLossError), found
                continue
            for sum_ in found:
                np.testing.assert_array_equal(sum_, 3 * np.arange(sum_.size, dtype=np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_go_on_when_a_frame_came_again(kind: str) -> None:
    with between_hosts(kind) as hosts, two_ranks(hosts, kind) as ranks:
        for _ in range(3):
            hosts.proxies[-1].flip("there", 8 * 20_000)  # in the midst of an array
            for found in run_threads(ranks, add_up):
                for sum_ in found:
                    np.testing.assert_array_equal(sum_, 3 * np.arange(sum_.size, dtype=np.float32))
            assert hosts.proxies[-1].has_flipped


# --- steps of a cluster


class Counted:
    """Each step, task 1 makes a large tensor, which a variable on task 0 counts, and sends back the count."""

    def __init__(self) -> None:
        with tf.device("/job:worker/task:0"):
            self.total = tf.get_variable("total", shape=[LARGE], initializer=tf.zeros_initializer())
        with tf.device("/job:worker/task:1"):
            made = tf.range(LARGE) + tf.placeholder_with_default(1, [])
        with tf.device("/job:worker/task:0"):
            added = self.total.assign_add(tf.cast(made, tf.float32))
        with tf.device("/job:worker/task:1"):
            self.step = added + 1.0

    def expected(self, steps: int) -> Any:
        return np.arange(1, LARGE + 1, dtype=np.float32) * steps


def counted_steps(session: tf.Session, counted: Counted, count: int) -> None:
    for number in range(count):
        found = session.run(counted.step, options=tf.RunOptions(timeout_in_ms=int(SOON_S * 1000)))
        np.testing.assert_array_equal(found, counted.expected(number + 1) + 1)


def test_a_step_whose_tensors_came_again_is_right_and_so_is_the_next() -> None:
    with between_hosts("grpc"), cluster_with_proxy() as (server, _, proxy), tf.Graph():
        counted = Counted()
        with tf.Session(server.target) as session:
            session.run(counted.total.initializer)
            for direction in ("there", "back"):
                proxy.flip(direction, 8 * 150_000)
            counted_steps(session, counted, 5)
            assert proxy.has_flipped


def test_steps_with_any_bit_damaged_are_right_or_fail_with_a_typed_error() -> None:
    random = Random(0)
    failed = 0
    with between_hosts("grpc"), cluster_with_proxy("--no-exit-with-job") as (server, _, proxy), tf.Graph():
        counted = Counted()
        for _ in range(20):
            with tf.Session(server.target) as session:
                try:
                    session.run(counted.total.initializer)
                    for direction in ("there", "back"):
                        proxy.flip(direction, random.randrange(2000))
                    counted_steps(session, counted, 2)
                except (tf.errors.UnavailableError, tf.errors.DataLossError):
                    failed += 1
    assert failed > 0


def test_a_tensor_that_is_damaged_each_time_is_a_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(piece: bytes, direction: str) -> bytes:
        at = len(piece) // 2
        if direction == "there" or at < LARGE // 2:
            return piece
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]

    with between_hosts("grpc"), cluster_with_proxy("--no-exit-with-job") as (server, _, proxy), tf.Graph():
        with tf.device("/job:worker/task:1"):
            made = tf.range(tf.placeholder_with_default(100 * LARGE, []))
        with tf.device("/job:worker/task:0"):
            total = tf.reduce_max(made)
        with tf.Session(server.target) as session:
            assert session.run(total) == 100 * LARGE - 1
            monkeypatch.setattr(proxy, "_damaged", damaged)
            with pytest.raises(
                tf.errors.DataLossError, match=r"task:1 .* came damaged, the last of 4 attempts"
            ):
                session.run(total, options=tf.RunOptions(timeout_in_ms=int(SOON_S * 1000)))
