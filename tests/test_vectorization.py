"""`vectorized_map`: what it gives, what it computes once and what once a row, loops where it has no way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.functions.jacobians import columns, rows

RNG = np.random.default_rng(0)
X, W, SQUARE = RNG.uniform(0.1, 1.0, (4, 3)), RNG.standard_normal((3, 5)), RNG.standard_normal((3, 3))


@pytest.fixture
def session() -> Iterator[tf.Session]:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


FUNCTIONS: dict[str, Any] = {
    "product": lambda r: tf.matmul(r[None], W),
    "product, turned": lambda r: tf.tanh(tf.matmul(W, r[:, None], transpose_a=True))[:, 0],
    "ranks": lambda r: r[0] + W * r[:, None],
    "slices": lambda r: tf.concat([r[1:], r[::-1], tf.tile(r, [2])], 0),
    "shapes": lambda r: tf.reshape(r, [1, tf.size(r)]) / tf.cast(tf.shape(r)[0] + tf.rank(r), tf.float64),
    "gather": lambda r: tf.gather(r, [2, 0, 0]) * tf.gather(W, tf.argmax(r))[0],
    "gradient": lambda r: tf.gradients(tf.reduce_sum(tf.gather(r, [0, 0, 2]) ** 3), r)[0],
    "softmax": lambda r: tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.nn.softmax(r), logits=r),
    "condition": lambda r: tf.cond(r[0] > 0.5, lambda: r * r, lambda: tf.sin(r)),
    "loop": lambda r: tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * r), (0, r))[1],
    "map": lambda r: tf.map_fn(lambda e: e * tf.reduce_sum(r), r),
    "scan": lambda r: tf.scan(lambda a, e: a * e, r),
    "call": lambda r: tf.function(lambda a: tf.tanh(a) * r[0] + W[:, 0])(r),
    "nested": lambda r: tf.vectorized_map(lambda q: q * r, SQUARE),
    "solve": lambda r: tf.linalg.solve(SQUARE + tf.diag(r), r[:, None]),
    "einsum": lambda r: tf.einsum("i,ij->j", r, W),
}


@pytest.mark.filterwarnings("ignore:vectorized_map")
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_it_is_map_fn_with_its_derivatives(session: tf.Session, fn: Any) -> None:
    x = tf.constant(X)
    ways = []
    for map_rows in (tf.vectorized_map, tf.map_fn):
        y = map_rows(fn, x)
        first = tf.gradients(y * y, x)[0]
        ways.append([y, first, tf.gradients(first * first, x)[0]])
    for found, expected in zip(*session.run(ways), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert ways[0][0].shape.is_compatible_with(ways[1][0].shape)


def test_nothing_is_looped_where_there_are_rules(session: tf.Session) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = tf.vectorized_map(FUNCTIONS["product"], tf.constant(X))
    assert y.shape.as_list() == [4, 1, 5]
    assert "While" not in {op.type for op in tf.get_default_graph().get_operations()}


def test_structures_and_what_is_the_same_for_all_rows(session: tf.Session) -> None:
    found = tf.vectorized_map(
        lambda e: {"sum": e[0] + e[1]["k"], "same": (tf.constant([1, 2]),)}, (X, {"k": tf.constant(X)})
    )
    assert found["same"][0].shape.as_list() == [4, 2]
    values = session.run(found)
    np.testing.assert_array_equal(values["sum"], 2 * X)
    assert values["same"][0].tolist() == [[1, 2]] * 4


def test_lengths_and_ranks_known_in_the_step(session: tf.Session) -> None:
    x, free = tf.placeholder(tf.float64, [None, None]), tf.placeholder(tf.float64)
    y = tf.vectorized_map(lambda r: tf.nn.softmax(r) * tf.cast(tf.shape(r)[0], tf.float64), x)
    for n in (0, 1, 4):
        values = session.run(y, {x: X[:n]})
        assert values.shape == (n, 3)
        np.testing.assert_allclose(values.sum(-1), 3)
    z = tf.vectorized_map(lambda r: tf.reduce_sum(tf.exp(r), -1), free)
    np.testing.assert_allclose(session.run(z, {free: X}), np.exp(X).sum(1))
    with pytest.warns(RuntimeWarning, match="AddV2"):
        sums = tf.vectorized_map(lambda r: r + free, x)  # of ranks that only a loop learns
    assert session.run(sums, {x: X, free: np.ones((5, 3))}).shape == (4, 5, 3)


def test_draws_are_made_for_each_row(session: tf.Session) -> None:
    ones = tf.ones([4, 3])
    found = tf.vectorized_map(
        lambda r: [
            r * tf.random_uniform([3]),
            tf.random_normal([2]),
            tf.random_gamma([2], r),
            tf.multinomial(tf.zeros([1, 1000]), 1),
            tf.nn.dropout(tf.ones([50]), 0.5),
        ],
        ones,
    )
    values = session.run(found)
    assert [v.shape for v in values] == [(4, 3), (4, 2), (4, 2, 3), (4, 1, 1), (4, 50)]
    for value in values:
        assert len(np.unique(value.reshape(4, -1), axis=0)) == 4


def test_actions_are_done_for_each_row(session: tf.Session) -> None:
    total, calls = tf.Variable(0.0), []

    def note(row: np.ndarray) -> np.ndarray:
        calls.append(row.tolist())
        return row

    def act(row: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(total, row[0])]):
            return tf.py_func(note, [row], tf.float32)

    rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with pytest.warns(RuntimeWarning, match="in a loop over the rows: AssignAddVariableOp, PyFunc") as caught:
        y = tf.vectorized_map(act, rows)
    assert caught[0].filename == __file__
    session.run(total.initializer)
    assert session.run(y).tolist() == calls == [[1, 2], [3, 4]]
    assert session.run(total) == 4


def test_a_check_fails_for_any_row(session: tf.Session) -> None:
    def checked(row: Any) -> Any:
        with tf.control_dependencies([tf.assert_less(row, 0.9)]):
            return tf.identity(row)

    x = tf.placeholder(tf.float64, [None, 3])
    y = tf.vectorized_map(checked, x)
    session.run(y, {x: X * 0.5})
    with pytest.raises(InvalidArgumentError):
        session.run(y, {x: X + 0.5})


def test_a_custom_gradient_may_read_what_its_function_made(session: tf.Session) -> None:
    @tf.custom_gradient
    def sine(a: Any) -> Any:
        slope = tf.sigmoid(a)
        return tf.sin(a), lambda dy: dy * slope

    x = tf.constant(X)
    y = tf.vectorized_map(lambda r: sine(r) * 2.0, x)
    dx = tf.gradients(y, x)[0]
    (moved,) = tf.forward_gradients(y, x, tf.ones_like(x))
    slope = 1 / (1 + np.exp(-X))
    values = session.run([y, dx, moved, tf.gradients(dx, x)[0]])
    for value, expected in zip(
        values, [2 * np.sin(X), 2 * slope, 2 * slope, 2 * slope * (1 - slope)], strict=True
    ):
        np.testing.assert_allclose(value, expected)


def test_inside_a_loop(session: tf.Session) -> None:
    x = tf.constant(X)

    def body(i: Any, a: Any) -> Any:
        return i + 1, a + tf.reduce_sum(tf.vectorized_map(lambda r: r * a, x))

    _, y = tf.while_loop(lambda i, _: i < 2, body, (0, tf.constant(1.0, tf.float64)))
    value, gradient = session.run([y, tf.gradients(y, x)[0]])
    np.testing.assert_allclose(value, (1 + X.sum()) ** 2)
    np.testing.assert_allclose(gradient, np.full(X.shape, 2 * (1 + X.sum())))


def test_jacobians_go_through_loops_and_leave_them_as_they_were(session: tf.Session) -> None:
    x = tf.constant(X[0])
    _, y = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, tf.tanh(tf.reshape(tf.matmul(SQUARE, a[:, None]), [3]))),
        (0, x),
    )
    mapped = tf.map_fn(lambda e: e * e * tf.reduce_sum(x), x)
    for z, ways in ((y, (rows, columns)), (mapped, (rows,))):
        before = session.run(z)
        found = [way([z], [x])[0][0] for way in ways]
        expected = np.stack([session.run(tf.gradients(z[i], x)[0]) for i in range(3)])
        for value in session.run(found):
            np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_array_equal(session.run(z), before)


def test_wrong_uses_are_typed_errors_with_the_users_line() -> None:
    x = tf.constant(X)
    cases = [
        (DTypeError, "callable", lambda: tf.vectorized_map(None, x)),
        (InvalidArgumentError, "at least one dimension", lambda: tf.vectorized_map(tf.sin, 1.0)),
        (InvalidArgumentError, "equal length", lambda: tf.vectorized_map(lambda e: e[0], (x, x[:2]))),
        (
            InvalidArgumentError,
            "got PyFunc. Use fallback_to_while_loop",
            lambda: tf.vectorized_map(
                lambda r: tf.py_func(np.sin, [r], tf.float64), x, fallback_to_while_loop=False
            ),
        ),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message) as caught:
            call()
        assert "test_vectorization.py" in caught.value.source


def test_an_error_in_a_step_names_the_line_in_the_function(session: tf.Session) -> None:
    def reads_outside(row: Any) -> Any:
        return tf.gather(row, tf.cast(row[:1] * 0 + 7, tf.int32))

    line = reads_outside.__code__.co_firstlineno + 1
    with pytest.raises(InvalidArgumentError) as caught:
        session.run(tf.vectorized_map(reads_outside, tf.constant(X)))
    assert caught.value.source.endswith(f"test_vectorization.py:{line}")
