"""A small model that every test here trains: a linear map, its gradients dense and known, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf

ROWS, INPUTS, OUTPUTS = 4, 3, 2


class Model(NamedTuple):
    inputs: tf.Tensor
    variables: list[Any]
    global_step: tf.Variable
    train: tf.Operation


def batch(worker: int, step: int) -> np.ndarray:
    return np.random.default_rng([worker, step]).normal(size=(ROWS, INPUTS))


def loss_of(weights: Any, bias: Any, inputs: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.matmul(inputs, weights) + bias - 1.0))


def new_variables(rows: int = INPUTS) -> list[Any]:
    """The weights, of which the model reads the first rows, and the bias."""
    weights = tf.get_variable("weights", [rows, OUTPUTS], tf.float64, initializer=tf.ones_initializer())
    return [weights, tf.get_variable("bias", [OUTPUTS], tf.float64, initializer=tf.zeros_initializer())]


def build(strategy: Any, optimizer: Callable[[], Any], rows: int = INPUTS) -> Model:
    with strategy.scope():
        variables = new_variables(rows)
        step, inputs = tf.train.get_or_create_global_step(), tf.placeholder(tf.float64, [None, INPUTS])
        own = optimizer()
        train = strategy.run(
            lambda: own.minimize(loss_of(variables[0][:INPUTS], variables[1], inputs), global_step=step)
        )
    return Model(inputs, variables, step, train)


def train_alone(optimizer: Callable[[], Any], batches: list[np.ndarray]) -> list[np.ndarray]:
    """The variables after a step with each of ``batches``, in one process without a strategy."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables, inputs = new_variables(), tf.placeholder(tf.float64, [None, INPUTS])
        train = optimizer().minimize(loss_of(*variables, inputs))
        session.run(tf.global_variables_initializer())
        for each in batches:
            session.run(train, {inputs: each})
        return session.run(variables)
