"""Weighted losses of a batch, reduced to a scalar and added to the collection ``losses``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import broadcast_to, ones_like, zeros_like
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
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import optional, parameters_of, tf1_names, with_parameters
from flowrt.graph.typing import NumericLike
from flowrt.variables.variable import GraphKeys

_COLLECTION = GraphKeys.LOSSES


ReductionName: TypeAlias = Literal[
    "none", "weighted_sum", "weighted_sum_over_batch_size", "weighted_mean", "weighted_sum_by_nonzero_weights"
]


class Reduction:
    """Reductions of the weighted losses of a batch."""

    NONE: Final = "none"
    SUM: Final = "weighted_sum"
    SUM_OVER_BATCH_SIZE: Final = "weighted_sum_over_batch_size"
    MEAN: Final = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS: Final = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS: Final = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def validate(cls, key: str) -> None:
        """Raises `InvalidArgumentError` for an unknown reduction."""
        if key not in cls.all():
            raise misuse(f"reduction: expected one of {', '.join(cls.all())}; got {key!r}")

    @classmethod
    def all(cls) -> tuple[str, ...]:
        return (cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS)


def compute_weighted_loss(
    losses: Any,
    weights: NumericLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: ReductionName = Reduction.SUM_BY_NONZERO_WEIGHTS,
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
        return div_no_nan(total, cast(size(weighted), weighted.dtype))
    spread = broadcast_to(weights, shape(weighted))  # of no loss: a pipeline sums weights before all passes
    if reduction == Reduction.MEAN:
        return div_no_nan(total, reduce_sum(spread))
    present = reduce_sum(cast(not_equal(spread, zeros_like(spread)), weighted.dtype))
    return div_no_nan(total, present)


def _pair(labels: Any, predictions: Any, what: str) -> tuple[Tensor, Tensor]:
    if labels is None or predictions is None:
        raise misuse(f"{what}: expected labels and predictions; got None")
    predictions = convert_to_tensor(predictions)
    labels = cast(convert_to_tensor(labels), predictions.dtype)
    if not compatible(labels.spec.shape, predictions.spec.shape):
        raise misuse(f"{what}: expected labels of the shape {predictions.shape}; got {labels.shape}")
    return labels, predictions


def _loss(
    default_scope: str | None = None, paired: bool = True
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """A decorator: the public function of a loss, from what computes the loss of each prediction.

    After the parameters of that come the weights, then its keyword-only ones, then scope, collection and
    reduction. ``paired`` labels and predictions have one shape; labels are cast to the predictions' dtype.
    """

    def decorate(losses_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
        scope = default_scope or losses_of.__name__
        parameters = parameters_of(losses_of)
        early = [
            p.replace(annotation="NumericLike") if p.annotation == "Tensor" else p
            for p in parameters
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        late = [optional(p.name, p.default, p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY]
        own = parameters_of(compute_weighted_loss)[1:]
        options = {p.name: p.default for p in own}
        weights, *last = own

        def loss(given: dict[str, Any]) -> Tensor:
            weights, name, *rest = (given.pop(option, default) for option, default in options.items())
            if paired:
                first, second = (p.name for p in early[:2])
                given[first], given[second] = _pair(given[first], given[second], losses_of.__name__)
            with get_default_graph().name_scope(name or scope) as name:
                return compute_weighted_loss(losses_of(**given), weights, name, *rest)

        return with_parameters(losses_of, [*early, weights, *late, *last], loss)

    return decorate


@_loss()
def absolute_difference(labels: NumericLike, predictions: NumericLike) -> Tensor:
    """The mean of ``|labels - predictions|``.

    Example:
        >>> tf.losses.absolute_difference([1.0, 2.0], [1.0, 4.0]).eval()
        np.float32(1.0)
    """
    return absolute(subtract(predictions, labels))


@_loss()
def mean_squared_error(labels: NumericLike, predictions: NumericLike) -> Tensor:
    """The mean of ``(labels - predictions)^2``.

    Args:
        labels: The wanted values.
        predictions: A tensor of the same shape.
        weights: Factors of the elements, which broadcast to that shape.
        scope: The name scope.
        loss_collection: The collection that the loss joins.
        reduction: How losses become one number: see `losses.Reduction`.

    Returns:
        A scalar, or with `Reduction.NONE` one loss per element.

    Example:
        >>> tf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0]).eval()
        np.float32(2.0)
    """
    return squared_difference(predictions, labels)


@_loss()
def log_loss(labels: Tensor, predictions: Tensor, *, epsilon: float = 1e-7) -> Tensor:
    """The mean of ``-labels log(predictions + epsilon) - (1 - labels) log(1 - predictions + epsilon)``."""
    return -labels * log(predictions + epsilon) - (1 - labels) * log(1 - predictions + epsilon)


@_loss()
def huber_loss(labels: NumericLike, predictions: NumericLike, *, delta: float = 1.0) -> Tensor:
    """Huber loss: quadratic up to an error of ``delta``, linear above (Huber 1964)."""
    error = absolute(subtract(predictions, labels))
    quadratic = minimum(error, delta)
    return 0.5 * quadratic * quadratic + delta * (error - quadratic)


@_loss()
def hinge_loss(labels: Tensor, logits: Tensor) -> Tensor:
    """The mean of ``max(0, 1 - (2 labels - 1) * logits)`` for labels 0 and 1."""
    return maximum(1 - (2 * labels - 1) * logits, 0.0)


@tf1_names(axis="dim")
@_loss("cosine_distance_loss")
def cosine_distance(labels: Tensor, predictions: Tensor, axis: int | None = None) -> Tensor:
    """One minus the inner product along ``axis`` of vectors of length one."""
    if axis is None:
        raise misuse("cosine_distance: expected an axis; got none")
    return 1 - reduce_sum(labels * predictions, axis=axis, keepdims=True)


@_loss("sigmoid_cross_entropy_loss")
def sigmoid_cross_entropy(
    multi_class_labels: NumericLike, logits: NumericLike, *, label_smoothing: float = 0
) -> Tensor:
    """See `nn.sigmoid_cross_entropy_with_logits`; smoothing moves labels towards one half."""
    labels = convert_to_tensor(multi_class_labels)
    if label_smoothing:
        labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
    return sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)


@_loss("softmax_cross_entropy_loss")
def softmax_cross_entropy(
    onehot_labels: NumericLike, logits: NumericLike, *, label_smoothing: float = 0
) -> Tensor:
    """See `nn.softmax_cross_entropy_with_logits`; smoothing moves labels towards the uniform distribution."""
    labels, logits = convert_to_tensor(onehot_labels), convert_to_tensor(logits)
    if label_smoothing:
        classes = cast(shape(labels)[1], logits.dtype)
        labels = labels * (1 - label_smoothing) + label_smoothing / classes
    return softmax_cross_entropy_with_logits_v2(labels=stop_gradient(labels), logits=logits)


@_loss("sparse_softmax_cross_entropy_loss", paired=False)
def sparse_softmax_cross_entropy(labels: NumericLike, logits: NumericLike) -> Tensor:
    """See `nn.sparse_softmax_cross_entropy_with_logits`.

    Example:
        >>> tf.losses.sparse_softmax_cross_entropy([1], [[0.0, 0.0]]).eval()
        np.float32(0.6931472)
    """
    return sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def mean_pairwise_squared_error(
    labels: NumericLike,
    predictions: NumericLike,
    weights: NumericLike = 1.0,
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
    """The losses added so far; with ``scope``, a regular expression, those with names that begin with it.

    Example:
        >>> loss = tf.losses.mean_squared_error([1.0], [2.0])
        >>> tf.losses.get_losses() == [loss]
        True
    """
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    return get_default_graph().get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """The sum of the regularization losses; zero without any."""
    found = get_regularization_losses(scope)
    return add_n(found, name=name) if found else convert_to_tensor(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses of the default graph. Raises `InvalidArgumentError` without any."""
    found = get_losses(scope) + (get_regularization_losses(scope) if add_regularization_losses else [])
    if not found:
        raise misuse("get_total_loss: expected losses in the collection; got none")
    return add_n(found, name=name)
