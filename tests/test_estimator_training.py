"""Estimators while they train: warm starts, evaluations in between, early stops, exports of the best.
TensorFlow 1.15 gives the same numbers, to the digits shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError, UnimplementedError

X = np.random.RandomState(0).randn(64, 3).astype(np.float32)
Y = (X.sum(1) > 0.5).astype(np.int32)
KIND = (np.arange(64) % 3).astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column("x", shape=[3])]


def inputs(labels: Any, epochs: int | None = None) -> Any:
    return tf.estimator.inputs.numpy_input_fn({"x": X}, labels, 16, epochs, shuffle=False)


def write_weights(folder: Path) -> str:
    """A checkpoint of a deep model of three numbers, four hidden units and three classes."""
    shapes = {"hiddenlayer_0/kernel": (3, 4), "hiddenlayer_0/bias": (4,), "logits/kernel": (4, 3)}
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        for name, shape in {**shapes, "logits/bias": (3,)}.items():
            values = (np.arange(np.prod(shape)).reshape(shape) % 5 - 2) / 7
            tf.get_variable(f"dnn/{name}", initializer=values.astype(np.float32))
        session.run(tf.global_variables_initializer())
        return str(tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=0))


SETTINGS = {
    "all": ({}, 17.47539),
    "some": ({"vars_to_warm_start": ".*(hiddenlayer_0/kernel|logits)"}, 17.46971),
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_deep_model_begins_with_the_values_of_a_checkpoint(settings: Any, tmp_path: Path) -> None:
    options, loss = settings
    path = write_weights(tmp_path)
    start = tf.estimator.WarmStartSettings(path, **options) if options else str(tmp_path)
    estimator = tf.estimator.DNNClassifier([4], COLUMNS, n_classes=3, warm_start_from=start)
    found = estimator.train(inputs(KIND), steps=5).evaluate(inputs(KIND, 1))
    assert found["loss"] == pytest.approx(loss, rel=1e-6)


def test_a_warm_start_takes_the_chosen_variables(tmp_path: Path) -> None:
    path = write_weights(tmp_path)
    with tf.variable_scope("new"):
        kernel = tf.get_variable("kernel", [3, 4])
    bias = tf.get_variable("dnn/logits/bias", [3], initializer=tf.zeros_initializer())
    tf.train.warm_start(path, "new", var_name_to_prev_var_name={"new/kernel": "dnn/hiddenlayer_0/kernel"})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(kernel)[0] == pytest.approx([-2 / 7, -1 / 7, 0, 1 / 7])
        assert session.run(bias).tolist() == [0, 0, 0]
    with pytest.raises(NotFoundError, match="there are no variables"):
        tf.train.warm_start(path, "new", var_name_to_prev_var_name={"old": "x"})
    with pytest.raises(UnimplementedError, match="var_name_to_vocab_info"):
        tf.train.warm_start(path, var_name_to_vocab_info={"new/kernel": None})


@pytest.mark.slow
def test_baselines_and_heads_learn_as_tensorflows(tmp_path: Path) -> None:
    head = tf.estimator.BinaryClassHead()
    linear = tf.estimator.LinearEstimator(head, COLUMNS).train(inputs(Y), steps=6)
    numbers = tf.estimator.LinearEstimator(tf.contrib.estimator.regression_head(label_dimension=3), COLUMNS)
    baseline = tf.estimator.BaselineClassifier(n_classes=3).train(inputs(KIND), steps=6)
    assert linear.evaluate(inputs(Y, 1))["loss"] == pytest.approx(0.43393, rel=1e-5)
    found = numbers.train(inputs(X), steps=6).evaluate(inputs(X, 1))
    assert found["loss"] == pytest.approx(0.20869, rel=2e-5)
    assert baseline.evaluate(inputs(KIND, 1))["loss"] == pytest.approx(17.60924, rel=1e-6)

    def mine(labels: Any, predictions: Any, features: Any) -> Any:
        return {"mine": tf.metrics.mean(predictions["logistic"] * features["x"][:, :1])}

    assert tf.estimator.add_metrics(linear, mine).evaluate(inputs(Y, 1))["mine"] == pytest.approx(
        0.21869, rel=2e-5
    )
    with pytest.raises(InvalidArgumentError, match=r"got \['x'\]"):
        tf.estimator.add_metrics(linear, lambda x: x)
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(COLUMNS)
    )
    path = linear.export_saved_model(tmp_path, receiver).decode()
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.loader.load(session, ["serve"], path).signature_def
    assert {name: each.method_name.rpartition("/")[2] for name, each in signatures.items()} == {
        "classification": "classify", "predict": "predict", "regression": "regress",
        "serving_default": "classify",
    }  # fmt: skip


@pytest.mark.slow
def test_checkpoints_are_evaluated_and_the_best_are_exported(tmp_path: Path) -> None:
    config = tf.estimator.RunConfig(model_dir=tmp_path, save_checkpoints_steps=4)
    estimator = tf.estimator.LinearClassifier(COLUMNS, config=config)
    spec = tf.feature_column.make_parse_example_spec(COLUMNS)
    exporter = tf.estimator.BestExporter(
        "best",
        tf.estimator.export.build_parsing_serving_input_receiver_fn(spec),
        compare_fn=lambda best_eval_result, current_eval_result: current_eval_result["global_step"] == 8,
    )
    found, exported = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(inputs(Y), max_steps=12),
        tf.estimator.EvalSpec(inputs(Y, 1), exporters=exporter, throttle_secs=0),
    )
    assert (found["global_step"], exported) == (12, [None])
    assert len(list((tmp_path / "export" / "best").iterdir())) == 2  # the first and the better one
    losses = tf.contrib.estimator.read_eval_metrics(estimator.eval_dir())
    assert list(losses) == [4, 8, 12]
    experimental = tf.estimator.experimental
    every = {"run_every_secs": None, "run_every_steps": 1}
    hooks = {
        "lower": experimental.stop_if_lower_hook(estimator, "loss", 1e9, **every),
        "stands still": experimental.stop_if_no_increase_hook(estimator, "loss", 8, **every),
    }
    for number, hook in enumerate(hooks.values()):
        estimator.train(inputs(Y), max_steps=20, hooks=[hook])
        assert int(estimator.get_variable_value("global_step")) == 13 + number
    unknown = experimental.stop_if_lower_hook(estimator, "los", 1e9, **every)
    with pytest.raises(InvalidArgumentError, match=r"at step 4, accuracy.* got 'los'"):
        estimator.train(inputs(Y), max_steps=20, hooks=[unknown])
    going_on = [
        experimental.stop_if_higher_hook(estimator, "loss", 1e9, **every),
        experimental.stop_if_no_decrease_hook(estimator, "loss", 8, **every),
        experimental.make_stop_at_checkpoint_step_hook(estimator, 17),
    ]
    estimator.train(inputs(Y), max_steps=20, hooks=going_on)
    assert int(estimator.get_variable_value("global_step")) == 17


@pytest.mark.slow
def test_values_are_evaluated_while_they_are_trained() -> None:
    estimator = tf.estimator.LinearClassifier(COLUMNS)
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, inputs(Y, 1), every_n_iter=3)
    estimator.train(inputs(Y), steps=6, hooks=[hook])
    found = tf.contrib.estimator.read_eval_metrics(estimator.eval_dir())
    assert list(found) == [0, 3, 6]
    assert found[0]["loss"] == pytest.approx(16 * np.log(2))
    assert found[6]["loss"] == pytest.approx(6.20896, rel=1e-5)


def test_messages_of_ready_estimators_have_labels_and_weights() -> None:
    spec = tf.estimator.classifier_parse_example_spec(COLUMNS, "y", weight_column="w")
    assert {name: (list(each.shape), each.dtype) for name, each in spec.items()} == {
        "x": ([3], tf.float32), "y": ([1], tf.int64), "w": ([1], tf.float32),
    }  # fmt: skip
    wide = tf.estimator.regressor_parse_example_spec(COLUMNS, "y", label_dimension=2)
    assert list(wide["y"].shape) == [2]
    with pytest.raises(InvalidArgumentError, match=r"\['x'\] are features already"):
        tf.estimator.regressor_parse_example_spec(COLUMNS, "x")
