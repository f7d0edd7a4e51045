"""Small classes and functions of TensorFlow's inner modules and of contrib."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import predictor
from flowrt.contrib.staging import StagingArea
from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.python import pywrap_tensorflow
from flowrt.python.framework import function
from flowrt.python.ops import inplace_ops
from flowrt.python.util import function_utils, tf_inspect


def test_rows_are_replaced_and_added_to() -> None:
    x, row = np.arange(6.0).reshape(3, 2), np.array([10.0, 20.0])
    rows = np.stack([row, row + 1])
    with tf.Session() as session:
        found = session.run([
            inplace_ops.alias_inplace_update(x, 1, row),
            inplace_ops.inplace_add(x, tf.constant([0, 2]), rows),
            inplace_ops.inplace_sub(x, None, x),
            inplace_ops.empty_like(x),
        ])  # fmt: skip
    np.testing.assert_array_equal(found[0], [[0, 1], row, [4, 5]])
    np.testing.assert_array_equal(found[1], x + [rows[0], [0, 0], rows[1]])
    np.testing.assert_array_equal(found[2:], np.zeros((2, 3, 2)))
    with pytest.raises(
        InvalidArgumentError, match=r"expected i as None, a scalar or a vector; got shape \(1, 1\)"
    ):
        inplace_ops.inplace_add(x, [[0]], rows)


def test_arguments_of_functions() -> None:
    def function(a: Any, b: Any = 1, *rest: Any, c: Any = 2, **options: Any) -> None:
        """No body: only the arguments count."""

    assert function_utils.fn_args(function) == ("a", "b", "c")
    assert function_utils.fn_args(functools.partial(function, 0, b=2)) == ("c",)
    assert function_utils.has_kwargs(function)
    assert not function_utils.has_kwargs(len)
    assert tf_inspect.getargspec(function) == (["a", "b"], "rest", "options", (1,))


def test_a_staging_area_gives_what_was_put_first() -> None:
    area = StagingArea([tf.int32, tf.float32], names=["n", "x"])
    put, got, size = area.put({"n": tf.constant(3), "x": tf.constant(0.5)}), area.get(), area.size()
    with tf.Session() as session:
        session.run(put)
        session.run(put)
        assert session.run(size) == 2
        assert session.run(got) == {"n": 3, "x": 0.5}
        assert session.run(size) == 1


def test_events_written_by_the_inner_class_are_read(tmp_path: Path) -> None:
    writer = pywrap_tensorflow.EventsWriter(bytes(tmp_path / "events"))
    writer.WriteEvent(tf.Event(step=7, summary=tf.Summary(value=[tf.Summary.Value(tag="a", simple_value=2)])))
    assert writer.Flush()
    assert writer.Close()
    (file,) = tmp_path.iterdir()
    assert [(event.step, len(event.summary.value)) for event in tf.train.summary_iterator(file)] == [
        (0, 0),
        (7, 1),
    ]


def test_a_predictor_of_a_saved_model_takes_arrays_by_name(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], name="x")
        y = tf.multiply(x, tf.get_variable("w", initializer=2.0), name="y")
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, str(tmp_path / "model"), {"in": x}, {"out": y})
    predict = predictor.from_saved_model(str(tmp_path / "model"))
    assert predict({"in": [1.0, 3.0]})["out"].tolist() == [2, 6]
    assert predict.fetch_tensors["out"].graph is predict.graph
    named = predictor.from_saved_model(
        str(tmp_path / "model"), input_names={"a": "x:0"}, output_names={"b": "y:0"}
    )
    assert named({"a": [1.0]})["b"].tolist() == [2]
    with pytest.raises(NotFoundError, match="expected one of the signatures serving_default; got 'other'"):
        predictor.from_saved_model(str(tmp_path / "model"), "other")
    with pytest.raises(InvalidArgumentError, match="input_names and output_names, or neither"):
        predictor.from_saved_model(str(tmp_path / "model"), input_names={"a": "x:0"})


def test_a_predictor_of_an_estimator_has_its_newest_weights(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tf.estimator.EstimatorSpec:
        y = features["x"] * tf.get_variable("w", initializer=2.0)
        loss = None if labels is None else tf.reduce_mean(tf.square(y - labels))
        step = tf.train.get_or_create_global_step()
        train = None if loss is None else tf.train.GradientDescentOptimizer(0.5).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, {"y": y}, loss, train)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    batch = {"x": np.ones(1, np.float32)}
    estimator.train(lambda: (batch, np.full(1, 5, np.float32)), steps=1)  # from 2 to 5 in one step
    serve = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1])})
    predict = predictor.from_estimator(estimator, serve)
    assert predict({"x": [1.0, 2.0]})["y"].tolist() == [5, 10]
    with pytest.raises(NotFoundError, match="expected one of the signatures serving_default; got 'z'"):
        predictor.from_estimator(estimator, serve, "z")


def test_functions_of_given_dtypes_may_have_gradients_of_their_own() -> None:
    @function.Defun(tf.float32, func_name="twice")
    def twice(x: Any) -> Any:
        return 2 * x

    @function.Defun(tf.float32, tf.float32, python_grad_func=lambda op, dy: [3 * dy, op.inputs[0] * dy])
    def product(x: Any, y: Any) -> Any:
        return x * y

    @function.Defun(tf.float32, grad_func=lambda x, dy: 5 * x * dy)
    def square(x: Any) -> Any:
        return x * x

    x, y = tf.constant(4.0), tf.constant(7.0)
    z = product(twice(1), y) + product(x, y) + square(x)
    with tf.Session() as session:
        assert session.run([z, *tf.gradients(z, [x, y])]) == [14 + 28 + 16, 3 + 20, 2 + 4]
    with pytest.raises(InvalidArgumentError, match="product: expected 2 tensors, as Defun says; got 1"):
        product(x)
