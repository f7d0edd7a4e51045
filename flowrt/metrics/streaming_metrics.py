"""Streaming metrics: pairs ``(value, update_op)`` over local variables that count."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import DType, float32, float64, int64
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.array.statistics import confusion_matrix
from flowrt.graph.ops.base.filling import ones_like, zeros
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape
from flowrt.graph.ops.elementwise.arithmetic import squared_difference
from flowrt.graph.ops.elementwise.comparison import equal, greater, less, logical_and, logical_not, not_equal
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import sqrt
from flowrt.graph.ops.linalg.matrix_parts import diag_part
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import optional, parameters_of, with_parameters
from flowrt.graph.typing import TensorLike
from flowrt.metrics.curves import area_under, area_under_precision, precision_over_recall, roc
from flowrt.variables.distribution_context import distribution_context
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization

Pair = tuple[Tensor, Tensor]


class _Destination(NamedTuple):
    """The arguments that all metrics have: the name, and the collections of its value and its update."""

    name: str | None
    metrics_collections: Any
    updates_collections: Any

    def scope(self, default: str) -> AbstractContextManager[str]:
        return get_default_graph().name_scope(self.name or default)

    def with_value(self, of_counted: Callable[..., Tensor], *totals: Variable) -> Tensor:
        """``of_counted`` of the values of ``totals``: on several replicas one tensor, of what all of them
        have counted.
        """

        def value_of_all(_: Any, *variables: Variable) -> Tensor:
            value = of_counted(*[variable.read_value() for variable in variables])
            get_default_graph().add_to_collections(self.metrics_collections, value)
            return value

        context = distribution_context()
        if context is None or context.replica is None:
            return value_of_all(None, *totals)
        value: Tensor = context.replica.merge_call(value_of_all, totals)
        return value

    def with_update(self, update: Tensor) -> Tensor:
        """``update``, a replica's own."""
        get_default_graph().add_to_collections(self.updates_collections, update)
        return update


def _metric(function: Callable[..., Pair]) -> Callable[..., Pair]:
    """The public function of a metric: its own arguments, then those of the destination, its first one."""
    names = ("metrics_collections", "updates_collections", "name")

    def call(given: dict[str, Any]) -> Pair:
        values, updates, name = (given.pop(key, None) for key in names)
        return function(_Destination(name, values, updates), **given)

    return with_parameters(function, [*parameters_of(function)[1:], *map(optional, names)], call)


def _total(name: str, shape: Sequence[int] = (), dtype: DType = float32) -> Variable:
    """A variable to count in: on several replicas each counts its own part."""
    return Variable(
        lambda: zeros(shape, dtype),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
    )


def _ratio(
    to: _Destination, numerator: Tensor, denominator: Tensor, finish: Callable[[Tensor], Tensor] = lambda x: x
) -> Pair:
    total, count = _total("total"), _total("count")

    def ratio(total: Tensor, count: Tensor) -> Tensor:
        return finish(div_no_nan(total, count, name="value"))

    value = to.with_value(ratio, total, count)
    update = finish(div_no_nan(total.assign_add(numerator), count.assign_add(denominator), name="update_op"))
    return value, to.with_update(update)


def _mean(
    to: _Destination, values: Any, weights: Any, finish: Callable[[Tensor], Tensor] = lambda x: x
) -> Pair:
    values = cast(convert_to_tensor(values), float32)
    spread = ones_like(values)
    if weights is not None:
        spread = spread * cast(convert_to_tensor(weights), float32)
    return _ratio(to, reduce_sum(values * spread), reduce_sum(spread), finish)


@_metric
def mean(to: _Destination, values: Any, weights: TensorLike | None = None) -> Pair:
    """The weighted mean of all values seen since the local variables were initialized.

    Example:
        >>> mean, update = tf.metrics.mean([1.0, 3.0])
        >>> session.run(tf.local_variables_initializer())
        >>> session.run(update), session.run(mean)
        (np.float32(2.0), np.float32(2.0))
    """
    with to.scope("mean"):
        return _mean(to, values, weights)


@_metric
def accuracy(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    """The fraction of ``predictions`` equal to ``labels``.

    Args:
        labels: The wanted values, of any shape.
        predictions: A tensor of that shape.
        weights: Factors of the elements, which broadcast to that shape.
        metrics_collections: Names of the collections that the value joins.
        updates_collections: Names of the collections that the update joins.

    Returns:
        (the fraction over all steps so far, the operation that adds this step and returns it).

    Example:
        >>> accuracy, update = tf.metrics.accuracy(labels=[1, 0], predictions=[1, 1])
        >>> session.run(tf.local_variables_initializer())
        >>> session.run(update)
        np.float32(0.5)
    """
    labels, predictions = convert_to_tensor(labels), convert_to_tensor(predictions)
    ranks = {predictions.shape.rank, labels.shape.rank}
    if None not in ranks and len(ranks) > 1:
        if predictions.shape.num_elements() not in (None, labels.shape.num_elements()):
            raise misuse(f"accuracy: expected predictions of shape {labels.shape}; got {predictions.shape}")
        predictions = reshape(predictions, labels.shape.as_list())
    hits = cast(equal(cast(predictions, labels.dtype), labels), float32)
    with to.scope("accuracy"):
        return _mean(to, hits, weights)


@_metric
def mean_squared_error(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    predictions = convert_to_tensor(predictions)
    errors = squared_difference(predictions, cast(convert_to_tensor(labels), predictions.dtype))
    with to.scope("mean_squared_error"):
        return _mean(to, errors, weights)


@_metric
def mean_absolute_error(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    predictions = convert_to_tensor(predictions)
    errors = absolute(predictions - cast(convert_to_tensor(labels), predictions.dtype))
    with to.scope("mean_absolute_error"):
        return _mean(to, errors, weights)


@_metric
def root_mean_squared_error(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    with to.scope("root_mean_squared_error"):
        predictions = cast(convert_to_tensor(predictions), float32)
        errors = squared_difference(predictions, cast(convert_to_tensor(labels), float32))
        return _mean(to, errors, weights, sqrt)


def _truths(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    return cast(convert_to_tensor(labels), "bool"), cast(convert_to_tensor(predictions), "bool")


def _hits(labels: Any, predictions: Any, weights: Any, of: str) -> tuple[Tensor, Tensor]:
    """True positives, and what divides them: the predicted (precision) or actual (recall) positives."""
    actual, predicted = _truths(labels, predictions)
    spread = 1.0 if weights is None else cast(convert_to_tensor(weights), float32)
    both = reduce_sum(cast(logical_and(actual, predicted), float32) * spread)
    return both, reduce_sum(cast(predicted if of == "predicted" else actual, float32) * spread)


@_metric
def precision(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    """True positives among the predicted positives."""
    with to.scope("precision"):
        return _ratio(to, *_hits(labels, predictions, weights, "predicted"))


@_metric
def recall(
    to: _Destination, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> Pair:
    """True positives among the actual positives."""
    with to.scope("recall"):
        return _ratio(to, *_hits(labels, predictions, weights, "actual"))


def _counts(name: str, hits_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Pair]:
    """The metric ``name``: the weighted number, so far, of ``hits_of`` (actual, predicted)."""

    def count(to: _Destination, labels: Any, predictions: Any, weights: Any = None) -> Pair:
        hits = hits_of(*_truths(labels, predictions))
        with to.scope(name):
            total = _total("count")
            spread = cast(hits, float32)
            spread = spread * (1.0 if weights is None else cast(convert_to_tensor(weights), float32))
            value = to.with_value(identity, total)
            return value, to.with_update(total.assign_add(reduce_sum(spread)))

    count.__name__ = count.__qualname__ = name
    return _metric(count)


true_positives = _counts("true_positives", logical_and)
true_negatives = _counts("true_negatives", lambda a, p: logical_and(logical_not(a), logical_not(p)))
false_positives = _counts("false_positives", lambda a, p: logical_and(logical_not(a), p))
false_negatives = _counts("false_negatives", lambda a, p: logical_and(a, logical_not(p)))


@_metric
def percentage_below(
    to: _Destination, values: Any, threshold: float, weights: TensorLike | None = None
) -> Pair:
    """The fraction of the values below ``threshold``, from 0 to 1."""
    below = cast(less(convert_to_tensor(values), threshold), float32)
    with to.scope("percentage_below_threshold"):
        return _mean(to, below, weights)


@_metric
def mean_iou(
    to: _Destination,
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
) -> Pair:
    """Intersection over union, averaged over the classes that occur. The update is the confusion matrix.

    It is counted in float64: labels of pixels soon exceed 2**24, where float32 stops counting by ones.
    """
    with to.scope("mean_iou"):
        total = _total("total_confusion_matrix", [num_classes, num_classes], float64)
        flat = [reshape(cast(convert_to_tensor(t), int64), [-1]) for t in (labels, predictions)]
        spread = None if weights is None else reshape(cast(convert_to_tensor(weights), float64), [-1])
        found = confusion_matrix(flat[0], flat[1], num_classes, float64, weights=spread)
        value = to.with_value(_mean_iou_of, total)
        return value, to.with_update(total.assign_add(found))


def _mean_iou_of(matrix: Tensor) -> Tensor:
    """The mean intersection over union of a confusion matrix."""
    both = cast(diag_part(matrix), float32)
    union = cast(reduce_sum(matrix, 0) + reduce_sum(matrix, 1), float32) - both
    occurs = cast(not_equal(union, 0.0), float32)
    return div_no_nan(reduce_sum(div_no_nan(both, union)), reduce_sum(occurs), name="mean_iou")


@_metric
def mean_per_class_accuracy(
    to: _Destination,
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
) -> Pair:
    """The fraction of each class's labels that are predicted, averaged over all classes. The update is the
    fractions, [num_classes].
    """
    with to.scope("mean_accuracy"):
        hits, total = _total("count", [num_classes]), _total("total", [num_classes])
        flat = [reshape(cast(convert_to_tensor(t), int64), [-1]) for t in (labels, predictions)]
        spread = None if weights is None else reshape(cast(convert_to_tensor(weights), float32), [-1])
        found = confusion_matrix(flat[0], flat[1], num_classes, float32, weights=spread)
        value = to.with_value(lambda hits, total: reduce_mean(div_no_nan(hits, total)), hits, total)
        moved = hits.assign_add(diag_part(found)), total.assign_add(reduce_sum(found, 1))
        return value, to.with_update(div_no_nan(*moved))


def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Any = None,
) -> Pair:
    """The area under a curve of ``predictions`` in [0, 1] at ``num_thresholds``: of true over false positives
    (``curve="ROC"``), or of precision over recall ("PR").

    ``summation_method``: "trapezoidal", "minoring" or "majoring" for the lower or upper of the heights at two
    thresholds, or "careful_interpolation", for which precision is not linear between them. Raises
    `InvalidArgumentError` for others.
    """
    if curve not in _AREAS or summation_method not in _SUMMATIONS:
        raise misuse(
            f"auc: expected curve {' or '.join(_AREAS)} and summation_method {', '.join(_SUMMATIONS)}; got "
            f"{curve!r}, {summation_method!r}"
        )
    steps = np.arange(1, num_thresholds - 1) / (num_thresholds - 1) if thresholds is None else thresholds
    limits = np.array([-1e-7, *sorted(steps), 1 + 1e-7], np.float32)
    to = _Destination(name, metrics_collections, updates_collections)
    with to.scope("auc"):
        scores = reshape(cast(convert_to_tensor(predictions), float32), [-1])
        actual = reshape(cast(cast(convert_to_tensor(labels), "bool"), float32), [-1])
        spread = 1.0 if weights is None else reshape(cast(convert_to_tensor(weights), float32), [-1])
        above = cast(greater(expand_dims(scores, 0), expand_dims(convert_to_tensor(limits), 1)), float32)
        counts = [
            (_total(what, [len(limits)]), reduce_sum(above * (side * spread), 1), reduce_sum(side * spread))
            for what, side in (("true_positives", actual), ("false_positives", 1.0 - actual))
        ]
        totals = [_total(f"{what}_all", []) for what in ("positives", "negatives")]
        area = functools.partial(_AREAS[curve], summation_method)
        value = to.with_value(area, counts[0][0], counts[1][0], *totals)
        sums = [total.assign_add(all_of) for total, (_, _, all_of) in zip(totals, counts, strict=True)]
        moved = [variable.assign_add(found) for variable, found, _ in counts]
        return value, to.with_update(area(*moved, *sums))


def _area_of_roc(method: str, hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    return area_under(
        *roc(hits, alarms, positives, negatives),
        "trapezoidal" if method == "careful_interpolation" else method,
    )


def _area_of_precision(
    method: str, hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor
) -> Tensor:
    if method == "careful_interpolation":
        return area_under_precision(hits, alarms, positives)
    return area_under(*precision_over_recall(hits, alarms, positives), method)


_AREAS = {"ROC": _area_of_roc, "PR": _area_of_precision}
_SUMMATIONS = ("trapezoidal", "careful_interpolation", "minoring", "majoring")
