"""Estimators: trained, evaluated and asked in one process, from checkpoint to checkpoint."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError

rng = np.random.default_rng(0)
X = rng.standard_normal((64, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [3.0]], np.float32))[:, 0] + 0.5


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, float]) -> tf.estimator.EstimatorSpec:
    predicted = tf.layers.dense(features["x"], 1, name="linear")[:, 0]
    predictions = {"y": predicted, "twice": 2 * predicted}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.mean_squared_error(labels, predicted)
    error = tf.metrics.mean_absolute_error(labels, predicted)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"error": error})
    optimizer = tf.train.GradientDescentOptimizer(params["rate"])
    train = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def arrays(**options: Any) -> Any:
    return tf.estimator.inputs.numpy_input_fn({"x": X}, Y, **{"batch_size": 16, "shuffle": False, **options})


def new_estimator(folder: Path, **config: Any) -> tf.estimator.Estimator:
    settings = tf.estimator.RunConfig(tf_random_seed=1, **config)
    return tf.estimator.Estimator(model_fn, str(folder), settings, params={"rate": 0.1})


def test_training_goes_on_from_the_checkpoint_and_the_rest_reads_it(tmp_path: Path) -> None:
    estimator = new_estimator(tmp_path)
    assert estimator.latest_checkpoint() is None
    assert estimator.train(arrays(num_epochs=None), steps=30) is estimator
    first = estimator.evaluate(arrays())
    assert set(first) == {"error", "global_step", "loss"}
    assert first["global_step"] == 30
    again = new_estimator(tmp_path).train(arrays(num_epochs=None, shuffle=True), max_steps=100)
    second = again.evaluate(arrays())
    assert second["global_step"] == 100
    assert second["loss"] < first["loss"]
    assert second["loss"] < 1e-2
    np.testing.assert_allclose(again.get_variable_value("linear/kernel")[:, 0], [1, -2, 3], atol=0.1)
    assert "linear/bias" in again.get_variable_names()
    predictions = list(again.predict(arrays()))
    assert len(predictions) == 64
    np.testing.assert_allclose([each["y"] for each in predictions], Y, atol=0.3)
    np.testing.assert_allclose(
        [each["twice"] for each in predictions], [2 * each["y"] for each in predictions]
    )
    assert again.train(arrays(), max_steps=100).evaluate(arrays())["global_step"] == 100


def test_the_loss_is_the_mean_over_the_batches_that_are_asked_for(tmp_path: Path) -> None:
    estimator = new_estimator(tmp_path).train(arrays(), steps=1)
    kernel, bias = (estimator.get_variable_value(f"linear/{name}") for name in ("kernel", "bias"))
    squares = np.square((X @ kernel + bias)[:, 0] - Y)
    assert estimator.evaluate(arrays(), steps=2)["loss"] == pytest.approx(squares[:32].mean(), rel=1e-4)
    assert estimator.evaluate(arrays())["loss"] == pytest.approx(squares.mean(), rel=1e-4)


def test_the_end_of_the_input_ends_training(tmp_path: Path) -> None:
    assert new_estimator(tmp_path).train(arrays(num_epochs=2)).evaluate(arrays())["global_step"] == 8


def test_an_input_function_may_return_a_dataset_and_take_parameters(tmp_path: Path) -> None:
    def input_fn(params: dict[str, float], mode: str) -> tf.data.Dataset:
        assert params["rate"] == 0.1
        assert mode in ("train", "infer")
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat(1 if mode == "infer" else 9).batch(32)

    estimator = new_estimator(tmp_path).train(input_fn, steps=10)
    batches = list(estimator.predict(input_fn, predict_keys=["y"], yield_single_examples=False))
    assert [batch["y"].shape for batch in batches] == [(32,), (32,)]
    assert list(batches[0]) == ["y"]


def test_evaluation_follows_training(tmp_path: Path) -> None:
    metrics, exported = tf.estimator.train_and_evaluate(
        new_estimator(tmp_path, save_checkpoints_steps=7),
        tf.estimator.TrainSpec(arrays(num_epochs=None), max_steps=20),
        tf.estimator.EvalSpec(arrays(), steps=None),
    )
    assert metrics["global_step"] == 20
    assert exported == []
    assert len(list(tmp_path.glob("model.ckpt-*.index*"))) >= 3


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    def strange(features: Any, weights: Any) -> None: ...

    estimator = new_estimator(tmp_path)
    for call, error, message in (
        (lambda: tf.estimator.Estimator(strange), InvalidArgumentError, r"it has \['weights'\]"),
        (lambda: estimator.train(arrays(), steps=1, max_steps=2), InvalidArgumentError, "steps or max_steps"),
        (lambda: next(estimator.predict(arrays())), NotFoundError, "expected a checkpoint in"),
        (lambda: tf.estimator.EstimatorSpec("train", loss=1), InvalidArgumentError, "expected train_op"),
        (lambda: tf.estimator.EstimatorSpec("test"), InvalidArgumentError, "a mode of ModeKeys; got 'test'"),
        (lambda: tf.estimator.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
         InvalidArgumentError, "got both"),
        (lambda: tf.estimator.RunConfig().replace(nothing=1), InvalidArgumentError, "no setting 'nothing'"),
        (lambda: arrays(shuffle=None), InvalidArgumentError, "shuffle to be True or False"),
        (lambda: tf.estimator.inputs.numpy_input_fn(X, Y[:3], shuffle=False), InvalidArgumentError, "one"),
        (lambda: tf.estimator.Estimator(lambda features: 1).train(lambda: X), DTypeError, "EstimatorSpec"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()
    estimator.train(arrays(), steps=1)
    with pytest.raises(InvalidArgumentError, match=r"keys among \['y', 'twice'\]; got \['z'\]"):
        next(estimator.predict(arrays(), predict_keys="z"))


def test_a_program_for_tpus_runs_without_them(tmp_path: Path) -> None:
    sizes = []

    def input_fn(params: dict[str, Any]) -> Any:
        sizes.append(params["batch_size"])
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(params["batch_size"])

    def tpu_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        spec = model_fn(features, labels, mode, params)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=spec.predictions)
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            eval_metrics=(lambda y: {"mean": tf.metrics.mean(y)}, [labels]),
            scaffold_fn=tf.train.Scaffold,
        )

    config = tf.contrib.tpu.RunConfig(
        model_dir=str(tmp_path), cluster=None, master=None, tpu_config=tf.contrib.tpu.TPUConfig(100, 8)
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        tpu_model_fn, config=config, params={"rate": 0.1}, use_tpu=False, train_batch_size=16,
        eval_batch_size=32, predict_batch_size=8,
    )  # fmt: skip
    estimator.train(input_fn)
    found = estimator.evaluate(input_fn, steps=1)
    assert found["mean"] == pytest.approx(Y[:32].mean(), rel=1e-5)
    assert found["global_step"] == 4
    assert len(list(estimator.predict(input_fn))) == 64
    assert sizes == [16, 32, 8]
    with pytest.raises(tf.errors.UnimplementedError, match="expected use_tpu=False"):
        tf.contrib.tpu.TPUEstimator(tpu_model_fn, train_batch_size=1)


def test_an_exported_model_predicts_the_same(tmp_path: Path) -> None:
    estimator = new_estimator(tmp_path / "model")
    with tf.Graph().as_default():
        raw = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    with pytest.raises(NotFoundError, match="expected a checkpoint"):
        estimator.export_saved_model(tmp_path / "served", raw)
    (tmp_path / "words.txt").write_text("a b")
    exporter = tf.estimator.FinalExporter("last", raw, assets_extra={"words.txt": tmp_path / "words.txt"})
    _, exported = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(arrays(num_epochs=None), max_steps=20),
        tf.estimator.EvalSpec(arrays(), exporters=exporter),
    )
    folder = Path(exported[0].decode())
    assert folder.parent == tmp_path / "model" / "export" / "last"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert (folder / "assets.extra" / "words.txt").read_text() == "a b"
    expected = [each["y"] for each in estimator.predict(arrays())]
    with tf.Session(graph=tf.Graph()) as session:
        message = tf.saved_model.loader.load(session, ["serve"], exported[0])
        signature = message.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        found = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: X})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_signatures_are_those_that_servers_know() -> None:
    with tf.Graph().as_default():
        examples = tf.estimator.export.build_parsing_serving_input_receiver_fn(
            {"x": tf.FixedLenFeature([3], tf.float32)}
        )()
        scores = tf.nn.softmax(examples.features["x"])
        outputs = {
            "serving_default": tf.estimator.export.ClassificationOutput(scores=scores),
            "score": tf.estimator.export.RegressionOutput(scores[:, 0]),
            "all": tf.estimator.export.PredictOutput(scores),
        }
        found = tf.estimator.export.signatures(examples, outputs)
        methods = {name: each.method_name.rpartition("/")[2] for name, each in found.items()}
        assert methods == {"serving_default": "classify", "score": "regress", "all": "predict"}
        assert found["score"].inputs["inputs"].name == "input_example_tensor:0"
        fed = tf.placeholder(tf.float32, [None, 3])
        plain = tf.estimator.export.ServingInputReceiver(fed, fed)
        assert list(plain.features) == ["feature"]
        assert list(tf.estimator.export.signatures(plain, outputs)) == ["all"]
        del outputs["serving_default"]
        with pytest.raises(InvalidArgumentError, match="expected one named 'serving_default'"):
            tf.estimator.export.signatures(plain, outputs)


class _Named(tf.train.SessionRunHook):
    """Writes down when it begins."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self._name, self._begun = name, begun

    def begin(self) -> None:
        self._begun.append(self._name)


def test_a_model_function_may_be_partial_and_its_hooks_come_after_those_given() -> None:
    begun: list[str] = []
    hooks = {
        f"{name}_hooks": [_Named(name, begun)]
        for name in ("training_chief", "training", "evaluation", "prediction")
    }

    def with_hooks(features: Any, labels: Any, mode: str, rate: float, **options: Any) -> Any:
        return model_fn(features, labels, mode, {"rate": rate})._replace(**hooks)

    estimator = tf.estimator.Estimator(functools.partial(with_hooks, rate=0.1))
    given = [_Named("given", begun)]
    estimator.train(arrays(), given, steps=1).evaluate(arrays(), 1, given)
    next(estimator.predict(arrays(), hooks=given))
    order = ["training_chief", "given", "training", "given", "evaluation", "given", "prediction"]
    assert begun == order
    with pytest.raises(InvalidArgumentError, match=r"expected a model_fn of .*; it has \['rate'\]"):
        tf.estimator.Estimator(with_hooks)


@pytest.mark.parametrize(
    "predictions",
    [{"y": np.zeros(2), "all": np.zeros(3)}, {"y": np.zeros(2), "mean": np.float32(1)}, np.float32(1)],
    ids=["lengths", "scalar", "one"],
)
def test_predictions_are_one_for_each_example(predictions: Any) -> None:
    def constants(features: Any, labels: Any, mode: str) -> Any:
        found = (
            {name: tf.constant(value) for name, value in predictions.items()}
            if isinstance(predictions, dict)
            else tf.constant(predictions)
        )
        step = tf.train.get_global_step()
        return tf.estimator.EstimatorSpec(mode, found, tf.constant(0.0), step.assign_add(1))

    estimator = tf.estimator.Estimator(constants).train(arrays(), steps=1)
    with pytest.raises(InvalidArgumentError, match="expected a prediction for each example; got the shapes"):
        next(estimator.predict(arrays()))
    assert next(estimator.predict(arrays(), yield_single_examples=False)) is not None


def test_steps_are_at_least_one() -> None:
    estimator = tf.estimator.Estimator(model_fn)
    for call in (
        lambda: estimator.train(arrays(), steps=0),
        lambda: estimator.train(arrays(), max_steps=0),
        lambda: estimator.evaluate(arrays(), steps=0),
    ):
        with pytest.raises(InvalidArgumentError, match="steps: expected at least 1; got 0"):
            call()
