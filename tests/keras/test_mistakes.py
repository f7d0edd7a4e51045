"""Mistakes in programs with `flowrt.keras`: each is one typed error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.keras import backend as K
from flowrt.keras import layers

X = np.random.RandomState(0).normal(size=(12, 4)).astype("float32")
Y = np.arange(12) % 3


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def classifier(loss: Any = "sparse_categorical_crossentropy", **options: Any) -> keras.Sequential:
    model = keras.Sequential([layers.Dense(3, activation="softmax", input_shape=(4,))])
    model.compile("sgd", loss, **options)
    return model


def test_arguments_of_fit() -> None:
    model = classifier()
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    one_hot = np.eye(3)[Y]
    for call, error, message in (
        (lambda: model.fit(X, Y, class_weigth={}), TypeError, "'class_weigth'. Nearest: class_weight"),
        (lambda: model.evaluate(X, Y, batchsize=3), TypeError, "Nearest: batch_size"),
        (lambda: model.fit(X, Y, batch_size=0), InvalidArgumentError, "batch_size: expected a positive"),
        (lambda: model.fit(X, Y, epochs="3"), InvalidArgumentError, "expected a whole number; got '3'"),
        (lambda: model.fit_generator(X, Y), InvalidArgumentError, "steps: expected a positive number"),
        (lambda: model.fit(dataset.batch(3), Y), InvalidArgumentError, "y: expected none with a dataset"),
        (lambda: model.fit(dataset.batch(3), batch_size=3), InvalidArgumentError, "size: expected none"),
        (lambda: model.fit(dataset), InvalidArgumentError, r"Is a call of batch\(\) missing"),
        (lambda: model.fit(X, Y, validation_data=X), InvalidArgumentError, r"data: expected \(x, y\) or"),
        (
            lambda: model.fit(X, Y, callbacks=[keras.callbacks.EarlyStopping]),
            InvalidArgumentError,
            "callbacks: expected objects",
        ),
        (lambda: model.predict(X[:, :2]), InvalidArgumentError, r"shape \[\?, 4\]; got one of \[12, 2\]"),
        (lambda: model.fit(X, one_hot), InvalidArgumentError, r"of \[12, 3\]\. A loss of class numbers"),
        (
            lambda: classifier("categorical_crossentropy").fit(X, Y),
            InvalidArgumentError,
            r"got one of \[12, 1\]\. If these are class numbers, utils\.to_c",
        ),
        (lambda: classifier(None).fit(X, Y), InvalidArgumentError, "expected a loss"),
        (lambda: classifier(metric=["acc"]), TypeError, "'metric'. Nearest: metrics"),
        (lambda: classifier(run_eagerly=True), UnimplementedError, "run_eagerly=True is not supported"),
        (lambda: classifier("hinj"), InvalidArgumentError, "got 'hinj'. Nearest: hinge"),
        (lambda: layers.Dense(1, activation="rleu"), InvalidArgumentError, "got 'rleu'. Nearest: relu"),
        (
            lambda: model.fit(dataset.batch(3), validation_split=0.5),
            InvalidArgumentError,
            "expected arrays, to",
        ),
        (
            lambda: model.fit(dataset.batch(12), steps_per_epoch=1, epochs=2, verbose=0),
            InvalidArgumentError,
            r"batches in epoch 2; there were none\. Does the dataset",
        ),
        (lambda: model.save("m", save_format="tf"), UnimplementedError, "save_format='h5'"),
        (lambda: keras.models.load_model("/tmp"), InvalidArgumentError, "/tmp is a folder"),
        (lambda: layers.Dense(1)(keras.Input((4,), dtype="int32")), DTypeError, "floating dtype; got int32"),
        (lambda: model.fit(None, Y), InvalidArgumentError, "x: expected arrays for dense_input; got none"),
        (
            lambda: model.fit(X, Y, callbacks=[keras.callbacks.ModelCheckpoint("{val_acc}")], verbose=0),
            InvalidArgumentError,
            "expected fields among epoch, loss; got '{val_acc}'",
        ),
        (lambda: layers.Conv2D(3), TypeError, r"^Conv2D\(\) missing a required argument: 'kernel_size'"),
        (lambda: K.function(model.input, []), InvalidArgumentError, "expected a list of tensors"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_inputs_of_layers() -> None:
    class Forgetful(layers.Layer):
        def __init__(self) -> None:
            self.n = 3

        def call(self, inputs: Any) -> Any:
            return inputs

    class Mute(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return None

    rows = keras.Input((4,))
    for call, message in (
        (lambda: layers.Dense(3)([rows, rows]), "expected one tensor; got 2"),
        (lambda: layers.LSTM(3)(rows), r"'lstm': expected inputs \[batch, time, features\]; got shape"),
        (lambda: layers.TimeDistributed(layers.Dense(3))(rows), r"expected inputs \[batch, time, ...\]"),
        (lambda: layers.Reshape((5,))(rows), r"as many elements as \[4\] has, 4; got target_shape \(5,\)"),
        (lambda: layers.Reshape((3, -1))(rows), "as many elements"),
        (lambda: Forgetful()(rows), r"Forgetful: expected its __init__ to call super\(\)"),
        (lambda: Mute()(rows), "'mute': expected `call` to return tensors; got None"),
        (lambda: keras.Model(rows, layers.Dense(2, name="d")(layers.Dense(2, name="d")(rows))), "'d' is the"),
        (lambda: keras.Model(rows, 3), "expected tensors as outputs; got 3"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()


def test_operations_are_activations_by_their_names() -> None:
    names = ["relu", "sigmoid", "tanh", "relu6", "elu", "leaky_relu"]
    functions = [tf.nn.relu, tf.nn.sigmoid, tf.tanh, tf.nn.relu6, tf.nn.elu, tf.nn.leaky_relu]
    model = keras.Sequential([layers.Dense(4, activation=f) for f in functions])
    model.build((None, 4))
    loaded = keras.models.model_from_json(model.to_json())
    assert [layer["config"]["activation"] for layer in loaded.get_config()["layers"]] == names
    loaded.set_weights(model.get_weights())
    np.testing.assert_allclose(loaded.predict(X), model.predict(X))


def test_a_lambda_is_a_metric() -> None:
    model = classifier(metrics=[lambda y_true, y_pred: K.max(y_pred)])
    assert list(model.fit(X, Y, verbose=0).history) == ["loss", "lambda"]


def test_metrics_with_thresholds_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    measures = keras.metrics
    model = keras.Sequential([layers.Dense(1, activation="sigmoid", input_shape=(4,))])
    model.compile("sgd", "binary_crossentropy", [measures.AUC(50, curve="PR"), measures.Precision()])
    model.fit(X, Y > 0, verbose=0)
    model.save(str(tmp_path / "model.h5"))
    loaded = keras.models.load_model(str(tmp_path / "model.h5"))
    np.testing.assert_allclose(loaded.evaluate(X, Y > 0, verbose=0), model.evaluate(X, Y > 0, verbose=0))


@pytest.mark.parametrize(
    ("curve", "method", "expected"),
    [
        ("ROC", "interpolation", 0.75),
        ("ROC", "minoring", 0.5),
        ("ROC", "majoring", 1.0),
        ("PR", "interpolation", 0.8206993),
        ("PR", "minoring", 0.25),
        ("PR", "majoring", 1.0),
    ],
)
def test_areas_under_curves_are_tensorflows(curve: str, method: str, expected: float) -> None:
    area = keras.metrics.AUC(num_thresholds=3, curve=curve, summation_method=method)
    value = area([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9])
    assert K.get_session().run(value) == pytest.approx(expected, abs=1e-5)


def test_a_model_of_another_graph_than_the_default_one_is_asked() -> None:
    with tf.Graph().as_default():
        model = keras.Sequential([layers.Dense(2, input_shape=(4,)), layers.Dropout(0.5)])
    expected = X @ model.get_weights()[0]
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-4, atol=1e-5)
    with model.output.graph.as_default(), tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert model.predict(X).shape == (12, 2)


def test_a_model_that_is_fed_nothing_is_trained_by_steps() -> None:
    inputs = keras.Input(tensor=tf.constant(X))
    model = keras.Model(inputs, layers.Dense(2)(inputs))
    model.compile("sgd", "mse", target_tensors=[tf.zeros([12, 2])])
    losses = model.fit(epochs=2, steps_per_epoch=3, verbose=0).history["loss"]
    assert model.evaluate(steps=1, verbose=0) < losses[1] < losses[0]
    assert model.predict(None, steps=2).shape == (24, 2)
    with pytest.raises(InvalidArgumentError, match="expected a number of batches"):
        model.fit()
