"""`model_to_estimator`: a compiled model, trained and asked as an estimator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import InvalidArgumentError
from flowrt.keras import layers

X = np.random.RandomState(0).normal(size=(16, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def input_fn() -> Any:
    return tf.estimator.inputs.numpy_input_fn({"rows": X}, Y, batch_size=8, num_epochs=1, shuffle=False)


def test_an_estimator_trains_and_measures_as_its_model_does(tmp_path: Path) -> None:
    rows = keras.Input((4,), name="rows")
    hidden = layers.BatchNormalization(momentum=0.5)(layers.Dense(3, kernel_regularizer="l2")(rows))
    model = keras.Model(rows, layers.Dense(1, activation="sigmoid", name="likely")(hidden))
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    start = model.get_weights()
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    after = model.get_weights()
    model.set_weights(start)
    estimator = keras.estimator.model_to_estimator(model, model_dir=tmp_path)
    estimator.train(input_fn())
    for variable, value in zip(model.weights, after, strict=True):
        name = variable.op.name
        np.testing.assert_allclose(estimator.get_variable_value(name), value, rtol=1e-4, atol=1e-5)
    model.set_weights(after)
    found, expected = estimator.evaluate(input_fn()), model.evaluate(X, Y, verbose=0)
    assert found["global_step"] == 2
    assert [found["loss"], found["acc"]] == pytest.approx(expected, rel=1e-4)
    predicted = [each["likely"] for each in estimator.predict(input_fn())]
    np.testing.assert_allclose(predicted, model.predict(X), rtol=1e-4)


def test_a_model_that_does_not_fit_is_one_error(tmp_path: Path) -> None:
    model = keras.Sequential([layers.Dense(1, input_shape=(4,), name="only")])
    with pytest.raises(InvalidArgumentError, match="expected a compiled model"):
        keras.estimator.model_to_estimator(model)
    model.compile("sgd", "mse")
    with pytest.raises(InvalidArgumentError, match="features: expected the names only_input; got rows"):
        keras.estimator.model_to_estimator(model, model_dir=tmp_path).train(input_fn())
