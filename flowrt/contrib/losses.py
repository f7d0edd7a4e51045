"""``flowrt.contrib.losses``: `flowrt.losses` with the arguments in their older order, predictions first."""

from __future__ import annotations

from typing import Any

from flowrt import losses
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.losses import add_loss, get_losses, get_regularization_losses, get_total_loss
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "absolute_difference", "add_loss", "compute_weighted_loss", "cosine_distance", "get_losses",
    "get_regularization_losses", "get_total_loss", "hinge_loss", "log_loss", "mean_pairwise_squared_error",
    "mean_squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy", "sparse_softmax_cross_entropy",
]  # fmt: skip


def _for_all(weights: Any, predictions: Any) -> Tensor:
    """Weights of the outer dimensions, [batch] for instance, with dimensions of 1 for the inner ones."""
    x, rank = convert_to_tensor(weights), convert_to_tensor(predictions).shape.ndims
    if not x.shape.ndims or rank is None:
        return x
    return reshape(x, concat([shape(x), [1] * (rank - x.shape.ndims)], 0))


def compute_weighted_loss(losses_: Any, weights: Any = 1.0, scope: str | None = None) -> Tensor:
    """The mean of the losses times ``weights``, over those with a weight. See `flowrt.losses`."""
    return losses.compute_weighted_loss(losses_, weights, scope=scope)


def absolute_difference(
    predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.absolute_difference`."""
    return losses.absolute_difference(labels, predictions, _for_all(weights, predictions), scope)


def mean_squared_error(
    predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.mean_squared_error`."""
    return losses.mean_squared_error(labels, predictions, _for_all(weights, predictions), scope)


def mean_pairwise_squared_error(
    predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.mean_pairwise_squared_error`."""
    return losses.mean_pairwise_squared_error(labels, predictions, weights, scope)


def log_loss(
    predictions: Any, labels: Any = None, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.log_loss`."""
    return losses.log_loss(labels, predictions, _for_all(weights, predictions), epsilon, scope)


def cosine_distance(
    predictions: Any,
    labels: Any = None,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """See `flowrt.losses.cosine_distance`; ``dim`` is an older name of ``axis``."""
    along = dim if axis is None else axis
    return losses.cosine_distance(labels, predictions, axis=along, weights=weights, scope=scope)


def hinge_loss(logits: Any, labels: Any = None, scope: str | None = None) -> Tensor:
    """See `flowrt.losses.hinge_loss`, but not reduced: a loss for each logit."""
    return losses.hinge_loss(
        labels, logits, scope=scope, loss_collection=None, reduction=losses.Reduction.NONE
    )


def sigmoid_cross_entropy(
    logits: Any,
    multi_class_labels: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
) -> Tensor:
    """See `flowrt.losses.sigmoid_cross_entropy`."""
    each = _for_all(weights, logits)
    return losses.sigmoid_cross_entropy(multi_class_labels, logits, each, label_smoothing, scope)


def softmax_cross_entropy(
    logits: Any, onehot_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.softmax_cross_entropy`."""
    return losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(
    logits: Any, labels: Any, weights: Any = 1.0, scope: str | None = None
) -> Tensor:
    """See `flowrt.losses.sparse_softmax_cross_entropy`."""
    return losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


__getattr__ = missing_from("contrib.losses")
