"""Documents as rows of numbers, as TensorFlow 1.15 documents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import learn
from flowrt.contrib.learn.preprocessing import CategoricalVocabulary, VocabularyProcessor
from flowrt.errors import DataLossError, DTypeError, InvalidArgumentError, NotFoundError

TEXTS = ["I like cats", "I like dogs, don't I", "TFLearn likes CATS and DogsToo"]


def test_documents_become_rows_and_words_again(tmp_path: Path) -> None:
    processor = VocabularyProcessor(4)
    rows = np.array(list(processor.fit_transform(TEXTS)))
    assert rows.tolist() == [[1, 2, 3, 0], [1, 2, 4, 5], [6, 7, 8, 9]]
    assert rows.dtype == np.int64
    assert len(processor.vocabulary_) == 13  # TF Learn and Dogs Too are two words each
    assert next(processor.transform(["I like birds"])).tolist() == [1, 2, 0, 0]
    assert list(processor.reverse(rows[:1])) == ["I like cats <UNK>"]
    processor.save(tmp_path / "vocab")
    restored = VocabularyProcessor.restore(tmp_path / "vocab")
    assert np.array(list(restored.transform(TEXTS))).tolist() == rows.tolist()
    with pytest.raises(NotFoundError):
        VocabularyProcessor.restore(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"\x80\x03.")
    with pytest.raises(DataLossError, match="expected a saved VocabularyProcessor"):
        VocabularyProcessor.restore(tmp_path / "bad")


def test_rare_words_are_unknown() -> None:
    processor = VocabularyProcessor(5, min_frequency=1).fit(TEXTS)
    assert processor.vocabulary_._mapping == {"<UNK>": 0, "I": 1, "like": 2}
    vocabulary = CategoricalVocabulary()
    for word in ["a", "b", "a", "c"]:
        vocabulary.add(word)
    vocabulary.trim(0, max_frequency=2)
    assert [vocabulary.reverse(i) for i in range(3)] == ["<UNK>", "b", "c"]
    with pytest.raises(InvalidArgumentError, match="expected a number below 3"):
        vocabulary.reverse(3)


def test_modes_have_their_former_name() -> None:
    assert learn.ModeKeys.INFER == learn.ModeKeys.PREDICT == "infer"


rng = np.random.RandomState(0)
X = rng.randn(64, 3).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)
"""Of the estimators below TensorFlow 1.15 gives the same numbers, to the digits shown."""


def linear_model(x: Any, y: Any, mode: str, params: Any) -> Any:
    weights = tf.get_variable("w", [3, 1], initializer=tf.constant_initializer(0.1))
    predictions = tf.reshape(tf.matmul(x, weights), [-1])
    loss = tf.losses.mean_squared_error(tf.cast(y, tf.float32), predictions)
    step = tf.train.get_global_step()
    train = tf.contrib.layers.optimize_loss(loss, step, params["rate"], "SGD")
    return predictions, loss, train


def test_an_estimator_reads_arrays_in_tensorflows_order() -> None:
    estimator = learn.Estimator(linear_model, params={"rate": 0.1})
    model = learn.SKCompat(estimator).fit(X, Y, batch_size=10, steps=20)
    np.testing.assert_allclose(
        estimator.get_variable_value("w").ravel(), [0.35289705, 0.2519579, 0.10665623], 1e-6
    )
    np.testing.assert_allclose(
        model.predict(X, batch_size=10)[:4], [0.8277402, 1.1571177, 0.2861388, 0.33629924], 1e-6
    )
    assert model.score(X, Y, batch_size=16) == {"loss": pytest.approx(0.2982034), "global_step": 20}
    mean = learn.MetricSpec(lambda predictions, labels: tf.metrics.mean(predictions - tf.to_float(labels)))
    found = estimator.evaluate(X, Y, metrics={"off": mean})
    assert found["off"] == pytest.approx(float((X @ estimator.get_variable_value("w")).mean() - Y.mean()))


@pytest.mark.slow
def test_features_of_an_input_function_without_end_are_predicted_once() -> None:
    estimator = learn.Estimator(linear_model, params={"rate": 0.1})
    with pytest.raises(NotFoundError, match="expected a checkpoint"):
        estimator.evaluate(input_fn=lambda: (tf.constant(X), tf.constant(Y)), steps=1)
    estimator.fit(input_fn=lambda: (tf.constant(X), tf.constant(Y)), steps=1)
    assert len(list(estimator.predict(input_fn=lambda: tf.constant(X[:5])))) == 5
    assert len(list(estimator.predict(X, batch_size=10))) == 64
    with pytest.raises(InvalidArgumentError, match="expected input_fn, or x, y and batch_size; got both"):
        estimator.fit(X, Y, input_fn=lambda: (X, Y))
    with pytest.raises(InvalidArgumentError, match="x and y: expected arrays of one length"):
        estimator.fit(X, Y[:3], steps=1)
    with pytest.raises(DTypeError, match="expected ModelFnOps, or predictions, loss and train_op"):
        learn.Estimator(lambda x, y: x).fit(X, Y, steps=1)


@pytest.mark.slow
def test_a_linear_classifier_has_tensorflows_metrics() -> None:
    columns = learn.infer_real_valued_columns_from_input(X)
    classifier = learn.LinearClassifier(columns).fit(X, Y, steps=15, batch_size=16)
    assert classifier.evaluate(X, Y) == pytest.approx(
        {
            "accuracy": 1.0, "accuracy/baseline_label_mean": 0.53125, "accuracy/threshold_0.500000_mean": 1.0,
            "auc": 1.0, "auc_precision_recall": 1.0, "global_step": 15,
            "labels/actual_label_mean": 0.53125, "labels/prediction_mean": 0.5189007, "loss": 0.3210115,
            "precision/positive_threshold_0.500000_mean": 1.0,
            "recall/positive_threshold_0.500000_mean": 1.0,
        },
        rel=1e-5,
    )  # fmt: skip
    assert list(classifier.predict(X)) == Y.tolist()
    assert {key: value.shape for key, value in learn.SKCompat(classifier).predict(X).items()} == {
        "classes": (64,), "logistic": (64, 1), "logits": (64, 1), "probabilities": (64, 2),
    }  # fmt: skip


@pytest.mark.slow
def test_a_step_of_both_parts_counts_as_two_and_regressions_have_scores() -> None:
    def inputs() -> Any:
        words = tf.SparseTensor([[i, 0] for i in range(4)], ["x", "y", "x", "y"], [4, 1])
        return {"a": tf.constant(X[:4, :1]), "s": words}, tf.constant(X[:4, 1])

    words = tf.contrib.layers.sparse_column_with_hash_bucket("s", 10)
    deep = [tf.contrib.layers.real_valued_column("a"), tf.contrib.layers.embedding_column(words, 2)]
    regressor = learn.DNNLinearCombinedRegressor(
        linear_feature_columns=[words], dnn_feature_columns=deep, dnn_hidden_units=[3], gradient_clip_norm=1.0
    ).fit(input_fn=inputs, steps=4)
    found = regressor.evaluate(input_fn=inputs, steps=1)
    assert sorted(found) == ["global_step", "loss"]
    assert found["global_step"] == 4  # TensorFlow's, after two steps
    assert np.array(list(regressor.predict(input_fn=inputs))).shape == (4,)
    layers = {
        f"dnn/{layer}/{kind}" for layer in ("hiddenlayer_0", "logits") for kind in ("weights", "biases")
    }
    assert layers <= set(regressor.get_variable_names())


@pytest.mark.slow
def test_an_experiment_trains_evaluates_and_exports(tmp_path: Path) -> None:
    monitor = learn.monitors.ValidationMonitor(X, Y, every_n_steps=2, check_interval_secs=0)

    def experiment_fn(output_dir: str) -> learn.Experiment:
        config = learn.RunConfig(model_dir=output_dir, save_checkpoints_steps=2)
        estimator = learn.LinearClassifier(learn.infer_real_valued_columns_from_input(X), config=config)
        inputs = learn.io.numpy_input_fn({"": X}, Y, batch_size=16, num_epochs=None)
        monitor.set_estimator(estimator)
        exports = learn.make_export_strategy(
            learn.utils.input_fn_utils.build_default_serving_input_fn({"": tf.zeros([1, 3])})
        )
        return learn.Experiment(
            estimator, inputs, inputs, train_steps=6, eval_steps=1, min_eval_frequency=0,
            train_monitors=[monitor], export_strategies=exports,
        )  # fmt: skip

    found, (exported,) = learn.learn_runner.run(experiment_fn, output_dir=str(tmp_path))
    assert found["global_step"] == 6
    assert monitor.best_step == 6
    assert monitor.best_value == pytest.approx(found["loss"], abs=0.3)
    assert (Path(exported.decode()) / "saved_model.pb").exists()
    with pytest.raises(InvalidArgumentError, match="has no schedule 'tain'"):
        learn.learn_runner.run(experiment_fn, output_dir=str(tmp_path), schedule="tain")


@pytest.mark.slow
def test_training_stops_early() -> None:
    monitor = learn.monitors.ValidationMonitor(
        X, 1 - Y, every_n_steps=1, early_stopping_rounds=4, check_interval_secs=0
    )  # the loss on wrong labels rises
    config = learn.RunConfig(save_checkpoints_steps=1)
    columns = learn.infer_real_valued_columns_from_input(X)
    learn.LinearClassifier(columns, config=config).fit(X, Y, steps=50, monitors=[monitor])
    assert monitor.early_stopped
    assert monitor.best_step == 1


def test_tables_in_files(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("2,3,a,b\n1,2,3,0\n4,5,6,1\n")
    base = learn.datasets.base
    table = base.load_csv_with_header(path, np.int64, np.float32)
    assert (table.data.tolist(), table.target.tolist()) == ([[1, 2, 3], [4, 5, 6]], [0, 1])
    path.write_text("1,2,3\n4,x,6\n")
    with pytest.raises(DataLossError, match=r"table.csv, line 2: .*'x'"):
        base.load_csv_without_header(path, np.int64, np.float32)
    path.write_text("3,2\n1,2,0\n")
    with pytest.raises(DataLossError, match=r"expected \(3, 2\) numbers, by line 1; got \(1, 2\)"):
        base.load_csv_with_header(path, np.int64, np.float32)
