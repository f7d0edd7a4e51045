"""Derivatives of functions: structures, arguments, modes against each other, wrong uses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.functions.jacobians import columns, rows
from flowrt.graph.derivatives.gradients import as_tensors
from tests.graph.random_graphs import RandomGraph


@pytest.fixture
def run():
    with tf.Session() as session:
        yield session.run


def f(x):
    """From R³ to R⁴."""
    return tf.stack([x[0] * x[1], tf.sin(x[2]), x[0] ** 2 / x[1], tf.reduce_sum(tf.exp(x))])


POINT = np.array([0.5, 2.0, -1.0])
JACOBIAN = [[2, 0.5, 0], [0, 0, np.cos(-1.0)], [0.5, -0.0625, 0], list(np.exp(POINT))]


def test_both_modes_give_the_same_jacobian(run):
    for derivative in (tf.jacfwd(f), tf.jacrev(f)):
        np.testing.assert_allclose(run(derivative(POINT)), JACOBIAN, rtol=1e-12, atol=1e-15)


def test_jvp_gives_the_value_and_a_product_with_the_jacobian(run):
    direction = np.array([1.0, -2.0, 3.0])
    value, moved = run(tf.jvp(f, [POINT], [direction]))
    np.testing.assert_allclose(value, run(f(tf.constant(POINT))))
    np.testing.assert_allclose(moved, np.array(JACOBIAN) @ direction, rtol=1e-12)


def test_vjp_gives_the_value_and_products_with_the_transpose(run):
    value, pull_back = tf.vjp(f, POINT)
    weights = np.array([1.0, -2.0, 3.0, 0.5])
    np.testing.assert_allclose(run(value), run(f(tf.constant(POINT))))
    (first,), (second,) = run([pull_back(weights), pull_back(2.0 * weights)])
    np.testing.assert_allclose(first, weights @ np.array(JACOBIAN), rtol=1e-12)
    np.testing.assert_allclose(second, 2 * first)


def test_hessians_and_their_products(run):
    def loss(x):
        return tf.reduce_sum(f(x) ** 2)

    v = np.array([1.0, -2.0, 3.0])
    whole, products, backwards = run(
        [tf.hessian(loss)(POINT), tf.hvp(loss, [POINT], [v]), tf.jacrev(tf.jacrev(loss))(POINT)]
    )
    assert isinstance(products, tuple)
    np.testing.assert_allclose(whole, whole.T, rtol=1e-12)
    np.testing.assert_allclose(whole, backwards, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(products[0], whole @ v, rtol=1e-12)


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_all_ways_to_a_jacobian_agree_on_random_graphs(seed):
    graph = RandomGraph(seed, calls=8)
    if not graph.ys:
        return
    with graph.graph:
        xs = as_tensors(graph.xs)
        ways = [tf.jacobian(graph.ys, graph.xs), rows(graph.ys, xs), columns(graph.ys, xs)]
    values = graph.run(ways)
    for a, b, c in zip(*([block for row in blocks for block in row] for blocks in values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(b, c, rtol=1e-9, atol=1e-11)


# --- arguments and structures


def test_structures_go_in_and_come_out(run):
    def g(params, x):
        y = params["w"] * x + params["b"][0]
        return {"y": y, "size": [tf.size(y)]}

    params, x = {"w": np.array([2.0, 3.0]), "b": [np.array(1.0)]}, np.array([5.0, 7.0])
    outputs, moved = tf.jvp(g, (params, x), ({"w": np.ones(2), "b": [None]}, None))
    values, tangents = run([outputs, moved["y"]])
    assert values["y"].tolist() == [11, 22]
    assert moved["size"] == [None]
    assert tangents.tolist() == [5, 7]
    _, pull_back = tf.vjp(g, params, x)
    by_params, by_x = run(pull_back({"y": np.array([1.0, 10.0]), "size": [None]}))
    assert by_params["w"].tolist() == [5, 70]
    assert by_params["b"] == [11]
    assert by_x.tolist() == [2, 30]
    wide = run(tf.jacfwd(lambda p, x: {"y": g(p, x)["y"]})(params, x))
    assert wide["y"]["w"].tolist() == [[5, 0], [0, 7]]
    assert wide["y"]["b"][0].tolist() == [1, 1]


def test_an_argument_that_is_given_twice_counts_in_each_place(run):
    x = tf.constant(3.0)
    power = lambda a, b: a * a * b  # noqa: E731
    assert run(tf.vjp(power, x, x)[1](1.0)) == (18.0, 9.0)
    assert run(tf.jvp(power, (x, x), (None, 1.0))[1]) == 9.0
    assert run(tf.hvp(power, (x, x), (1.0, None))) == (6.0, 6.0)


def test_only_the_arguments_count(run):
    x = tf.constant(3.0)
    assert run(tf.vjp(lambda y: x * y, x)[1](1.0)) == (3.0,)
    v = tf.Variable(2.0)
    scaled = tf.jacfwd(lambda y: v * y * y)(v)
    run(v.initializer)
    assert run(scaled) == 8.0


def test_argnums_choose_arguments(run):
    g = lambda a, b: a * a * b  # noqa: E731
    assert run(tf.jacrev(g, 1)(3.0, 5.0)) == 9.0
    assert run(tf.jacfwd(g, (0, -1))(3.0, 5.0)) == (30.0, 9.0)
    assert run(tf.hessian(g, argnums=(0, 1))(3.0, 5.0)) == ((10.0, 6.0), (6.0, 0.0))
    assert tf.jacfwd(f).__name__ == "f"


def test_what_does_not_depend_on_its_argument_has_the_derivative_zero(run):
    ignores = lambda x: tf.constant([1.0, 2.0])  # noqa: E731
    x = tf.constant([3.0])
    assert run(tf.jvp(ignores, [x], [[1.0]])[1]).tolist() == [0, 0]
    assert run(tf.vjp(ignores, x)[1]([1.0, 1.0]))[0].tolist() == [0]
    assert run(tf.vjp(ignores, x)[1](None))[0].tolist() == [0]
    assert run(tf.jacfwd(ignores)(x)).tolist() == run(tf.jacrev(ignores)(x)).tolist() == [[0], [0]]
    assert run(tf.hessian(lambda x: tf.reduce_sum(2.0 * x))(x)).tolist() == [[0]]
    assert run(tf.hvp(lambda x: tf.reduce_sum(2.0 * x), [x], [[1.0]]))[0].tolist() == [0]


def test_integers_have_no_derivative(run):
    rows = lambda x, i: (tf.gather(x, i), i + 1)  # noqa: E731
    x, i = tf.constant([[1.0], [2.0]]), tf.constant([1])
    _, (moved, none) = tf.jvp(rows, (x, i), (x, None))
    assert none is None
    assert run(moved).tolist() == [[2]]
    _, pull_back = tf.vjp(rows, x, i)
    sparse, nothing = pull_back(([[5.0]], None))
    assert nothing is None
    assert run(tf.convert_to_tensor(sparse)).tolist() == [[0], [5]]
    by_x, by_i = tf.hvp(lambda x, i: tf.reduce_sum(tf.gather(x, i) ** 3), (x, i), (x, None))
    assert by_i is None
    assert run(by_x).tolist() == [[0], [24]]


def test_one_argument_needs_no_list(run):
    cube = lambda x: tf.reduce_sum(x**3)  # noqa: E731
    x, v = tf.constant([1.0, 2.0]), [3.0, 1.0]
    in_lists = [tf.jvp(cube, [x], [v]), tf.hvp(cube, [x], [v])[0]]
    bare = [tf.jvp(cube, x, v), tf.hvp(cube, x, v)]
    (value, moved), product = run(bare)
    assert (value, moved, product.tolist()) == (9, 21, [18, 12])
    assert str(run(in_lists)) == str(run(bare))
    by_key = tf.hvp(lambda p: tf.reduce_sum(p["w"] ** 2), {"w": x}, {"w": v})
    assert run(by_key["w"]).tolist() == [6, 2]


def test_wrong_uses_are_typed_errors_with_the_users_line():
    x, n = tf.constant([1.0, 2.0]), tf.constant([1, 2])
    double = lambda x: x * 2.0  # noqa: E731
    free = tf.placeholder(tf.float32, [None])
    pull_back = tf.vjp(double, x)[1]
    cases = [
        (TypeError, "a function and its arguments", lambda: tf.jvp(x, [x], [x])),
        (TypeError, "jacrev: expected a function and positions", lambda: tf.jacrev(double, x)),
        (TypeError, "jacfwd: expected a function and positions", lambda: tf.jacfwd(double, [0, "x"])),
        (TypeError, "jacrev: expected a function and positions", lambda: tf.hessian(x)),
        (ValueError, "jvp: tangents: expected a list or tuple of 1", lambda: tf.jvp(double, [x], [x, x])),
        (ValueError, "jvp: tangents: .*structure", lambda: tf.jvp(lambda p: p["a"], [{"a": x}], [{"b": x}])),
        (ValueError, r"shape \[2\]", lambda: tf.jvp(double, [x], [1.0])),
        (TypeError, "expected None", lambda: tf.jvp(tf.to_float, [n], [n])),
        (TypeError, "None", lambda: tf.jvp(lambda x: None, [x], [x])),
        (ValueError, "at least one tensor", lambda: tf.vjp(lambda x: [], x)),
        (ValueError, "vjp: dys: .*structure", lambda: tf.vjp(lambda x: (x, x), x)[1](x)),
        (TypeError, "floating", lambda: tf.jacfwd(tf.to_float)(n)),
        (TypeError, "floating", lambda: tf.jacrev(lambda x: tf.cast(x, tf.int32))(x)),
        (ValueError, "static shape", lambda: tf.jacfwd(double)(free)),
        (ValueError, "static shape", lambda: tf.jacrev(double)(free)),
        (ValueError, "argnums of 1 arguments; got 1", lambda: tf.jacfwd(double, 1)(x)),
        (ValueError, "one scalar", lambda: tf.hvp(double, [x], [x])),
        (TypeError, "floating", lambda: tf.hvp(lambda x: tf.constant(1), [x], [x])),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message) as caught:
            call()
        assert "test_autodiff.py" in str(caught.value.source), message
    with pytest.raises(ValueError, match="shape"):
        pull_back([1.0, 2.0, 3.0])
