"""Learning-rate schedules against the formulas in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

STEPS = range(31)


def values(schedule: Callable[[Any], Any]) -> list[float]:
    """The schedule's rate at each of STEPS."""
    with tf.Graph():
        step = tf.placeholder(tf.int64, [])
        rate = schedule(step)
        with tf.Session() as session:
            return [float(session.run(rate, {step: n})) for n in STEPS]


def wave(fraction: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * fraction))


def restarted(n: int, first: int, longer: float, lower: float, alpha: float) -> float:
    """Walks from restart to restart."""
    begin, length, height = 0.0, float(first), 1.0
    while n >= begin + length:
        begin, length, height = begin + length, length * longer, height * lower
    return 0.1 * ((1 - alpha) * height * wave((n - begin) / length) + alpha)


def polynomial_cycle(n: int) -> float:
    length = 8 * max(1, math.ceil(n / 8))
    return 0.09 * (1 - n / length) ** 2 + 0.01


train = tf.train
SCHEDULES: dict[str, tuple[Callable[[Any], Any], Callable[[int], float]]] = {
    "exponential": (lambda s: train.exponential_decay(0.1, s, 7, 0.9), lambda n: 0.1 * 0.9 ** (n / 7)),
    "exponential stairs": (
        lambda s: train.exponential_decay(0.1, s, 7, 0.9, staircase=True),
        lambda n: 0.1 * 0.9 ** (n // 7),
    ),
    "natural": (lambda s: train.natural_exp_decay(0.1, s, 7, 0.5), lambda n: 0.1 * math.exp(-0.5 * n / 7)),
    "natural stairs": (
        lambda s: train.natural_exp_decay(0.1, s, 7, 0.5, True),
        lambda n: 0.1 * math.exp(-0.5 * (n // 7)),
    ),
    "inverse": (lambda s: train.inverse_time_decay(0.1, s, 7, 0.5), lambda n: 0.1 / (1 + 0.5 * n / 7)),
    "inverse stairs": (
        lambda s: train.inverse_time_decay(0.1, s, 7, 0.5, True),
        lambda n: 0.1 / (1 + 0.5 * (n // 7)),
    ),
    "polynomial": (
        lambda s: train.polynomial_decay(0.1, s, 8, 0.01, 0.5),
        lambda n: 0.09 * math.sqrt(1 - min(n, 8) / 8) + 0.01,
    ),
    "polynomial cycle": (
        lambda s: train.polynomial_decay(0.1, s, 8, 0.01, 2.0, cycle=True),
        polynomial_cycle,
    ),
    "cosine": (
        lambda s: train.cosine_decay(0.1, s, 10, 0.2),
        lambda n: 0.1 * (0.8 * wave(min(n, 10) / 10) + 0.2),
    ),
    "restarts": (lambda s: train.cosine_decay_restarts(0.1, s, 4), lambda n: restarted(n, 4, 2.0, 1.0, 0.0)),
    "restarts of one length": (
        lambda s: train.cosine_decay_restarts(0.1, s, 4, 1.0, 0.5, 0.25),
        lambda n: restarted(n, 4, 1.0, 0.5, 0.25),
    ),
    "linear cosine": (
        lambda s: train.linear_cosine_decay(0.1, s, 10, 2.0, 0.1, 0.01),
        lambda n: 0.1 * ((1.1 - min(n, 10) / 10) * wave(4 * min(n, 10) / 10) + 0.01),
    ),
    "linear cosine without noise": (
        lambda s: train.noisy_linear_cosine_decay(0.1, s, 10, 0.0, 0.5, 2.0, 0.1, 0.01),
        lambda n: 0.1 * ((1.1 - min(n, 10) / 10) * wave(4 * min(n, 10) / 10) + 0.01),
    ),
    "piecewise": (
        lambda s: train.piecewise_constant(s, [3, 9], [1.0, 0.5, 0.25]),
        lambda n: 1.0 if n <= 3 else 0.5 if n <= 9 else 0.25,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_follow_their_formulas(name: str) -> None:
    schedule, formula = SCHEDULES[name]
    np.testing.assert_allclose(values(schedule), [formula(n) for n in STEPS], rtol=2e-5, atol=1e-7)


def test_the_noise_of_a_schedule_has_the_variance_of_its_step() -> None:
    """At step 3 of no periods the cosine is 1: 2,000 rates have the mean and, to 5 %, the deviation."""
    tf.set_random_seed(1)
    rate = tf.train.noisy_linear_cosine_decay(1.0, 3, 4, 0.5, 0.7, 0.0, 0.0, 0.0)
    with tf.Session() as session:
        call = session.make_callable(rate)
        found = np.array([call() for _ in range(2000)])
    deviation = math.sqrt(0.5 / 4**0.7)
    assert abs(found.mean() - 0.25) < 4 * deviation / math.sqrt(2000)
    assert found.std() == pytest.approx(deviation, rel=0.06)


def test_a_schedule_keeps_the_dtype_of_the_learning_rate() -> None:
    rate = tf.train.exponential_decay(tf.constant(0.1, tf.float64), 3, 7, 0.9)
    assert rate.dtype is tf.float64
    with tf.Session() as session:
        assert session.run(rate) == pytest.approx(0.1 * 0.9 ** (3 / 7), rel=1e-7)


def test_an_optimizer_follows_a_schedule_of_its_own_step() -> None:
    w = tf.Variable(0.0)
    count = tf.train.create_global_step()
    rate = tf.train.piecewise_constant(count, [np.int64(0), np.int64(1)], [1.0, 0.5, 0.25])
    step = tf.train.GradientDescentOptimizer(rate).minimize(-w, global_step=count)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        seen = []
        for _ in range(4):
            session.run(step)
            seen.append(float(session.run(w)))
    assert seen == [1.0, 1.5, 1.75, 2.0]


def test_piecewise_constant_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="expected 1 boundaries for 2 values; got 2"):
        tf.train.piecewise_constant(1, [1, 2], [0.1, 0.2])
    with pytest.raises(DTypeError, match="boundaries of x's dtype float32; got int32"):
        tf.train.piecewise_constant(1.0, [1], [0.1, 0.2])
    with pytest.raises(DTypeError, match="values of one dtype; got float32, int32"):
        tf.train.piecewise_constant(1, [1], [0.1, 2])


def test_a_schedule_needs_a_step() -> None:
    with pytest.raises(
        InvalidArgumentError, match="global_step: expected a number, tensor or variable; got None"
    ):
        tf.train.exponential_decay(0.1, None, 7, 0.9)


# --- the global step


def test_there_is_one_global_step_a_graph() -> None:
    assert tf.train.get_global_step() is None
    with tf.name_scope("name"):
        step = tf.train.create_global_step()
    assert step.name == "global_step:0"
    assert step.dtype is tf.int64
    assert not step.trainable
    assert tf.train.get_global_step() is step
    assert tf.train.get_or_create_global_step() is step
    with pytest.raises(
        InvalidArgumentError, match=r"expected none yet; got 'global_step:0'.*test_schedules.py"
    ):
        tf.train.create_global_step()
    other = tf.Graph()
    assert tf.train.get_or_create_global_step(other).graph is other


def test_a_variable_called_global_step_is_found_and_checked() -> None:
    own = tf.Variable(7, trainable=False, name="global_step")
    assert tf.train.get_global_step() is own
    with tf.Session() as session:
        session.run(own.initializer)
        assert tf.train.global_step(session, own) == 7
    with pytest.raises(DTypeError, match="expected an integer variable"):
        tf.train.assert_global_step(tf.Variable(1.0))
    with pytest.raises(InvalidArgumentError, match="expected a scalar"):
        tf.train.assert_global_step(tf.Variable([1]))
