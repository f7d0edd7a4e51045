"""(14) A NaN is found in the step that makes it, wherever it is born: the error says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.processes import cluster

BAD = 3
"""The turn of the loop."""


def in_an_operation(x: Any) -> tuple[Any, str]:
    y = tf.log(x - 1.0, name="born")
    return tf.tuple([y], control_inputs=[tf.add_check_numerics_ops()]), "born:0"


def in_a_gradient(x: Any) -> tuple[Any, str]:
    """The value is a number, and its slope is none."""
    root = tf.sqrt(x, name="root")
    (slope,) = tf.gradients(tf.where(tf.equal(x, 0.0), tf.zeros_like(x), root), [x])
    with tf.control_dependencies([tf.add_check_numerics_ops()]):
        return tf.identity(slope), "gradients"


def in_an_optimizer(x: Any) -> tuple[Any, str]:
    """A learning rate too large: the weights are numbers, and the update is none."""
    w = tf.get_variable("w", initializer=1e38, dtype=tf.float32)
    grads = tf.train.GradientDescentOptimizer(1e38).compute_gradients(w * w * (1.0 - x), [w])
    ((grad, _),) = grads
    checked = tf.check_numerics(grad * 1e38, "update of w")
    return w.assign_sub(checked), "update of w"


def in_a_loop(x: Any) -> tuple[Any, str]:
    def body(i: Any, y: Any) -> Any:
        bad = 100.0 * tf.cast(tf.equal(i, BAD), tf.float32)
        return i + 1, tf.check_numerics(tf.log(y - bad), "in the loop") + 2.0

    _, y = tf.while_loop(lambda i, y: i < 5, body, [0, x + 2.0])
    return y, "in the loop"


def in_the_gradient_of_a_loop(x: Any) -> tuple[Any, str]:
    """Checks have gradients, which are checks."""

    def body(i: Any, y: Any) -> Any:
        return i + 1, tf.check_numerics(tf.sqrt(y), "root")

    _, y = tf.while_loop(lambda i, y: i < 3, body, [0, x])
    return tf.gradients(y, [x]), "gradient of: root"


@pytest.mark.parametrize(
    "make", [in_an_operation, in_a_gradient, in_an_optimizer, in_a_loop, in_the_gradient_of_a_loop]
)
def test_a_nan_is_found_in_the_step_that_makes_it(make: Callable[[Any], tuple[Any, str]]) -> None:
    x = tf.placeholder(tf.float32, [1])
    fetch, where = make(x)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=where) as caught:
            session.run(fetch, {x: [0.0]})
        assert "test_not_a_number.py" in str(caught.value)
        assert "NaN" in str(caught.value) or "Inf" in str(caught.value)


def test_a_nan_of_another_task_is_told_with_its_task() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        x = tf.placeholder(tf.float32, [])
        with tf.device("/job:worker/task:1"):
            there = tf.check_numerics(x / x, "born there")
        with tf.device("/job:worker/task:0"):
            here = there + 1.0
        with tf.Session(tasks.target) as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"born there") as caught:
                session.run(here, {x: np.float32(0.0)})
            assert caught.value.origin.task == tasks.workers[0].task
            assert "test_not_a_number.py" in str(caught.value)
            assert session.run(here, {x: np.float32(2.0)}) == 2.0
