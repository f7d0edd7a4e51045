"""Several steps in one session call: the same weights, the last results, and the data's end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.strategies.cpus import central, initialized, mirrored, session

D = tf.distribute
RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((24, 3)), RNG.standard_normal((24, 2))
STRATEGIES = {
    "default": D.get_strategy,
    "one": lambda: D.OneDeviceStrategy("/cpu:0"),
    "mirrored": lambda: mirrored(2),
    "central": lambda: central(3),
}


def train(strategy: Any, steps_per_loop: int, calls: int) -> Any:
    with tf.Graph().as_default():
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.zeros([3, 2], tf.float64))
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        iterator = strategy.make_dataset_iterator(
            tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(6)
        )

        def fn(batch: Any) -> Any:
            x, y = batch
            loss = tf.reduce_sum(tf.square(tf.tanh(x @ w) - y)) / 6
            update = optimizer.minimize(loss)
            with tf.control_dependencies([update]):
                return {"loss": tf.identity(loss), "update": update, "none": None}

        results = strategy.experimental_run(fn, iterator, steps_per_loop)
        assert results["none"] is None
        loss = strategy.reduce("sum", results["loss"])
        with initialized() as sess:
            sess.run(iterator.initializer)
            losses = [sess.run([loss, results["update"]])[0] for _ in range(calls)]
            return sess.run(w), losses


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_loop_of_steps_gives_the_weights_and_last_results_of_single_steps(name: str) -> None:
    weights, losses = train(STRATEGIES[name](), 1, 6)
    for steps_per_loop in (2, 3):
        found, last = train(STRATEGIES[name](), steps_per_loop, 6 // steps_per_loop)
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-12)
        np.testing.assert_allclose(last, losses[steps_per_loop - 1 :: steps_per_loop], rtol=0, atol=1e-12)


def scheduled(strategy: Any, steps_per_loop: int, calls: int) -> Any:
    """Weights, with all that a script may make of a step outside of its function: a learning rate by the
    global step, a batch of the data, random numbers, a value that is counted up, a fed factor.
    """
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        factor = tf.placeholder(tf.float64, [])
        with strategy.scope():
            step = tf.train.get_or_create_global_step()
            w = tf.get_variable("w", initializer=tf.zeros([3, 2], tf.float64))
            runs = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            rate = tf.train.exponential_decay(tf.constant(0.2, tf.float64), step, 2, 0.5)
            optimizer = tf.train.MomentumOptimizer(rate, tf.cond(step < 3, lambda: 0.9, lambda: 0.5))
        x, y = (
            tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(6).make_one_shot_iterator().get_next()
        )
        noise = factor * tf.random_normal([3, 2], dtype=tf.float64)
        with tf.control_dependencies([runs.assign_add(1.0)]):
            shift = runs.read_value() / 10

        def fn() -> Any:
            loss = tf.reduce_sum(tf.square(tf.tanh(x @ (w + noise)) - y - shift)) / 6
            return optimizer.minimize(loss, global_step=step)

        train = strategy.group(strategy.experimental_run(fn, steps_per_loop=steps_per_loop))
        with initialized() as sess:
            for _ in range(calls):
                sess.run(train, {factor: 0.5})
            return sess.run([w, step, runs])


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_a_step_reads_around_its_function_is_new_in_every_step(name: str) -> None:
    weights, step, runs = scheduled(STRATEGIES[name](), 1, 6)
    assert (step, runs) == (6, 6)
    found, *counts = scheduled(STRATEGIES[name](), 3, 2)
    assert counts == [6, 6]
    np.testing.assert_allclose(found, weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["off", "eager"])
def test_steps_of_a_loop_are_bitwise_single_steps_where_nothing_is_compiled_meanwhile(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", mode)
    expected = scheduled(mirrored(2), 1, 6)[0]
    np.testing.assert_array_equal(scheduled(mirrored(2), 3, 2)[0], expected)


def test_an_operation_runs_all_steps_and_an_end_in_the_middle_keeps_those_before_it() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        seen = tf.Variable(np.int64(0), aggregation=tf.VariableAggregation.SUM)
    iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(10).batch(2))

    def fn(x: Any) -> Any:
        return seen.assign_add(tf.reduce_sum(x), read_value=False)

    step = strategy.experimental_run(fn, iterator, steps_per_loop=3)
    assert isinstance(step, tf.Operation)
    with session() as sess:
        sess.run([iterator.initializer, seen.initializer])
        sess.run(step)
        assert sess.run(list(seen.copies)) == [15, 15]
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(step)
        assert sess.run(list(seen.copies)) == [45, 45]


def test_results_of_varying_shape_and_of_each_replica_are_the_last_ones() -> None:
    strategy = mirrored(2)
    iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(7).batch(4))
    last = strategy.experimental_run(lambda x: x, iterator, steps_per_loop=2)
    with session() as sess:
        sess.run(iterator.initializer)
        assert [part.tolist() for part in sess.run(list(last.values))] == [[4, 5], [6]]


def test_steps_are_counted_from_one() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="steps_per_loop >= 1; got 0"):
        mirrored(2).experimental_run(lambda: 1, steps_per_loop=0)
