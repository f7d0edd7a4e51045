"""`CoordinatorServer` under a virtual clock: what it makes of times in which it stood still."""

from __future__ import annotations

from unittest import mock

import pytest

from flowrt.distribute.cluster.timeouts import CONNECT_S
from flowrt.distribute.elastic.coordinator_client import CoordinatorClient, ElasticPlace
from flowrt.distribute.elastic.coordinator_server import TICK_S, CoordinatorServer
from flowrt.errors import UnavailableError
from tests.distribute.simulated_network import Network

HOUR_S = 3600.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_threads() -> object:
    """Time passes when a test says so."""
    with mock.patch.object(CoordinatorServer, "_tick"), mock.patch.object(CoordinatorClient, "_beat"):
        yield


def test_a_job_that_stood_still_while_it_waited_for_a_worker_still_waits() -> None:
    network, clock = Network(), Clock()
    server = CoordinatorServer("c", network.transport("c"), 2, 2, lambda line: None, clock)
    place = ElasticPlace("c", "worker 0", "host", "host:1")
    transport = network.transport("worker 0")
    client = CoordinatorClient(place, transport.connect("c", 1.0), transport, lambda why: None, clock)
    with server, client:
        server.tick()
        for _ in range(3):
            clock.now += HOUR_S
            server.tick()
        assert not server.is_over
        assert len(server._connected) == 1
        until = clock.now + CONNECT_S
        while clock.now < until:
            clock.now += TICK_S
            client.beat()
            deliver(network)
            server.tick()
        assert server.is_over
        assert "expected at least 2 workers within 60 s; got 1" in str(server.why_failed)


def test_of_two_workers_at_one_address_the_second_is_refused_while_the_first_lives() -> None:
    """In a group, both would be an error of all members."""
    network, clock, notes = Network(), Clock(), list[str]()
    server = CoordinatorServer("c", network.transport("c"), 1, 1, notes.append, clock)
    transport = network.transport("host")
    place = ElasticPlace("c", "worker 0", "host", "host:1")

    def come() -> CoordinatorClient:
        client = CoordinatorClient(place, transport.connect("c", 1.0), transport, lambda why: None, clock)
        deliver(network)
        return client

    with server, come() as first, come() as second:
        with pytest.raises(UnavailableError, match="worker 0 is in this job already, at host:1"):
            second.next_epoch()
        clock.now += first._beats.lost_s - TICK_S  # as of a host that is lost without a goodbye
        with come() as third:
            assert third.next_epoch() is not None
            assert notes[-2:] == [
                "worker 0 was lost: another has come at its address; the group ends",
                "epoch 2: 1 worker, without a commit: worker 0",
            ]


def deliver(network: Network) -> None:
    for end in network.ends:
        while end.inbox:
            end.take(end.inbox.popleft())
