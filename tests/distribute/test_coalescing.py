"""`CoalescedAnswers`: what travels together, and that nothing is held back for long."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.wire import peer as peers
from flowrt.distribute.wire.coalescing import MAX_TOGETHER, SMALL_BYTES, CoalescedAnswers
from flowrt.distribute.wire.messages import Message, encode
from flowrt.distribute.wire.peer import TensorAnswer
from flowrt.distribute.wire.response_cache import MAX_KEPT
from flowrt.protos import cluster_pb2 as pb

SCALAR = np.float32(1)


class Receiver:
    """In the place of a peer: the numbers of the requests that each message answers."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []

    def answer_together(self, answers: list[TensorAnswer]) -> None:
        self.messages.append([each.request_id for each in answers])


class Given:
    """A `CoalescedAnswers` and two who get tensors of it."""

    def __init__(self) -> None:
        self.answers = CoalescedAnswers()
        self.one, self.other = Receiver(), Receiver()

    def add(self, to: Receiver, number: int, value: Any = SCALAR) -> bool:
        return self.answers.add(cast(Any, to), number, value, lambda: None)


@pytest.fixture
def given() -> Given:
    return Given()


def test_what_is_added_behind_the_first_until_the_end_is_one_message_a_peer(given: Given) -> None:
    for _ in range(2):
        assert given.answers.begin()
        assert not any([given.add(given.one, 0), given.add(given.other, 6)])
        assert all([given.add(given.one, 1), given.add(given.other, 7), given.add(given.one, 2)])
        assert given.one.messages == []
        given.answers.end()
        assert (given.one.messages, given.other.messages) == ([[1, 2]], [[7]])
        given.one.messages, given.other.messages = [], []


def test_of_one_tensor_nothing_is_held_back(given: Given) -> None:
    assert given.answers.begin()
    assert not given.add(given.one, 0)
    given.answers.end()
    assert given.one.messages == []


def test_outside_of_it_nothing_is_held_back(given: Given) -> None:
    assert not given.add(given.one, 1)
    assert given.answers.begin()
    assert not given.answers.begin()  # the outer one ends it
    given.answers.end()
    assert not given.add(given.one, 2)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(SMALL_BYTES + 1, np.uint8),
        np.array([b"text"], object),
        b"text",
        "text",
        [1.0],
        np.array(["a"]),
    ],
    ids=repr,
)
def test_what_is_large_or_no_number_goes_by_itself(given: Given, value: Any) -> None:
    assert given.answers.begin()
    assert not given.add(given.one, 0)
    assert not given.add(given.one, 1, value)
    assert given.add(given.one, 2, np.zeros(SMALL_BYTES, np.uint8))


def test_a_message_has_only_so_many(given: Given) -> None:
    assert given.answers.begin()
    assert not given.add(given.one, -1)
    for number in range(2 * MAX_TOGETHER + 1):
        assert given.add(given.one, number)
    assert [len(ids) for ids in given.one.messages] == [MAX_TOGETHER] * 2
    given.answers.end()
    assert given.one.messages[2:] == [[2 * MAX_TOGETHER]]


def test_the_largest_message_is_kept_until_it_has_come() -> None:
    value = np.zeros((1,) * 31 + (SMALL_BYTES,), np.uint8)
    also = [2**63 + i for i in range(MAX_TOGETHER - 1)]
    frame = encode(2**63, Message(pb.Done(), [value] * MAX_TOGETHER), is_answer=True, also=also)
    assert len(frame.header) <= MAX_KEPT
    assert not frame.payload


def test_each_thread_holds_back_its_own(given: Given) -> None:
    assert given.answers.begin()
    added = []
    thread = threading.Thread(target=lambda: added.append(given.add(given.one, 1)))
    thread.start()
    thread.join()
    assert added == [False]


# --- in a cluster


@pytest.fixture
def servers() -> Iterator[list[tf.train.Server]]:
    with ReservedPorts(2) as reserved:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        made = [tf.train.Server(spec, "worker", index) for index in range(2)]
        yield made
        for server in made:
            server.stop()


def test_a_short_parts_scalars_travel_together(
    servers: list[tf.train.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are asked for before they are there or after."""
    sent: Counter[int] = Counter()

    def counted(*arguments: Any, also: Any = (), **more: Any) -> Any:
        sent[len(also)] += 1
        return encode(*arguments, also=also, **more)

    monkeypatch.setattr(peers, "encode", counted)
    scalars = []
    with tf.Graph():
        x = tf.placeholder(tf.float32, [])
        for number in range(2 * MAX_TOGETHER + 1):
            with tf.device("/job:worker/task:1"):
                made = x + float(number)
            with tf.device("/job:worker/task:0"):
                scalars.append(made * 2)
        with tf.Session(servers[0].target) as session:
            for step in range(5):
                got = session.run(scalars, {x: float(step)})
                assert got == [2.0 * (step + number) for number in range(2 * MAX_TOGETHER + 1)]
    assert sent[MAX_TOGETHER - 1] == 2 * 5
