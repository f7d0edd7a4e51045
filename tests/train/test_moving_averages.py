"""Moving averages against the recursion in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.train.optimizers.moving_averages import assign_moving_average

DECAY = 0.875


def initialized() -> Any:
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def test_an_average_of_a_variable_starts_at_its_initial_value() -> None:
    w = tf.Variable([10.0, 20.0], name="w")
    average = tf.train.ExponentialMovingAverage(DECAY)
    update = average.apply([w])
    new = tf.placeholder(tf.float32, [2])
    assign = w.assign(new)
    expected = np.array([10.0, 20.0])
    with initialized() as session:
        for value in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
            session.run(assign, {new: value})
            session.run(update)
            expected = DECAY * expected + (1 - DECAY) * np.array(value)
            np.testing.assert_allclose(session.run(average.average(w)), expected, rtol=1e-6)


def test_with_num_updates_the_first_steps_count_more() -> None:
    w, count = tf.Variable(1.0), tf.Variable(0, trainable=False)
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=count)
    update, more, ten = average.apply([w]), count.assign_add(1), w.assign(10.0)
    expected = 1.0
    with initialized() as session:
        session.run(ten)
        for n in range(3):
            session.run(update)
            session.run(more)
            decay = min(0.9, (1 + n) / (10 + n))
            expected = decay * expected + (1 - decay) * 10
            assert session.run(average.average(w)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("debias", [False, True])
def test_an_average_of_a_tensor_starts_at_zero_unless_debiased(debias: bool) -> None:
    x = tf.placeholder(tf.float64, [2], name="x")
    average = tf.train.ExponentialMovingAverage(DECAY, zero_debias=debias)
    update = average.apply([x])
    plain = np.zeros(2)
    with initialized() as session:
        for t, value in enumerate(([4.0, 1.0], [2.0, 8.0], [0.0, -1.0]), 1):
            session.run(update, {x: value})
            plain = DECAY * plain + (1 - DECAY) * np.array(value)
            expected = plain / (1 - DECAY**t) if debias else plain
            np.testing.assert_allclose(session.run(average.average(x)), expected, rtol=1e-12)


def test_the_average_is_of_the_value_after_what_apply_waits_for() -> None:
    w = tf.Variable(0.0)
    average = tf.train.ExponentialMovingAverage(0.5)
    step = tf.train.GradientDescentOptimizer(1.0).minimize(-8.0 * w, var_list=[w])
    with tf.control_dependencies([step]):
        update = average.apply([w])
    with initialized() as session:
        session.run(update)
        assert session.run([w, average.average(w)]) == [8.0, 4.0]


def test_names_and_collections_are_tensorflows() -> None:
    with tf.name_scope("scope"):
        w = tf.Variable(1.0, name="w")
        frozen = tf.Variable(1.0, name="frozen", trainable=False)
    average = tf.train.ExponentialMovingAverage(0.9)
    assert average.average(w) is None
    assert average.average_name(w) == "scope/w/ExponentialMovingAverage"
    with tf.variable_scope("elsewhere"):
        update = average.apply()
    assert update.name == "elsewhere/ExponentialMovingAverage"
    shadow = average.average(w)
    assert shadow.op.name == average.average_name(w) == "scope/w/ExponentialMovingAverage"
    assert not shadow.trainable
    assert tf.moving_average_variables() == [w]
    assert average.average(frozen) is None
    assert average.variables_to_restore() == {"scope/w/ExponentialMovingAverage": w, "scope/frozen": frozen}
    assert average.variables_to_restore([frozen]) == {
        "scope/frozen/ExponentialMovingAverage": frozen,
        "scope/w": w,
        "scope/w/ExponentialMovingAverage": shadow,
    }


def test_an_average_lives_beside_its_variable() -> None:
    with tf.device("/cpu:1"):
        w = tf.Variable(1.0)
    average = tf.train.ExponentialMovingAverage(0.9)
    average.apply([w])
    assert average.average(w).device == w.device


def test_wrong_arguments_are_refused() -> None:
    w = tf.Variable(1.0, name="w")
    average = tf.train.ExponentialMovingAverage(0.9)
    average.apply([w])
    with pytest.raises(InvalidArgumentError, match="expected variables without an average; got 'w:0' again"):
        average.apply([w])
    with pytest.raises(DTypeError, match="expected floating variables and tensors"):
        average.apply([tf.Variable(1)])
    with pytest.raises(DTypeError, match="expected floating variables and tensors"):
        average.apply([1.0])


@pytest.mark.parametrize("debias", [False, True])
def test_assign_moving_average_returns_the_new_value(debias: bool) -> None:
    v = tf.Variable(0.0, name="v")
    moved = assign_moving_average(v, 3.0, 0.75, zero_debias=debias)
    names = [u.op.name for u in tf.global_variables()]
    assert names == (["v", "v/biased", "v/local_step"] if debias else ["v"])
    plain = 0.0
    with initialized() as session:
        for t in range(1, 4):
            plain = 0.75 * plain + 0.25 * 3.0
            expected = plain / (1 - 0.75**t) if debias else plain
            assert session.run(moved) == pytest.approx(expected, rel=1e-6)
        assert session.run(v) == pytest.approx(expected, rel=1e-6)
