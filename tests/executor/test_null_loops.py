"""Dry runs of loops: on the null device they run as often as constants say, and lists take part."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.executor.analysis import trip_counts

NULL = "/device:NULL:0"


def dry_run(build, streams=0):
    """What a second run fetches, and how often it called which kernel, by the last part of the name."""
    with tf.Graph().as_default():
        with tf.device(NULL):
            fetches = build()
        config = tf.ConfigProto(device_count={"NULL": 1}, inter_op_parallelism_threads=streams)
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            session.run(fetches)
            calls = session.devices[-1].executor.calls
            calls.clear()
            found = session.run(fetches)
            return found, Counter(c.name.rpartition("/")[2] for c in calls if c.kind == "kernel")


def power(count, **options):
    """``matrix`` to the power of ``count`` + 1, and ``matrix``."""
    matrix = tf.get_variable("matrix", initializer=tf.ones([8, 8]))
    y = tf.while_loop(
        lambda i, _: i < count, lambda i, h: (i + 1, tf.matmul(h, matrix)), [0, matrix], **options
    )[1]
    return y, matrix


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("options", [{}, {"maximum_iterations": 3}])
def test_a_counted_loop_runs_as_often_as_it_would(count, options):
    _, calls = dry_run(lambda: power(count, **options)[0])
    assert calls["MatMul"] == min(count, options.get("maximum_iterations", count))


@pytest.mark.parametrize("streams", [0, 3])
def test_so_does_the_loop_of_its_gradient(streams):
    found, calls = dry_run(lambda: tf.gradients(*power(5)), streams)
    assert (calls["MatMul"], calls["MatMul_1"]) == (10, 5)  # forward once, backward twice an iteration
    np.testing.assert_array_equal(found, np.zeros([1, 8, 8]))


def test_so_does_a_loop_inside_a_loop():
    def nested():
        def outer(i, h):
            inner = tf.while_loop(lambda j, _: j < 4, lambda j, h: (j + 1, tf.matmul(h, h)), [0, h])
            return i + 1, inner[1]

        return tf.while_loop(lambda i, _: i < 3, outer, [0, tf.ones([2, 2])])[1]

    assert dry_run(nested)[1]["MatMul"] == 12


def test_a_loop_that_values_decide_does_not_begin():
    def until_large():
        start = tf.get_variable("start", initializer=tf.ones([2, 2]))
        return tf.while_loop(lambda h: tf.reduce_sum(h) < 9.0, lambda h: tf.matmul(h, h), [start])

    assert dry_run(until_large)[1]["MatMul"] == 0


def test_a_loop_that_is_too_long_to_be_counted_runs_once(monkeypatch):
    monkeypatch.setattr(trip_counts, "MAX_COUNTED", 4)
    assert dry_run(lambda: power(4)[0])[1]["MatMul"] == 4
    assert dry_run(lambda: power(5)[0])[1]["MatMul"] == 1


def test_a_loop_on_two_devices_ends_on_both():
    def on_two():
        def body(i, h):
            with tf.device("/cpu:0"):
                h = tf.sin(h)
            return i + 1, tf.matmul(h, h)

        return tf.while_loop(lambda i, _: i < 5, body, [0, tf.ones([2, 2])])[1]

    found, calls = dry_run(on_two)
    assert calls["MatMul"] == 1  # the CPU goes by the predicate that it receives
    assert found.shape == (2, 2)


def test_lists_are_of_any_length():
    def through_lists():
        mapped = tf.map_fn(lambda row: row * 2.0, tf.ones([3, 2]))
        array = tf.TensorArray(tf.float32, size=4).unstack(tf.ones([4, 2]))
        return mapped, array.stack(), array.read(1), tf.scan(lambda a, b: a + b, mapped)

    found, calls = dry_run(through_lists)
    assert [value.shape for value in found] == [(3, 2), (4, 2), (2,), (3, 2)]
    assert not any(value.any() for value in found)
    assert calls["mul"] + calls["Mul"] == 3


def test_a_recurrent_network_trains():
    def network():
        cell = tf.nn.rnn_cell.BasicLSTMCell(4)
        outputs, _ = tf.nn.dynamic_rnn(cell, tf.ones([2, 5, 3]), dtype=tf.float32)
        return tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(outputs))

    _, calls = dry_run(network)
    assert calls["MatMul"] >= 10  # 5 forward, 5 backward


def test_a_list_stays_on_the_device():
    with tf.device(NULL):
        array = tf.TensorArray(tf.float32, size=3).unstack(tf.ones([3, 2]))
    with tf.device("/cpu:0"):
        y = array.stack()
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        with pytest.raises(
            InvalidArgumentError, match=r"TensorArrayUnstack.*a list that stays on this device"
        ):
            session.run(y)


def test_what_is_neither_static_nor_of_a_list_is_refused():
    x = tf.placeholder(tf.float32, [None])
    with tf.device(NULL):
        y = tf.boolean_mask(x, x > 0.0) * 2.0
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        with pytest.raises(
            InvalidArgumentError, match=r"expected a static shape; got float32\[\?\]|int64\[\?"
        ):
            session.run(y, {x: np.ones(3)})
