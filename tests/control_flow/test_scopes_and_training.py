"""Branches and loops beside the rest of the interface: scopes, variables, layers, optimizers, devices."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf


def below(limit):
    return lambda i, *_: i < limit


# --- names and scopes


def test_operations_are_named_after_their_scopes():
    names = []
    x = tf.constant(1.0)

    def body(i, y):
        with tf.name_scope("deep"):
            names.append(tf.identity(y, name="op").name)
        return i + 1, y

    def branch():
        names.append(tf.identity(x, name="op").name)
        return x

    with tf.name_scope("outer"):
        tf.while_loop(below(2), body, [0, x], name="loop")
        tf.cond(x > 0.0, branch, lambda: x, name="branch")
        tf.cond(x > 0.0, branch, lambda: x, name="branch")
    assert names == ["outer/loop/deep/op:0", "outer/branch/op:0", "outer/branch_1/op:0"]


def test_a_control_dependency_around_reaches_into_a_body(session):
    """All that a body does comes after what the loop waits for."""
    v = tf.Variable(0)
    with tf.control_dependencies([v.assign_add(10)]):
        seen = tf.while_loop(below(1), lambda i, s: (i + 1, s + v.read_value()), [0, 0])[1]
    session.run(v.initializer)
    assert session.run(seen) == 10


def test_device_scopes_reach_into_bodies():
    devices = []

    def body(i):
        devices.append(tf.identity(i).device)
        with tf.device("/cpu:1"):
            devices.append(tf.identity(i).device)
        return i + 1

    with tf.device("/cpu:0"):
        tf.while_loop(below(1), body, [tf.constant(0)])
    assert [d[-5:] for d in devices] == ["CPU:0", "CPU:1"]


def test_a_body_keeps_beside_a_variable_outside(session):
    v = tf.Variable(2.0)

    def body(i, y):
        with tf.colocate_with(v):
            return i + 1, y * 2.0

    y = tf.while_loop(below(3), body, [0, v])[1]
    session.run(v.initializer)
    assert session.run(y) == 16


# --- variables made inside


def test_a_variable_made_in_a_body_is_one_variable(session):
    def body(i, total):
        w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        with tf.control_dependencies([w.assign_add([1.0, 2.0])]):
            return i + 1, total + tf.reduce_sum(w.read_value())

    with tf.variable_scope("scope"):
        total = tf.while_loop(below(3), body, [0, 0.0])[1]
    with tf.variable_scope("scope", reuse=True):
        w = tf.get_variable("w", [2])
    assert tf.global_variables() == [w]
    session.run(tf.global_variables_initializer())
    assert session.run(total) == 5 + 8 + 11
    np.testing.assert_array_equal(session.run(w), [4, 7])


def test_variables_made_in_branches(session):
    pred = tf.placeholder(tf.bool, [])
    y = tf.cond(
        pred,
        lambda: tf.get_variable("a", [], initializer=tf.ones_initializer()) * 2.0,
        lambda: tf.Variable(lambda: tf.constant(5.0), name="b") * 3.0,
    )
    assert [v.name for v in tf.global_variables()] == ["a:0", "cond/b:0"]
    session.run(tf.global_variables_initializer())
    assert [session.run(y, {pred: p}) for p in (True, False)] == [2, 15]


def test_a_layer_in_a_body(session):
    x = tf.placeholder(tf.float32, [2, 3])
    y = tf.while_loop(
        below(2),
        lambda i, y: (i + 1, tf.layers.dense(y, 3, use_bias=False, name="layer", reuse=tf.AUTO_REUSE)),
        [0, x],
    )[1]
    (kernel,) = tf.trainable_variables()
    dx, dk = tf.gradients(tf.reduce_sum(y), [x, kernel])
    session.run(tf.global_variables_initializer())
    data = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    found, gx, gk, k = session.run([y, dx, dk, kernel], {x: data})
    ones = np.ones((2, 3))
    np.testing.assert_allclose(found, data @ k @ k, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gx, ones @ k.T @ k.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gk, (data @ k).T @ ones + data.T @ (ones @ k.T), rtol=1e-4, atol=1e-5)


def test_batch_normalisation_in_a_branch(session):
    training = tf.placeholder(tf.bool, [])
    x = tf.placeholder(tf.float32, [4, 1])

    def train():
        y = tf.layers.batch_normalization(x, training=True, momentum=0.5, scale=False, center=False)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            return tf.identity(y)

    y = tf.cond(training, train, lambda: x)
    mean = next(v for v in tf.global_variables() if "moving_mean" in v.name)
    session.run(tf.global_variables_initializer())
    data = [[1.0], [2.0], [3.0], [4.0]]
    for value, expected in ((False, 0.0), (True, 1.25), (False, 1.25)):
        session.run(y, {training: value, x: data})
        np.testing.assert_allclose(session.run(mean), [expected])


# --- training inside


OPTIMIZERS = {
    "gradient descent": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
}


def trained(steps, make, constraint=None):
    """The variable and the global step after ``steps`` steps without control flow."""
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", initializer=[1.0, -2.0], constraint=constraint)
        step = tf.train.get_or_create_global_step()
        train = make().minimize(tf.reduce_sum(v * v), global_step=step)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return session.run([v, step])


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_training_step_in_a_branch(session, make):
    """It happens when its branch is taken, with the global step and the constraint."""

    def bounded(x):
        return tf.clip_by_value(x, -1.5, 0.95)

    pred = tf.placeholder(tf.bool, [])
    v = tf.get_variable("v", initializer=[1.0, -2.0], constraint=bounded)
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(v * v)
    optimizer = make()
    train = tf.cond(pred, lambda: optimizer.minimize(loss, global_step=step), tf.no_op)
    session.run(tf.global_variables_initializer())
    done = 0
    for value in (True, False, False, True, True):
        session.run(train, {pred: value})
        done += value
        found, expected = session.run([v, step]), trained(done, make, bounded)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        assert found[1] == expected[1] == done


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_loop_that_trains(session, make):
    v = tf.get_variable("v", initializer=[1.0, -2.0])
    step = tf.train.get_or_create_global_step()
    optimizer = make()

    def body(i):
        with tf.control_dependencies([optimizer.minimize(tf.reduce_sum(v * v), global_step=step)]):
            return i + 1

    loop = tf.while_loop(below(4), body, [tf.constant(0)])
    session.run(tf.global_variables_initializer())
    session.run(loop)
    found, expected = session.run([v, step]), trained(4, make)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert found[1] == 4


def test_a_moving_average_in_a_branch(session):
    pred = tf.placeholder(tf.bool, [])
    v = tf.Variable(1.0)
    average = tf.train.ExponentialMovingAverage(0.9)
    update = tf.cond(pred, lambda: average.apply([v]), tf.no_op)
    session.run(tf.global_variables_initializer())
    session.run(v.assign(2.0))
    for value in (False, True):
        session.run(update, {pred: value})
    np.testing.assert_allclose(session.run(average.average(v)), 1.1, rtol=1e-6)


# --- gradients inside, of what is around


def test_a_gradient_in_a_body_with_respect_to_what_it_captured(run):
    x, v = tf.placeholder(tf.float64, []), tf.Variable(3.0, dtype=tf.float64)
    through = x * x

    def body(i, y):
        dx, dv = tf.gradients(y * through * v, [x, v])
        return i + 1, dx + dv

    y = tf.while_loop(below(2), body, [0, x])[1]
    expected = 2.0
    for _ in range(2):  # d(y x^2 v)/dx + d(y x^2 v)/dv
        expected = expected * 2 * 2.0 * 3.0 + expected * 4.0
    assert run(y, {x: 2.0}) == expected


def test_a_gradient_in_a_branch_runs_with_its_branch(session):
    calls = []

    @tf.custom_gradient
    def noted(x):
        def gradient(dy):
            return tf.ensure_shape(tf.py_func(lambda d: calls.append(1) or d, [dy], tf.float64), [])

        return tf.identity(x), gradient

    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    y = noted(x) * 3.0
    dx = tf.cond(pred, lambda: tf.gradients(y, x)[0], lambda: tf.constant(0.0, tf.float64))
    assert session.run(dx, {x: 1.0, pred: False}) == 0
    assert calls == []
    assert session.run(dx, {x: 1.0, pred: True}) == 3
    assert calls == [1]


def test_a_gradient_in_a_body_of_a_loop_outside(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, y * x), [0, x])[1]
    total = tf.while_loop(below(2), lambda i, t: (i + 1, t + tf.gradients(y, x)[0]), [0, y])[1]
    assert run(total, {x: 2.0}) == 16 + 2 * 32


def test_the_initial_value_of_a_variable_in_a_function_is_computed_outside():
    with tf.Graph().as_default(), tf.Session() as session:
        scale, p = tf.constant(3.0), tf.placeholder(tf.bool, [])

        def branch():
            return tf.Variable(tf.ones([2]) * scale) + 1.0

        y = tf.cond(p, branch, lambda: tf.zeros([2]))
        session.run(tf.global_variables_initializer())
        assert session.run(y, {p: True}).tolist() == [4.0, 4.0]


def test_an_initial_value_that_depends_on_an_argument_is_refused():
    with tf.Graph().as_default():
        with pytest.raises(tf.errors.InvalidArgumentError, match="not depend on the arguments of the body"):
            tf.while_loop(lambda i: i < 1.0, lambda i: i + tf.Variable(i * 2.0), [tf.constant(0.0)])


def test_a_captured_variable_takes_no_name_from_later_ones():
    with tf.Graph().as_default():
        w = tf.get_variable("b/w", [2])
        with tf.variable_scope("a"):
            tf.cond(tf.placeholder(tf.bool, []), lambda: w + 1.0, lambda: w)
            assert tf.get_variable("w", [2]).name == "a/w:0"
