"""Ready estimators of ``contrib.learn``: those of ``estimator`` with the older arguments, the mean of losses
in the place of their sum, and the older names of metrics and predictions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt.contrib.estimator import clip_gradients_by_norm
from flowrt.contrib.layers import fully_connected
from flowrt.contrib.learn.model_fn import ModeKeys
from flowrt.contrib.learn.older_estimator import Estimator
from flowrt.errors import UnimplementedError
from flowrt.estimator import EstimatorSpec, RunConfig
from flowrt.estimator.heads import BinaryLogisticHead, Head, MultiClassHead, RegressionHead
from flowrt.estimator.parts import DEEP_RATE, Deep, Linear, Part, model_of_parts, wide_and_deep
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.source import misuse
from flowrt.losses import Reduction
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.variables.graph_scopes import control_dependencies

_MEAN = Reduction.SUM_OVER_BATCH_SIZE
_LINEAR_RATE = 0.2


class PredictionKey:
    """Names of predictions."""

    CLASSES, PROBABILITIES, LOGITS, LOGISTIC = "classes", "probabilities", "logits", "logistic"
    SCORES, GENERIC = "scores", "output"


class MetricKey:
    """Names of metrics."""

    LOSS, ACCURACY, AUC, AUC_PR = "loss", "accuracy", "auc", "auc_precision_recall"
    PREDICTION_MEAN, LABEL_MEAN = "labels/prediction_mean", "labels/actual_label_mean"
    ACCURACY_BASELINE, ACCURACY_MEAN = "accuracy/baseline_label_mean", "accuracy/threshold_%f_mean"
    PRECISION_MEAN = "precision/positive_threshold_%f_mean"
    RECALL_MEAN = "recall/positive_threshold_%f_mean"


_METRICS = {
    "average_loss": [MetricKey.LOSS],
    "accuracy": [MetricKey.ACCURACY, MetricKey.ACCURACY_MEAN % 0.5],
    "auc": [MetricKey.AUC],
    "auc_precision_recall": [MetricKey.AUC_PR],
    "precision": [MetricKey.PRECISION_MEAN % 0.5],
    "recall": [MetricKey.RECALL_MEAN % 0.5],
    "prediction/mean": [MetricKey.PREDICTION_MEAN],
    "label/mean": [MetricKey.LABEL_MEAN, MetricKey.ACCURACY_BASELINE],
}
"""The names of a classifier's metrics by those of ``estimator``."""


def _classes(n_classes: int, words: Sequence[str] | None, weight: str | None, centered: bool) -> Head:
    _check_bias(centered)
    if n_classes == 2:
        return BinaryLogisticHead(weight, None, words, _MEAN)
    return MultiClassHead(n_classes, weight, words, _MEAN)


def _numbers(dimension: int, weight: str | None, centered: bool) -> Head:
    _check_bias(centered)
    return RegressionHead(dimension, weight, _MEAN)


def _check_bias(centered: bool) -> None:
    if centered:
        raise misuse("enable_centered_bias: expected False; layers have biases", UnimplementedError)


class _Canned(Estimator):
    """An estimator of ``parts`` and a head; the only feature may be a tensor, named "". ``counted`` is how
    much a step adds to the global step.
    """

    def __init__(
        self, parts: Sequence[Part], head: Head, clip_norm: float | None, model_dir: Any,
        config: RunConfig | None, engineered: Any, counted: int = 1,
    ) -> None:  # fmt: skip
        if clip_norm is not None:
            for part in parts:
                part.optimizer = functools.partial(_clipped, part.optimizer, clip_norm)

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            named = features if isinstance(features, Mapping) else {"": features}
            spec = model_of_parts(parts, head, named, labels, mode)
            if mode == ModeKeys.TRAIN and counted > 1:
                with control_dependencies([spec.train_op]):
                    spec = spec._replace(train_op=get_or_create_global_step().assign_add(counted - 1).op)
            return spec._replace(
                predictions=self._predictions(head, spec.predictions),
                eval_metric_ops=self._metrics(spec.eval_metric_ops),
            )

        super().__init__(model_fn, model_dir, config, feature_engineering_fn=engineered)

    @staticmethod
    def _predictions(head: Head, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    @staticmethod
    def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _asked(self, key: str, x: Any, input_fn: Any, batch_size: int | None, as_iterable: bool) -> Any:
        """One of the predictions."""
        found = super().predict(x, input_fn, batch_size, [key], as_iterable)
        return (each[key] for each in found) if as_iterable else found[key]


def _layer(x: Tensor, units: int, activation: Any, name: str) -> Tensor:
    """A dense layer with the older names of its variables, ``weights`` and ``biases``."""
    return fully_connected(x, units, activation, scope=name)


def _linear(columns: Iterable[Any], optimizer: Any) -> Linear:
    return Linear(columns, optimizer or "Ftrl", "sum", _LINEAR_RATE)


def _deep(columns: Iterable[Any], hidden_units: Any, optimizer: Any, activation_fn: Any, rate: Any) -> Deep:
    return Deep(columns, hidden_units, optimizer or "Adagrad", activation_fn, rate, False, layer=_layer)


def _wide_and_deep(
    linear_columns: Any, linear_optimizer: Any, deep_columns: Any, hidden_units: Any, deep_optimizer: Any,
    activation_fn: Any, rate: Any,
) -> list[Part]:  # fmt: skip
    return wide_and_deep(
        linear_columns, linear_optimizer or "Ftrl", "sum", _LINEAR_RATE, deep_columns, hidden_units,
        deep_optimizer or "Adagrad", activation_fn, rate, False, DEEP_RATE, _layer,
    )  # fmt: skip


def _clipped(optimizer: Callable[[], Any], norm: float) -> Any:
    return clip_gradients_by_norm(optimizer(), norm)


class _Classifier(_Canned):
    """Predictions of classes: ``classes``, [batch], ``probabilities`` and ``logits``."""

    @staticmethod
    def _predictions(head: Any, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = {key: found[key] for key in ("logits", "logistic", "probabilities") if key in found}
        chosen = found["class_ids"] if head.label_vocabulary is None else found["classes"]
        return {**kept, PredictionKey.CLASSES: squeeze(chosen, [-1])}

    @staticmethod
    def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
        several = "auc" in found
        return {
            name: pair for key, pair in found.items() for name in _METRICS.get(key, ())
            if several or name in (MetricKey.LOSS, MetricKey.ACCURACY)
        }  # fmt: skip

    def predict(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        outputs: Sequence[str] | None = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        """The predictions in ``outputs``, as `Estimator.predict`; by default `predict_classes`."""
        if outputs:
            return super().predict(x, input_fn, batch_size, outputs, as_iterable, iterate_batches)
        return self.predict_classes(x, input_fn, batch_size, as_iterable)

    def predict_classes(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        as_iterable: bool = True,
    ) -> Any:
        """The class of each example: an iterator, or an array, [batch], without ``as_iterable``."""
        return self._asked(PredictionKey.CLASSES, x, input_fn, batch_size, as_iterable)

    def predict_proba(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        as_iterable: bool = True,
    ) -> Any:
        """The probabilities of the classes, likewise: [n_classes] or [batch, n_classes]."""
        return self._asked(PredictionKey.PROBABILITIES, x, input_fn, batch_size, as_iterable)


class _Regressor(_Canned):
    """Predictions of numbers: ``scores``, [batch], or [batch, label_dimension] if that is above 1."""

    @staticmethod
    def _predictions(head: Head, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        scores = found["predictions"]
        return {PredictionKey.SCORES: squeeze(scores, [-1]) if head.label_dimension == 1 else scores}

    @staticmethod
    def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
        return {MetricKey.LOSS: found["average_loss"]} if found else {}

    def predict(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        outputs: Sequence[str] | None = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        """The predictions in ``outputs``, as `Estimator.predict`; by default `predict_scores`."""
        if outputs:
            return super().predict(x, input_fn, batch_size, outputs, as_iterable, iterate_batches)
        return self.predict_scores(x, input_fn, batch_size, as_iterable)

    def predict_scores(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        as_iterable: bool = True,
    ) -> Any:
        """The prediction for each example: an iterator, or an array without ``as_iterable``."""
        return self._asked(PredictionKey.SCORES, x, input_fn, batch_size, as_iterable)


def _check_rates(multipliers: Any) -> None:
    if multipliers:
        raise misuse("embedding_lr_multipliers: expected none; one rate trains a part", UnimplementedError)


class LinearClassifier(_Classifier):
    """A linear model that says which of ``n_classes`` an example belongs to, as
    `estimator.LinearClassifier`. ``label_keys`` are the classes' words, ``weight_column_name`` the feature
    of the examples' weights; gradients above the norm ``gradient_clip_norm`` are clipped.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column_name: str | None = None,
        optimizer: Any = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        _joint_weight: bool = False,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
        label_keys: Sequence[str] | None = None,
    ) -> None:
        head = _classes(n_classes, label_keys, weight_column_name, enable_centered_bias)
        parts = [_linear(feature_columns, optimizer)]
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn)


class LinearRegressor(_Regressor):
    """A linear model that predicts ``label_dimension`` numbers; see `LinearClassifier`."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        weight_column_name: str | None = None,
        optimizer: Any = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        label_dimension: int = 1,
        _joint_weights: bool = False,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
    ) -> None:
        head = _numbers(label_dimension, weight_column_name, enable_centered_bias)
        parts = [_linear(feature_columns, optimizer)]
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn)


class DNNClassifier(_Classifier):
    """Layers of ``hidden_units`` that say which of ``n_classes`` an example belongs to, as
    `LinearClassifier`.

    Example:
        >>> x, y = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32), np.array([0, 0, 1, 1])
        >>> columns = tf.contrib.learn.infer_real_valued_columns_from_input(x)
        >>> classifier = tf.contrib.learn.DNNClassifier([10], columns)
        >>> len(list(classifier.fit(x, y, steps=5).predict(x)))
        4
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column_name: str | None = None,
        optimizer: Any = None,
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
        embedding_lr_multipliers: Any = None,
        input_layer_min_slice_size: int | None = None,
        label_keys: Sequence[str] | None = None,
    ) -> None:
        _check_rates(embedding_lr_multipliers)
        head = _classes(n_classes, label_keys, weight_column_name, enable_centered_bias)
        parts = [_deep(feature_columns, hidden_units, optimizer, activation_fn, dropout)]
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn)


class DNNRegressor(_Regressor):
    """Layers of ``hidden_units`` that predict ``label_dimension`` numbers; see `DNNClassifier`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: Any = None,
        weight_column_name: str | None = None,
        optimizer: Any = None,
        activation_fn: Callable[[Tensor], Tensor] = relu,
        dropout: float | None = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
        label_dimension: int = 1,
        embedding_lr_multipliers: Any = None,
        input_layer_min_slice_size: int | None = None,
    ) -> None:
        _check_rates(embedding_lr_multipliers)
        head = _numbers(label_dimension, weight_column_name, enable_centered_bias)
        parts = [_deep(feature_columns, hidden_units, optimizer, activation_fn, dropout)]
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn)


class DNNLinearCombinedClassifier(_Classifier):
    """A linear model of some columns and a deep one of others; see `LinearClassifier`. As in TensorFlow, a
    step counts as two in the global step unless ``fix_global_step_increment_bug``.
    """

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column_name: str | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = None,
        _joint_linear_weights: bool = False,
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = None,
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Tensor], Tensor] = relu,
        dnn_dropout: float | None = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
        embedding_lr_multipliers: Any = None,
        input_layer_min_slice_size: int | None = None,
        label_keys: Sequence[str] | None = None,
        fix_global_step_increment_bug: bool = False,
    ) -> None:
        _check_rates(embedding_lr_multipliers)
        parts = _wide_and_deep(
            linear_feature_columns, linear_optimizer,
            dnn_feature_columns, dnn_hidden_units, dnn_optimizer, dnn_activation_fn, dnn_dropout,
        )  # fmt: skip
        head = _classes(n_classes, label_keys, weight_column_name, enable_centered_bias)
        counted = 1 if fix_global_step_increment_bug else len(parts)
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn, counted)


class DNNLinearCombinedRegressor(_Regressor):
    """A linear model of some columns and a deep one of others that predict ``label_dimension`` numbers; see
    `DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        model_dir: Any = None,
        weight_column_name: str | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = None,
        _joint_linear_weights: bool = False,
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = None,
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Tensor], Tensor] = relu,
        dnn_dropout: float | None = None,
        gradient_clip_norm: float | None = None,
        enable_centered_bias: bool = False,
        label_dimension: int = 1,
        config: RunConfig | None = None,
        feature_engineering_fn: Any = None,
        embedding_lr_multipliers: Any = None,
        input_layer_min_slice_size: int | None = None,
        fix_global_step_increment_bug: bool = False,
    ) -> None:
        _check_rates(embedding_lr_multipliers)
        parts = _wide_and_deep(
            linear_feature_columns, linear_optimizer,
            dnn_feature_columns, dnn_hidden_units, dnn_optimizer, dnn_activation_fn, dnn_dropout,
        )  # fmt: skip
        head = _numbers(label_dimension, weight_column_name, enable_centered_bias)
        counted = 1 if fix_global_step_increment_bug else len(parts)
        super().__init__(parts, head, gradient_clip_norm, model_dir, config, feature_engineering_fn, counted)
