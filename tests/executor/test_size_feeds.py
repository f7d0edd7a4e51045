"""Feeds that decide shapes by their values: plans for the values that runs repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.size_feeds import MAX_PLANS, RUNS_BEFORE_COMPILING, num_unknown

STEADY = RUNS_BEFORE_COMPILING


def sized_plans(session: tf.Session) -> list[Plan]:
    return [plan for request in session._requests.values() for plan in request.sized.values()]


def test_results_do_not_change_when_sizes_vary_from_step_to_step() -> None:
    """An LSTM with as many rows as the feed ``size`` says, and its training, against one feed's shapes."""
    x, size = tf.placeholder(tf.float32, [24]), tf.placeholder(tf.int32, [])
    rows = tf.reshape(x, [size, 3, -1])
    rows.set_shape([None, 3, None])
    steps = tf.pad(rows, [[0, 0], [0, 0], [0, 8 - tf.shape(rows)[2]]])
    steps.set_shape([None, 3, 8])
    cell = tf.nn.rnn_cell.LSTMCell(4)
    outputs, _ = tf.nn.dynamic_rnn(cell, steps, initial_state=cell.zero_state(size, tf.float32))
    loss = tf.reduce_sum(outputs**2)
    gradient = tf.gradients(loss, cell.trainable_variables[0])[0]
    total = tf.Variable(0.0)
    fetches = [loss, gradient, tf.assign_add(total, loss)]
    value = np.linspace(-1, 1, 24, dtype=np.float32)
    sizes = [2, 2, 2, 4, 2, 1, 4, 4, 4, 2, 1, 4]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected: dict[int, Any] = {}
        before = 0.0
        for n in sizes:
            a, b, after = session.run(fetches, {x: value, size: n})
            assert np.isclose(after, before + a, rtol=1e-6)
            before = after
            first = expected.setdefault(n, (a, b))  # by the plan for all values: it is the value's first run
            np.testing.assert_allclose(a, first[0], rtol=1e-6)
            np.testing.assert_allclose(b, first[1], rtol=1e-5, atol=1e-6)
        assert [num_unknown(plan.placed) for plan in sized_plans(session)] == [0, 0]


def _rows() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    x, size = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int64, [])
    return x, size, tf.reduce_sum(tf.reshape(x, [size, -1]), 1) * 2.0


def test_sizes_that_never_repeat_compile_no_plan() -> None:
    x, size, y = _rows()
    with tf.Session() as session:
        for n in [1, 2, 3, 4, 6, 12] * STEADY:
            assert session.run(y, {x: np.ones(12, np.float32), size: n}).shape == (n,)
        assert session.num_plans == 1


def test_few_sizes_have_plans() -> None:
    x, size, y = _rows()
    with tf.Session() as session:
        for n in np.repeat([1, 2, 3, 4, 6, 12], STEADY):
            assert session.run(y, {x: np.ones(12, np.float32), size: n}).tolist() == [24.0 / n] * n
        assert len(sized_plans(session)) == MAX_PLANS


def test_a_feed_that_decides_no_shape_is_not_looked_at() -> None:
    x, step = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.int32, [])
    y = x * tf.cast(step, tf.float32)
    with tf.Session() as session:
        for _ in range(STEADY):
            session.run(y, {x: [1.0, 2.0], step: 3})
        assert session.num_plans == 1


def test_a_value_that_makes_no_shape_known_is_tried_once() -> None:
    x, size = tf.placeholder(tf.float32, [6]), tf.placeholder(tf.int32, [])
    y = tf.boolean_mask(x, tf.range(6) < size)  # its size depends on more than the feed
    with tf.Session() as session:
        for _ in range(2 * STEADY):
            assert session.run(y, {x: np.arange(6), size: 2}).tolist() == [0, 1]
        assert session.num_plans == 1


def test_a_branch_that_would_refuse_the_value_does_not_run() -> None:
    x, size = tf.placeholder(tf.float32, [6]), tf.placeholder(tf.int32, [])
    y = tf.cond(size < 4, lambda: tf.reshape(x, [size, -1]), lambda: tf.reshape(x, [1, -1]))
    with tf.Session() as session:
        for _ in range(2 * STEADY):
            assert session.run(y, {x: np.arange(6), size: 4}).shape == (1, 6)


def test_a_later_request_does_not_have_an_earlier_value() -> None:
    x, size, y = _rows()
    value = np.ones(12, np.float32)
    with tf.Session() as session:
        for _ in range(STEADY):
            session.run(y, {x: value, size: 3})
        z = y + 1.0
        assert session.run([y, z], {x: value, size: 2})[1].tolist() == [13.0, 13.0]


def test_shapes_are_sizes() -> None:
    x, shape = tf.placeholder(tf.float32, [12]), tf.placeholder(tf.int32, [2])
    y = tf.reshape(x, shape) + 1.0
    with tf.Session() as session:
        for given in [(3, 4)] * STEADY + [(2, 6), (3, 4)]:
            assert session.run(y, {x: np.zeros(12), shape: given}).shape == given
        assert len(sized_plans(session)) == 1


def test_wrong_sizes_are_one_error_however_often_they_come() -> None:
    x, size, y = _rows()
    with tf.Session() as session:
        for _ in range(2 * STEADY):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Reshape"):
                session.run(y, {x: np.ones(12, np.float32), size: 5})
        assert session.run(y, {x: np.ones(12, np.float32), size: 1}).tolist() == [24.0]
