"""`ConnectionManager`: who is whose peer, when tasks dial, end and are lost at once.

Over the simulated network; the work of other threads is done when the test says so.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.cluster.timeouts import LOST_S
from flowrt.distribute.connection_manager import HELLO_S, TICK_S, ConnectionManager
from flowrt.distribute.wire.messages import Message
from flowrt.errors import OpError, UnavailableError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Connection
from tests.distribute.simulated_network import End, Network

HERE, THERE, OTHER = (f"/job:w/replica:0/task:{index}" for index in range(3))
CLUSTER = ClusterSpec({"w": [f"127.0.0.1:{21000 + index}" for index in range(3)]})
ADDRESSES = {f"/job:{job}/replica:0/task:{index}": address for job, index, address in CLUSTER.tasks()}
WAIT_S = 30.0


class Node:
    """A task that has nothing but connections: their handler, their threads and their transport as well."""

    def __init__(self, network: Network, task: str) -> None:
        self.transport = network.transport(ADDRESSES[task])
        self.work: list[Callable[[], object]] = []
        self.told: list[tuple[str, str]] = []
        self.dials = 0
        self.on_dial: Callable[[], object] = lambda: None
        self.on_connected: Callable[[End], object] = lambda end: None
        self.connections = ConnectionManager(task, 1, CLUSTER, ADDRESSES, self, self, self)  # type: ignore[arg-type]

    def listen(self, address: str) -> None:
        self.transport.listen(address, self.connections.accept)

    def do(self) -> None:
        while self.work:
            self.work.pop(0)()

    @property
    def peers(self) -> list[str]:
        return [peer.name for peer in self.connections._peers.values()]

    # --- what the connections have

    def submit(self, work: Callable[[], object]) -> None:
        self.work.append(work)

    def connect(self, address: str, timeout_s: float) -> Connection:
        self.dials += 1
        self.on_dial()
        end = self.transport.connect(address, timeout_s)
        assert isinstance(end, End)
        self.on_connected(end)
        return end

    def came(self, name: str) -> None:
        assert self.connections._lock.locked(), "its loss could be told first"
        self.told.append(("came", name))

    def asked(self, token: str, request_id: int, message: Message) -> None:
        raise AssertionError("nothing is delivered")

    def lost(self, token: str, name: str, error: OpError) -> None:
        self.told.append(("lost", name))


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def here(network: Network) -> Node:
    return Node(network, HERE)


@pytest.fixture
def there(network: Network) -> Node:
    node = Node(network, THERE)
    node.listen(ADDRESSES[THERE])
    return node


def greet(node: Node, task: str = THERE) -> list[Any]:
    node.connections.greet(task, WAIT_S)
    return []


def ask(node: Node, wait_s: float = WAIT_S) -> list[Any]:
    """What the request ends with, when it does."""
    ends: list[Any] = []
    node.connections.ask(THERE, Message(pb.Heartbeat()), [lambda message, error: ends.append(error)], wait_s)
    return ends


def asked_once(node: Node) -> list[Any]:
    """The same, of a request that waits for nobody."""
    ends = ask(node, 0.0)
    node.do()
    return ends


@pytest.mark.parametrize("dials", [greet, ask])
def test_a_task_that_ends_while_it_dials_leaves_no_connection(
    network: Network, here: Node, there: Node, dials: Callable[[Node], list[Any]]
) -> None:
    here.on_connected = lambda end: here.connections.close("it was stopped")
    ends = dials(here)
    here.do()
    assert (here.dials, here.peers, here.connections._connections, here.told) == (1, [], {}, [])
    assert [type(error) for error in ends] == [UnavailableError] * (dials is ask)
    (end,) = network.ends
    end.take(end.inbox.popleft())
    assert (there.peers, there.told) == ([], [("came", HERE), ("lost", HERE)])


def test_a_task_that_has_ended_greets_nobody(here: Node, there: Node) -> None:
    here.on_connected = lambda end: there.connections.close("it was stopped")
    (error,) = asked_once(here)
    assert type(error) is UnavailableError
    assert (here.peers, there.peers, there.told) == ([], [], [])


def test_who_is_lost_while_it_is_greeted_is_no_peer(here: Node, there: Node) -> None:
    """And is dialled again: not asked for ever by a connection that is gone."""

    def cut_after_greeting(end: End) -> None:
        def send(*frame: Any) -> None:
            End.send(end, *frame)
            assert end.receiver is not None
            end.receiver.on_lost(end, UnavailableError("the connection was cut"))

        end.send = send  # type: ignore[method-assign]

    here.on_connected = cut_after_greeting
    (error,) = asked_once(here)
    assert type(error) is UnavailableError
    assert (here.peers, here.connections._connections, here.told) == ([], {}, [])
    here.on_connected = lambda end: None
    assert asked_once(here) == []
    assert (here.dials, here.peers) == (2, [THERE])


def test_a_hello_that_comes_twice_is_of_one_peer(network: Network, here: Node, there: Node) -> None:
    def send_twice(end: End) -> None:
        def send(*frame: Any) -> None:
            End.send(end, *frame)
            End.send(end, *frame)

        end.send = send  # type: ignore[method-assign]

    here.on_connected = send_twice
    greet(here)
    here.do()
    end = next(end for end in network.ends if end.owner == ADDRESSES[THERE])
    end.take(end.inbox.popleft())
    assert there.peers == [HERE]
    assert there.told == [("came", HERE)]


@pytest.mark.parametrize("first", [greet, ask])
def test_who_meets_a_task_and_who_asks_it_do_not_both_dial(
    here: Node, there: Node, first: Callable[[Node], list[Any]]
) -> None:
    """Whoever is first holds the other up, and leaves it a link."""
    held = []
    here.on_dial = lambda: held.append(here.connections._dialing[THERE].locked())
    first(here)
    (ask if first is greet else greet)(here)
    here.do()
    assert held == [True]
    assert there.peers == [HERE]


def test_a_task_that_is_not_up_yet_is_met_when_it_is(network: Network, here: Node) -> None:
    late = Node(network, THERE)
    here.on_dial = lambda: here.dials == 2 and late.listen(ADDRESSES[THERE])
    greet(here)
    here.do()
    assert (here.dials, here.peers, late.peers) == (2, [THERE], [HERE])


def test_another_task_at_the_address_is_dialled_once(network: Network, here: Node) -> None:
    """Time does not mend it. Whoever asks is told."""
    other = Node(network, OTHER)
    other.listen(ADDRESSES[THERE])
    here.on_dial = lambda: here.dials > 1 and here.connections.close("it dials again")
    greet(here)
    here.do()
    assert (here.dials, here.peers) == (1, [])
    here.on_dial = lambda: None
    (error,) = asked_once(here)
    assert f"expected {THERE}" in error.message


def test_a_link_that_came_while_this_task_dialled_stays(network: Network, here: Node, there: Node) -> None:
    """A task is asked by one link: requests on two would not stay in order."""
    here.listen(ADDRESSES[HERE])

    def dial_back() -> None:
        here.on_dial = lambda: None
        greet(there, HERE)
        there.do()

    here.on_dial = dial_back
    ask(here)
    here.do()
    assert here.peers == [THERE, THERE]
    first, second = here.connections._peers.values()
    assert here.connections._connections == {THERE: first}
    assert (len(first._waiting), len(second._waiting)) == (1, 0)


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_request_that_waits_for_its_task_outlives_a_lost_link(
    here: Node, there: Node, is_noticed: bool
) -> None:
    """A task that was killed and started again: a new session asks it while the loss is not noticed yet, so
    that sending fails, or is noticed before the answer.
    """
    assert greet(here) == []
    here.do()
    (first,) = here.connections._peers.values()
    end = first.connection
    assert isinstance(end, End)
    end.is_cut = not is_noticed
    ends = ask(here)
    if is_noticed:
        end.take(None)
    here.do()
    second = here.connections._connections[THERE]
    assert (ends, here.dials, len(second._waiting)) == ([], 2, 1)
    assert second is not first


def test_a_request_that_waits_for_nobody_ends_with_its_link(here: Node, there: Node) -> None:
    greet(here)
    here.do()
    ends = ask(here, 0.0)
    (peer,) = here.connections._peers.values()
    peer.fail("the network died")
    here.do()
    assert [type(error) for error in ends] == [UnavailableError]
    assert here.dials == 1


def test_a_task_that_stood_still_gives_nobody_up_before_they_could_be_heard(here: Node, there: Node) -> None:
    greet(here)
    here.do()
    now = time.monotonic()
    for _ in range(3):
        now += 3600.0
        here.connections.beat(now)
        assert here.peers == [THERE]
    for _ in range(round(LOST_S / TICK_S) + 1):
        now += TICK_S
        here.connections.beat(now)
    assert here.told == [("came", THERE), ("lost", THERE)]


def test_a_connection_that_says_nothing_is_closed_and_logged(
    network: Network, there: Node, caplog: pytest.LogCaptureFixture
) -> None:
    silent = network.transport("a stranger").connect(ADDRESSES[THERE], WAIT_S)
    now = time.monotonic()
    there.connections.beat(now)
    assert len(there.connections._silent) == 1
    there.connections.beat(now + 2 * HELLO_S)
    assert not there.connections._silent
    assert "it said nothing for 10 s" in caplog.text
    assert isinstance(silent, End)
    assert silent.other.is_cut


def test_a_task_without_file_descriptors_says_so(here: Node, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        here.connections.beat(1e9)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert f"{HERE} has no file descriptor left (limit 64)" in caplog.text
    here.connections.beat(2e9)
    assert caplog.text.count("no file descriptor") == 1
