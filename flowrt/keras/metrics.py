"""``flowrt.keras.metrics``: measures of predictions, as functions and as classes that keep totals over
batches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.array.statistics import argmax, confusion_matrix
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, size, squeeze
from flowrt.graph.ops.elementwise.arithmetic import add, maximum, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, greater, logical_and, logical_not, where_v2
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import log, sqrt
from flowrt.graph.ops.linalg.matrix_parts import diag_part
from flowrt.graph.ops.nn.losses import in_top_k
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.initializers import Zeros
from flowrt.keras import losses
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object
from flowrt.keras.losses import (  # also measures
    binary_crossentropy,
    categorical_crossentropy,
    categorical_hinge,
    cosine_proximity,
    cosine_similarity,
    hinge,
    kullback_leibler_divergence,
    logcosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    poisson,
    sparse_categorical_crossentropy,
    squared_hinge,
)
from flowrt.keras.state.graph_state import snake_case, tracked
from flowrt.keras.state.sessions import get_session
from flowrt.keras.state.settings import floatx
from flowrt.metrics.curves import area_under, area_under_precision
from flowrt.variables.variable import GraphKeys, Variable

# --- of each sample


def accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the two are equal, else 0."""
    y_pred = convert_to_tensor(y_pred)
    return _as_float(equal(cast(y_true, y_pred.dtype), y_pred))


def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Tensor:
    """The share of elements on the right side of ``threshold``."""
    y_pred = convert_to_tensor(y_pred)
    said = cast(greater(y_pred, threshold), y_pred.dtype)
    return reduce_mean(_as_float(equal(cast(y_true, y_pred.dtype), said)), -1)


def categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the largest score is that of the one-hot label, else 0."""
    return _as_float(equal(argmax(y_true, -1), argmax(y_pred, -1)))


def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Tensor:
    """1 where the largest score is that of the integer label, else 0."""
    said = argmax(y_pred, -1)
    y_true = convert_to_tensor(y_true)
    if y_true.shape.ndims == (said.shape.ndims or 0) + 1:
        y_true = squeeze(y_true, [-1])
    return _as_float(equal(cast(y_true, dtypes.int64), said))


def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where the score of the one-hot label is among the ``k`` largest, else 0."""
    return _as_float(in_top_k(y_pred, argmax(y_true, -1), k))


def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Tensor:
    """1 where the score of the integer label is among the ``k`` largest, else 0."""
    return _as_float(in_top_k(y_pred, cast(reshape(y_true, [-1]), dtypes.int64), k))


def _as_float(condition: Tensor) -> Tensor:
    return cast(condition, dtypes.as_dtype(floatx()))


# --- over batches


def scope_of(name: str) -> str:
    """``name`` as a name scope may have it: that of a lambda is ``<lambda>``."""
    return re.sub(r"[^\w.\\/-]", "_", name.strip("<>"), flags=re.ASCII)


class Metric:
    """Base of the metrics: a subclass makes variables with `add_weight`, and has ``update_state(y_true,
    y_pred, sample_weight)``, which assigns to them, and ``result()``.

    Called, it is the result after an update.
    """

    def __init__(self, name: str | None = None, dtype: Any = None, **_: Any) -> None:
        self.name = name or snake_case(type(self).__name__)
        self.dtype = dtypes.as_dtype(dtype or floatx())
        self._variables: list[Variable] = []

    def add_weight(
        self, name: str, shape: Any = (), aggregation: Any = None, synchronization: Any = None,
        initializer: Any = None, dtype: Any = None,
    ) -> Variable:  # fmt: skip
        """A variable that is zero, unless ``initializer`` says otherwise, and again after `reset_states`."""
        make = initializer if callable(initializer) else Zeros()
        element = dtypes.as_dtype(dtype or self.dtype)
        with get_default_graph().root.name_scope(scope_of(self.name)):
            variable = Variable(
                lambda: make(list(shape), dtype=element),
                trainable=False,
                name=name,
                collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
            )
        self._variables.append(tracked(variable))
        return variable

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method update_state")

    def result(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method result")

    def updated(self, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Operation]]:
        """The result after an update, and the operations of that update, which have to run with it."""
        graph = get_default_graph()
        known = len(graph.operations)
        update = self.update_state(*args, **kwargs)
        made = itertools.islice(graph.operations.values(), known, None)
        updates = [op for op in made if op.type.startswith("Assign")] if update is None else [group(update)]
        with graph.control_dependencies(updates):
            return convert_to_tensor(self.result()), updates

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.updated(*args, **kwargs)[0]

    def reset_states(self) -> None:
        """Begin the totals anew, in the session."""
        reset([self])

    @property
    def variables(self) -> list[Variable]:
        return self._variables

    weights = variables

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Metric:
        return cls(**config)


def reset(metrics: list[Metric]) -> None:
    """Begin the totals of all ``metrics`` anew."""
    variables = [variable for metric in metrics for variable in metric.variables]
    totals = {v: np.zeros([n or 0 for n in v.shape.as_list()], v.dtype.as_numpy_dtype) for v in variables}
    if totals:
        get_session().assign_variables(totals)


class Mean(Metric):
    """The mean of all values, by their weights."""

    def __init__(self, name: str | None = "mean", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total, self.count = self.add_weight("total"), self.add_weight("count")

    def update_state(self, values: Any, sample_weight: Any = None) -> Operation:
        values = cast(values, self.dtype)
        if sample_weight is None:
            total, count = reduce_sum(values), cast(size(values), self.dtype)
        else:
            weights = losses.fitted(cast(convert_to_tensor(sample_weight), self.dtype), values)
            total, count = (
                reduce_sum(multiply(values, weights)),
                reduce_sum(multiply(ones_like(values), weights)),
            )
        updates = (
            self.total.assign_add(total, read_value=False),
            self.count.assign_add(count, read_value=False),
        )
        return group(*updates)

    def result(self) -> Tensor:
        return div_no_nan(self.total.read_value(), self.count.read_value())


class Sum(Metric):
    """The sum of all values, times their weights."""

    def __init__(self, name: str = "sum", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total = self.add_weight("total")

    def update_state(self, values: Any, sample_weight: Any = None) -> Operation:
        values = cast(values, self.dtype)
        if sample_weight is not None:
            values = multiply(
                values, losses.fitted(cast(convert_to_tensor(sample_weight), self.dtype), values)
            )
        return self.total.assign_add(reduce_sum(values), read_value=False)

    def result(self) -> Tensor:
        return self.total.read_value()


class MeanMetricWrapper(Mean):
    """The mean of ``fn(y_true, y_pred, **options)``."""

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **options: Any
    ) -> None:
        super().__init__(name or getattr(fn, "__name__", "metric"), dtype)
        self._fn, self._options = fn, options

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Operation:  # type: ignore[override]
        return super().update_state(self._fn(y_true, y_pred, **self._options), sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._options}


class _FunctionMetric(MeanMetricWrapper):
    """The mean of the function of a subclass."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, name: str | None = None, dtype: Any = None, **options: Any) -> None:
        name = name or snake_case(type(self).__name__)
        super().__init__(type(self).function, name, dtype, **options)


class Accuracy(_FunctionMetric):
    function = accuracy


class BinaryAccuracy(_FunctionMetric):
    function = binary_accuracy

    def __init__(self, name: str | None = None, dtype: Any = None, threshold: float = 0.5) -> None:
        super().__init__(name, dtype, threshold=threshold)


class CategoricalAccuracy(_FunctionMetric):
    function = categorical_accuracy


class SparseCategoricalAccuracy(_FunctionMetric):
    function = sparse_categorical_accuracy


class TopKCategoricalAccuracy(_FunctionMetric):
    function = top_k_categorical_accuracy

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype, k=k)


class SparseTopKCategoricalAccuracy(_FunctionMetric):
    function = sparse_top_k_categorical_accuracy

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype, k=k)


class MeanSquaredError(_FunctionMetric):
    function = mean_squared_error


class MeanAbsoluteError(_FunctionMetric):
    function = mean_absolute_error


class MeanAbsolutePercentageError(_FunctionMetric):
    function = mean_absolute_percentage_error


class MeanSquaredLogarithmicError(_FunctionMetric):
    function = mean_squared_logarithmic_error


class Hinge(_FunctionMetric):
    function = hinge


class SquaredHinge(_FunctionMetric):
    function = squared_hinge


class CategoricalHinge(_FunctionMetric):
    function = categorical_hinge


class Poisson(_FunctionMetric):
    function = poisson


class LogCoshError(_FunctionMetric):
    function = logcosh


class KLDivergence(_FunctionMetric):
    function = kullback_leibler_divergence


class CosineSimilarity(_FunctionMetric):
    """The mean cosine: unlike the loss, 1 is best."""

    @staticmethod
    def function(y_true: Any, y_pred: Any, axis: int = -1) -> Tensor:
        return subtract(0.0, cosine_similarity(y_true, y_pred, axis))


class BinaryCrossentropy(_FunctionMetric):
    function = binary_crossentropy


class CategoricalCrossentropy(_FunctionMetric):
    function = categorical_crossentropy


class SparseCategoricalCrossentropy(_FunctionMetric):
    function = sparse_categorical_crossentropy


class RootMeanSquaredError(Mean):
    """The root of the mean squared error of all elements."""

    def __init__(self, name: str = "root_mean_squared_error", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Operation:  # type: ignore[override]
        error = subtract(y_pred, cast(y_true, convert_to_tensor(y_pred).dtype))
        return super().update_state(multiply(error, error), sample_weight)

    def result(self) -> Tensor:
        return sqrt(super().result())


class _Counts(Metric):
    """Numbers of predictions by what was said and what is true, at each of the thresholds."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.thresholds = [0.5] if thresholds is None else list(np.ravel(thresholds))
        self._given = thresholds
        self._is_one = np.ndim(thresholds) == 0
        self._counts = {kind: self.add_weight(kind, [len(self.thresholds)]) for kind in self.kinds}

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Operation:
        said = reshape(cast(y_pred, self.dtype), [1, -1])
        limits = reshape(convert_to_tensor(np.asarray(self.thresholds), self.dtype), [-1, 1])
        positive, true = greater(said, limits), cast(reshape(y_true, [1, -1]), dtypes.bool_)
        weights = ones_like(said)
        if sample_weight is not None:
            spread = losses.fitted(cast(sample_weight, self.dtype), convert_to_tensor(y_pred))
            weights = reshape(multiply(cast(ones_like(y_pred), self.dtype), spread), [1, -1])
        found = {
            "true_positives": logical_and(true, positive),
            "false_positives": logical_and(logical_not(true), positive),
            "true_negatives": logical_and(logical_not(true), logical_not(positive)),
            "false_negatives": logical_and(true, logical_not(positive)),
        }
        return group(*(
            count.assign_add(
                reduce_sum(multiply(cast(found[kind], self.dtype), weights), 1), read_value=False
            )
            for kind, count in self._counts.items()
        ))  # fmt: skip

    def _one(self, values: Tensor) -> Tensor:
        return values[0] if self._is_one else values

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "thresholds": self._given}


class _Count(_Counts):
    def result(self) -> Tensor:
        return self._one(self._counts[self.kinds[0]].read_value())


class TruePositives(_Count):
    kinds = ("true_positives",)


class FalsePositives(_Count):
    kinds = ("false_positives",)


class TrueNegatives(_Count):
    kinds = ("true_negatives",)


class FalseNegatives(_Count):
    kinds = ("false_negatives",)


class Precision(_Counts):
    """The share of true ones among what was said to be."""

    kinds = ("true_positives", "false_positives")

    def result(self) -> Tensor:
        hits, others = (self._counts[kind].read_value() for kind in self.kinds)
        return self._one(div_no_nan(hits, add(hits, others)))


class Recall(Precision):
    """The share of what was said to be among the true ones."""

    kinds = ("true_positives", "false_negatives")


class AUC(_Counts):
    """The area under a curve between thresholds: of true over false positives (``curve="ROC"``), or of
    precision over recall ("PR").

    ``summation_method`` is "interpolation", or "minoring" or "majoring" for the lower or upper of the heights
    at two thresholds. Raises `InvalidArgumentError` for others.
    """

    kinds = ("true_positives", "false_positives", "true_negatives", "false_negatives")

    def __init__(
        self, num_thresholds: int = 200, curve: str = "ROC", summation_method: str = "interpolation",
        name: str | None = None, dtype: Any = None, thresholds: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        if curve not in ("ROC", "PR"):
            raise misuse(f"AUC: curve: expected 'ROC' or 'PR'; got {curve!r}")
        if summation_method not in ("interpolation", "minoring", "majoring"):
            raise misuse(
                "AUC: summation_method: expected 'interpolation', 'minoring' or 'majoring'; got "
                f"{summation_method!r}"
            )
        if thresholds is None:
            if num_thresholds < 2:
                raise misuse(f"AUC: num_thresholds: expected 2 or more; got {num_thresholds}")
            inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
        else:
            inner = sorted(float(each) for each in thresholds)
        self.curve, self.summation_method = curve, summation_method
        super().__init__([-1e-7, *inner, 1 + 1e-7], name, dtype)
        self._given = None if thresholds is None else inner
        self.num_thresholds = len(self.thresholds)

    def result(self) -> Tensor:
        hits, alarms, rejects, misses = (self._counts[kind].read_value() for kind in self.kinds)
        if self.curve == "PR" and self.summation_method == "interpolation":
            return area_under_precision(hits, alarms, add(hits[1:], misses[1:]))
        recall = div_no_nan(hits, add(hits, misses))
        if self.curve == "PR":
            x, y = recall, div_no_nan(hits, add(hits, alarms))
        else:
            x, y = div_no_nan(alarms, add(alarms, rejects)), recall
        is_mean = self.summation_method == "interpolation"
        return area_under(x, y, "trapezoidal" if is_mean else self.summation_method)

    def get_config(self) -> dict[str, Any]:
        own = {
            "num_thresholds": self.num_thresholds, "curve": self.curve,
            "summation_method": self.summation_method,
        }  # fmt: skip
        return {**super().get_config(), **own}


class MeanIoU(Metric):
    """The mean over the classes of intersection over union, of integer labels."""

    def __init__(self, num_classes: int, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name or "mean_io_u", dtype)
        self.num_classes = num_classes
        self.total_cm = self.add_weight("total_confusion_matrix", [num_classes, num_classes])

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Operation:
        pairs = [reshape(cast(y, dtypes.int64), [-1]) for y in (y_true, y_pred)]
        weights = None if sample_weight is None else reshape(sample_weight, [-1])
        found = confusion_matrix(
            pairs[0], pairs[1], num_classes=self.num_classes, dtype=self.dtype, weights=weights
        )
        return self.total_cm.assign_add(found, read_value=False)

    def result(self) -> Tensor:
        matrix = self.total_cm.read_value()
        both = diag_part(matrix)
        either = subtract(add(reduce_sum(matrix, 0), reduce_sum(matrix, 1)), both)
        present = reduce_sum(cast(greater(either, 0.0), self.dtype))
        return div_no_nan(reduce_sum(div_no_nan(both, either)), present)


acc = ACC = accuracy
bce = BCE = binary_crossentropy
mse = MSE = mean_squared_error
mae = MAE = mean_absolute_error
mape = MAPE = mean_absolute_percentage_error
msle = MSLE = mean_squared_logarithmic_error
kld = KLD = kullback_leibler_divergence
cosine = cosine_proximity

_OURS = {k: v for k, v in globals().items() if getattr(v, "__module__", "") in (__name__, losses.__name__)}
_find = lookup_in({k: v for k, v in _OURS.items() if not k.startswith("_")})


def get(identifier: Any) -> Any:
    """The metric of this name, or a function of true and predicted values.

    Raises `InvalidArgumentError` for an unknown name.
    """
    return deserialize_object(identifier, _find, "metric")


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "metric", custom_objects)


def serialize(metric: Any) -> Any:
    return serialize_object(metric)
