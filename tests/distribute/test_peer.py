"""`Peer`: one connection's requests and answers, over the simulated network."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.wire.messages import PROTOCOL, Message, encode
from flowrt.distribute.wire.peer import MAX_REPEATED, SETTLED_AT_ONCE, Peer, TensorAnswer, dial
from flowrt.distribute.wire.response_cache import MAX_KEPT
from flowrt.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    Origin,
    UnavailableError,
)
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.channel.checked_frames import RepeatedDamageError
from tests.distribute.simulated_network import End, Network

HERE, THERE = "/job:a/replica:0/task:0", "/job:a/replica:0/task:1"


class Owner:
    """Of one end: what it was asked, and what it lost."""

    def __init__(self, task: str, protocol: int = PROTOCOL, asks: Sequence[int] = ()) -> None:
        self.task, self.protocol, self.asks = task, protocol, asks
        self.requests: list[tuple[Peer, int, Any]] = []
        self.losses: list[OpError] = []

    def hello(self) -> Any:
        return pb.Hello(protocol=self.protocol, version="1.0", task=self.task, incarnation=5)

    def greeted(self, peer: Peer, hello: Any) -> None:
        """Anybody is welcome, and asked at once what `asks` says."""
        for step in self.asks:
            peer.ask(Message(pb.RunGraph(step=step)), lambda *_: None)

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        self.requests.append((peer, request_id, message.body))

    def lost(self, peer: Peer, error: OpError) -> None:
        self.losses.append(error)


class Pair:
    """``peer`` is the other end as the one who dialled sees it."""

    def __init__(self, protocol: int = PROTOCOL) -> None:
        self.network = Network()
        self.caller, self.called = Owner(HERE), Owner(THERE, protocol)
        listening = self.network.transport("there")
        self.answering: Any = None
        """The other end's peer."""

        def accept(connection: Connection) -> None:
            self.answering = Peer(connection, self.called)
            connection.start(self.answering)

        listening.listen("there", accept)
        self.peer = dial(self.network.transport("here"), "there", self.caller, 1.0)
        self.settled: list[Any] = []

    def ask(self, message: Message) -> None:
        self.peer.ask(message, self._settle)

    def _settle(self, message: Message | None, error: OpError | None) -> None:
        self.settled.append(error if message is None else message.body)

    def deliver(self) -> None:
        deliver(self.network)

    @property
    def here(self) -> End:
        return next(end for end in self.network.ends if end.owner == "here")


def deliver(network: Network) -> None:
    """Everything that is under way."""
    while waiting := [end for end in network.ends if end.inbox]:
        waiting[0].take(waiting[0].inbox.popleft())


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_the_ends_know_each_other_by_name(pair: Pair) -> None:
    assert (pair.peer.name, pair.peer.incarnation) == (THERE, 5)
    pair.ask(Message(pb.GetStatus()))
    pair.deliver()
    ((asker, _, _),) = pair.called.requests
    assert asker.name == HERE


def test_a_peer_keeps_its_name_and_its_life() -> None:
    pair = Pair()
    for name, life in ((HERE, 5), (THERE, 5), (HERE, 6)):
        pair.ask(Message(pb.Hello(protocol=PROTOCOL, version="1.0", task=name, incarnation=life)))
        pair.deliver()
    same, other_name, other_life = pair.settled
    assert isinstance(same, pb.Hello)
    for refused in (other_name, other_life):
        assert isinstance(refused, FailedPreconditionError)
        assert f"expected {HERE} to keep its identity" in refused.message
    assert (pair.answering.name, pair.answering.incarnation) == (HERE, 5)


def test_requests_that_are_faster_than_the_answer_to_the_hello_are_done_in_order() -> None:
    """Whoever accepts knows who dialled before that can know him."""
    network, caller, called = Network(), Owner(HERE), Owner(THERE, asks=(1, 2, 3))
    network.transport("there").listen("there", lambda connection: connection.start(Peer(connection, called)))
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dial, network.transport("here"), "there", caller, 30.0)
        while not dialled.done():
            deliver(network)
            time.sleep(0.001)
    assert dialled.result().name == THERE
    assert [(peer.name, body.step) for peer, _, body in caller.requests] == [(THERE, n) for n in (1, 2, 3)]


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1, 99])
def test_another_protocol_is_refused_with_both_versions(protocol: int) -> None:
    with pytest.raises(FailedPreconditionError, match=f"expected protocol {PROTOCOL} .* got {protocol} "):
        Pair(protocol=protocol)


def test_a_connection_that_damages_everything_is_data_loss_not_a_lost_task(pair: Pair) -> None:
    """Who waits for a lost task to come back would wait in vain."""
    error = UnavailableError("connection: damaged")
    error.__cause__ = RepeatedDamageError("damaged")
    pair.peer.on_lost(pair.here, error)
    (ended,) = pair.caller.losses
    assert type(ended) is DataLossError
    assert f"task {THERE} was lost: connection: damaged" in ended.message


def test_a_request_of_another_connection_is_refused(pair: Pair) -> None:
    """It was recorded there, and is sent again here after the hello that was recorded, too."""
    pair.ask(Message(pb.GetStatus()))
    (recorded,) = [end.inbox[0] for end in pair.network.ends if end.inbox]
    pair.deliver()
    assert len(pair.called.requests) == 1
    other = Pair()
    other.peer.connection.send(recorded.header)
    other.deliver()
    assert not other.called.requests


def test_a_request_has_its_own_answer(pair: Pair) -> None:
    for step in (1, 2):
        pair.ask(Message(pb.RunGraph(step=step)))
    pair.deliver()
    for peer, number, body in reversed(pair.called.requests):
        peer.answer(number, Message(pb.CleanupGraph(step=body.step)), None)
    pair.deliver()
    assert [body.step for body in pair.settled] == [2, 1]


def test_a_request_that_comes_twice_is_done_once_and_has_its_answer(pair: Pair) -> None:
    """Before the answer and after it."""
    pair.ask(Message(pb.RunGraph(step=1)))
    request = pair.here.other.inbox[0]
    pair.here.other.inbox.append(request)
    pair.deliver()
    ((peer, number, _),) = pair.called.requests
    peer.answer(number, Message(pb.StepResult(step_stats=[b"its own"])), None)
    pair.here.other.inbox.append(request)
    pair.deliver()
    assert len(pair.called.requests) == 1
    assert [body.step_stats for body in pair.settled] == [[b"its own"]]


def test_an_answer_that_comes_twice_settles_once(pair: Pair) -> None:
    pair.ask(Message(pb.GetStatus()))
    pair.deliver()
    ((peer, number, _),) = pair.called.requests
    for _ in range(2):
        peer.answer(number, Message(pb.Done()), None)
    pair.deliver()
    assert len(pair.settled) == 1


def test_a_request_whose_answer_was_lost_is_repeated_and_has_the_same_answer(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1)))
    pair.deliver()
    ((peer, number, _),) = pair.called.requests
    peer.answer(number, Message(pb.Done(), [np.arange(2000)]), None)
    pair.network.lose(pair.here, 0)
    for _ in range(2):
        pair.peer.repeat()
    pair.deliver()
    assert len(pair.called.requests) == 1
    (body,) = pair.settled
    assert type(body) is pb.Done


def test_a_request_that_was_lost_is_repeated(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1)))
    pair.network.lose(pair.here.other, 0)
    for _ in range(2):
        pair.peer.repeat()
    pair.deliver()
    assert [body.step for _, _, body in pair.called.requests] == [1]


def test_a_request_is_repeated_ever_more_rarely(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1)))
    sent = []
    for _ in range(20):
        pair.peer.repeat()
        sent.append(len(pair.here.other.inbox) - 1)
    assert [sent.index(count) for count in range(6)] == [0, 1, 2, 4, 8, 16]
    pair.deliver()
    assert len(pair.called.requests) == 1


def test_each_answer_of_one_request_is_repeated_for_itself(pair: Pair) -> None:
    """Of two tensors that were asked for at once one was lost, one is still to come."""
    got: list[Any] = []
    dones = [functools.partial(lambda i, message, error: got.append(i), i) for i in range(3)]
    pair.peer.ask_all(Message(pb.RecvTensor(step=1, keys=["a", "b", "c"])), dones)
    pair.deliver()
    ((peer, first, _),) = pair.called.requests
    peer.answer(first, Message(pb.Done()), None)
    pair.deliver()
    peer.answer(first + 1, Message(pb.Done()), None)
    pair.network.lose(pair.here, 0)
    for _ in range(2):
        pair.peer.repeat()
    pair.deliver()
    assert got == [0, 1]
    peer.answer(first + 2, Message(pb.Done()), None)
    pair.deliver()
    assert got == [0, 1, 2]


def test_answers_of_one_message_are_each_its_own(pair: Pair) -> None:
    """Of four tensors two come together; what is repeated when that was lost is the message, once."""
    got: list[Any] = []
    dones = [
        functools.partial(lambda i, message, error: got.append((i, message.tensors)), i) for i in range(4)
    ]
    pair.peer.ask_all(Message(pb.RecvTensor(step=1, keys=["a", "b", "c", "d"])), dones)
    pair.deliver()
    ((peer, first, _),) = pair.called.requests
    sent: list[int] = []
    together = [TensorAnswer(first + i, np.int32(i), functools.partial(sent.append, i)) for i in (3, 1)]
    peer.answer_together(together)
    assert sent == [3, 1]
    pair.network.lose(pair.here, 0)
    for _ in range(2):
        pair.peer.repeat()
    while pair.here.other.inbox:
        pair.here.other.take(pair.here.other.inbox.popleft())
    assert len(pair.here.inbox) == 1
    pair.deliver()
    assert got == [(3, (3,)), (1, (1,))]
    for i in (0, 2):
        peer.answer(first + i, Message(pb.Done(), [np.int32(i)]), None)
    pair.deliver()
    assert [i for i, _ in got] == [3, 1, 0, 2]
    pair.peer.repeat()
    pair.ask(Message(pb.Heartbeat()))
    pair.deliver()
    assert peer._cache._bytes == 0


def test_the_owner_hears_of_a_loss_before_those_who_wait(pair: Pair) -> None:
    """They may ask again at once, and then it must know no peer that is gone."""
    known: list[int] = []
    pair.peer.ask(Message(pb.GetStatus()), lambda *_: known.append(len(pair.caller.losses)))
    pair.peer.fail("it was killed")
    assert known == [1]


def test_answers_to_a_peer_that_is_lost_have_left(pair: Pair) -> None:
    pair.ask(Message(pb.RecvTensor(step=1, keys=["a"])))
    pair.deliver()
    ((peer, first, _),) = pair.called.requests
    peer.close("it has ended")
    sent: list[int] = []
    peer.answer_together(
        [TensorAnswer(first + i, np.int32(i), functools.partial(sent.append, i)) for i in (0, 1)]
    )
    assert sent == [0, 1]


def test_a_large_request_is_sent_once(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1), [np.zeros(1000)]))
    pair.ask(Message(pb.DeregisterGraph(session="s" * MAX_REPEATED)))
    for _ in range(4):
        pair.peer.repeat()
    assert len(pair.here.other.inbox) == 2


def test_who_asks_again_for_what_is_not_kept_is_told(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1)))
    pair.deliver()
    ((peer, number, _),) = pair.called.requests
    peer.answer(number, Message(pb.Done(), [np.zeros(MAX_KEPT)]), None)
    pair.network.lose(pair.here, 0)
    for _ in range(2):
        pair.peer.repeat()
    pair.deliver()
    (error,) = pair.settled
    assert type(error) is AbortedError
    assert len(pair.called.requests) == 1


def test_answers_are_kept_until_the_next_request_settles_them(pair: Pair) -> None:
    for step in range(5):
        pair.ask(Message(pb.RunGraph(step=step)))
    pair.deliver()
    for peer, number, _ in pair.called.requests:
        peer.answer(number, Message(pb.StepResult(step_stats=[b"x" * 100])), None)
    pair.deliver()
    cache = pair.called.requests[0][0]._cache
    assert cache._bytes > 500
    pair.peer.repeat()  # it is time to say so
    pair.ask(Message(pb.Heartbeat()))
    pair.deliver()
    assert cache._bytes == 0
    cache.check()


def test_many_answers_are_settled_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pair.called, "asked", lambda peer, number, message: peer.answer(number, message, None)
    )
    for step in range(3 * SETTLED_AT_ONCE):
        pair.ask(Message(pb.RunGraph(step=step)))
        pair.deliver()
    assert len(pair.answering._cache._kept) <= SETTLED_AT_ONCE + 1


def test_a_loss_ends_all_that_was_asked_in_the_same_root_cause(pair: Pair) -> None:
    pair.ask(Message(pb.GetStatus()))
    pair.network.cut(pair.here, random.Random(1))
    pair.ask(Message(pb.GetStatus()))  # the reader has not seen the loss yet
    pair.deliver()
    pair.ask(Message(pb.GetStatus()))
    assert len(pair.settled) == 3
    assert {type(error) for error in pair.settled} == {UnavailableError}
    assert {error.origin for error in pair.settled} == {Origin(THERE, False)}
    assert len(pair.caller.losses) == len(pair.called.losses) == 1


def test_an_error_names_the_task_that_it_comes_from(pair: Pair) -> None:
    pair.ask(Message(pb.GetStatus()))
    pair.deliver()
    ((peer, number, _),) = pair.called.requests
    peer.answer(number, None, InvalidArgumentError("planted"))
    pair.deliver()
    (error,) = pair.settled
    assert (type(error), error.origin) == (InvalidArgumentError, Origin(THERE, False))


def test_a_message_that_cannot_be_taken_ends_its_request_alone(pair: Pair) -> None:
    pair.ask(Message(pb.RunGraph(step=1)))
    envelope = pb.Envelope.FromString(encode(2, Message(pb.RunGraph(step=2))).header)
    envelope.tensors.add(dtype=99)
    pair.peer.connection.send(envelope.SerializeToString())
    pair.deliver()
    assert [body.step for _, _, body in pair.called.requests] == [1]
    assert not pair.peer.is_lost


def test_a_message_of_several_answers_that_cannot_be_taken_ends_all_their_requests(pair: Pair) -> None:
    got: list[Any] = []
    dones = [functools.partial(lambda i, message, error: got.append((i, error)), i) for i in range(3)]
    pair.peer.ask_all(Message(pb.RecvTensor(step=1, keys=["a", "b", "c"])), dones)
    pair.deliver()
    ((peer, first, _),) = pair.called.requests
    values = [np.int32(i) for i in range(2)]
    frame = encode(first, Message(pb.Done(), values), is_answer=True, also=[first + 2])
    envelope = pb.Envelope.FromString(frame.header)
    envelope.tensors[1].dtype = 99
    peer.connection.send(envelope.SerializeToString())
    pair.deliver()
    assert [i for i, error in got if error is not None] == [0, 2]
    assert not pair.peer.is_lost
