"""Heads: the meaning of logits. A head makes of them predictions, a loss for each example, and metrics.

Labels are [batch] or [batch, 1], for a regression [batch, label_dimension].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import lookup, losses, metrics
from flowrt.dtypes import float32, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.estimator.export import ClassificationOutput, ExportOutput, PredictOutput, RegressionOutput
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.feature_column.dense import NumericColumn, numeric_column
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.base.filling import broadcast_to, ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, squeeze
from flowrt.graph.ops.elementwise.arithmetic import maximum, squared_difference
from flowrt.graph.ops.elementwise.math import sigmoid
from flowrt.graph.ops.nn.losses import (
    sigmoid_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from flowrt.graph.ops.nn.softmax import softmax
from flowrt.graph.ops.text.assertions import assert_equal, assert_less_equal, assert_non_negative
from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.shapes import compatible, format_shape, is_static
from flowrt.graph.source import misuse
from flowrt.losses import Reduction
from flowrt.saved_model import signature_constants as names
from flowrt.summary import scalar
from flowrt.variables.graph_scopes import control_dependencies

Pair = tuple[Tensor, Tensor]
"""A metric: its value and its update."""


class Head(ABC):
    """Base of the heads; ``weight_column`` is the name of a feature, or a numeric column, of the examples'
    weights, and ``loss_reduction`` how the losses of a batch make one.
    """

    logits_dimension: int
    label_dimension = 1

    def __init__(self, weight_column: Any, loss_reduction: Any) -> None:
        Reduction.validate(loss_reduction)
        if isinstance(weight_column, str):
            weight_column = numeric_column(weight_column)
        if not (weight_column is None or isinstance(weight_column, NumericColumn)):
            raise misuse(
                f"weight_column: expected a feature's name or a numeric column; got {weight_column!r:.80}",
                DTypeError,
            )
        self._weight_column = weight_column
        self._reduction = loss_reduction

    @abstractmethod
    def labels(self, labels: Any) -> Tensor:
        """Labels as numbers, [batch, 1] or as wide as the logits."""

    @abstractmethod
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """The predictions by name, each [batch, any]."""

    @abstractmethod
    def losses(self, labels: Tensor, logits: Tensor) -> Tensor:
        """The loss of each example, [batch, 1], or of each number."""

    @abstractmethod
    def metrics(
        self, labels: Tensor, predictions: Mapping[str, Tensor], weights: Tensor | None
    ) -> dict[str, Pair]:
        """Metrics besides the mean loss."""

    @abstractmethod
    def served(self, predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
        """The outputs that servers are asked for besides ``predict``, by the name of the signature."""

    def spec(
        self,
        features: Mapping[str, Any],
        mode: str,
        logits: Tensor,
        labels: Any,
        train: Callable[[Tensor], Any],
    ) -> EstimatorSpec:
        """The model with these ``logits``, which ``train(loss)`` trains."""
        found = self.predictions(logits)
        if mode == ModeKeys.PREDICT:
            served = {"predict": PredictOutput(found), **self.served(found)}
            return EstimatorSpec(mode, predictions=found, export_outputs=served)
        if labels is None:
            raise misuse("input_fn: expected features and labels; there are no labels", InvalidArgumentError)
        actual = _of_each("labels", self.labels(labels), logits, self.label_dimension)
        weights = self._weights(features, logits)
        each = self.losses(actual, logits)
        loss = losses.compute_weighted_loss(
            each, 1.0 if weights is None else weights, reduction=self._reduction
        )
        if mode == ModeKeys.TRAIN:
            scalar("loss", loss)
            return EstimatorSpec(mode, predictions=found, loss=loss, train_op=train(loss))
        measured = {"average_loss": metrics.mean(each, _spread(weights, each))}
        measured |= self.metrics(actual, found, weights)
        return EstimatorSpec(mode, predictions=found, loss=loss, eval_metric_ops=measured)

    def _weights(self, features: Mapping[str, Any], logits: Tensor) -> Tensor | None:
        """[batch, 1], or [batch, label_dimension], or None."""
        column = self._weight_column
        if column is None:
            return None
        if column.key not in features:
            raise misuse(f"features: expected the weights {column.key!r}", InvalidArgumentError)
        given = convert_to_tensor(features[column.key])
        if column.normalizer_fn is not None:
            given = convert_to_tensor(column.normalizer_fn(given))
        given = _in_columns(cast(given, float32))
        dims = given.spec.shape
        width = self.label_dimension if dims and dims[-1] == self.label_dimension else 1
        return _of_each(f"weights {column.key!r}", given, logits, width)


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise misuse(f"{name}: expected None; got {value!r:.80}", UnimplementedError)


def _in_columns(values: Tensor) -> Tensor:
    """[batch] as [batch, 1]."""
    dims = values.spec.shape
    if dims is None:
        raise misuse(
            "labels and weights: expected [batch] or [batch, any]; got an unknown rank. Use set_shape()",
            InvalidArgumentError,
        )
    return expand_dims(values, -1) if len(dims) == 1 else values


def _of_each(what: str, given: Tensor, logits: Tensor, width: int) -> Tensor:
    """``given``, which must be [batch, width]: losses would broadcast anything else."""
    examples = logits.spec.shape[0] if logits.spec.shape else None
    if not compatible(given.spec.shape, (examples, width)):
        raise misuse(
            f"{what}: expected shape {format_shape((examples, width))}, of each example; "
            f"got {format_shape(given.spec.shape)}",
            InvalidArgumentError,
        )
    if examples is not None and is_static(given.spec.shape):
        return given
    wanted = stack([shape(logits)[0], width])
    with control_dependencies([assert_equal(shape(given), wanted, message=f"{what}: of each example")]):
        return identity(given)


def _spread(weights: Tensor | None, like: Tensor) -> Tensor | None:
    return None if weights is None else weights * ones_like(like)


class _Classes(Head):
    """Classes, by number or by the words of ``label_vocabulary``."""

    def __init__(
        self, n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, reduction: Any
    ) -> None:
        super().__init__(weight_column, reduction)
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise misuse(
                f"label_vocabulary: expected {n_classes} words, one a class; got {len(label_vocabulary)}",
                InvalidArgumentError,
            )
        self.n_classes, self.label_vocabulary = n_classes, label_vocabulary

    def labels(self, labels: Any) -> Tensor:
        given = _in_columns(convert_to_tensor(labels))
        if (given.dtype is string) != (self.label_vocabulary is not None):
            expected = "numbers" if self.label_vocabulary is None else "words of the label_vocabulary"
            raise misuse(f"labels: expected {expected}; got {given.dtype.name}", DTypeError)
        if self.label_vocabulary is None:
            return given
        return lookup.index_table_from_tensor(list(self.label_vocabulary), name="class_id_lookup").lookup(
            given
        )

    def _named(self, class_ids: Tensor) -> Tensor:
        if self.label_vocabulary is None:
            return as_string(class_ids)
        table = lookup.index_to_string_table_from_tensor(
            list(self.label_vocabulary), name="class_string_lookup"
        )
        found: Tensor = table.lookup(class_ids)
        return found

    def served(self, predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
        classes = ClassificationOutput(predictions["probabilities"], predictions["all_classes"])
        return {names.DEFAULT_SERVING_SIGNATURE_DEF_KEY: classes, "classification": classes}

    def _choices(self, logits: Tensor) -> dict[str, Tensor]:
        """Every class of each example, in the order of its probabilities: [batch, n_classes]."""
        words = self.label_vocabulary or [str(number) for number in range(self.n_classes)]
        dims = stack([shape(logits)[0], self.n_classes])
        return {
            "all_class_ids": broadcast_to(np.arange(self.n_classes, dtype=np.int32), dims),
            "all_classes": broadcast_to(convert_to_tensor(list(words)), dims),
        }


class BinaryClassHead(_Classes):
    """Two classes by one logit: that of the second class. Raises `UnimplementedError` for ``thresholds`` and
    ``loss_fn``.
    """

    logits_dimension = 1

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = Reduction.SUM_OVER_BATCH_SIZE,
        loss_fn: Any = None,
        name: str | None = None,
    ) -> None:
        _refuse(thresholds=thresholds, loss_fn=loss_fn)
        super().__init__(2, weight_column, label_vocabulary, loss_reduction)

    def labels(self, labels: Any) -> Tensor:
        numbers = cast(super().labels(labels), float32)
        rule = "labels: of two classes they are 0 or 1, or words of the label_vocabulary:"
        checks = [assert_non_negative(numbers, message=rule), assert_less_equal(numbers, 1.0, message=rule)]
        with control_dependencies(checks):
            return identity(numbers)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        logistic = sigmoid(logits)
        both = concat([zeros_like(logits), logits], -1)
        class_ids = expand_dims(argmax(both, -1), -1)
        return {
            "logits": logits, "logistic": logistic, "probabilities": softmax(both), "class_ids": class_ids,
            "classes": self._named(class_ids), **self._choices(logits),
        }  # fmt: skip

    def served(self, predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
        return {**super().served(predictions), "regression": RegressionOutput(predictions["logistic"])}

    def losses(self, labels: Tensor, logits: Tensor) -> Tensor:
        return sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def metrics(
        self, labels: Tensor, predictions: Mapping[str, Tensor], weights: Tensor | None
    ) -> dict[str, Pair]:
        logistic, class_ids = predictions["logistic"], predictions["class_ids"]
        share = metrics.mean(labels, weights)
        return {
            "accuracy": metrics.accuracy(labels, class_ids, weights),
            "precision": metrics.precision(labels, class_ids, weights),
            "recall": metrics.recall(labels, class_ids, weights),
            "prediction/mean": metrics.mean(logistic, weights),
            "label/mean": share,
            "accuracy_baseline": (maximum(share[0], 1.0 - share[0]), share[1]),
            "auc": metrics.auc(labels, logistic, weights),
            "auc_precision_recall": metrics.auc(
                labels, logistic, weights, curve="PR", summation_method="careful_interpolation"
            ),
        }


class BinaryLogisticHead(BinaryClassHead):
    """`BinaryClassHead` with the area under the curve of precision and recall by trapezoids, as ready
    classifiers of TensorFlow 1 have it.
    """

    def metrics(
        self, labels: Tensor, predictions: Mapping[str, Tensor], weights: Tensor | None
    ) -> dict[str, Pair]:
        area = metrics.auc(labels, predictions["logistic"], weights, curve="PR")
        return {**super().metrics(labels, predictions, weights), "auc_precision_recall": area}


class MultiClassHead(_Classes):
    """Three classes or more, a logit each. Raises `UnimplementedError` for ``loss_fn``."""

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = Reduction.SUM_OVER_BATCH_SIZE,
        loss_fn: Any = None,
        name: str | None = None,
    ) -> None:
        _refuse(loss_fn=loss_fn)
        super().__init__(n_classes, weight_column, label_vocabulary, loss_reduction)
        self.logits_dimension = n_classes

    def labels(self, labels: Any) -> Tensor:
        numbers = super().labels(labels)
        if not numbers.dtype.is_integer:
            raise misuse(f"labels: expected integers; got {numbers.dtype.name}", DTypeError)
        return cast(numbers, int64)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        class_ids = expand_dims(argmax(logits, -1), -1)
        return {
            "logits": logits, "probabilities": softmax(logits), "class_ids": class_ids,
            "classes": self._named(class_ids), **self._choices(logits),
        }  # fmt: skip

    def losses(self, labels: Tensor, logits: Tensor) -> Tensor:
        found = sparse_softmax_cross_entropy_with_logits(labels=squeeze(labels, [-1]), logits=logits)
        return expand_dims(found, -1)

    def metrics(
        self, labels: Tensor, predictions: Mapping[str, Tensor], weights: Tensor | None
    ) -> dict[str, Pair]:
        return {"accuracy": metrics.accuracy(labels, predictions["class_ids"], weights)}


def classifying_head(
    n_classes: int, label_vocabulary: Sequence[str] | None, weight_column: Any, loss_reduction: Any
) -> Head:
    """The head of ``n_classes`` classes. Raises `InvalidArgumentError` for less than two."""
    if n_classes < 2:
        raise misuse(f"n_classes: expected at least 2; got {n_classes}", InvalidArgumentError)
    if n_classes == 2:
        return BinaryLogisticHead(weight_column, None, label_vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)


class RegressionHead(Head):
    """``label_dimension`` numbers, the logits, by their squared distances; an example's loss is their sum.
    Raises `UnimplementedError` for ``loss_fn`` and ``inverse_link_fn``.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: Any = Reduction.SUM_OVER_BATCH_SIZE,
        loss_fn: Any = None,
        inverse_link_fn: Any = None,
        name: str | None = None,
    ) -> None:
        _refuse(loss_fn=loss_fn, inverse_link_fn=inverse_link_fn)
        super().__init__(weight_column, loss_reduction)
        self.logits_dimension = self.label_dimension = label_dimension

    def labels(self, labels: Any) -> Tensor:
        return _in_columns(cast(convert_to_tensor(labels), float32))

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        return {"predictions": logits}

    def served(self, predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
        value = RegressionOutput(predictions["predictions"])
        return {names.DEFAULT_SERVING_SIGNATURE_DEF_KEY: value, "regression": value}

    def losses(self, labels: Tensor, logits: Tensor) -> Tensor:
        return squared_difference(logits, labels)

    def metrics(
        self, labels: Tensor, predictions: Mapping[str, Tensor], weights: Tensor | None
    ) -> dict[str, Pair]:
        found = predictions["predictions"]
        return {
            "prediction/mean": metrics.mean(found, _spread(weights, found)),
            "label/mean": metrics.mean(labels, _spread(weights, labels)),
        }
