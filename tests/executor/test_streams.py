"""A device's streams: who runs where, who waits for whom, and that the result is the one-stream one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.executor.analysis import streams
from flowrt.executor.analysis.streams import by_rank, schedule_streams
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import extract
from tests.each import nightly
from tests.executor.random_programs import RandomProgram, assert_same
from tests.executor.sleeping import meet_op, sleep_op


@pytest.fixture
def spread(monkeypatch):
    """Every independent node on a stream of its own choice, whether it pays or not."""
    monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(streams, "MIN_GAIN", -1e9)


def config(count, **devices):
    return tf.ConfigProto(inter_op_parallelism_threads=count, device_count=devices)


def programs_of(session):
    return [
        program
        for request in session._requests.values()
        for plan in request.plans.values()
        for program in plan.programs
    ]


# --- the schedule


@given(
    edges=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=2, max_size=30), count=st.integers(2, 4)
)
def test_every_dependency_happens_before(edges, count):
    with tf.Graph() as graph, pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "SWITCH_SECONDS", 0.0)
        patch.setattr(streams, "MIN_GAIN", -1e9)
        nodes = [tf.placeholder(tf.float32, [4])]
        for inputs in edges:
            nodes.append(tf.add_n([nodes[i % len(nodes)] for i in inputs] or [nodes[0]]))
        subgraph = extract(graph, [nodes[-1]], [], {nodes[0]: (4,)})
        schedule = schedule_streams(by_rank(subgraph), count)
    place = {node.name: i for i, node in enumerate(schedule.order)}
    assert sorted(place) == sorted(subgraph.nodes)
    for node in schedule.order:
        for name, _ in node.inputs:
            assert place[name] < place[node.name]
            assert schedule.happens_before(name, node.name)
            if schedule.count > 1 and subgraph.nodes[name].inputs:
                assert not schedule.happens_before(node.name, name)


def test_what_is_certain_is_what_the_waits_say(spread):
    """Vector clocks against the definition: paths along streams and waits."""
    for seed in range(40):
        program = RandomProgram(seed)
        with tf.Session(graph=program.graph, config=config(3)) as session:
            program.run(session)
            for request in session._requests.values():
                for plan in request.plans.values():
                    for part in plan.partitions.values():
                        check_clocks(part.schedule)


def check_clocks(schedule):
    if schedule.count == 1:
        return
    names = ("Const", "_Feed", "VarHandleOp")
    sources = {n.name for n in schedule.order if n.op.name in names and not n.controls}
    before, last = {}, {}
    for node in schedule.order:
        if node.name in sources:
            continue
        stream = schedule.stream_of(node.name)
        reached = set(before.get(last.get(stream), ())) | ({last[stream]} if stream in last else set())
        for other in schedule.waits.get(node.name, ()):
            assert schedule.stream_of(other) != stream
            assert other not in reached, "a wait for what is certain already"
            reached |= {other} | before[other]
        before[node.name], last[stream] = reached, node.name
    for node, reached in before.items():
        for other in before.keys() - {node}:
            assert schedule.happens_before(other, node) == (other in reached)


def test_a_write_waits_for_the_readers_of_the_old_value(spread):
    v = tf.get_variable("v", [4], initializer=tf.zeros_initializer())
    read = v.read_value()
    results = [tf.sin(read), tf.cos(read), tf.exp(read)]
    update = v.assign_add(tf.ones([4]), read_value=False)
    with tf.get_default_graph().as_default():
        subgraph = order_effects(extract(tf.get_default_graph(), results, [update], {}))
    schedule = schedule_streams(by_rank(subgraph), 3)
    (write,) = [n for n in schedule.order if n.op.effect is Effect.WRITE]
    for result in results:
        first, second = result.op.name, write.name
        assert schedule.happens_before(first, second) or schedule.happens_before(second, first)


def test_a_chain_stays_on_one_stream():
    x = tf.placeholder(tf.float32, [1000])
    y = x
    for _ in range(20):
        y = tf.sin(y)
    with tf.Session(config=config(4)) as session:
        session.run(y, {x: np.ones(1000)})
        assert len(programs_of(session)) == 1


def test_small_work_is_not_spread():
    x = tf.placeholder(tf.float32, [])
    with tf.Session(config=config(2)) as session:
        session.run(tf.sin(x) + tf.cos(x), {x: 1.0})
        assert len(programs_of(session)) == 1


# --- results


@pytest.mark.parametrize("block", nightly(range(10), 1))
def test_random_programs_on_several_streams_in_random_orders(spread, block):
    used = 0
    for seed in range(block * 20, block * 20 + 20):
        program = RandomProgram(seed)
        with tf.Session(graph=program.graph, config=config(2 + seed % 3), seed=seed) as session:
            for _ in range(2):
                assert_same(program.run(session), program.expected())
            used += len(programs_of(session)) > 1
    assert used


@pytest.mark.parametrize("block", nightly(range(10), 1))
def test_random_programs_of_two_devices_on_threads(spread, block):
    """Each device's streams wait for the other's: no order of theirs may close a circle."""
    for seed in range(block * 20, block * 20 + 20):
        program = RandomProgram(seed, devices=2)
        with tf.Session(graph=program.graph, config=config(3, CPU=2)) as session:
            assert_same(program.run(session), program.expected())


def test_a_control_edge_between_devices_waits_for_its_producer(spread):
    seen = []
    with tf.device("/cpu:0"):
        first = [tf.py_func(lambda i=i: seen.append(i) or np.float32(i), [], tf.float32) for i in range(5)]
    with tf.device("/cpu:1"), tf.control_dependencies([first[0].op]):
        last = tf.py_func(lambda: seen.append("last") or np.float32(9), [], tf.float32)
    for seed in range(20):
        with tf.Session(config=config(3, CPU=2), seed=seed) as session:
            session.run([last, *first])
        assert seen.index(0) < seen.index("last")
        seen.clear()


def test_a_receive_comes_after_the_part_of_a_branch_that_it_depends_on(spread):
    """A branch on two devices: the part on the second sends a tensor to the first, which sends the result
    back.
    """
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/cpu:1"):
        v = tf.Variable(np.ones(4, np.float32))

    def doubled():
        with tf.device("/cpu:1"):
            twice = v * 2.0
        with tf.device("/cpu:0"):
            return twice + x

    with tf.device("/cpu:0"):
        y = tf.cond(tf.reduce_sum(x) > 0.0, doubled, lambda: x) * 3.0
    with tf.device("/cpu:1"):
        z = v.assign_add(y)
        for _ in range(5):
            z = z + 1.0
    with tf.Session(config=config(3, CPU=2)) as session:
        session.run(tf.global_variables_initializer())
        options, expected = tf.RunOptions(timeout_in_ms=20_000), 1.0
        for _ in range(3):
            expected += (2 * expected + 1) * 3
            found = session.run(z, {x: np.ones(4)}, options=options)
            np.testing.assert_array_equal(found, np.full(4, expected + 5, np.float32))


def test_random_programs_on_threads(spread):
    for seed in range(30):
        program = RandomProgram(seed)
        with tf.Session(graph=program.graph, config=config(3)) as session:
            assert_same(program.run(session), program.expected())


def test_training_on_several_streams_is_the_same_to_the_last_bit(spread):
    def train(count, seed):
        with tf.Graph():
            tf.set_random_seed(3)
            x = tf.constant(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
            towers = [tf.layers.dense(tf.layers.dense(x, 8, tf.nn.tanh), 1) for _ in range(3)]
            loss = tf.reduce_mean(tf.square(tf.add_n(towers) - 1.0))
            step = tf.train.AdamOptimizer(0.01).minimize(loss)
            with tf.Session(config=config(count), seed=seed) as session:
                session.run(tf.global_variables_initializer())
                losses = [session.run([loss, step])[0] for _ in range(5)]
                return np.array(losses).tobytes(), [
                    session.run(v).tobytes() for v in tf.trainable_variables()
                ]

    expected = train(1, None)
    for seed in (None, 0, 1, 2, 3, 4):
        assert train(3, seed) == expected


def test_a_large_value_stays_until_all_streams_have_read_it(spread):
    x = tf.placeholder(tf.float32, [20_000])
    results = [tf.reduce_sum(x * float(i)) for i in range(4)]
    for seed in range(20):
        with tf.Session(config=config(3), seed=seed) as session:
            assert session.run(results, {x: np.ones(20_000)}) == [0, 20_000, 40_000, 60_000]


# --- time


def test_independent_operations_run_at_once_on_threads():
    with meet_op() as meet:
        x = tf.placeholder(tf.float32, [2])
        both = meet(x, seconds=0.2) + meet(x + 1.0, seconds=0.2)
        with tf.Session(config=config(2)) as session:
            assert session.run(both, {x: [1, 2]}).tolist() == [3, 5]  # or the meeting would break
            assert len(programs_of(session)) == 2


@pytest.mark.parametrize("count, seconds", [(1, 0.4), (2, 0.2)])
def test_the_null_devices_clock_shows_the_streams(count, seconds):
    with sleep_op() as sleep, tf.device("/device:NULL:0"):
        x = tf.placeholder(tf.float32, [2])
        both = sleep(x, seconds=0.2) + sleep(x + 1.0, seconds=0.2)
        with tf.Session(config=config(count, NULL=1)) as session:
            session.run(both, {x: [1, 2]})
            session.run(both, {x: [1, 2]})
            assert session.devices[-1].executor.now_s == pytest.approx(2 * seconds, rel=0.01)


def test_an_error_on_one_stream_ends_the_step():
    with meet_op() as meet:
        x = tf.placeholder(tf.float32, [2])
        with tf.control_dependencies([tf.assert_less(x, 10.0)]):
            checked = meet(x, seconds=0.2)
        both = checked + meet(x * 2.0, seconds=0.2)
        with tf.Session(config=config(2)) as session:
            assert session.run(both, {x: [1, 2]}).tolist() == [3, 6]
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(tf.sin(checked), {x: [1, 20]})
            assert session.run(both, {x: [1, 2]}).tolist() == [3, 6]
