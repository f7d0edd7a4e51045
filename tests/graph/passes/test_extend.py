"""What is added to a request that was optimised before goes through the passes by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.graph.construction.graph_extension import extension
from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes import pipeline
from flowrt.graph.passes.pipeline import optimise
from flowrt.graph.passes.placement.place import place
from flowrt.graph.passes.prepare.extend import MAX_REMEMBERED, Optimised, Recent, extend
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import StepRequest, extract
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import outcome, subgraph_of
from tests.graph.passes.test_random_graphs import RandomGraph

GRAPHS = 120


def prepare(subgraph: Subgraph) -> Subgraph:
    return infer_shapes(optimise(infer_shapes(order_effects(lower(subgraph)))))


class Passes:
    """`prepare`, which notes how many nodes it saw."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, subgraph: Subgraph) -> Subgraph:
        verify_subgraph(subgraph)
        self.seen.append(len(subgraph))
        return prepare(subgraph)


def extended(part: Subgraph, whole: Subgraph) -> Subgraph | None:
    return extend(Optimised(part, prepare(part)), whole, prepare)


# --- what is visited


def test_a_summary_of_a_training_step_is_all_that_is_visited():
    x = tf.placeholder(tf.float32, [4, 3])
    weights = tf.Variable(np.ones((3, 2), np.float32))
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, weights))))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    recent, passes = Recent(), Passes()
    recent.optimise(subgraph_of([loss], [train], [x]), passes)
    whole = subgraph_of([loss, tf.summary.scalar("loss", loss)], [train], [x])
    after = recent.optimise(whole, passes)
    verify_subgraph(after)
    assert passes.seen[0] > 20
    assert passes.seen[1:] == [3]  # the loss as a feed, the tag, the summary
    assert after.targets == (train.name,)
    assert len(after.fetches) == 2


def test_another_fetch_of_the_same_nodes_visits_none_of_them():
    x = tf.placeholder(tf.float32, [3])
    y = tf.tanh(x)
    recent, passes = Recent(), Passes()
    recent.optimise(subgraph_of([tf.exp(y)], [], [x]), passes)
    recent.optimise(subgraph_of([tf.get_default_graph().get_tensor_by_name("Exp:0"), y], [], [x]), passes)
    assert passes.seen == [3, 2]  # the two fetches, each as a feed


def test_a_part_of_an_earlier_request_is_not_visited_but_for_what_is_more():
    x = tf.placeholder(tf.float32, [4, 3])
    weights = tf.Variable(np.ones((3, 2), np.float32))
    y = tf.tanh(tf.matmul(x, weights))
    loss = tf.reduce_mean(tf.square(y))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    recent, passes = Recent(), Passes()
    recent.optimise(subgraph_of([loss], [train], [x]), passes)
    whole = subgraph_of([loss, tf.argmax(y, 1)], [], [x])
    after = recent.optimise(whole, passes)
    verify_subgraph(after)
    assert passes.seen[1:] == [4]  # the loss and y as feeds, the axis, the labels
    assert after.targets == ()
    assert not any("ApplyGradientDescent" in node.op.name for node in after)
    assert len(after) <= len(whole)


def test_of_several_earlier_requests_the_nearest_is_extended():
    x = tf.placeholder(tf.float32, [3])
    y = tf.tanh(x)
    for _ in range(20):
        y = tf.sin(y) * x
    recent, passes = Recent(), Passes()
    recent.optimise(subgraph_of([y], [], [x]), passes)
    recent.optimise(subgraph_of([tf.get_default_graph().get_tensor_by_name("Tanh:0")], [], [x]), passes)
    recent.optimise(subgraph_of([y, tf.exp(y)], [], [x]), passes)
    assert passes.seen[1:] == [1, 2]


def test_the_last_few_requests_are_remembered():
    x = tf.placeholder(tf.float32, [3])
    tensors = [tf.tanh(tf.exp(x + float(i))) for i in range(MAX_REMEMBERED + 1)]
    recent, passes = Recent(), Passes()
    for y in tensors:
        recent.optimise(subgraph_of([y], [], [x]), passes)
    for y in (tensors[1], tensors[0]):
        recent.optimise(subgraph_of([y * 2.0], [], [x]), passes)
    assert passes.seen[-2] < passes.seen[-1] == 7


# --- extracting and placing


def extract_again(
    recent: Recent, graph: Any, fetches: list[Any], targets: Any = (), feeds: Any = ()
) -> Subgraph:
    request = StepRequest(graph, fetches, targets, {t: tuple(t.shape.as_list()) for t in feeds})
    return recent.extract(request, lambda request: extract(*request))


def test_random_requests_of_one_graph_extract_the_same_as_by_themselves():
    num_shared = 0
    for seed in range(GRAPHS // 4):
        made, recent = RandomGraph(seed), Recent()
        rng = np.random.default_rng(seed)
        with made.graph:
            tensors = [made.graph.operations[n].outputs[i] for n, i in made.subgraph.fetches]
            targets = [made.graph.operations[n] for n in made.subgraph.targets]
            for _ in range(6):
                tensors += [made.binary(), made.unary()]
                fetches = [t for t in tensors if rng.random() < 0.8]
                some = [t for t in targets if rng.random() < 0.9]
                found = extract_again(recent, made.graph, fetches, some, made.fed)
                expected = subgraph_of(fetches, some, made.fed)
                verify_subgraph(found)
                assert found.nodes.keys() == expected.nodes.keys()
                assert (found.feeds, found.fetches, found.targets) == (
                    expected.feeds, expected.fetches, expected.targets
                )  # fmt: skip
                num_shared += any(extension(e, found) is not None for e in list(recent._extracted)[:-1])
    assert num_shared > GRAPHS // 4


def test_what_a_fed_tensor_hides_is_extracted_where_it_is_not_fed():
    x = tf.placeholder(tf.float32, [3])
    y = tf.exp(x)
    z, graph, recent = tf.sin(y), tf.get_default_graph(), Recent()
    assert len(extract_again(recent, graph, [z], feeds=[x])) == 3
    assert len(extract_again(recent, graph, [z], feeds=[y])) == 2
    assert len(extract_again(recent, graph, [z, y], feeds=[x])) == 3


def test_a_placeholder_that_is_needed_and_not_fed_is_named_by_a_later_request_too():
    x, other = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.float32, [3], name="other")
    y, graph, recent = tf.exp(x), tf.get_default_graph(), Recent()
    extract_again(recent, graph, [y], feeds=[x])
    with pytest.raises(tf.errors.InvalidArgumentError, match="other"):
        extract_again(recent, graph, [y, y + other], feeds=[x])


class Placing:
    """`place` on ``devices``, which notes how many nodes it saw."""

    def __init__(self, *devices: str) -> None:
        self.devices = [parse_device(f"/job:localhost/replica:0/task:0/device:{d}") for d in devices]
        self.seen: list[int] = []

    def __call__(self, subgraph: Subgraph, assigned: Any) -> Subgraph:
        self.seen.append(len(subgraph))
        return place(subgraph, self.devices, assigned=assigned, soft=False)


def test_only_what_is_more_is_placed():
    x = tf.placeholder(tf.float32, [4])
    y = x
    for _ in range(30):
        y = tf.tanh(y)
    recent, placing = Recent(), Placing("CPU:0", "GPU:0")
    graph = tf.get_default_graph()
    for fetches in ([y], [y, tf.exp(y)], [tf.sin(y)], [y]):
        subgraph = extract_again(recent, graph, fetches, feeds=[x])
        placed = recent.place(subgraph, placing)
        whole = place(subgraph, placing.devices, assigned={}, soft=False)
        assert [n.device for n in placed] == [n.device for n in whole]
        assert list(placed.nodes) == list(subgraph.nodes)
    assert placing.seen == [31, 2, 2, 0]  # the tensor that is read, and its reader


@pytest.mark.parametrize("device", ["/cpu:0", "/gpu:7"])
def test_what_asks_for_another_device_is_placed_with_the_whole(device):
    x = tf.placeholder(tf.float32, [4])
    y = tf.tanh(x)
    with tf.device(device):
        z = tf.exp(y)
    recent, placing = Recent(), Placing("CPU:0", "GPU:0")
    recent.place(extract_again(recent, tf.get_default_graph(), [y], feeds=[x]), placing)
    both = extract_again(recent, tf.get_default_graph(), [y, z], feeds=[x])
    if device == "/gpu:7":
        with pytest.raises(tf.errors.InvalidArgumentError, match="requests /device:GPU:7"):
            recent.place(both, placing)
    else:
        assert {node.device[-5:] for node in recent.place(both, placing)} == {"CPU:0", "GPU:0"}
    assert placing.seen == [2, 2, 3]


# --- what comes of it


def test_random_graphs_give_the_same_bits_whether_extended_or_not():
    count = 0
    for seed in range(GRAPHS):
        made = RandomGraph(seed)
        with made.graph:
            tensors = [made.graph.operations[n].outputs[i] for n, i in made.subgraph.fetches]
            targets = [made.graph.operations[n] for n in made.subgraph.targets]
            part = subgraph_of(tensors[:3], targets, made.fed)
            more = [made.binary(), made.unary(), made.reshape(), *made.wide()]
            whole = subgraph_of([*tensors, *more], targets, made.fed)
        after = extended(part, whole)
        if after is not None:
            count += 1
            verify_subgraph(after)
            assert after.feeds == whole.feeds
            assert outcome(after, made.feeds, made.initial) == outcome(
                prepare(whole), made.feeds, made.initial
            ), seed
    assert count > GRAPHS // 10


def test_random_graphs_give_the_same_bits_from_another_part_of_an_earlier_request():
    count = 0
    for seed in range(GRAPHS):
        made = RandomGraph(seed)
        with made.graph:
            tensors = [made.graph.operations[n].outputs[i] for n, i in made.subgraph.fetches]
            targets = [made.graph.operations[n] for n in made.subgraph.targets]
            earlier = subgraph_of(tensors, targets, made.fed)
            later = subgraph_of([*tensors[1::2], made.binary()], targets[1:], made.fed)
        after = extended(earlier, later)
        if after is not None:
            count += 1
            verify_subgraph(after)
            found = outcome(after, made.feeds, made.initial)
            assert found == outcome(prepare(later), made.feeds, made.initial), seed
    assert count > GRAPHS // 10


def test_a_node_that_the_passes_took_away_is_there_again():
    x = tf.placeholder(tf.float32, [3])
    same = tf.identity(x * 1.0)
    part = subgraph_of([tf.exp(same)], [], [x])
    after = extended(part, subgraph_of([tf.get_default_graph().get_tensor_by_name("Exp:0"), same], [], [x]))
    assert after is not None
    assert outcome(after, {"Placeholder": np.float32([1, 2, 3])})[1][2] == np.float32([1, 2, 3]).tobytes()


def test_fetches_of_the_earlier_request_stay_where_the_passes_put_them():
    n = tf.placeholder(tf.int32, [])
    *_, total = tf.while_loop(lambda i, *_: i < n, lambda i, a, b: (i + 1, a * 2.0, b + 1.0), [0, 1.0, 0.0])
    part = subgraph_of([total], [], [n])
    after = extended(part, subgraph_of([n * 2, total], [], [n]))
    assert after is not None
    assert after.fetches[1] == prepare(part).fetches[0] != part.fetches[0]


def test_what_a_call_does_is_done():
    variable = tf.Variable(1.0)

    @tf.function
    def count(x: Any) -> Any:
        variable.assign_add(1.0)
        return x + 1.0

    x = tf.placeholder(tf.float32, [])
    y = count(x)
    after = extended(subgraph_of([y], [], [x]), subgraph_of([y, tf.exp(x)], [], [x]))
    assert after is not None
    assert "AssignAddVariableOp" in {node.op.name for node in after}


# --- what is refused


def _a_read(x: Any, variable: Any) -> Any:
    return variable.read_value()


def _one_that_waits(x: Any, variable: Any) -> Any:
    with tf.control_dependencies([x]):
        return tf.constant(1.0)


def _one_with_another_feed(x: Any, variable: Any) -> Any:
    return x + tf.placeholder(tf.float32, [3], name="other")


def _one_that_may_be_added(x: Any, variable: Any) -> Any:
    return tf.exp(x)


@pytest.mark.parametrize("more", [_a_read, _one_that_waits, _one_with_another_feed, _one_that_may_be_added])
def test_what_breaks_a_rule_goes_through_all_passes(more):
    x = tf.placeholder(tf.float32, [3])
    variable = tf.Variable(1.0)
    square, assign = tf.square(x), variable.assign(2.0)
    part = subgraph_of([square], [assign.op], [x])
    fetches = [square, more(x, variable)]
    feeds = [x, *(op.outputs[0] for op in tf.get_default_graph().get_operations() if op.name == "other")]
    after = extended(part, subgraph_of(fetches, [assign.op], feeds))
    assert (after is not None) == (more is _one_that_may_be_added)


def test_a_request_without_the_effects_of_the_earlier_one_does_not_get_them():
    variable = tf.Variable(1.0)
    assign = variable.assign(2.0).op
    late = variable.read_value()  # ordered behind the assignment where both run
    x = tf.placeholder(tf.float32, [])
    y = tf.exp(x)
    earlier = subgraph_of([y, late], [assign], [x])
    after = extended(earlier, subgraph_of([y, y * 2.0], [], [x]))
    assert after is not None
    assert not any(node.op.effect is Effect.WRITE for node in after)
    assert extended(earlier, subgraph_of([y, late], [], [x])) is None


def test_outputs_of_a_loop_may_have_other_numbers_and_are_not_read_from_outside():
    n = tf.placeholder(tf.int32, [])
    _, unused, total = tf.while_loop(
        lambda i, *_: i < n, lambda i, a, b: (i + 1, a * 2.0, b + 1.0), [0, 1.0, 0.0]
    )
    part = subgraph_of([total], [], [n])
    assert extended(part, subgraph_of([total, unused * 1.5], [], [n])) is None
    assert extended(part, subgraph_of([total, total * 2.0], [], [n])) is None  # what was fetched, too


# --- a session


def test_a_session_sends_only_what_is_new_through_the_passes(monkeypatch):
    seen = []

    def noted(subgraph: Subgraph, *options: Any) -> Subgraph:
        seen.append(len(subgraph))
        return optimise(subgraph, *options)

    monkeypatch.setattr(pipeline, "optimise", noted)
    x = tf.placeholder(tf.float32, [4])
    lanes = [x * float(i) for i in range(2, 12)]
    for i in range(1000):
        lanes[i % 10] = tf.add(lanes[i % 10], lanes[(7 * i + 1) % 10]) * 0.5
    total, feed = tf.add_n(lanes), {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        value = session.run(total, feed)
        assert seen.pop() > 2000
        np.testing.assert_array_equal(session.run([total * 2.0, total], feed), [value * 2, value])
        session.run(lanes[3:5], feed)
        np.testing.assert_array_equal(
            session.run(total + lanes[7], feed), value + session.run(lanes[7], feed)
        )
    assert max(seen) <= 4, seen


def test_a_session_gives_the_same_with_more_fetches():
    x = tf.placeholder(tf.float32, [3])
    weights = tf.Variable(np.float32([1, 2, 3]))
    loss = tf.reduce_sum(tf.square(weights * x))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    feed = {x: np.float32([1, 1, 2])}

    def losses(fetches: Any) -> list[Any]:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run([train, loss], feed)
            return [np.asarray(session.run(fetches, feed)[1]), session.run(weights)]

    expected = losses([train, loss])
    found = losses([train, loss, loss * 2.0, tf.summary.scalar("loss", loss)])
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
