"""``flowrt.keras.losses``: functions of true and predicted values, with one number per sample; and classes
that reduce them to a scalar.
"""

from __future__ import annotations

import math as numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from flowrt import nn
from flowrt.dtypes import int64
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_all, reduce_max, reduce_mean, reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size
from flowrt.graph.ops.elementwise.arithmetic import (
    add,
    clip_by_value,
    maximum,
    minimum,
    multiply,
    squared_difference,
    subtract,
)
from flowrt.graph.ops.elementwise.comparison import equal, where
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import div_no_nan, realdiv
from flowrt.graph.ops.elementwise.math import log, negative, square
from flowrt.graph.ops.nn.losses import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
)
from flowrt.graph.ops.nn.moments import l2_normalize
from flowrt.graph.source import misuse
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object
from flowrt.keras.state.settings import epsilon


class Reduction:
    """Reductions of the weighted losses of a batch."""

    NONE, SUM, SUM_OVER_BATCH_SIZE, AUTO = "none", "sum", "sum_over_batch_size", "auto"


# --- of each sample


def _pair(y_true: Any, y_pred: Any) -> tuple[Tensor, Tensor]:
    y_pred = convert_to_tensor(y_pred)
    y_true = convert_to_tensor(y_true, y_pred.dtype) if not hasattr(y_true, "dtype") else y_true
    return cast(y_true, y_pred.dtype), y_pred


def mean_squared_error(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    return reduce_mean(squared_difference(y_pred, y_true), -1)


def mean_absolute_error(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    return reduce_mean(absolute(subtract(y_pred, y_true)), -1)


def mean_absolute_percentage_error(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    share = realdiv(subtract(y_true, y_pred), maximum(absolute(y_true), epsilon()))
    return multiply(reduce_mean(absolute(share), -1), 100.0)


def mean_squared_logarithmic_error(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    logs = [log(add(maximum(y, epsilon()), 1.0)) for y in (y_pred, y_true)]
    return reduce_mean(squared_difference(*logs), -1)


def _signs(y_true: Tensor) -> Tensor:
    """Labels that are all 0 or 1 as -1 and 1; others as they are."""
    is_binary = reduce_all(equal(multiply(y_true, subtract(y_true, 1.0)), 0.0))
    return where(is_binary, subtract(multiply(y_true, 2.0), 1.0), y_true)


def hinge(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    return reduce_mean(maximum(subtract(1.0, multiply(_signs(y_true), y_pred)), 0.0), -1)


def squared_hinge(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    return reduce_mean(square(maximum(subtract(1.0, multiply(_signs(y_true), y_pred)), 0.0)), -1)


def categorical_hinge(y_true: Any, y_pred: Any) -> Tensor:
    """``max(0, 1 + the largest wrong score - the right one)``."""
    y_true, y_pred = _pair(y_true, y_pred)
    right = reduce_sum(multiply(y_true, y_pred), -1)
    wrong = reduce_max(multiply(subtract(1.0, y_true), y_pred), -1)
    return maximum(add(subtract(wrong, right), 1.0), 0.0)


def logcosh(y_true: Any, y_pred: Any) -> Tensor:
    """The mean of ``log(cosh(y_pred - y_true))``: squares near 0, absolute values far off."""
    y_true, y_pred = _pair(y_true, y_pred)
    error = subtract(y_pred, y_true)
    return reduce_mean(subtract(add(error, nn.softplus(multiply(error, -2.0))), numbers.log(2.0)), -1)


def huber_loss(y_true: Any, y_pred: Any, delta: float = 1.0) -> Tensor:
    """``e^2 / 2`` for errors up to ``delta``, and ``delta * (|e| - delta / 2)`` beyond."""
    y_true, y_pred = _pair(y_true, y_pred)
    error = absolute(subtract(y_pred, y_true))
    near = minimum(error, delta)
    return add(multiply(square(near), 0.5), multiply(subtract(error, near), delta))


def kullback_leibler_divergence(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    y_true, y_pred = clip_by_value(y_true, epsilon(), 1.0), clip_by_value(y_pred, epsilon(), 1.0)
    return reduce_sum(multiply(y_true, log(realdiv(y_true, y_pred))), -1)


def poisson(y_true: Any, y_pred: Any) -> Tensor:
    y_true, y_pred = _pair(y_true, y_pred)
    return reduce_mean(subtract(y_pred, multiply(y_true, log(add(y_pred, epsilon())))), -1)


def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
    """The negative cosine of the angle between the two: -1 is best."""
    y_true, y_pred = _pair(y_true, y_pred)
    return negative(reduce_sum(multiply(l2_normalize(y_true, axis), l2_normalize(y_pred, axis)), axis))


def categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0, axis: int = -1
) -> Tensor:
    """The cross entropy of distributions ``y_true``, such as one-hot labels, and predicted ones.

    Predictions that come straight from a softmax are replaced by its logits, which is exact where a
    probability is tiny.
    """
    y_true, y_pred = _pair(y_true, y_pred)
    if label_smoothing:
        classes = cast(shape(y_true)[-1], y_pred.dtype)
        y_true = add(multiply(y_true, 1.0 - label_smoothing), realdiv(label_smoothing, classes))
    logits = y_pred if from_logits else _logits(y_pred, "Softmax")
    if logits is not None:
        return softmax_cross_entropy_with_logits_v2(labels=y_true, logits=logits, axis=axis)
    shares = realdiv(y_pred, reduce_sum(y_pred, axis, keepdims=True))
    return negative(reduce_sum(multiply(y_true, log(_clipped(shares))), axis))


def sparse_categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """`categorical_crossentropy` of integer labels: one for each row of predictions, in any shape."""
    y_pred = convert_to_tensor(y_pred)
    if axis not in (-1, (y_pred.shape.ndims or 0) - 1):
        raise misuse(f"sparse_categorical_crossentropy: expected the classes on the last axis; got {axis}")
    logits = y_pred if from_logits else _logits(y_pred, "Softmax")
    if logits is None:
        logits = log(_clipped(y_pred))
    labels = cast(reshape(y_true, [-1]), int64)
    classes = logits.shape.as_list()[-1] or shape(logits)[-1]
    found = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=reshape(logits, [-1, classes]))
    return found if y_pred.shape.ndims == 2 else reshape(found, shape(y_pred)[:-1])


def binary_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0
) -> Tensor:
    """The mean cross entropy of independent yes or no; see `categorical_crossentropy` on logits."""
    y_true, y_pred = _pair(y_true, y_pred)
    if label_smoothing:
        y_true = add(multiply(y_true, 1.0 - label_smoothing), 0.5 * label_smoothing)
    return reduce_mean(elementwise_crossentropy(y_true, y_pred, from_logits), -1)


def elementwise_crossentropy(y_true: Tensor, y_pred: Tensor, from_logits: bool) -> Tensor:
    """The cross entropy of each element: yes with a probability, or no."""
    logits = y_pred if from_logits else _logits(y_pred, "Sigmoid")
    if logits is not None:
        return sigmoid_cross_entropy_with_logits(labels=y_true, logits=logits)
    p = _clipped(y_pred)
    yes = multiply(y_true, log(add(p, epsilon())))
    no = multiply(subtract(1.0, y_true), log(add(subtract(1.0, p), epsilon())))
    return negative(add(yes, no))


def _logits(y_pred: Tensor, activation: str) -> Tensor | None:
    """The inputs of ``activation``, if it made ``y_pred``."""
    return y_pred.op.inputs[0] if y_pred.op.type == activation else None


def _clipped(p: Tensor) -> Tensor:
    return clip_by_value(p, epsilon(), 1.0 - epsilon())


# --- reduced


class Loss:
    """Base of the losses: ``call(y_true, y_pred)`` is overridden; calling it reduces to a scalar."""

    def __init__(self, reduction: str = Reduction.AUTO, name: str | None = None) -> None:
        if reduction not in vars(Reduction).values():
            raise misuse(
                f"reduction: expected one of none, sum, sum_over_batch_size, auto; got {reduction!r}"
            )
        self.reduction, self.name = reduction, name

    def call(self, y_true: Any, y_pred: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method `call`")

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        return reduced(self.call(y_true, y_pred), sample_weight, self.reduction)

    def get_config(self) -> dict[str, Any]:
        return {"reduction": self.reduction, "name": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Loss:
        return cls(**config)


def reduced(losses: Any, sample_weight: Any = None, reduction: str = Reduction.AUTO) -> Tensor:
    """``losses``, times the weight of each sample, reduced: by default their sum over their number."""
    losses = convert_to_tensor(losses)
    if sample_weight is not None:
        losses = multiply(losses, fitted(cast(convert_to_tensor(sample_weight), losses.dtype), losses))
    if reduction == Reduction.NONE:
        return losses
    total = reduce_sum(losses)
    return total if reduction == Reduction.SUM else div_no_nan(total, cast(size(losses), losses.dtype))


def fitted(weights: Tensor, values: Tensor) -> Tensor:
    """``weights`` with dimensions of 1 behind, or without them, for a product with ``values``."""
    missing = (values.shape.ndims or 0) - (weights.shape.ndims or 0)
    for _ in range(missing):
        weights = expand_dims(weights, -1)
    if missing == -1 and weights.shape.as_list()[-1] == 1:
        weights = reshape(weights, shape(weights)[:-1])
    return weights


class _FunctionLoss(Loss):
    """A loss that is a function; a subclass has it, and its options."""

    function: ClassVar[Callable[..., Tensor]]
    default_name: ClassVar[str]

    def __init__(self, reduction: str = Reduction.AUTO, name: str | None = None, **options: Any) -> None:
        super().__init__(reduction, name or self.default_name)
        self._options = options

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        return type(self).function(y_true, y_pred, **self._options)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._options}


class MeanSquaredError(_FunctionLoss):
    function, default_name = mean_squared_error, "mean_squared_error"


class MeanAbsoluteError(_FunctionLoss):
    function, default_name = mean_absolute_error, "mean_absolute_error"


class MeanAbsolutePercentageError(_FunctionLoss):
    function, default_name = mean_absolute_percentage_error, "mean_absolute_percentage_error"


class MeanSquaredLogarithmicError(_FunctionLoss):
    function, default_name = mean_squared_logarithmic_error, "mean_squared_logarithmic_error"


class Hinge(_FunctionLoss):
    function, default_name = hinge, "hinge"


class SquaredHinge(_FunctionLoss):
    function, default_name = squared_hinge, "squared_hinge"


class CategoricalHinge(_FunctionLoss):
    function, default_name = categorical_hinge, "categorical_hinge"


class Poisson(_FunctionLoss):
    function, default_name = poisson, "poisson"


class LogCosh(_FunctionLoss):
    function, default_name = logcosh, "logcosh"


class KLDivergence(_FunctionLoss):
    function, default_name = kullback_leibler_divergence, "kullback_leibler_divergence"


class Huber(_FunctionLoss):
    """See `huber_loss`; reduced over all elements."""

    function, default_name = huber_loss, "huber_loss"

    def __init__(self, delta: float = 1.0, reduction: str = Reduction.AUTO, name: str | None = None) -> None:
        super().__init__(reduction, name, delta=delta)


class CosineSimilarity(_FunctionLoss):
    function, default_name = cosine_similarity, "cosine_similarity"

    def __init__(self, axis: int = -1, reduction: str = Reduction.AUTO, name: str | None = None) -> None:
        super().__init__(reduction, name, axis=axis)


class BinaryCrossentropy(_FunctionLoss):
    function, default_name = binary_crossentropy, "binary_crossentropy"

    def __init__(
        self, from_logits: bool = False, label_smoothing: float = 0, reduction: str = Reduction.AUTO,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(reduction, name, from_logits=from_logits, label_smoothing=label_smoothing)


class CategoricalCrossentropy(_FunctionLoss):
    function, default_name = categorical_crossentropy, "categorical_crossentropy"

    def __init__(
        self, from_logits: bool = False, label_smoothing: float = 0, reduction: str = Reduction.AUTO,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(reduction, name, from_logits=from_logits, label_smoothing=label_smoothing)


class SparseCategoricalCrossentropy(_FunctionLoss):
    function, default_name = sparse_categorical_crossentropy, "sparse_categorical_crossentropy"

    def __init__(
        self, from_logits: bool = False, reduction: str = Reduction.AUTO, name: str | None = None
    ) -> None:
        super().__init__(reduction, name, from_logits=from_logits)


mse = MSE = mean_squared_error
mae = MAE = mean_absolute_error
mape = MAPE = mean_absolute_percentage_error
msle = MSLE = mean_squared_logarithmic_error
kld = KLD = kullback_leibler_divergence
cosine = cosine_proximity = cosine_similarity

_find = lookup_in(
    {k: v for k, v in globals().items() if not k.startswith("_") and getattr(v, "__module__", "") == __name__}
)


def get(identifier: Any) -> Any:
    """The loss of this name, or a function of true and predicted values.

    Raises `InvalidArgumentError` for an unknown name.
    """
    found = deserialize_object(identifier, _find, "loss")
    if found is not None and not callable(found):
        raise misuse(f"loss: expected a name or a function; got {found!r}")
    return found


def deserialize(name: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(name, _find, "loss", custom_objects)


def serialize(loss: Any) -> Any:
    return serialize_object(loss)


def takes_integers(loss: Any) -> bool:
    """Whether the true values of ``loss`` are integer labels, one for each row of predictions."""
    function = getattr(type(loss), "function", loss)
    return function is sparse_categorical_crossentropy
