"""Feeds that decide shapes by their values: plans for the values that runs repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan import size_feeds
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.size_feeds import MAX_PLANS, RUNS_BEFORE_COMPILING, num_unknown
from flowrt.executor.session.local_runtime import LocalRuntime
from tests.executor.test_concurrency import in_threads

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


def test_memory_that_was_short_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, size, y = _rows()
    new_plan = LocalRuntime._new_plan

    def no_memory(*arguments: Any) -> Plan:
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    with tf.Session() as session:
        for run in range(2 * STEADY):
            is_first_try = 0 < run < STEADY
            monkeypatch.setattr(LocalRuntime, "_new_plan", no_memory if is_first_try else new_plan)
            assert session.run(y, {x: np.ones(12, np.float32), size: 3}).tolist() == [8.0] * 3
            assert len(sized_plans(session)) == (run == 2 * STEADY - 1)


def test_a_value_that_is_refused_does_not_end_the_plans_of_others() -> None:
    x, size, y = _rows()
    value = np.ones(12, np.float32)
    with tf.Session() as session:
        for n in [3] * STEADY:
            session.run(y, {x: value, size: n})
        for n in [5] * STEADY:
            with pytest.raises(tf.errors.InvalidArgumentError, match="Reshape"):
                session.run(y, {x: value, size: n})
        (plan,) = sized_plans(session)
        runs: list[Plan] = []
        run_straight = Plan.run_straight
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Plan, "run_straight", lambda p, feeds: runs.append(p) or run_straight(p, feeds))
            session.run(y, {x: value, size: 3})
        assert runs == [plan]


def test_threads_compile_a_plan_for_a_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that run the same step on two sizes, in turns of their own, get right results."""
    x, size, y = _rows()
    compiled: list[size_feeds.Values] = []
    compile_sized = size_feeds.SizeFeeds.compile

    def compile_counted(self: Any, values: size_feeds.Values) -> Any:
        compiled.append(values)
        return compile_sized(self, values)

    monkeypatch.setattr(size_feeds.SizeFeeds, "compile", compile_counted)
    with tf.Session() as session:

        def work(number: int) -> None:
            for n in np.repeat([3, 4, *np.random.default_rng(number).choice([3, 4], 40)], STEADY):
                value = np.full(12, number, np.float32)
                assert session.run(y, {x: value, size: n}).tolist() == [24.0 * number / n] * n

        in_threads(work)
        work(0)  # undisturbed
        assert len(sized_plans(session)) == len(compiled) == 2
