"""The network of the fixtures, which either framework builds."""

from __future__ import annotations

from typing import Any

from tests.storage.cases import WIDTH


def train(tf: Any, optimizer: Any) -> tuple[Any, Any, Any, Any]:
    """Two placeholders, the loss and the update, made by ``tf``."""
    x = tf.placeholder(tf.float32, [None, WIDTH])
    y = tf.placeholder(tf.float32, [None, 1])
    with tf.variable_scope("net"):
        w = tf.get_variable("w", [WIDTH, 1], initializer=tf.ones_initializer())
        b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    step = tf.train.get_or_create_global_step()
    return x, y, loss, optimizer.minimize(loss, global_step=step)
