"""Ready estimators over feature columns learn, and their metrics are what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import feature_column as fc
from flowrt.errors import DTypeError, InvalidArgumentError

rng = np.random.default_rng(0)
X = rng.standard_normal((256, 2)).astype(np.float32)
KIND = rng.integers(0, 3, 256)
FEATURES = {"x": X, "kind": KIND}
COLUMNS = [fc.numeric_column("x", 2), fc.categorical_column_with_identity("kind", 3)]
DENSE = [COLUMNS[0], fc.embedding_column(COLUMNS[1], 4)]


def arrays(labels: Any, **options: Any) -> Any:
    settings = {"batch_size": 64, "shuffle": False, **options}
    return tf.estimator.inputs.numpy_input_fn(FEATURES, labels, **settings)


def trained(kind: Any, labels: Any, steps: int, *args: Any, **options: Any) -> Any:
    estimator = kind(*args, config=tf.estimator.RunConfig(tf_random_seed=1), **options)
    return estimator.train(arrays(labels, num_epochs=None), steps=steps)


def test_a_linear_classifier_of_two_classes_and_its_metrics() -> None:
    labels = (X[:, 0] - X[:, 1] + KIND > 1).astype(np.int64)
    estimator = trained(tf.estimator.LinearClassifier, labels, 60, COLUMNS)
    assert "linear/linear_model/x/weights" in estimator.get_variable_names()
    found = estimator.evaluate(arrays(labels))
    predictions = list(estimator.predict(arrays(None)))
    logistic = np.array([each["logistic"][0] for each in predictions])
    chosen = np.array([each["class_ids"][0] for each in predictions])
    losses = -np.log(np.where(labels, logistic, 1 - logistic))
    assert found["accuracy"] == pytest.approx((chosen == labels).mean())
    assert found["accuracy"] > 0.93
    assert found["average_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert found["loss"] == pytest.approx(losses.sum() / 4, rel=1e-4)
    assert found["precision"] == pytest.approx(labels[chosen == 1].mean())
    assert found["recall"] == pytest.approx(chosen[labels == 1].mean())
    assert found["accuracy_baseline"] == pytest.approx(max(labels.mean(), 1 - labels.mean()))
    assert found["prediction/mean"] == pytest.approx(logistic.mean(), rel=1e-4)
    assert found["label/mean"] == pytest.approx(labels.mean())
    above = (logistic[labels == 1][:, None] > logistic[labels == 0]).mean()
    assert found["auc"] == pytest.approx(above, abs=0.02)
    assert 0.9 < found["auc_precision_recall"] <= 1
    assert predictions[0]["all_class_ids"].tolist() == [0, 1]
    assert predictions[0]["all_classes"].tolist() == [b"0", b"1"]
    assert [each["classes"][0] for each in predictions[:5]] == [str(c).encode() for c in chosen[:5]]


@pytest.mark.slow
def test_a_deep_classifier_of_words() -> None:
    words = np.array(["low", "mid", "high"], object)[np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3])]
    estimator = trained(
        tf.estimator.DNNClassifier, words, 200, [32, 16], DENSE, n_classes=3, optimizer="Adam",
        label_vocabulary=["low", "mid", "high"], dropout=0.1, batch_norm=True,
    )  # fmt: skip
    assert "dnn/hiddenlayer_1/kernel" in estimator.get_variable_names()
    assert estimator.evaluate(arrays(words))["accuracy"] > 0.7
    first = next(estimator.predict(arrays(None)))
    assert first["classes"][0] in (b"low", b"mid", b"high")
    assert first["probabilities"].sum() == pytest.approx(1)


@pytest.mark.slow
def test_wide_and_deep_regression_with_weights_and_a_vocabulary(tmp_path: Path) -> None:
    target = np.stack([X[:, 0] * 2 + KIND, X.sum(1) ** 2], 1).astype(np.float32)
    estimator = trained(
        tf.estimator.DNNLinearCombinedRegressor, target, 150, str(tmp_path), COLUMNS,
        dnn_feature_columns=DENSE, dnn_hidden_units=[32], dnn_optimizer=lambda: tf.train.AdamOptimizer(0.02),
        label_dimension=2,
    )  # fmt: skip
    found = estimator.evaluate(arrays(target))
    predicted = np.array([each["predictions"] for each in estimator.predict(arrays(None))])
    assert found["average_loss"] == pytest.approx(((predicted - target) ** 2).mean(), rel=1e-3)
    assert found["average_loss"] < 0.3 * target.var()
    names = estimator.get_variable_names()
    assert {"linear/linear_model/kind/weights", "dnn/logits/bias"} <= set(names)
    assert found["global_step"] == 150


NAMES = {
    "deep": (
        lambda: tf.estimator.DNNClassifier([2], COLUMNS[:1], optimizer="Adam"),
        "dnn/hiddenlayer_0/{kernel,bias} dnn/logits/{kernel,bias}", "/t_0/Adam", "dnn/head/",
    ),
    "linear": (
        lambda: tf.estimator.LinearRegressor(COLUMNS[:1], optimizer="Ftrl"),
        "linear/linear_model/{x/weights,bias_weights}", "/part_0/Ftrl", None,
    ),
    "baseline": (lambda: tf.estimator.BaselineRegressor(optimizer="Adam"), "baseline/bias", "/Adam", "head/"),
    "both, one given": (
        lambda: tf.estimator.DNNLinearCombinedRegressor(
            dnn_feature_columns=COLUMNS[:1], dnn_hidden_units=[2], dnn_optimizer="Adam"
        ),
        "dnn/hiddenlayer_0/{kernel,bias} dnn/logits/{kernel,bias}", "/Adam", "head/",
    ),
}  # fmt: skip
"""Estimators, their variables, the ends of their slots' names, and where the powers of Adam's betas are, as
checkpoints of TensorFlow 1.15 have them.
"""


@pytest.mark.parametrize("name", NAMES)
def test_variables_have_the_names_of_tensorflows_checkpoints(name: str) -> None:
    make, trained_ones, slot, powers = NAMES[name]
    estimator = make().train(arrays(KIND.astype(np.float32) % 2), steps=1)
    expected = {"global_step"}
    for each in trained_ones.split():
        start, _, ends = each.rstrip("}").partition("{")
        for variable in (start + end for end in ends.split(",")):
            expected |= {variable, variable + slot, variable + slot + "_1"}
    if powers is not None:
        expected |= {powers + "beta1_power", powers + "beta2_power"}
    assert set(estimator.get_variable_names()) == expected


def test_parts_that_are_trained_together_have_smaller_rates() -> None:
    estimator = tf.estimator.DNNLinearCombinedRegressor(
        linear_feature_columns=COLUMNS[:1], linear_optimizer="SGD",
        dnn_feature_columns=COLUMNS[:1], dnn_hidden_units=[1], dnn_optimizer="SGD",
    )  # fmt: skip
    inputs = tf.estimator.inputs.numpy_input_fn({"x": X[:1] * 0}, np.ones(1), num_epochs=None, shuffle=False)
    estimator.train(inputs, steps=1)  # gradients are -2, with batches of the same example
    linear = estimator.get_variable_value("linear/linear_model/bias_weights")
    deep = estimator.get_variable_value("dnn/logits/bias")
    assert (linear / 0.005).tolist() == pytest.approx((deep / 0.001).tolist())  # TensorFlow 1.15's rates


def test_weights_of_examples_count() -> None:
    labels = (X[:, 0] > 0).astype(np.int64)
    features = {"x": X, "weight": (KIND > 0).astype(np.float32)}
    inputs = tf.estimator.inputs.numpy_input_fn(features, labels, batch_size=256, shuffle=False)
    estimator = tf.estimator.LinearClassifier(COLUMNS[:1], weight_column="weight").train(inputs, steps=3)
    logits = X @ estimator.get_variable_value("linear/linear_model/x/weights")
    logits = logits[:, 0] + estimator.get_variable_value("linear/linear_model/bias_weights")
    found, counts = estimator.evaluate(inputs), KIND > 0
    assert found["accuracy"] == pytest.approx(((logits > 0) == labels)[counts].mean())
    losses = np.logaddexp(0, np.where(labels, -logits, logits))
    assert found["loss"] == pytest.approx(losses[counts].sum(), rel=1e-4)


def test_mistakes_are_told() -> None:
    for call, message in (
        (lambda: tf.estimator.LinearClassifier(COLUMNS, n_classes=1), "expected at least 2; got 1"),
        (lambda: tf.estimator.DNNRegressor([], DENSE), "hidden_units: expected a size for each"),
        (lambda: tf.estimator.LinearClassifier(COLUMNS, label_vocabulary=["a"]), "expected 2 words.*got 1"),
        (lambda: tf.estimator.LinearRegressor([]), "feature_columns: expected at least one; got none"),
        (tf.estimator.DNNLinearCombinedClassifier, "expected linear_feature_columns or dnn"),
        (lambda: trained(tf.estimator.LinearClassifier, KIND > 0, 1, COLUMNS, optimizer="Adm"), "'Adm'"),
        (lambda: trained(tf.estimator.LinearClassifier, None, 1, COLUMNS), "there are no labels"),
        (lambda: trained(tf.estimator.LinearClassifier, KIND > 0, 0, COLUMNS), "at least 1; got 0"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    with pytest.raises(DTypeError, match="labels: expected words of the label_vocabulary; got int64"):
        trained(tf.estimator.LinearClassifier, KIND, 1, COLUMNS, n_classes=3, label_vocabulary=list("abc"))
    specs = tf.estimator.TrainSpec(arrays(KIND)), tf.estimator.EvalSpec(arrays(KIND), exporters=["best"])
    with pytest.raises(DTypeError, match="expected exporters; got 'best'"):
        tf.estimator.train_and_evaluate(tf.estimator.LinearRegressor(COLUMNS), *specs)
    with pytest.raises(DTypeError, match="labels: expected integers; got float64"):
        trained(tf.estimator.LinearClassifier, KIND * 0.7, 1, COLUMNS, n_classes=3)
    with pytest.raises(DTypeError, match="weight_column: expected a feature's name or a numeric column"):
        tf.estimator.LinearClassifier(COLUMNS, weight_column=COLUMNS[1])


def test_weights_are_normalized_by_their_column() -> None:
    column = fc.numeric_column("w", normalizer_fn=lambda weights: weights * 3)
    for kind, labels in ((tf.estimator.LinearRegressor, [1.0, 0.0]), (tf.estimator.LinearClassifier, [1, 0])):
        inputs = given([1.0, 2.0], labels, [1.0, 2.0])
        plain = kind([fc.numeric_column("x")], weight_column="w").evaluate(inputs, 1)
        scaled = kind([fc.numeric_column("x")], weight_column=column).evaluate(inputs, 1)
        assert scaled["loss"] == pytest.approx(3 * plain["loss"])


def test_the_area_of_precision_of_a_ready_classifier_is_made_of_trapezoids() -> None:
    labels = np.arange(256) % 4 == 0
    ready, other = (  # not trained: each probability is a half, the precision a fourth
        estimator.evaluate(arrays(labels))["auc_precision_recall"]
        for estimator in (
            tf.estimator.LinearClassifier(COLUMNS),
            tf.estimator.LinearEstimator(tf.estimator.BinaryClassHead(), COLUMNS),
        )
    )
    assert ready == pytest.approx((1 + 1 / 4) / 2, rel=1e-4)
    assert other == pytest.approx(1 / 4, rel=1e-4)


def test_the_linear_part_alone_learns_at_its_rate_beside_a_deep_one() -> None:
    estimator = tf.estimator.DNNLinearCombinedRegressor(None, [fc.numeric_column("x")])
    estimator.train(given([1.0], [1.0], [1.0]), steps=1)
    weight = estimator.get_variable_value("linear/linear_model/x/weights")
    assert weight == pytest.approx(0.005 * 2 / 4.1**0.5)  # the first step of FTRL, with the gradient -2


def given(feature: Any, labels: Any, weights: Any = None) -> Any:
    return lambda: ({"x": tf.constant(feature), "w": tf.constant(weights or [1.0, 1.0])}, tf.constant(labels))


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([1, 2], {}, "labels: of two classes they are 0 or 1"),
        ([-1, 1], {}, "labels: of two classes they are 0 or 1"),
        (["a", "c"], {"label_vocabulary": ["a", "b"]}, "or words of the label_vocabulary"),
        ([1], {}, r"labels: expected shape \[2, 1\], of each example; got \[1, 1\]"),
    ],
    ids=["above", "below", "word", "few"],
)
def test_labels_of_no_class_are_errors(labels: Any, options: Any, message: str) -> None:
    estimator = tf.estimator.LinearClassifier([fc.numeric_column("x")], **options)
    with pytest.raises(InvalidArgumentError, match=message):
        estimator.train(given([1.0, 2.0], labels), steps=1)


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], None, r"labels: expected shape \[2, 1\], of each example; got \[2, 2\]"),
        ([1.0], None, r"labels: expected shape \[2, 1\]"),
        ([1.0, 2.0], [1.0], r"weights 'w': expected shape \[2, 1\], of each example; got \[1, 1\]"),
        ([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]], r"weights 'w': expected shape \[2, 1\]"),
    ],
    ids=["wide", "few", "few_weights", "wide_weights"],
)
def test_labels_and_weights_do_not_broadcast(labels: Any, weights: Any, message: str) -> None:
    estimator = tf.estimator.LinearRegressor([fc.numeric_column("x")], weight_column="w")
    with pytest.raises(InvalidArgumentError, match=message):
        estimator.train(given([1.0, 2.0], labels, weights), steps=1)


def test_labels_of_unknown_shape_are_checked_when_they_are_there() -> None:
    def inputs() -> Any:
        labels = tf.placeholder_with_default([[1.0]], [None, None])
        return {"x": tf.constant([1.0, 2.0])}, labels

    with pytest.raises(InvalidArgumentError, match="labels: of each example"):
        tf.estimator.LinearRegressor([fc.numeric_column("x")]).train(inputs, steps=1)


def test_labels_of_unknown_rank_lead_to_set_shape() -> None:
    def inputs() -> Any:
        return {"x": tf.constant([1.0, 2.0])}, tf.placeholder_with_default([1.0, 2.0], None)

    with pytest.raises(InvalidArgumentError, match=r"unknown rank. Use set_shape\(\)"):
        tf.estimator.LinearRegressor([fc.numeric_column("x")]).train(inputs, steps=1)
