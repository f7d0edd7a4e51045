"""Groups of the tasks of a cluster: their ranks come in by the servers' own ports."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.rendezvous.transport import new_transport
from tests.distribute.collectives.ranks import SOON_S, run_threads


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    with ReservedPorts(3) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        found = [tf.train.Server({"worker": addresses}, "worker", index) for index in range(3)]
        yield found
        for server in found:
            server.stop()


def form(servers: list[Any], key: str, kind: str) -> list[Communicator]:
    """A rank for each of ``servers``, where these listen."""
    addresses = tuple(server.address for server in servers)

    def open_one(rank: int) -> Communicator:
        membership = Membership(key, rank, len(servers), addresses)
        return open_communicator(kind, membership, new_transport())

    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(open_one, range(len(servers)), timeout=SOON_S))


def test_two_groups_form_beside_sessions(servers: list[Any]) -> None:
    groups = [form(servers, "first", "auto"), form(servers, "second", "grpc")]
    assert [group[0].kind for group in groups] == ["shared_memory", "grpc"]
    with tf.device("/job:worker/task:2"):
        there = tf.constant(20) + 1
    with tf.Session(servers[0].target) as session:
        for group in groups:
            results = run_threads(group, lambda c: c.all_reduce(np.full(3, c.rank + 1.0)))
            assert [result.tolist() for result in results] == [[6.0] * 3] * 3
            assert session.run(there) == 21
    for group in groups:
        for communicator in group:
            communicator.close()


def test_a_key_may_be_used_again(servers: list[Any]) -> None:
    for _ in range(2):
        group = form(servers, "again", "grpc")
        assert run_threads(group, lambda c: c.barrier()) == [None] * 3
        for communicator in group:
            communicator.close()
