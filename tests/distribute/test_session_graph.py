"""The graph of a session: what is sent of it, and that both ends make the same step of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.distribute.cluster.graph_limits import GraphLimits
from flowrt.distribute.machines.session_graph import SentGraph, SessionGraph, callable_of
from flowrt.distribute.wire.messages import Message, decode, encode
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.text.graph_text import print_subgraph
from flowrt.protos import cluster_pb2 as pb


def through_a_frame(message: Message) -> tuple[Message, int]:
    """What arrives, and how many bytes of it."""
    frame = encode(1, message)
    arrived = decode(*frame).message
    assert arrived is not None
    return arrived, len(frame.header) + sum(part.nbytes for part in frame.payload)


def shown(step: Subgraph) -> tuple[list[str], list[str]]:
    """The lines of the feeds, which may stand anywhere, and the others, in order."""
    lines = print_subgraph(step).splitlines()
    return sorted(line for line in lines if "_Feed" in line), [line for line in lines if "_Feed" not in line]


class Both:
    """A client's end and its master's, with frames between them."""

    def __init__(self) -> None:
        self.sent, self.graph = SentGraph(), SessionGraph()

    def make(self, fetches: list[Any], feeds: dict[Any, Any] | None = None) -> int:
        """Have the master make a step as the client would. How many bytes went there."""
        graph, feeds = tf.get_default_graph(), feeds or {}
        step = extract(graph, fetches, [], feeds)
        extension = self.sent.extension(graph, step, feeds)
        sizes = 0
        if extension is not None:
            message, sizes = through_a_frame(extension.message("s"))
            assert message.body.version == self.graph.version
            self.graph = self.graph.extended(message)
            self.sent.extended(extension, self.graph.version)
        message, size = through_a_frame(callable_of("s", fetches, [], feeds))
        assert shown(self.graph.step(message)) == shown(step)
        return sizes + size


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def test_a_large_graph_travels_once_whatever_is_made_of_it(both: Both) -> None:
    table = tf.constant(np.zeros(1_000_000, np.float32))
    rows = [tf.reduce_sum(table) * float(i) for i in range(20)]
    assert both.make([rows[0]]) > 4_000_000
    assert sum(both.make([row]) for row in rows[1:]) < 20_000
    assert both.graph.version == 20


def test_what_is_known_is_not_extended(both: Both) -> None:
    a, b = tf.constant(1.0), tf.constant(2.0)
    for fetches in ([a + b], [a], [b, a], [a]):
        both.make(fetches)
    assert both.graph.version == 1


def test_what_nobody_runs_does_not_travel(both: Both) -> None:
    tf.py_func(lambda: 1.0, [], tf.float32)  # it could not
    both.make([tf.constant(1.0, name="wanted")])
    assert list(both.graph.nodes) == ["wanted"]


def test_effects_are_in_the_order_in_which_they_were_made(both: Both) -> None:
    """Whatever the order in which the client asked for them."""
    v = tf.get_variable("v", initializer=1.0)
    first, second = tf.assign_add(v, 1.0, name="first"), tf.assign(v, 5.0, name="second")
    both.make([second])
    both.make([first])
    both.make([first, second])
    names = list(both.graph.nodes)
    assert names.index("first") < names.index("second")


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_fed_need_not_travel_and_may_later(both: Both, is_known: bool) -> None:
    x = tf.placeholder(tf.float32, [None], "x")
    left, right = tf.split(tf.identity(x) * 2.0, 2)
    y = tf.concat([left + right, left], 0)
    if is_known:
        both.make([y], {x: (4,)})
    both.make([y], {left: (2,), right: (2,)})
    assert ("split" in both.graph.nodes) == is_known
    both.make([y], {right: (2,), x: (4,)})
    both.make([y], {x: (6,)})


def test_an_operation_that_changed_takes_the_place_of_what_it_was(both: Both) -> None:
    x = tf.placeholder(tf.float32, None, "x")
    middle = tf.identity(x, "middle")
    y = tf.negative(middle)
    both.make([y], {x: (3,)})
    middle.set_shape([3])
    both.make([y], {x: (3,)})
    assert both.graph.version == 2
    assert both.graph.nodes["middle"].outputs[0].shape == (3,)


@given(st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=8), st.sets(st.integers(0, 11)))
def test_any_steps_of_any_graph_in_any_order_are_those_of_the_client(
    steps: list[set[int]], feeds: set[int]
) -> None:
    with tf.Graph().as_default():
        tensors: list[Any] = [tf.placeholder(tf.float32, [300], f"x{i}") for i in range(3)]
        for i in range(9):
            tensors.append(tensors[i] + tensors[(i * 7) % len(tensors)] * np.full(300, i, np.float32))
        both = Both()
        for step in steps:
            fed = {tensors[i]: (300,) for i in {0, 1, 2} | feeds}
            both.make([tensors[i] for i in sorted(step)], fed)


# --- what a client may say


def arrived(body: Any, tensors: Any = ()) -> Message:
    return Message(body, tensors)


@pytest.mark.parametrize(
    "body, expected",
    [
        (pb.ExtendSession(graph=b"%a = NoOp()"), "got 1 operations at 0 positions"),
        (
            pb.ExtendSession(graph=b"%a = Neg(%b) : f32[]", positions=[1]),
            "expected an operation defined above",
        ),
        (pb.ExtendSession(graph=b"%a = _Feed() : f32[2]", positions=[1]), "expected the constant's value"),
        (pb.ExtendSession(fed=[pb.FedOperation(name="b", dtypes=[99])]), "expected a dtype"),
    ],
)
def test_an_extension_that_is_not_one_is_refused(body: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        SessionGraph().extended(arrived(body))


@pytest.mark.parametrize(
    "body, expected",
    [
        (pb.MakeCallable(fetches=[pb.TensorName(op="a")]), "expected operations of the session"),
        (pb.MakeCallable(targets=["a"]), "Extend it first"),
        (pb.MakeCallable(fed=[pb.TensorName(op="a")]), "one feed per fed tensor; got 0 for 1"),
    ],
)
def test_a_callable_of_what_is_not_there_is_refused(body: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        SessionGraph().step(arrived(body))


@pytest.mark.parametrize("limits, said", [({"nodes": 1}, "1 nodes"), ({"constant_bytes": 10}, "10 bytes")])
def test_a_sessions_graph_has_the_limits_of_one_graph(limits: dict[str, int], said: str) -> None:
    text = b"%a = Const() {dtype=f32, value=f32[3](1.0, 2.0, 3.0)} : f32[3]\n%b = NoOp()"
    body = pb.ExtendSession(graph=text, positions=[0, 1])
    with pytest.raises(ResourceExhaustedError, match=said):
        SessionGraph().extended(arrived(body), GraphLimits(**limits))
