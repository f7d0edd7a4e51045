"""What workers make of their gradients: those of one large batch, and nothing for variables without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives import JoinedGroup
from tests.distribute.strategies.cpus import initialized, mirrored
from tests.distribute.strategies.workers_of_one_process import Worker, at_once, joined_workers

D = tf.distribute
RNG = np.random.default_rng(11)
X, Y = RNG.standard_normal((13, 4)), RNG.standard_normal((13, 2))
SPLITS = [(0, 6, 9, 13, 13), (0, 13, 13, 13, 13), (0, 1, 2, 3, 13)]
"""Where the shares of four replicas begin and end; some have no rows."""
NORMED = {"lars": lambda: tf.train.LARSOptimizer(0.5), "lamb": lambda: tf.train.LAMBOptimizer(0.1)}


def of_workers(run: Callable[[Any], Any], **options: Any) -> list[Any]:
    """What ``run(strategy)`` returns in two workers with two replicas each."""

    def work(joined: JoinedGroup) -> Any:
        with tf.Graph().as_default():
            return run(Worker(joined.group, ("/device:CPU:0", "/device:CPU:1"), **options))

    with joined_workers(2) as joined:
        return at_once(work, joined)


def alone(run: Callable[[Any], Any]) -> Any:
    with tf.Graph().as_default():
        return run(D.get_strategy())


# --- variables that the loss does not reach


def build_with_unreached(strategy: Any) -> tuple[Any, dict[str, Any]]:
    """A step of a loss that reaches the variable "used" only."""
    with strategy.scope():
        names = ("apart", "used", "stopped")
        variables = {name: tf.get_variable(name, [3], initializer=tf.ones_initializer()) for name in names}
        optimizer = tf.train.GradientDescentOptimizer(0.25)

    def step() -> Any:
        loss = tf.reduce_sum(variables["used"] * tf.stop_gradient(variables["stopped"]))
        return optimizer.minimize(loss)

    return strategy.group(strategy.run(step)), variables


def collectives_of(graph: Any) -> list[str]:
    return [op.type for op in graph.get_operations() if op.type in ("AllReduce", "AllGather", "Reduce")]


def test_no_collective_for_a_variable_that_the_loss_does_not_reach() -> None:
    def run(strategy: Any) -> Any:
        train, variables = build_with_unreached(strategy)
        with initialized() as session:
            session.run(train)
            values = {name: session.run(variable)[0].item() for name, variable in variables.items()}
        return collectives_of(tf.get_default_graph()), values

    for collectives, values in of_workers(run, bucket_bytes=12):  # of one variable
        assert collectives == ["AllReduce"]
        assert values == {"apart": 1.0, "used": 0.0, "stopped": 1.0}


def test_no_sum_of_replicas_for_a_variable_that_the_loss_does_not_reach() -> None:
    with tf.Graph().as_default() as graph:
        build_with_unreached(mirrored(2))
        sums = [op for op in graph.get_operations() if op.type == "AddN"]
    assert len(sums) == 2  # one on each device


# --- the gradients of all rows


def share_of(strategy: Any, split: tuple[int, ...]) -> Any:
    """This worker's rows of X and Y, a part a replica."""

    def rows(context: Any) -> Any:
        replica, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
        begin, end = (split[0], split[-1]) if replicas == 1 else split[replica : replica + 2]
        return tf.constant(X[begin:end]), tf.constant(Y[begin:end])

    return strategy.experimental_distribute_values_from_function(rows)


def trained(make_optimizer: Callable[[], Any], split: tuple[int, ...], steps: int) -> Callable[[Any], Any]:
    """What gives the weights after ``steps`` steps on all rows, each replica's mean loss by its rows."""

    def run(strategy: Any) -> Any:
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.constant(np.linspace(-1, 1, 8).reshape(4, 2)))
            b = tf.get_variable("b", initializer=tf.constant([0.5, -0.25], tf.float64))
            optimizer = make_optimizer()

        def step(share: Any) -> Any:
            x, y = share
            losses = tf.reduce_sum(tf.square(tf.tanh(x @ w + b) - y), 1)
            rows = tf.cast(tf.shape(x)[0], tf.float64)
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses), rows)
            all_rows = tf.distribute.get_replica_context().all_reduce("SUM", rows)
            return optimizer.minimize(mean * rows / all_rows)

        train = strategy.group(strategy.run(step, args=(share_of(strategy, split),)))
        with initialized() as session:
            for _ in range(steps):
                session.run(train)
            return np.concatenate([value.ravel() for value in session.run([w, b])])

    return run


@pytest.mark.parametrize("compression", ["float16", "bfloat16"])
def test_compressed_gradients_come_back_in_their_own_dtype(compression: str) -> None:
    """Of a whole number, which both have: and the variable's update is its own, of more digits."""

    def work(joined: JoinedGroup) -> Any:
        with tf.Graph().as_default():
            strategy = Worker(joined.group, compression=compression)
            with strategy.scope():
                w = tf.get_variable("w", [2], initializer=tf.constant_initializer(1 / 3))
                optimizer = tf.train.GradientDescentOptimizer(1.0)
            strategy_step = strategy.group(strategy.run(lambda: optimizer.minimize(3.0 * tf.reduce_sum(w))))
            sent = [op for op in tf.get_default_graph().get_operations() if op.type == "AllReduce"]
            assert [op.inputs[0].dtype.name for op in sent] == [compression]
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                session.run(strategy_step)
                return session.run(w)

    with joined_workers(2) as joined:
        for found in at_once(work, joined):
            np.testing.assert_array_equal(found, np.full(2, np.float32(1 / 3) - np.float32(6)))


@pytest.mark.parametrize("split", SPLITS)
def test_the_weighted_mean_of_uneven_shares_is_the_full_gradient(split: tuple[int, ...]) -> None:
    train = trained(lambda: tf.train.GradientDescentOptimizer(0.5), split, 3)
    expected = alone(train)
    for found in of_workers(train):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", NORMED)
def test_norms_are_those_of_the_whole_gradient(optimizer: str) -> None:
    """The ratio of the norms of weights and gradient would be another one with a replica's own gradient."""
    train = trained(NORMED[optimizer], SPLITS[0], 4)
    expected = alone(train)
    for found in of_workers(train):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
