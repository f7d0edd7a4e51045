"""``flowrt.contrib.metrics``: `flowrt.metrics` under their older names, with predictions before labels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flowrt import metrics
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.array.statistics import confusion_matrix
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.elementwise.division import divide
from flowrt.graph.typing import NumericLike
from flowrt.sets import set_difference, set_intersection, set_size, set_union
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "accuracy", "aggregate_metric_map", "aggregate_metrics", "confusion_matrix", "set_difference",
    "set_intersection", "set_size", "set_union", "streaming_accuracy",
    "streaming_auc", "streaming_false_negatives", "streaming_false_positives", "streaming_mean",
    "streaming_mean_absolute_error", "streaming_mean_iou", "streaming_mean_squared_error",
    "streaming_percentage_less", "streaming_precision", "streaming_recall",
    "streaming_root_mean_squared_error", "streaming_true_negatives", "streaming_true_positives",
]  # fmt: skip

__getattr__ = missing_from("contrib.metrics")


def accuracy(
    predictions: NumericLike, labels: NumericLike, weights: Any = None, name: str = "accuracy"
) -> Tensor:
    """The share of ``predictions`` that are ``labels``, in this step."""
    hits = cast(equal(predictions, labels), "float32")
    if weights is None:
        return reduce_mean(hits, name=name)
    spread = ones_like(hits) * cast(weights, "float32")
    return divide(reduce_sum(hits * spread), reduce_sum(spread), name=name)


def _predictions_first(metric: Callable[..., Any]) -> Callable[..., Any]:
    """``metric`` with its first two arguments, labels and predictions, exchanged."""

    @functools.wraps(metric)
    def streaming(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        return metric(labels, predictions, *args, **kwargs)

    own = inspect.signature(metric)
    labels, predictions, *rest = own.parameters.values()
    streaming.__signature__ = own.replace(parameters=[predictions, labels, *rest])  # type: ignore[attr-defined]
    streaming.__doc__ = f"See `flowrt.metrics.{metric.__name__}`."
    return streaming


streaming_mean, streaming_percentage_less = metrics.mean, metrics.percentage_below
streaming_accuracy = _predictions_first(metrics.accuracy)
streaming_auc = _predictions_first(metrics.auc)
streaming_false_negatives = _predictions_first(metrics.false_negatives)
streaming_false_positives = _predictions_first(metrics.false_positives)
streaming_mean_absolute_error = _predictions_first(metrics.mean_absolute_error)
streaming_mean_iou = _predictions_first(metrics.mean_iou)
streaming_mean_squared_error = _predictions_first(metrics.mean_squared_error)
streaming_precision = _predictions_first(metrics.precision)
streaming_recall = _predictions_first(metrics.recall)
streaming_root_mean_squared_error = _predictions_first(metrics.root_mean_squared_error)
streaming_true_negatives = _predictions_first(metrics.true_negatives)
streaming_true_positives = _predictions_first(metrics.true_positives)


def aggregate_metrics(*value_update_tuples: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The values of several metrics, and their updates."""
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(
    names_to_tuples: Mapping[str, tuple[Tensor, Tensor]],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The values of metrics by name, and their updates by name."""
    values = {name: value for name, (value, _) in names_to_tuples.items()}
    return values, {name: update for name, (_, update) in names_to_tuples.items()}
