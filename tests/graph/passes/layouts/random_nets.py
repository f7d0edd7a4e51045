"""Random nets that compute each row of a batch for itself, in stages, from a seed. Some count rows,
check them, or take branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from flowrt.graph.pipeline.schedules import TABLE

WIDTH = 6


class Step(NamedTuple):
    x: Any
    loss: Any
    train: Any


class RandomNet:
    """``calls`` random calls on rows and on what was made before; later calls are at later stages."""

    def __init__(self, seed: int, calls: int = 10) -> None:
        rng = self._rng = np.random.default_rng(seed)
        names = [*TABLE]
        self._schedule = names[int(rng.integers(len(names)))]
        self._devices = int(rng.integers(2, 4))
        self._seed, self._calls = seed, calls
        self._rows = int(rng.integers(2, 14))
        self._options = {
            "micro_batches": int(rng.integers(1, 6)),
            "remat": "stage" if rng.random() < 0.5 else None,
        }
        self._copies = int(rng.integers(1, 3))
        count = self._devices * (2 if self._schedule in ("interleaved", "zbv") else 1)
        self._stages = np.sort([*range(count), *rng.integers(0, count, calls - count)])

    @property
    def num_devices(self) -> int:
        return self._devices * self._copies

    def strategy(self, **options: Any) -> Any:
        mesh = tf.distribute.Mesh([("pp", self._devices), ("dp", self._copies)])
        return tf.distribute.PipelineStrategy(
            mesh, "pp", schedule=self._schedule, batch="dp", **self._options, **options
        )

    def feeds(self, x: Any) -> Mapping[Any, Any]:
        return {x: np.random.default_rng(self._seed).uniform(-1, 1, (self._rows, WIDTH))}

    def build(self, strategy: Any) -> Step:
        """The net in the default graph, the same each time."""
        rng = np.random.default_rng(self._seed)
        with nullcontext() if strategy is None else strategy.scope():
            x = tf.placeholder(tf.float64, [None, WIDTH])
            with nullcontext() if strategy is None else tf.distribute.stage(0):
                weights = [tf.get_variable("first", initializer=rng.uniform(-1, 1, (WIDTH, WIDTH)))]
                made = [x, x @ weights[0]]
            for number, stage in enumerate(self._stages):
                with nullcontext() if strategy is None else tf.distribute.stage(int(stage)):
                    made.append(tf.tanh(self._call(rng, made, weights, f"w{number}")))
            loss = tf.reduce_mean(tf.square(made[-1])) + tf.reduce_sum(made[-2]) * 0.1
            return Step(x, loss, self._train(loss))

    def _train(self, loss: Any) -> Any:
        """The update: at once, or in a branch that takes every second step."""
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        if self._seed % 3:
            return optimizer.minimize(loss)
        steps = tf.get_variable("steps", [], tf.int64, tf.zeros_initializer(), trainable=False)
        pairs = optimizer.compute_gradients(loss)
        is_due = tf.equal(steps.assign_add(1) % 2, 1)
        return tf.cond(is_due, lambda: optimizer.apply_gradients(pairs), tf.no_op)

    def _call(self, rng: np.random.Generator, made: list[Any], weights: list[Any], name: str) -> Any:
        x, other = made[-1], made[int(rng.integers(len(made)))]
        kind = int(rng.integers(13))
        if kind == 0:
            return x * other + other
        if kind == 1:
            return tf.nn.softmax(x) + tf.reduce_mean(other, 1, keepdims=True)
        if kind == 2:
            return tf.concat([x[:, :2], other[:, 2:]], 1)
        if kind == 3:
            return tf.nn.dropout(x, 0.8, seed=int(rng.integers(9)))
        if kind == 4:  # tied
            return x @ tf.transpose(weights[int(rng.integers(len(weights)))])
        if kind == 5:
            return tf.where(x > other, x, 0.5 * other)
        if kind > 7:
            return self._with_effect_or_loop(kind, x, other, name)
        weights.append(tf.get_variable(name, initializer=rng.uniform(-1, 1, (WIDTH, WIDTH))))
        if kind == 6:
            w = weights[-1].read_value()
            return tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, tf.tanh(h @ w)), [0, x])[1]
        return x @ weights[-1] + other

    def _with_effect_or_loop(self, kind: int, x: Any, other: Any, name: str) -> Any:
        if kind == 8:
            return self._branch(x, other)
        if kind == 9:
            return self._loop_with_draws(x)
        if kind == 10:
            return self._joined(x) + other
        if kind == 11:
            with tf.control_dependencies([tf.assert_less(x, tf.constant(1e9, tf.float64))]):
                return tf.Print(x * 0.9, [tf.shape(x)], first_n=0)
        seen = tf.get_variable(name, [], tf.float64, tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([seen.assign_add(tf.reduce_sum(x))]):
            return tf.sin(other) + x

    def _branch(self, x: Any, other: Any) -> Any:
        taken = tf.placeholder_with_default(self._seed % 2 == 0, [])
        return tf.cond(taken, lambda: tf.nn.dropout(x, 0.7, seed=4) * other, lambda: tf.tanh(x) + other)

    def _loop_with_draws(self, x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return i + 1, tf.nn.dropout(tf.tanh(h), 0.7, seed=5)

        return tf.while_loop(lambda i, h: i < 2, body, [0, x])[1]

    def _joined(self, x: Any) -> Any:
        """Rows as several shorter ones, of which the batch is one dimension with others."""
        short = tf.nn.softmax(tf.reshape(x, [-1, WIDTH // 3]))
        return tf.reshape(tf.reshape(short, [-1, 3, WIDTH // 3])[:, ::-1], [-1, WIDTH])
