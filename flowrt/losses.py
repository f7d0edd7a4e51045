"""``flowrt.losses``: TensorFlow 1's loss functions. Each adds its result to the collection ``losses``."""

from __future__ import annotations

from typing import Any

from flowrt.base.missing_names import missing_from
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import shape, size
from flowrt.graph.ops.elementwise.arithmetic import (
    add_n,
    maximum,
    minimum,
    multiply,
    squared_difference,
    subtract,
)
from flowrt.graph.ops.elementwise.comparison import not_equal
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import log
from flowrt.graph.ops.nn.losses import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
)
from flowrt.graph.shapes import compatible
from flowrt.variables.variable import GraphKeys

_COLLECTION = GraphKeys.LOSSES


class Reduction:
    """How the weighted losses of a batch become the result."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_OVER_NONZERO_WEIGHTS = SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"

    @classmethod
    def validate(cls, key: str) -> None:
        """Raises `InvalidArgumentError` for an unknown reduction."""
        if key not in cls.all():
            raise InvalidArgumentError(f"reduction: expected one of {', '.join(cls.all())}; got {key!r}")

    @classmethod
    def all(cls) -> tuple[str, ...]:
        return (cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS)


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """``losses * weights``, reduced to a scalar; ``weights`` must broadcast to ``losses``.

    Raises `InvalidArgumentError` for an unknown reduction.
    """
    Reduction.validate(reduction)
    with get_default_graph().name_scope(scope or "weighted_loss"):
        losses = convert_to_tensor(losses)
        dtype = losses.dtype
        weights = cast(convert_to_tensor(weights), dtype)
        weighted = multiply(losses, weights)
        result = _reduce(weighted, weights, reduction)
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, result)
    return result


def _reduce(weighted: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == Reduction.NONE:
        return weighted
    total: Tensor = reduce_sum(weighted)
    if reduction == Reduction.SUM:
        return total
    if reduction == Reduction.SUM_OVER_BATCH_SIZE:
        return div_no_nan(total, cast(size(weighted), weighted.dtype))  # type: ignore[no-any-return]
    spread = multiply(ones_like(weighted), weights)
    if reduction == Reduction.MEAN:
        return div_no_nan(total, reduce_sum(spread))  # type: ignore[no-any-return]
    present = reduce_sum(cast(not_equal(spread, zeros_like(spread)), weighted.dtype))
    return div_no_nan(total, present)  # type: ignore[no-any-return]


def _pair(labels: Any, predictions: Any, what: str) -> tuple[Tensor, Tensor]:
    if labels is None or predictions is None:
        raise InvalidArgumentError(f"{what}: expected labels and predictions; got None")
    predictions = convert_to_tensor(predictions)
    labels = cast(convert_to_tensor(labels), predictions.dtype)
    if not compatible(labels.spec.shape, predictions.spec.shape):
        raise InvalidArgumentError(
            f"{what}: expected labels of the shape {predictions.shape}; got {labels.shape}"
        )
    return labels, predictions


def absolute_difference(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """The mean of ``|labels - predictions|``."""
    labels, predictions = _pair(labels, predictions, "absolute_difference")
    with get_default_graph().name_scope(scope or "absolute_difference") as name:
        return compute_weighted_loss(
            absolute(subtract(predictions, labels)), weights, name, loss_collection, reduction
        )


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """The mean of ``(labels - predictions)^2``."""
    labels, predictions = _pair(labels, predictions, "mean_squared_error")
    with get_default_graph().name_scope(scope or "mean_squared_error") as name:
        return compute_weighted_loss(
            squared_difference(predictions, labels), weights, name, loss_collection, reduction
        )


def log_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """The mean of ``-labels log(predictions + epsilon) - (1 - labels) log(1 - predictions + epsilon)``."""
    labels, predictions = _pair(labels, predictions, "log_loss")
    with get_default_graph().name_scope(scope or "log_loss") as name:
        losses = -labels * log(predictions + epsilon) - (1 - labels) * log(1 - predictions + epsilon)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def huber_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """Quadratic up to an error of ``delta``, linear beyond (Huber 1964)."""
    labels, predictions = _pair(labels, predictions, "huber_loss")
    with get_default_graph().name_scope(scope or "huber_loss") as name:
        error = absolute(subtract(predictions, labels))
        quadratic = minimum(error, delta)
        losses = 0.5 * quadratic * quadratic + delta * (error - quadratic)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def hinge_loss(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """The mean of ``max(0, 1 - (2 labels - 1) * logits)`` for labels 0 and 1."""
    labels, logits = _pair(labels, logits, "hinge_loss")
    with get_default_graph().name_scope(scope or "hinge_loss") as name:
        losses = maximum(1 - (2 * labels - 1) * logits, 0.0)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def cosine_distance(
    labels: Any,
    predictions: Any,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
    dim: int | None = None,
) -> Tensor:
    """One minus the inner product along ``axis`` of vectors of length one."""
    axis = dim if axis is None else axis
    if axis is None:
        raise InvalidArgumentError("cosine_distance: expected an axis; got none")
    labels, predictions = _pair(labels, predictions, "cosine_distance")
    with get_default_graph().name_scope(scope or "cosine_distance_loss") as name:
        losses = 1 - reduce_sum(labels * predictions, axis=axis, keepdims=True)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """See `nn.sigmoid_cross_entropy_with_logits`; smoothing moves labels towards one half."""
    labels, logits = _pair(multi_class_labels, logits, "sigmoid_cross_entropy")
    with get_default_graph().name_scope(scope or "sigmoid_cross_entropy_loss") as name:
        if label_smoothing:
            labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
        losses = sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """See `nn.softmax_cross_entropy_with_logits`; smoothing moves labels towards the uniform distribution."""
    labels, logits = _pair(onehot_labels, logits, "softmax_cross_entropy")
    with get_default_graph().name_scope(scope or "softmax_cross_entropy_loss") as name:
        if label_smoothing:
            classes = cast(shape(labels)[1], logits.dtype)
            labels = labels * (1 - label_smoothing) + label_smoothing / classes
        losses = softmax_cross_entropy_with_logits_v2(labels=stop_gradient(labels), logits=logits)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """See `nn.sparse_softmax_cross_entropy_with_logits`."""
    with get_default_graph().name_scope(scope or "sparse_softmax_cross_entropy_loss") as name:
        losses = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def mean_pairwise_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
) -> Tensor:
    """The mean over all pairs of a row's elements of the squared error of their difference, summed over the
    rows.

    For errors e of a row of n: ``2 (sum(e^2) / (n - 1) - sum(e)^2 / (n (n - 1)))``; n counts weights that are
    not zero.
    """
    labels, predictions = _pair(labels, predictions, "mean_pairwise_squared_error")
    with get_default_graph().name_scope(scope or "mean_pairwise_squared_error") as name:
        errors = subtract(predictions, labels)
        axes = list(range(1, errors.shape.rank or 1))
        spread = multiply(ones_like(errors), cast(convert_to_tensor(weights), errors.dtype))
        n = reduce_sum(cast(not_equal(spread, zeros_like(spread)), errors.dtype), axes, keepdims=True)
        squares = div_no_nan(reduce_sum(errors * errors, axes, keepdims=True), n - 1)
        crossed = div_no_nan(reduce_sum(errors, axes, keepdims=True) ** 2, n * (n - 1))
        return compute_weighted_loss(2.0 * (squares - crossed), weights, name, loss_collection, Reduction.SUM)


def add_loss(loss: Tensor, loss_collection: str | None = _COLLECTION) -> None:
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _COLLECTION) -> list[Tensor]:
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    return get_default_graph().get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """The sum of the regularization losses, zero if there are none."""
    found = get_regularization_losses(scope)
    total: Tensor = add_n(found, name=name) if found else convert_to_tensor(0.0)
    return total


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses of the default graph. Raises `InvalidArgumentError` if there are none."""
    found = get_losses(scope) + (get_regularization_losses(scope) if add_regularization_losses else [])
    if not found:
        raise InvalidArgumentError("get_total_loss: expected losses in the collection; got none")
    total: Tensor = add_n(found, name=name)
    return total


__getattr__ = missing_from("losses")
