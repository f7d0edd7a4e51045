"""``flowrt.metrics``: streaming metrics, each a pair ``(value, update_op)`` over local variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Tensor, get_default_graph
from flowrt.graph.ops.arithmetic import squared_difference
from flowrt.graph.ops.comparison import equal, logical_and
from flowrt.graph.ops.complex_parts import abs as absolute
from flowrt.graph.ops.division import div_no_nan
from flowrt.graph.ops.filling import ones_like, zeros
from flowrt.graph.ops.identities import cast
from flowrt.graph.ops.math import sqrt
from flowrt.graph.ops.reductions import reduce_sum
from flowrt.graph.ops.shaping import reshape
from flowrt.variables import GraphKeys, Variable


def _total(name: str) -> Variable:
    keys = [GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES]
    return Variable(lambda: zeros([], float32), trainable=False, collections=keys, name=name)


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
    numerator: Tensor, denominator: Tensor, metrics_collections: Any, updates_collections: Any,
    finish: Callable[[Tensor], Tensor] = lambda x: x,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    total, count = _total("total"), _total("count")
    value = finish(div_no_nan(total.value(), count.value(), name="value"))
    update = finish(div_no_nan(total.assign_add(numerator), count.assign_add(denominator), name="update_op"))
    graph = get_default_graph()
    graph.add_to_collections(metrics_collections, value)
    graph.add_to_collections(updates_collections, update)
    return value, update


def accuracy(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    predictions = convert_to_tensor(predictions)
    errors = squared_difference(predictions, cast(convert_to_tensor(labels), predictions.dtype))
    return mean(errors, weights, metrics_collections, updates_collections, name or "mean_squared_error")


def mean_absolute_error(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    predictions = convert_to_tensor(predictions)
    errors = absolute(predictions - cast(convert_to_tensor(labels), predictions.dtype))
    return mean(errors, weights, metrics_collections, updates_collections, name or "mean_absolute_error")


def root_mean_squared_error(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
    """True positives, and the number they are divided by: of predicted (precision) or actual (recall) positives."""
    actual, predicted = cast(convert_to_tensor(labels), "bool"), cast(convert_to_tensor(predictions), "bool")
    spread = 1.0 if weights is None else cast(convert_to_tensor(weights), float32)
    both = reduce_sum(cast(logical_and(actual, predicted), float32) * spread)
    return both, reduce_sum(cast(predicted if of == "predicted" else actual, float32) * spread)


def precision(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """True positives among the predicted positives."""
    with get_default_graph().name_scope(name or "precision"):
        both, count = _hits(labels, predictions, weights, "predicted")
        return _ratio(both, count, metrics_collections, updates_collections)


def recall(
    labels: Any, predictions: Any, weights: Any = None, metrics_collections: Any = None, updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """True positives among the actual positives."""
    with get_default_graph().name_scope(name or "recall"):
        both, count = _hits(labels, predictions, weights, "actual")
        return _ratio(both, count, metrics_collections, updates_collections)
