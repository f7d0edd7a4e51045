"""`enable_check_numerics`: the operation where the first NaN or infinity arises is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def checking() -> Iterator[None]:
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


def failing(fetch: Any, feeds: Any = None) -> str:
    with tf.Session() as session, pytest.raises(InvalidArgumentError) as caught:
        session.run(fetch, feeds)
    return str(caught.value)


def test_the_first_operation_is_named_with_its_line_and_inputs() -> None:
    x = tf.placeholder(tf.float32, [2], name="x")
    y = tf.exp(tf.log(x, name="log") * 2.0) + 1.0
    message = failing(y, {x: [1.0, -1.0]})
    assert message == (
        f"CheckNumerics 'log/CheckNumerics' ({__file__}:30): output 0 of Log 'log', with inputs x:0"
        " float32[2]: expected finite values; got NaN values"
    )


def in_gradient(x: tf.Tensor) -> Any:
    return tf.gradients(tf.sqrt(x), x)


def in_loop(x: tf.Tensor) -> Any:
    return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v / v), [0, x])


def in_function(x: tf.Tensor) -> Any:
    return tf.function(tf.reciprocal)(x)


def in_branch(x: tf.Tensor) -> Any:
    return tf.cond(tf.equal(x, 0.0), lambda: 1.0 / x, lambda: x)


def in_map(x: tf.Tensor) -> Any:
    return tf.map_fn(tf.log, tf.stack([x, x]))


@pytest.mark.parametrize(
    ("build", "op"),
    [
        (in_gradient, "SqrtGrad"),
        (in_loop, "RealDiv"),
        (in_function, "Reciprocal"),
        (in_branch, "RealDiv"),
        (in_map, "Log"),
    ],
    ids=["gradient", "loop", "function", "branch", "map"],
)
def test_inside_functions_too(build: Any, op: str) -> None:
    x = tf.placeholder(tf.float32, [])
    message = failing(build(x), {x: 0.0})
    assert f"({__file__}:" in message
    assert f"output 0 of {op} '" in message


def test_a_derivative_does_not_hide_where_its_input_arose() -> None:
    x = tf.placeholder(tf.float32, [])
    (slope,) = tf.gradients(tf.sqrt(x), x)  # needs the root itself, and not its check
    assert "output 0 of Sqrt 'Sqrt', with inputs Placeholder:0" in failing(slope, {x: -1.0})


def trained() -> list[Any]:
    """Losses of a small model with rows of a table, and a second derivative."""
    with tf.Graph().as_default():
        start = tf.glorot_uniform_initializer(seed=3)
        rows = tf.nn.embedding_lookup(tf.get_variable("table", [5, 4], initializer=start), [0, 3, 3])
        hidden = tf.layers.dense(rows, 6, activation=tf.nn.elu, kernel_initializer=start)
        loss = tf.reduce_mean(tf.square(tf.layers.batch_normalization(hidden, training=True)[:, :2] - 1.0))
        (slope,) = tf.gradients(loss, hidden)
        train = tf.train.AdamOptimizer(0.1).minimize(loss + tf.reduce_sum(slope * slope))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return [session.run([loss, train])[0] for _ in range(4)]


def test_what_python_computes_is_checked() -> None:
    x = tf.placeholder(tf.float32, [2], name="x")
    assert "output 0 of PyFunc 'PyFunc'" in failing(tf.py_func(np.sqrt, [x], tf.float32), {x: [1.0, -1.0]})


def test_finite_steps_compute_what_they_do_without() -> None:
    checked = trained()
    tf.debugging.disable_check_numerics()
    np.testing.assert_allclose(checked, trained(), rtol=1e-5)


def test_disabled_nothing_is_added() -> None:
    tf.debugging.enable_check_numerics()  # twice
    tf.debugging.disable_check_numerics()
    with tf.Graph().as_default() as graph:
        tf.log(tf.constant(1.0))
    assert [op.type for op in graph.get_operations()] == ["Const", "Log"]
