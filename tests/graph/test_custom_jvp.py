"""`custom_jvp`, and `custom_gradient` in forward mode: hand-written derivatives, any order and direction."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import op_def


@pytest.fixture
def run():
    with tf.Session() as session:
        yield session.run


def scalars(*values):
    return [tf.constant(v, tf.float64) for v in values]


@tf.custom_jvp
def log1pexp(x):
    """log(1 + e**x), whose plain derivative overflows for large x."""
    y = tf.log(1.0 + tf.exp(x))
    return y, lambda dx: dx * (1.0 - 1.0 / (1.0 + tf.exp(x)))


def test_the_rule_serves_both_modes(run):
    (x,) = scalars(100.0)
    y = log1pexp(x)
    forward, (reverse,) = tf.forward_gradients(y, x, [3.0])[0], tf.gradients(y, x, 3.0)
    assert run([forward, reverse]) == [3.0, 3.0]
    assert log1pexp.__name__ == "log1pexp"


def test_higher_derivatives_are_those_of_the_rule(run):
    (x,) = scalars(0.5)
    y = log1pexp(x)
    (reverse,), (forward,) = tf.gradients(y, x), tf.forward_gradients(y, x, [1.0])
    seconds = [first(g, x)[0] for g in (reverse, forward) for first in (tf.gradients, one_forward)]
    s = 1 / (1 + np.exp(-0.5))
    assert run(seconds) == pytest.approx([s * (1 - s)] * 4)
    thirds = [tf.gradients(g, x)[0] for g in seconds]
    assert run(thirds) == pytest.approx([s * (1 - s) * (1 - 2 * s)] * 4)


def one_forward(y, x):
    return tf.forward_gradients(y, x, [1.0])


def test_the_operations_inside_take_no_part(run):
    @tf.custom_jvp
    def floor(x):
        return tf.py_func(np.floor, [tf.floor(x)], tf.float64), lambda dx: dx

    @tf.custom_gradient
    def guarded(x):
        return op_def("PreventGradient")(x), lambda dy: dy * 2.0

    (x,) = scalars(2.5)
    ys = [floor(x), guarded(x)]
    assert run(ys) == [2.0, 2.5]
    assert run(tf.forward_gradients(ys, x, [1.0])) == [1.0, 2.0]
    assert run([tf.gradients(y, x)[0] for y in ys]) == [1.0, 2.0]


def test_several_arguments_and_values(run):
    @tf.custom_jvp
    def product_and_sum(x, y, scale):
        def tangents(dx, dy, dscale):
            assert dscale is None  # an integer does not move
            return dx * y + x * dy, dx + dy

        return (x * y, x + y), tangents

    x, y = scalars(3.0, 5.0)
    result = product_and_sum(x, y, tf.constant(2))
    assert isinstance(result, tuple)
    assert run(tf.forward_gradients(result, [x, y], [1.0, None])) == [5.0, 1.0]
    assert run(tf.forward_gradients(result, [x, y], [1.0, 10.0])) == [35.0, 11.0]
    assert run(tf.gradients(result[0], [x, y])) == [5.0, 3.0]
    assert run(tf.gradients(result, [x, y], [1.0, 100.0])) == [105.0, 103.0]


def test_an_argument_that_is_given_twice_counts_twice(run):
    @tf.custom_jvp
    def product(x, y):
        return x * y, lambda dx, dy: dx * y + x * dy

    (x,) = scalars(3.0)
    y = product(x, x)
    assert run([*tf.gradients(y, x), *tf.forward_gradients(y, x, [1.0])]) == [6.0, 6.0]


def test_a_tangent_may_be_zero(run):
    step = tf.custom_jvp(lambda x: (tf.floor(x), lambda dx: None))
    (x,) = scalars(1.5)
    y = step(x)
    assert tf.forward_gradients(y, x, [1.0]) == [None]
    assert tf.gradients(y, x) == [None]


def test_a_variable_and_an_array_may_be_arguments(run):
    v = tf.Variable([1.0, 2.0])
    y = log1pexp(v)
    plain = tf.nn.softplus(v)
    found = [tf.gradients(t, v)[0] for t in (y, plain)]
    run(v.initializer)
    mine, theirs = run(found)
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert run(log1pexp(np.zeros(2))) == pytest.approx([np.log(2)] * 2)


def test_a_custom_gradient_is_transposed_for_forward_mode(run):
    @tf.custom_gradient
    def weighted(x, w):
        return x * w, lambda dy: (dy * w * 10.0, None)

    x, w = tf.constant([3.0, 4.0]), tf.constant([1.0, 2.0])
    moved = tf.forward_gradients(weighted(x, w), [x, w], [[1.0, 1.0], [5.0, 5.0]])
    assert run(moved[0]).tolist() == [10, 20]


def test_wrong_rules_are_refused_with_the_users_line():
    x = tf.constant([1.0, 2.0])
    with pytest.raises(ValueError, match=r"return \(ys, jvp_fn\)") as caught:
        tf.custom_jvp(lambda v: v)(x)
    assert "test_custom_jvp.py" in caught.value.source
    two = tf.custom_jvp(lambda v: (v * 1.0, lambda dv: [dv, dv]))(x)
    for differentiate in (lambda: tf.forward_gradients(two, x, [[1.0, 1.0]]), lambda: tf.gradients(two, x)):
        with pytest.raises(ValueError, match="expected 1 tangents; got 2"):
            differentiate()
    flat = tf.custom_jvp(lambda v: (v * 1.0, tf.reduce_sum))(x)
    with pytest.raises(ValueError, match=r"float32\[2\]; got float32\[\]") as caught:
        tf.forward_gradients(flat, x, [[1.0, 1.0]])
    assert "test_custom_jvp.py" in caught.value.source
