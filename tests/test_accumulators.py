"""Conditional accumulators, dense and sparse, as TensorFlow's scripts use them; about 1 s."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import flowrt as tf

WAIT_S = 30.0


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("reduction", "expected"), [("MEAN", 20.0), ("SUM", 60.0)])
def test_all_gradients_that_are_there_are_taken_once_there_are_enough(reduction, expected):
    accumulator = tf.ConditionalAccumulator(tf.float64, shape=[1], reduction_type=reduction)
    given = [accumulator.apply_grad([value]) for value in (10.0, 20.0, 30.0)]
    take, count = accumulator.take_grad(2), accumulator.num_accumulated()
    assert (take.shape, accumulator.dtype) == ([1], tf.float64)
    with tf.Session() as session:
        for apply in given:
            session.run(apply)
        assert session.run(count) == 3
        assert session.run(take) == [expected]
        assert session.run(count) == 0


def test_gradients_of_an_older_step_are_dropped():
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[])
    local_step, value = tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [])
    apply, take = accumulator.apply_grad(value, local_step), accumulator.take_grad(1)
    count, set_step = accumulator.num_accumulated(), accumulator.set_global_step(5)
    with tf.Session() as session:
        session.run(apply, {value: 1.0, local_step: 0})
        assert session.run(take) == 1.0  # the accumulator is at step 1 now
        session.run(apply, {value: 2.0, local_step: 0})
        assert session.run(count) == 0
        session.run(apply, {value: 3.0, local_step: 1})
        assert session.run(count) == 1
        session.run(set_step)
        session.run(apply, {value: 4.0, local_step: 4})
        assert session.run(count) == 1
        session.run(apply, {value: 5.0, local_step: 6})
        assert session.run(take) == 4.0


def test_takes_wait_and_none_takes_too_few():
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[], reduction_type="SUM")
    apply, take = accumulator.apply_grad(1.0, 1 << 40), accumulator.take_grad(2)
    taken, given, end = [], 0, time.monotonic() + WAIT_S
    with tf.Session() as session:
        threads = [start(lambda: taken.append(session.run(take))) for _ in range(3)]
        while len(taken) < 3 and time.monotonic() < end:
            session.run(apply)
            given += 1
        for thread in threads:
            thread.join(WAIT_S)
        left = session.run(accumulator.num_accumulated())
    assert min(taken) >= 2
    assert sum(taken) + left == given


def test_a_deadline_takes_nothing():
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[])
    with tf.Session() as session:
        session.run(accumulator.apply_grad(1.0))
        with pytest.raises(tf.errors.DeadlineExceededError, match="has 1 of 2 gradients"):
            session.run(accumulator.take_grad(2), options=tf.RunOptions(timeout_in_ms=500))
        assert session.run(accumulator.take_grad(1)) == 1.0


def test_a_gradient_is_kept_though_its_steps_memory_is_used_again():
    x = tf.placeholder(tf.float32, [4096])
    accumulator = tf.ConditionalAccumulator(tf.float32, shape=[4096])
    apply, take = accumulator.apply_grad(x * 2.0), accumulator.take_grad(1)
    with tf.Session() as session:
        session.run(apply, {x: np.ones(4096)})
        session.run(x * 2.0, {x: np.zeros(4096)})
        np.testing.assert_array_equal(session.run(take), np.full(4096, 2.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a: a.apply_grad([1.0, 2.0, 3.0]), r"a gradient of shape \[2\]; got \[3\]"),
        (
            lambda a: tf.ConditionalAccumulator(tf.float32, reduction_type="MAX"),
            "expected MEAN or SUM; got 'MAX'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(wrong, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        wrong(tf.ConditionalAccumulator(tf.float32, shape=[2]))


def test_what_does_not_fit_is_refused_when_it_is_run_and_changes_nothing():
    accumulator = tf.ConditionalAccumulator(tf.float32)
    x, n = tf.placeholder(tf.float32, None), tf.placeholder(tf.int32, [])
    apply, take = accumulator.apply_grad(x), accumulator.take_grad(n)
    with tf.Session() as session:
        session.run(apply, {x: [1.0, 2.0]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[2\]; got \[3\]"):
            session.run(apply, {x: [1.0, 2.0, 3.0]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="num_required: expected at least 1; got 0"):
            session.run(take, {n: 0})
        assert list(session.run(take, {n: 1})) == [1.0, 2.0]


# --- sparse


def slices(values, indices, shape=None):
    return tf.IndexedSlices(np.array(values, np.float32), indices, shape)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("MEAN", [[0.5, 0.5], [0, 2], [3, 0]]), ("SUM", [[1, 1], [0, 2], [3, 0]])]
)
def test_a_rows_mean_is_over_the_gradients_that_have_it(reduction, expected):
    accumulator = tf.SparseConditionalAccumulator(tf.float32, shape=[3, 2], reduction_type=reduction)
    given = [
        accumulator.apply_indexed_slices_grad(slices([[1, 0], [0, 2]], [0, 1])),
        accumulator.apply_grad([2, 0], np.array([[3, 0], [0, 1]], np.float32), [3, 2]),
    ]
    take = accumulator.take_indexed_slices_grad(2)
    with tf.Session() as session:
        session.run(given)
        found = session.run(take)
        assert list(found.indices) == [0, 1, 2]
        assert list(found.dense_shape) == [3, 2]
        np.testing.assert_array_equal(found.values, expected)
        assert session.run(accumulator.num_accumulated()) == 0


def test_old_sparse_gradients_are_dropped_and_later_ones_begin_anew():
    accumulator = tf.SparseConditionalAccumulator(tf.float32, shape=[None, 1])
    new, old = (accumulator.apply_indexed_slices_grad(slices([[4.0]], [2]), step) for step in (1, 0))
    take = accumulator.take_indexed_slices_grad(1)
    with tf.Session() as session:
        for _ in range(2):
            session.run(accumulator.set_global_step(1))
            session.run([new, old])
            assert session.run(accumulator.num_accumulated()) == 1
            assert list(session.run(take).values) == [[4.0]]


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (slices([[1, 2, 3]], [0]), "expected a gradient of shape"),
        (slices([[1, 2]], [0, 1]), "expected one row per index"),
        (slices([[1, 2]], [3]), "expected indices of 0 to 3"),
        (slices([[1, 2]], [-1]), "expected indices of 0 to 3"),
        (slices([[1, 2]], [0], [4, 2]), "expected a gradient of shape"),
    ],
)
def test_sparse_gradients_that_do_not_fit_are_refused_and_change_nothing(gradient, message):
    accumulator = tf.SparseConditionalAccumulator(tf.float32, shape=[3, 2])
    apply = accumulator.apply_indexed_slices_grad(gradient)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(apply)
        assert session.run(accumulator.num_accumulated()) == 0
