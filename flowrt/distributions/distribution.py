"""`Distribution`: what all distributions can do, from the few functions that each one has.

A distribution has parameters of some batch shape, one distribution for each element; ``event_shape`` is the
shape of one value. A sample is ``sample_shape + batch_shape + event_shape``, a log probability
``sample_shape + batch_shape``. A subclass has `_log_prob` or `_prob`, `_sample_n`, and of the statistics
those that there are: asking for another is an `UnimplementedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.distributions.kullback_leibler import kl_divergence
from flowrt.dtypes import as_dtype, int32
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.base.filling import broadcast_dynamic_shape, broadcast_static_shape
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.comparison import where_v2
from flowrt.graph.ops.elementwise.math import exp, floor, log, log1p, sqrt, square
from flowrt.graph.ops.text.assertions import assert_equal, assert_non_negative
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.variables.graph_scopes import control_dependencies


class ReparameterizationType:
    """A kind of samples: a differentiable function of the parameters, or not."""

    def __init__(self, rep_type: str) -> None:
        self._rep_type = rep_type

    def __repr__(self) -> str:
        return f"<Reparameterization Type: {self._rep_type}>"


FULLY_REPARAMETERIZED = ReparameterizationType("FULLY_REPARAMETERIZED")
NOT_REPARAMETERIZED = ReparameterizationType("NOT_REPARAMETERIZED")


class Distribution:
    """Base of the distributions, TensorFlow's and those of programs.

    ``parameters`` are the tensors of the batch: `batch_shape` is what they broadcast to, unless a subclass
    says otherwise.
    """

    def __init__(
        self,
        dtype: Any,
        reparameterization_type: ReparameterizationType,
        validate_args: bool,
        allow_nan_stats: bool,
        parameters: dict[str, Any] | None = None,
        graph_parents: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:
        self._dtype = as_dtype(dtype)
        self._reparameterization_type = reparameterization_type
        self._validate_args, self._allow_nan_stats = validate_args, allow_nan_stats
        self._parameters = dict(parameters or {})
        self._graph_parents = list(graph_parents or [])
        self._name = name or type(self).__name__

    # --- facts

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments that it was made of."""
        return dict(self._parameters)

    @property
    def reparameterization_type(self) -> ReparameterizationType:
        return self._reparameterization_type

    @property
    def validate_args(self) -> bool:
        return self._validate_args

    @property
    def allow_nan_stats(self) -> bool:
        return self._allow_nan_stats

    @property
    def batch_shape(self) -> TensorShape:
        """The shape of the batch, as far as it is known."""
        return self._batch_shape()

    @property
    def event_shape(self) -> TensorShape:
        """The shape of one value, as far as it is known."""
        return self._event_shape()

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        known = self.batch_shape
        return constant(known.as_list(), int32) if known.is_fully_defined() else self._batch_shape_tensor()

    def event_shape_tensor(self, name: str = "event_shape_tensor") -> Tensor:
        known = self.event_shape
        return constant(known.as_list(), int32) if known.is_fully_defined() else self._event_shape_tensor()

    def is_scalar_event(self, name: str = "is_scalar_event") -> bool | None:
        """True if a value is a scalar, None if that is unknown."""
        return None if self.event_shape.ndims is None else self.event_shape.ndims == 0

    def is_scalar_batch(self, name: str = "is_scalar_batch") -> bool | None:
        """True if there is one distribution, None if that is unknown."""
        return None if self.batch_shape.ndims is None else self.batch_shape.ndims == 0

    def copy(self, **override_parameters_kwargs: Any) -> Any:
        """A distribution of the same kind with some arguments replaced."""
        return type(self)(**{**self._parameters, **override_parameters_kwargs})

    def _batch_shape(self) -> TensorShape:
        found = TensorShape([])
        for parent in self._graph_parents:
            found = broadcast_static_shape(found, parent.shape)
        return found

    def _batch_shape_tensor(self) -> Tensor:
        found: Any = constant([], int32)
        for parent in self._graph_parents:
            found = broadcast_dynamic_shape(found, shape(parent))
        return found

    def _event_shape(self) -> TensorShape:
        return TensorShape([])

    def _event_shape_tensor(self) -> Tensor:
        return constant([], int32)

    # --- values

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Tensor:
        """Values of ``sample_shape + batch_shape + event_shape``."""
        with self._scope(name):
            sizes = convert_to_tensor(sample_shape, int32)
            sizes = reshape(sizes, [-1]) if sizes.shape.ndims == 0 else sizes
            rows = self._sample_n(reduce_prod(sizes), seed)
            drawn = reshape(rows, concat([sizes, shape(rows)[1:]], 0))
            known = TensorShape(drawn.shape)
            if known.ndims is not None and self.batch_shape.ndims is not None:
                rest = self.batch_shape.concatenate(self.event_shape)
                drawn.set_shape(TensorShape([None] * (known.ndims - (rest.ndims or 0))).concatenate(rest))
            return drawn

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The logarithm of the density, or probability, of ``value``."""
        return self._either(name, value, "_log_prob", "_prob", log)

    def prob(self, value: Any, name: str = "prob") -> Tensor:
        """The density, or probability, of ``value``."""
        return self._either(name, value, "_prob", "_log_prob", exp)

    def cdf(self, value: Any, name: str = "cdf") -> Tensor:
        """The probability of values up to ``value``."""
        return self._either(name, value, "_cdf", "_log_cdf", exp)

    def log_cdf(self, value: Any, name: str = "log_cdf") -> Tensor:
        return self._either(name, value, "_log_cdf", "_cdf", log)

    def survival_function(self, value: Any, name: str = "survival_function") -> Tensor:
        """The probability of values above ``value``."""
        if hasattr(self, "_log_survival_function"):
            return self._either(name, value, "_survival_function", "_log_survival_function", exp)
        return 1.0 - self.cdf(value, name)

    def log_survival_function(self, value: Any, name: str = "log_survival_function") -> Tensor:
        if hasattr(self, "_log_survival_function"):
            return self._either(name, value, "_log_survival_function", "", log)
        return log1p(-self.cdf(value, name))

    def quantile(self, value: Any, name: str = "quantile") -> Tensor:
        """The value below which the share ``value`` of the probability is."""
        return self._either(name, value, "_quantile", "", log)

    # --- statistics

    def entropy(self, name: str = "entropy") -> Tensor:
        """The entropy in nats."""
        return self._statistic(name, "_entropy")

    def mean(self, name: str = "mean") -> Tensor:
        return self._statistic(name, "_mean")

    def mode(self, name: str = "mode") -> Tensor:
        """The most probable value."""
        return self._statistic(name, "_mode")

    def variance(self, name: str = "variance") -> Tensor:
        if not hasattr(self, "_variance") and hasattr(self, "_stddev"):
            return square(self._statistic(name, "_stddev"))
        return self._statistic(name, "_variance")

    def stddev(self, name: str = "stddev") -> Tensor:
        """The standard deviation."""
        if not hasattr(self, "_stddev"):
            return sqrt(self._statistic(name, "_variance"))
        return self._statistic(name, "_stddev")

    def covariance(self, name: str = "covariance") -> Tensor:
        """The covariance matrix of a vector."""
        return self._statistic(name, "_covariance")

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Tensor:
        """See `flowrt.distributions.kl_divergence`."""
        return kl_divergence(self, other, self.allow_nan_stats, name)

    def cross_entropy(self, other: Distribution, name: str = "cross_entropy") -> Tensor:
        """The entropy plus the Kullback-Leibler divergence to ``other``."""
        return self.entropy() + self.kl_divergence(other)

    # --- helpers

    def _scope(self, name: str) -> Any:
        return get_default_graph().name_scope(f"{self._name}/{name}")

    def _statistic(self, name: str, method: str) -> Tensor:
        with self._scope(name):
            return self._method(name, method)()

    def _either(
        self, name: str, value: Any, method: str, other: str, convert: Callable[[Any], Any]
    ) -> Tensor:
        """``method`` of ``value``, or ``convert`` of the method ``other`` of it."""
        with self._scope(name):
            given = convert_to_tensor(value, preferred_dtype=self.dtype)
            if self.validate_args and name != "quantile" and (conditions := self._conditions(given)):
                given = after(conditions, given)
            if hasattr(self, method) or not hasattr(self, other):
                return self._method(name, method)(given)
            return convert(self._method(name, other)(given))

    def _method(self, name: str, method: str) -> Callable[..., Any]:
        found = getattr(self, method, None)
        if found is None:
            raise misuse(f"{type(self).__name__}: {name} is not implemented", UnimplementedError)
        return found

    def _conditions(self, value: Tensor) -> list[Operation]:
        """Assertions of what a value is, made where ``validate_args`` is set."""
        return []

    def _defined(self, found: Tensor, condition: Tensor, message: str) -> Tensor:
        """``found`` where ``condition`` holds. Elsewhere NaN, or an error unless ``allow_nan_stats``."""
        if self.allow_nan_stats:
            return where_v2(condition, found, float("nan"))
        return after([assert_equal(condition, True, message=message)], found)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        raise misuse(f"{type(self).__name__}: sample is not implemented", UnimplementedError)

    def _rows(self, n: Any) -> Tensor:
        """The shape of ``n`` samples of scalars."""
        return concat([reshape(n, [1]), self.batch_shape_tensor()], 0)

    def __repr__(self) -> str:
        return (
            f"<flowrt.distributions.{type(self).__name__} '{self._name}' batch_shape={self.batch_shape} "
            f"event_shape={self.event_shape} dtype={self.dtype.name}>"
        )


def checked(tensor: Any, validate: bool, *assertions: Callable[..., Any]) -> Any:
    """``tensor``, with ``assertions`` of it if ``validate``."""
    return after([assertion(tensor) for assertion in assertions], tensor) if validate else tensor


def after(assertions: Sequence[Operation], tensor: Tensor) -> Tensor:
    """``tensor``, once ``assertions`` hold."""
    with control_dependencies(assertions):
        return tensor + 0


def counts_assertions(value: Tensor) -> list[Operation]:
    """Assertions that values are whole numbers from 0 on."""
    whole = assert_equal(value, floor(value), message="a value cannot contain fractional components.")
    return [assert_non_negative(value, message="a value must be non-negative."), whole]


def floats(**given: Any) -> list[Tensor]:
    """The parameters as tensors of one floating dtype, that of the first one that has one."""
    dtype = next((value.dtype for value in given.values() if hasattr(value, "dtype")), None)
    wanted = None if dtype is None else as_dtype(dtype)
    tensors = [convert_to_tensor(v, wanted, n, preferred_dtype="float32") for n, v in given.items()]
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            raise misuse(f"distributions: expected floating parameters; got {tensor!r}")
    return tensors
