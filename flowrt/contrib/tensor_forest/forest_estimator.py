"""Random forests as an estimator of ``contrib.learn``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowrt import feature_column, summary
from flowrt.contrib.learn.canned import PredictionKey
from flowrt.contrib.learn.older_estimator import Estimator
from flowrt.contrib.tensor_forest.forest_graphs import RandomForestGraphs
from flowrt.contrib.tensor_forest.forest_params import ForestHParams
from flowrt.estimator.heads import Head, RegressionHead, classifying_head
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.math import log
from flowrt.graph.ops.text.python_calls import group
from flowrt.losses import Reduction
from flowrt.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.variables.graph_scopes import control_dependencies

VARIANCE_PREDICTION_KEY = "prediction_variance"
_SMALLEST = 1e-6
"""The least odds of a class."""


class TensorForestLossHook(SessionRunHook):
    """Stops when the loss has not become smaller by its share ``early_stopping_loss_threshold`` in more than
    ``early_stopping_rounds`` steps.
    """

    def __init__(
        self, early_stopping_rounds: int, early_stopping_loss_threshold: float = 0.0, loss_op: Any = None
    ) -> None:
        self._rounds, self._threshold, self._loss = (
            early_stopping_rounds, early_stopping_loss_threshold, loss_op,
        )  # fmt: skip
        self._least: float | None = None
        self._steps = 0

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss = float(run_values.results)
        self._steps += 1
        if self._least is None or loss < self._least * (1 - self._threshold):
            self._least, self._steps = loss, 0
        if self._steps > self._rounds:
            run_context.request_stop()


class TensorForestEstimator(Estimator):
    """A forest of ``params`` that is fitted, evaluated and asked; see `RandomForestGraphs`.

    Features are one matrix, a dict of matrices in the order of their names, or what ``feature_columns`` make
    of them. ``weight_column`` and ``keys_column`` are features that hold the examples' weights, and what is
    passed on to their predictions. Training ends early if the loss stays where it is.

    Example:
        >>> params = tf.contrib.tensor_forest.ForestHParams(
        ...     num_classes=2, num_features=2, num_trees=5, split_after_samples=10, base_random_seed=1)
        >>> estimator = tf.contrib.tensor_forest.TensorForestEstimator(params)
        >>> x = np.random.default_rng(0).random((64, 2), np.float32)
        >>> _ = estimator.fit(x, (x[:, 0] > 0.5).astype(np.int32), steps=10)
        >>> bool(estimator.evaluate(x, (x[:, 0] > 0.5).astype(np.int32), steps=1)["accuracy"] > 0.9)
        True
    """

    def __init__(
        self,
        params: ForestHParams,
        device_assigner: Any = None,
        model_dir: Any = None,
        feature_columns: Iterable[Any] | None = None,
        graph_builder_class: Callable[..., RandomForestGraphs] = RandomForestGraphs,
        config: Any = None,
        weight_column: str | None = None,
        keys_column: str | None = None,
        feature_engineering_fn: Any = None,
        early_stopping_rounds: int = 100,
        early_stopping_loss_threshold: float = 0.001,
        num_trainers: int = 1,
        trainer_id: int = 0,
        report_feature_importances: bool = False,
        local_eval: bool = False,
        version: Any = None,
        head: Head | None = None,
        include_all_in_serving: bool = False,
    ) -> None:
        hparams = params.fill()
        used = head or _head_of(hparams, weight_column)
        columns = list(feature_columns or ())

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            named = dict(features) if isinstance(features, Mapping) else {"features": features}
            beside = [key for key in (weight_column, keys_column) if key is not None and key in named]
            given = {key: named.pop(key) for key in beside}
            data = feature_column.input_layer(named, columns) if columns else named
            forest = graph_builder_class(hparams)
            mean, _, variance = forest.inference_graph(data)
            summary.scalar("average_tree_size", forest.average_size())
            logits = _log_odds(mean) if used.logits_dimension == 1 and not hparams.regression else mean

            def train(loss: Tensor) -> Any:
                with control_dependencies([logits]):
                    grown = forest.training_graph(
                        data, labels, num_trainers, trainer_id, input_weights=given.get(weight_column or "")
                    )
                with control_dependencies([grown]):
                    return group(get_or_create_global_step().assign_add(1).op)

            spec = used.spec({**named, **given}, mode, logits, labels, train)
            found = {**_predictions(spec.predictions), VARIANCE_PREDICTION_KEY: variance}
            if keys_column is not None and keys_column in given:
                found[keys_column] = given[keys_column]
            hooks = list(spec.training_hooks)
            if early_stopping_rounds and mode == ModeKeys.TRAIN:
                hooks.append(
                    TensorForestLossHook(early_stopping_rounds, early_stopping_loss_threshold, spec.loss)
                )
            return spec._replace(predictions=found, training_hooks=tuple(hooks))

        super().__init__(model_fn, model_dir, config, feature_engineering_fn=feature_engineering_fn)


def _head_of(params: ForestHParams, weight_column: str | None) -> Head:
    if params.regression:
        return RegressionHead(params.num_outputs, weight_column, Reduction.SUM_OVER_BATCH_SIZE)
    return classifying_head(params.num_classes, None, weight_column, Reduction.SUM_OVER_BATCH_SIZE)


def _log_odds(probabilities: Tensor) -> Tensor:
    """The logits, [examples, 1], of the second class."""
    second = probabilities[:, 1:2]
    return log(maximum(second / maximum(1.0 - second, _SMALLEST), _SMALLEST))


def _predictions(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Predictions under the names of ``contrib.learn``."""
    if "class_ids" not in found:
        return {PredictionKey.SCORES: squeeze(found["predictions"])}
    kept = {key: found[key] for key in ("logits", "logistic", "probabilities") if key in found}
    return {**kept, PredictionKey.CLASSES: squeeze(found["class_ids"], [-1])}
