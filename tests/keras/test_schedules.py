"""Learning rates as functions of the number of updates, and Ftrl: TensorFlow 1.15's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import InvalidArgumentError
from flowrt.keras.optimizers import schedules

ROWS = np.array([[0, 1, 1, 2], [3, 0, 0, 4]])


def trained(optimizer: Any) -> keras.Model:
    """A model of rows after five updates from fixed weights."""
    model = keras.Sequential([
        keras.layers.Embedding(5, 2, input_length=4), keras.layers.Flatten(), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile(optimizer, "mse")
    model.set_weights([np.arange(10).reshape(5, 2) / 10, np.arange(8).reshape(8, 1) / 8 - 0.4, np.ones(1)])
    for _ in range(5):
        model.train_on_batch(ROWS, np.array([[1.0], [-1.0]]))
    return model


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True), [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]),
        (schedules.InverseTimeDecay(1.0, 2, 0.5), [1 / (1 + step / 4) for step in range(7)]),
        (schedules.PolynomialDecay(0.1, 4, 0.02), [0.1, 0.08, 0.06, 0.04, 0.02, 0.02, 0.02]),
        (schedules.PiecewiseConstantDecay([1.0, 3.0], [3.0, 2.0, 1.0]), [3, 3, 2, 2, 1, 1, 1]),
        (schedules.CosineDecay(1.0, 4), [(1 + np.cos(np.pi * min(s, 4) / 4)) / 2 for s in range(7)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_optimizer_asks_its_schedule_at_each_update(schedule: Any, expected: list[float]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.Variable(0.0)
        update = keras.optimizers.SGD(schedule).get_updates(-weight.read_value(), [weight])
        session.run(tf.global_variables_initializer())
        found = []
        for _ in expected:
            before = session.run(weight)
            session.run(update)
            found.append(session.run(weight) - before)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_model_is_saved_with_its_schedule(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = trained(keras.optimizers.SGD(schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.05, 0.0])))
        model.save(tmp_path / "model.h5")
        again = keras.models.load_model(tmp_path / "model.h5")
        assert again.optimizer.get_config() == model.optimizer.get_config()
        again.train_on_batch(ROWS, np.zeros((2, 1)))  # the sixth, at 0.05
        last = again.get_weights()
        again.train_on_batch(ROWS, np.zeros((2, 1)))  # at 0
        np.testing.assert_array_equal(again.get_weights()[0], last[0])
        assert not np.array_equal(model.get_weights()[0], last[0])


@pytest.mark.parametrize(
    ("options", "rows", "weights"),
    [
        (
            {"learning_rate": 0.1, "l1_regularization_strength": 0.01, "learning_rate_power": -0.4},
            [0.006947, -0.083778, -0.023171, -0.025716],
            [-0.555433, -0.464886, -0.070154, -0.034357],
        ),
        (
            {
                "learning_rate": 0.1, "l2_regularization_strength": 0.1,
                "l2_shrinkage_regularization_strength": 0.05,
            },
            [0.079157, -0.064771, -0.042337, -0.036421],
            [-0.55343, -0.454586, -0.114887, -0.039515],
        ),
    ],
    ids=["l1", "l2"],
)  # fmt: skip
def test_ftrl_is_tensorflows(options: dict[str, float], rows: list[float], weights: list[float]) -> None:
    with tf.Graph().as_default():
        found = trained(keras.optimizers.Ftrl(**options)).get_weights()
    np.testing.assert_allclose(found[0].ravel()[:4], rows, atol=2e-6)
    np.testing.assert_allclose(found[1].ravel()[:4], weights, atol=2e-6)


def test_mistakes() -> None:
    with pytest.raises(InvalidArgumentError, match="l1_regularization_strength of at least 0; got -1"):
        keras.optimizers.Ftrl(l1_regularization_strength=-1)
    with pytest.raises(InvalidArgumentError, match="schedule: expected a known name; got 'Decay'"):
        schedules.deserialize({"class_name": "Decay", "config": {}})
