"""``flowrt.metrics``: streaming metrics, each a pair ``(value, update_op)`` over local variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.base.missing_names import missing_from
from flowrt.dtypes import float32, int64
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.counting import confusion_matrix
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import ones_like, zeros
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape
from flowrt.graph.ops.elementwise.arithmetic import squared_difference
from flowrt.graph.ops.elementwise.comparison import equal, greater, less, logical_and, logical_not, not_equal
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import sqrt
from flowrt.graph.ops.linalg.matrix_parts import diag_part
from flowrt.variables.distribution_context import distribution_context
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization


def _total(name: str, shape: Sequence[int] = ()) -> Variable:
    """A variable to count in: on several replicas each counts its own part."""
    return Variable(
        lambda: zeros(shape, float32),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
    )


def _aggregated(of_counted: Callable[..., Tensor], totals: Sequence[Variable], collections: Any) -> Tensor:
    """``of_counted`` of the values of ``totals``, added to ``collections``: on several replicas one tensor,
    of what all of them have counted.
    """

    def value_of_all(_: Any, *variables: Variable) -> Tensor:
        value = of_counted(*[variable.read_value() for variable in variables])
        get_default_graph().add_to_collections(collections, value)
        return value

    context = distribution_context()
    if context is None or context.replica is None:
        return value_of_all(None, *totals)
    value: Tensor = context.replica.merge_call(value_of_all, totals)
    return value


def _updated(update: Tensor, collections: Any) -> Tensor:
    """``update``, a replica's own, added to ``collections``."""
    get_default_graph().add_to_collections(collections, update)
    return update


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted mean of all values seen since the local variables were initialized."""
    with get_default_graph().name_scope(name or "mean"):
        values = cast(convert_to_tensor(values), float32)
        spread = (
            ones_like(values)
            if weights is None
            else ones_like(values) * cast(convert_to_tensor(weights), float32)
        )
        sums, counts = reduce_sum(values * spread), reduce_sum(spread)
        return _ratio(sums, counts, metrics_collections, updates_collections)


def _ratio(
    numerator: Tensor,
    denominator: Tensor,
    metrics_collections: Any,
    updates_collections: Any,
    finish: Callable[[Tensor], Tensor] = lambda x: x,
) -> tuple[Tensor, Tensor]:
    total, count = _total("total"), _total("count")

    def ratio(total: Tensor, count: Tensor) -> Tensor:
        return finish(div_no_nan(total, count, name="value"))

    value = _aggregated(ratio, [total, count], metrics_collections)
    update = finish(div_no_nan(total.assign_add(numerator), count.assign_add(denominator), name="update_op"))
    return value, _updated(update, updates_collections)


def accuracy(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """How often ``predictions`` equal ``labels``."""
    labels, predictions = convert_to_tensor(labels), convert_to_tensor(predictions)
    if (
        predictions.shape.rank is not None
        and labels.shape.rank is not None
        and predictions.shape.rank != labels.shape.rank
    ):
        if predictions.shape.num_elements() not in (None, labels.shape.num_elements()):
            raise InvalidArgumentError(
                f"accuracy: expected predictions of shape {labels.shape}; got {predictions.shape}"
            )
        predictions = reshape(predictions, labels.shape.as_list())
    hits = cast(equal(cast(predictions, labels.dtype), labels), float32)
    return mean(hits, weights, metrics_collections, updates_collections, name or "accuracy")


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    predictions = convert_to_tensor(predictions)
    errors = squared_difference(predictions, cast(convert_to_tensor(labels), predictions.dtype))
    return mean(errors, weights, metrics_collections, updates_collections, name or "mean_squared_error")


def mean_absolute_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    predictions = convert_to_tensor(predictions)
    errors = absolute(predictions - cast(convert_to_tensor(labels), predictions.dtype))
    return mean(errors, weights, metrics_collections, updates_collections, name or "mean_absolute_error")


def root_mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    with get_default_graph().name_scope(name or "root_mean_squared_error"):
        predictions = cast(convert_to_tensor(predictions), float32)
        errors = squared_difference(predictions, cast(convert_to_tensor(labels), float32))
        spread = (
            ones_like(errors)
            if weights is None
            else ones_like(errors) * cast(convert_to_tensor(weights), float32)
        )
        sums, counts = reduce_sum(errors * spread), reduce_sum(spread)
        return _ratio(sums, counts, metrics_collections, updates_collections, sqrt)


def _hits(labels: Any, predictions: Any, weights: Any, of: str) -> tuple[Tensor, Tensor]:
    """True positives, and the number they are divided by: of predicted (precision) or actual (recall)
    positives.
    """
    actual, predicted = cast(convert_to_tensor(labels), "bool"), cast(convert_to_tensor(predictions), "bool")
    spread = 1.0 if weights is None else cast(convert_to_tensor(weights), float32)
    both = reduce_sum(cast(logical_and(actual, predicted), float32) * spread)
    return both, reduce_sum(cast(predicted if of == "predicted" else actual, float32) * spread)


def precision(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """True positives among the predicted positives."""
    with get_default_graph().name_scope(name or "precision"):
        both, count = _hits(labels, predictions, weights, "predicted")
        return _ratio(both, count, metrics_collections, updates_collections)


def recall(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """True positives among the actual positives."""
    with get_default_graph().name_scope(name or "recall"):
        both, count = _hits(labels, predictions, weights, "actual")
        return _ratio(both, count, metrics_collections, updates_collections)


def _counts(
    hits: Tensor, weights: Any, metrics_collections: Any, updates_collections: Any, name: str
) -> tuple[Tensor, Tensor]:
    """The weighted number of ``hits`` seen so far."""
    with get_default_graph().name_scope(name):
        total = _total("count")
        spread = cast(hits, float32) * (1.0 if weights is None else cast(convert_to_tensor(weights), float32))
        value = _aggregated(identity, [total], metrics_collections)
        return value, _updated(total.assign_add(reduce_sum(spread)), updates_collections)


def _truths(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    return cast(convert_to_tensor(labels), "bool"), cast(convert_to_tensor(predictions), "bool")


def true_positives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    actual, predicted = _truths(labels, predictions)
    hits = logical_and(actual, predicted)
    return _counts(hits, weights, metrics_collections, updates_collections, name or "true_positives")


def true_negatives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    actual, predicted = _truths(labels, predictions)
    hits = logical_and(logical_not(actual), logical_not(predicted))
    return _counts(hits, weights, metrics_collections, updates_collections, name or "true_negatives")


def false_positives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    actual, predicted = _truths(labels, predictions)
    hits = logical_and(logical_not(actual), predicted)
    return _counts(hits, weights, metrics_collections, updates_collections, name or "false_positives")


def false_negatives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    actual, predicted = _truths(labels, predictions)
    hits = logical_and(actual, logical_not(predicted))
    return _counts(hits, weights, metrics_collections, updates_collections, name or "false_negatives")


def percentage_below(
    values: Any,
    threshold: float,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """How much of the values is below ``threshold``, from 0 to 1."""
    below = cast(less(convert_to_tensor(values), threshold), float32)
    return mean(
        below, weights, metrics_collections, updates_collections, name or "percentage_below_threshold"
    )


def mean_iou(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Intersection over union of each class that occurs, averaged over those. The update is the confusion
    matrix.
    """
    with get_default_graph().name_scope(name or "mean_iou"):
        total = _total("total_confusion_matrix", [num_classes, num_classes])
        flat = [reshape(cast(convert_to_tensor(t), int64), [-1]) for t in (labels, predictions)]
        spread = None if weights is None else reshape(cast(convert_to_tensor(weights), float32), [-1])
        found = confusion_matrix(flat[0], flat[1], num_classes, float32, weights=spread)
        value = _aggregated(_mean_iou_of, [total], metrics_collections)
        return value, _updated(total.assign_add(found), updates_collections)


def _mean_iou_of(matrix: Tensor) -> Tensor:
    """Of a confusion matrix."""
    both = diag_part(matrix)
    union = reduce_sum(matrix, 0) + reduce_sum(matrix, 1) - both
    occurs = cast(not_equal(union, 0.0), float32)
    value: Tensor = div_no_nan(reduce_sum(div_no_nan(both, union)), reduce_sum(occurs), name="mean_iou")
    return value


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Any = None,
) -> tuple[Tensor, Tensor]:
    """The area under the ROC curve of ``predictions`` in [0, 1], by the trapezoids between
    ``num_thresholds``.

    Raises `UnimplementedError` for other curves and sums.
    """
    if curve != "ROC" or summation_method != "trapezoidal":
        raise UnimplementedError(
            f"auc: expected curve ROC and trapezoidal sums; got {curve}, {summation_method}"
        )
    steps = np.arange(1, num_thresholds - 1) / (num_thresholds - 1) if thresholds is None else thresholds
    limits = np.array([-1e-7, *sorted(steps), 1 + 1e-7], np.float32)
    with get_default_graph().name_scope(name or "auc"):
        scores = reshape(cast(convert_to_tensor(predictions), float32), [-1])
        actual = reshape(cast(cast(convert_to_tensor(labels), "bool"), float32), [-1])
        spread = 1.0 if weights is None else reshape(cast(convert_to_tensor(weights), float32), [-1])
        above = cast(greater(expand_dims(scores, 0), expand_dims(convert_to_tensor(limits), 1)), float32)
        counts = [
            (_total(what, [len(limits)]), reduce_sum(above * (side * spread), 1), reduce_sum(side * spread))
            for what, side in (("true_positives", actual), ("false_positives", 1.0 - actual))
        ]
        totals = [_total(f"{what}_all", []) for what in ("positives", "negatives")]
        value = _aggregated(_area, [counts[0][0], counts[1][0], *totals], metrics_collections)
        sums = [total.assign_add(all_of) for total, (_, _, all_of) in zip(totals, counts, strict=True)]
        moved = [variable.assign_add(found) for variable, found, _ in counts]
        return value, _updated(_area(*moved, *sums), updates_collections)


def _area(hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The area under the points (alarms / negatives, hits / positives), which fall along the axis."""
    x, y = div_no_nan(alarms, negatives), div_no_nan(hits, positives)
    area: Tensor = reduce_sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2.0)
    return area


__getattr__ = missing_from("metrics")
