"""However the devices' programs are driven, inline, on threads or in any seeded order, a step
has one result.
"""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan import plan
from flowrt.executor.program.runner import StepControl, run_inline, run_seeded
from flowrt.rendezvous import InlineRendezvous
from tests.each import nightly
from tests.executor.random_programs import RandomProgram, assert_same

GRAPHS = 40
SEEDS = 25


@pytest.fixture
def threaded(monkeypatch):
    """Every plan with two partitions is large enough for threads."""
    monkeypatch.setattr(plan, "THREADED_COST", 0.0)


def cpus(count, **fields):
    return tf.ConfigProto(device_count={"CPU": count}, **fields)


@pytest.mark.parametrize("block", nightly(range(8), 1))
def test_seeded_interleavings_give_one_result_and_leave_the_rendezvous_empty(block, monkeypatch):
    checked = []

    def check_empty(rendezvous):
        checked.append(rendezvous.pending())

    monkeypatch.setattr(InlineRendezvous, "check_empty", check_empty)
    for number in range(block, GRAPHS, 8):
        devices = 2 + number % 3
        program = RandomProgram(1000 + number, calls=12, devices=devices)
        expected = program.expected()
        for seed in range(SEEDS):
            with tf.Session(graph=program.graph, config=cpus(devices), seed=seed) as session:
                assert_same(program.run(session), expected)
    assert len(checked) >= GRAPHS * SEEDS // 8
    assert not any(checked)


@pytest.mark.parametrize("block", nightly(range(4), 2))
def test_threads_and_turns_give_what_the_reference_gives(block, threaded):
    for number in range(block, 40, 4):
        devices = 2 + number % 3
        program = RandomProgram(2000 + number, calls=25, devices=devices)
        expected = program.expected()
        for config in (cpus(devices), cpus(devices, inter_op_parallelism_threads=1)):
            with tf.Session(graph=program.graph, config=config) as session:
                assert_same(program.run(session), expected)


def train(devices, steps=20, **session_options):
    """The weights of a small network after ``steps``, its layers spread over ``devices`` CPUs."""
    rng = np.random.default_rng(3)
    images, labels = rng.standard_normal((64, 20)).astype(np.float32), rng.integers(0, 5, 64)
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.float32, [None, 20]), tf.placeholder(tf.int64, [None])
        sizes, h = [20, 32, 16, 5], x
        for layer in range(3):
            with tf.device(f"/cpu:{layer % devices}"):
                initial = rng.standard_normal(sizes[layer : layer + 2]).astype(np.float32) * 0.1
                w, b = tf.Variable(initial), tf.Variable(tf.zeros([sizes[layer + 1]]))
                h = tf.matmul(h, w) + b
                h = tf.nn.tanh(h) if layer < 2 else h
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        step = optimizer.minimize(loss, colocate_gradients_with_ops=True)
        with tf.Session(config=cpus(devices), **session_options) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, step], {x: images, y: labels})[0] for _ in range(steps)]
            return losses, session.run(tf.trainable_variables())


def assert_bitwise(found, expected):
    assert [a.tobytes() for a in found[1]] == [b.tobytes() for b in expected[1]]
    assert [a.tobytes() for a in found[0]] == [b.tobytes() for b in expected[0]]


def test_training_on_one_two_and_four_devices_gives_bitwise_the_same_weights():
    expected = train(1)
    assert expected[0][-1] < 0.8 * expected[0][0]
    assert expected[1][0].dtype == np.float32
    assert_bitwise(train(2), expected)
    assert_bitwise(train(4), expected)
    assert_bitwise(train(3, seed=11), expected)


def test_training_on_threads_gives_bitwise_the_same_weights(threaded):
    assert_bitwise(train(3), train(1))


def test_large_partitions_run_on_threads_of_their_own():
    import threading

    x = tf.placeholder(tf.float32, [300, 300])
    names = []

    def note(value):
        names.append(threading.current_thread().name)
        return value

    made = []
    for device in range(2):
        with tf.device(f"/cpu:{device}"):
            product = tf.matmul(tf.matmul(x, x), x)
            made.append(tf.py_func(note, [tf.reduce_sum(product)], tf.float32))
    with tf.Session(config=cpus(2)) as session:
        session.run(made, {x: np.eye(300)})
    assert len(set(names)) == 2


def test_zero_divided_by_zero_is_silent_on_every_thread(threaded):
    x = tf.placeholder(tf.float32, [2])
    made = []
    for device in range(3):
        with tf.device(f"/cpu:{device}"):
            made.append(x / (x * 0))
    with tf.Session(config=cpus(3)) as session:  # a NumPy warning would be an error here
        assert np.isnan(session.run(made, {x: [0, 0]})).all()


def test_control_edges_between_devices_order_their_operations(threaded):
    with tf.device("/cpu:0"):
        v = tf.Variable(1.0)
    with tf.device("/cpu:1"):
        w = tf.Variable(10.0)
    first = v.assign(2.0, read_value=False)
    with tf.control_dependencies([first]):
        second = w.assign_add(5.0, read_value=False)
    with tf.control_dependencies([second]):
        third = v.assign(v.read_value() * 10.0, read_value=False)
    for options in ({}, {"seed": 4}):
        with tf.Session(config=cpus(2), **options) as session:
            session.run(tf.global_variables_initializer())
            session.run(third)
            assert session.run([v, w]) == [20.0, 15.0]


@pytest.mark.parametrize("way", ["inline", "threaded", "seeded"])
def test_another_device_gets_the_value_that_a_variable_had_when_it_was_read(way, monkeypatch):
    if way == "threaded":
        monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    with tf.device("/cpu:0"):
        v = tf.Variable([1.0, 2.0])
        read = v.read_value()
    with tf.device("/cpu:1"):
        doubled = read * 2.0
    with tf.device("/cpu:0"):
        update = v.assign_add([10.0, 10.0], read_value=False)
    with tf.Session(config=cpus(2), seed=1 if way == "seeded" else None) as session:
        for _ in range(20):
            session.run(v.initializer)
            assert session.run([doubled, update])[0].tolist() == [2, 4]


@pytest.mark.parametrize("run", [run_inline, lambda running, control: run_seeded(running, control, 3)])
def test_programs_that_wait_for_each_other_for_ever_end_with_what_they_wait_for(run):
    def program(key):
        while True:
            yield key

    with pytest.raises(tf.errors.InternalError, match="no sender for first, second"):
        run([program("first"), program("second")], StepControl())
