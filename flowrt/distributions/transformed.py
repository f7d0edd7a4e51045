"""Distributions of values that a bijector makes of those of another one, and distributions made like that:
`TransformedDistribution`, `RelaxedBernoulli`, `RelaxedOneHotCategorical`, `QuantizedDistribution`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt.distributions.bijectors import Bijector, Exp, Sigmoid
from flowrt.distributions.discrete import chances, class_chances
from flowrt.distributions.distribution import (
    FULLY_REPARAMETERIZED,
    NOT_REPARAMETERIZED,
    Distribution,
    checked,
    floats,
)
from flowrt.distributions.real_line import Logistic
from flowrt.dtypes import int32
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_prod, reduce_sum
from flowrt.graph.ops.base.filling import broadcast_to, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape
from flowrt.graph.ops.elementwise.comparison import greater, greater_equal, less, where_v2
from flowrt.graph.ops.elementwise.math import ceil, expm1, floor, log
from flowrt.graph.ops.elementwise.special import lgamma
from flowrt.graph.ops.nn.softmax import log_softmax
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.text.assertions import assert_less, assert_positive
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse


class TransformedDistribution(Distribution):
    """The values ``bijector.forward(x)`` of x of ``distribution``.

    ``batch_shape`` and ``event_shape`` make a batch, or values, of independent x where the distribution has
    scalars. The distribution functions are right for bijectors that increase.

        TransformedDistribution(Normal(0.0, 1.0), bijectors.Exp())  # the log-normal distribution
    """

    def __init__(
        self,
        distribution: Distribution,
        bijector: Bijector,
        batch_shape: Any = None,
        event_shape: Any = None,
        validate_args: bool = False,
        name: str | None = None,
    ) -> None:
        self._inner, self._bijector = distribution, bijector
        self._more_batch = TensorShape(() if batch_shape is None else tuple(batch_shape))
        self._more_event = TensorShape(() if event_shape is None else tuple(event_shape))
        if self._more_event.ndims and not (distribution.is_scalar_event() and distribution.is_scalar_batch()):
            raise misuse("TransformedDistribution: expected event_shape for a single distribution of scalars",
                         UnimplementedError)  # fmt: skip
        if self._more_batch.ndims and not distribution.is_scalar_batch():
            raise misuse("TransformedDistribution: expected batch_shape for a single distribution only")
        super().__init__(
            distribution.dtype, distribution.reparameterization_type, validate_args,
            distribution.allow_nan_stats,
            {
                "distribution": distribution, "bijector": bijector, "batch_shape": batch_shape,
                "event_shape": event_shape, "validate_args": validate_args,
            },
            (), name or f"{bijector.name}{distribution.name}",
        )  # fmt: skip

    @property
    def distribution(self) -> Distribution:
        return self._inner

    @property
    def bijector(self) -> Bijector:
        return self._bijector

    def _batch_shape(self) -> TensorShape:
        return self._more_batch.concatenate(self._inner.batch_shape)

    def _batch_shape_tensor(self) -> Tensor:
        return concat([constant(self._more_batch.as_list(), int32), self._inner.batch_shape_tensor()], 0)

    def _inner_event_shape(self) -> TensorShape:
        return self._more_event.concatenate(self._inner.event_shape)

    def _inner_event_shape_tensor(self) -> Tensor:
        return concat([constant(self._more_event.as_list(), int32), self._inner.event_shape_tensor()], 0)

    def _event_shape(self) -> TensorShape:
        return self._bijector.forward_event_shape(self._inner_event_shape())

    def _event_shape_tensor(self) -> Tensor:
        return self._bijector.forward_event_shape_tensor(self._inner_event_shape_tensor())

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Tensor:
        """Values of ``sample_shape + batch_shape + event_shape``; their `log_prob` inverts nothing."""
        with self._scope(name):
            sizes = reshape(convert_to_tensor(sample_shape, int32), [-1])
            more = [*self._more_batch.as_list(), *self._more_event.as_list()]
            wanted = concat([sizes, constant(more, int32)], 0) if more else sample_shape
            return self._bijector.forward(self._inner.sample(wanted, seed))

    def _log_prob(self, y: Tensor) -> Tensor:
        ndims = self.event_shape.ndims
        if ndims is None:
            raise misuse("TransformedDistribution: expected an event_shape of known rank")
        x = self._bijector.inverse(y)
        density = self._inner.log_prob(x)
        if self._more_event.ndims:
            density = reduce_sum(density, list(range(-(self._more_event.ndims or 0), 0)))
        return density + self._bijector.inverse_log_det_jacobian(y, ndims)

    def _cdf(self, y: Tensor) -> Tensor:
        return self._of_scalars().cdf(self._bijector.inverse(y))

    def _log_cdf(self, y: Tensor) -> Tensor:
        return self._of_scalars().log_cdf(self._bijector.inverse(y))

    def _survival_function(self, y: Tensor) -> Tensor:
        return self._of_scalars().survival_function(self._bijector.inverse(y))

    def _log_survival_function(self, y: Tensor) -> Tensor:
        return self._of_scalars().log_survival_function(self._bijector.inverse(y))

    def _quantile(self, p: Tensor) -> Tensor:
        return self._bijector.forward(self._of_scalars().quantile(p))

    def _of_scalars(self) -> Distribution:
        """The inner distribution, if values are not made of several of its own."""
        if self._more_event.ndims:
            raise misuse("TransformedDistribution: expected no event_shape here", UnimplementedError)
        return self._inner

    def _check_is_affine(self, what: str) -> None:
        if not self._bijector.is_constant_jacobian:
            raise misuse(
                f"TransformedDistribution: {what} is not implemented for {self._bijector.name}, which is not "
                "affine",
                UnimplementedError,
            )

    def _entropy(self) -> Tensor:
        self._check_is_affine("entropy")
        each = self._inner.entropy()
        if self._more_event.ndims:
            each = each * cast(reduce_prod(constant(self._more_event.as_list(), int32)), self.dtype)
        found = broadcast_to(each, self.batch_shape_tensor())
        y = zeros(concat([self.batch_shape_tensor(), self.event_shape_tensor()], 0), self.dtype)
        return found - self._bijector.inverse_log_det_jacobian(y, self.event_shape.ndims or 0)

    def _mean(self) -> Tensor:
        self._check_is_affine("mean")
        sizes = concat([self.batch_shape_tensor(), self._inner_event_shape_tensor()], 0)
        return self._bijector.forward(broadcast_to(self._inner.mean(), sizes))


class RelaxedBernoulli(TransformedDistribution):
    """A share that comes near to 0 or 1 as ``temperature`` goes to 0, as a differentiable function of
    ``logits`` or ``probs``: the sigmoid of a logistic number. Maddison et al., "The concrete distribution"
    (2017).
    """

    def __init__(
        self,
        temperature: Any,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "RelaxedBernoulli",
    ) -> None:
        self._logits, self._probs = chances(self, logits, probs, validate_args)
        heat = floats(logits=self._logits, temperature=temperature)[1]
        self._temperature = checked(heat, validate_args, assert_positive)
        logistic = Logistic(
            self._logits / self._temperature, 1.0 / self._temperature, validate_args, allow_nan_stats,
            f"{name}/Logistic",
        )  # fmt: skip
        super().__init__(logistic, Sigmoid(validate_args), validate_args=validate_args, name=name)
        self._parameters = {
            "temperature": temperature, "logits": logits, "probs": probs, "validate_args": validate_args,
            "allow_nan_stats": allow_nan_stats,
        }  # fmt: skip

    @property
    def temperature(self) -> Tensor:
        return self._temperature

    @property
    def logits(self) -> Tensor:
        return self._logits

    @property
    def probs(self) -> Tensor:
        return self._probs


class ExpRelaxedOneHotCategorical(Distribution):
    """The logarithms of the shares of a `RelaxedOneHotCategorical`, which do not underflow."""

    def __init__(
        self,
        temperature: Any,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "ExpRelaxedOneHotCategorical",
    ) -> None:
        self._logits, self._probs = class_chances(self, logits, probs, validate_args)
        heat = floats(logits=self._logits, temperature=temperature)[1]
        self._temperature = checked(heat, validate_args, assert_positive)
        super().__init__(
            dtype or self._logits.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "temperature": temperature, "logits": logits, "probs": probs, "dtype": dtype,
                "validate_args": validate_args, "allow_nan_stats": allow_nan_stats,
            },
            [self._logits], name,
        )  # fmt: skip

    @property
    def temperature(self) -> Tensor:
        return self._temperature

    @property
    def logits(self) -> Tensor:
        return self._logits

    @property
    def probs(self) -> Tensor:
        return self._probs

    @property
    def event_size(self) -> Tensor:
        """The number of classes."""
        return shape(self._logits)[-1]

    def _batch_shape(self) -> TensorShape:
        return self._logits.shape[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return shape(self._logits)[:-1]

    def _event_shape(self) -> TensorShape:
        return self._logits.shape[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return shape(self._logits)[-1:]

    def _heat(self) -> Tensor:
        return expand_dims(self._temperature, -1) if self._temperature.shape.ndims else self._temperature

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        sizes = concat([reshape(n, [1]), shape(self._logits)], 0)
        tiny = float(np.finfo(self.dtype.as_numpy_dtype).tiny)  # of which the logarithm is finite
        drawn = random_uniform(sizes, tiny, 1.0, self.dtype, seed)
        return log_softmax((self._logits - log(-log(drawn))) / self._heat())

    def _log_prob(self, x: Tensor) -> Tensor:
        classes = cast(self.event_size, self.dtype)
        norm = lgamma(classes) + (classes - 1.0) * log(self._temperature)
        return reduce_sum(log_softmax(self._logits - x * self._heat()), -1) + norm


class RelaxedOneHotCategorical(TransformedDistribution):
    """Shares of classes that come near to one class as ``temperature`` goes to 0, as a differentiable
    function of ``logits`` or ``probs``: Jang et al., "Categorical reparameterization with Gumbel-softmax"
    (2017); Maddison et al., "The concrete distribution" (2017).
    """

    def __init__(
        self,
        temperature: Any,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "RelaxedOneHotCategorical",
    ) -> None:
        self._logarithms = ExpRelaxedOneHotCategorical(
            temperature, logits, probs, dtype, validate_args, allow_nan_stats
        )
        super().__init__(self._logarithms, Exp(), name=name)
        self._parameters = self._logarithms.parameters

    @property
    def temperature(self) -> Tensor:
        return self._logarithms.temperature

    @property
    def logits(self) -> Tensor:
        return self._logarithms.logits

    @property
    def probs(self) -> Tensor:
        return self._logarithms.probs


class QuantizedDistribution(Distribution):
    """The next whole number from a value of ``distribution`` on: at least ``low``, at most ``high``."""

    def __init__(
        self,
        distribution: Distribution,
        low: Any = None,
        high: Any = None,
        validate_args: bool = False,
        name: str = "QuantizedDistribution",
    ) -> None:
        self._inner = distribution
        self._low: Any = None if low is None else convert_to_tensor(low, distribution.dtype)
        self._high: Any = None if high is None else convert_to_tensor(high, distribution.dtype)
        if self._low is not None and self._high is not None:
            self._high = checked(self._high, validate_args, lambda most: assert_less(
                self._low, most, message="low must be strictly less than high."
            ))  # fmt: skip
        super().__init__(
            distribution.dtype, NOT_REPARAMETERIZED, validate_args, distribution.allow_nan_stats,
            {"distribution": distribution, "low": low, "high": high, "validate_args": validate_args},
            (), name,
        )  # fmt: skip

    @property
    def distribution(self) -> Distribution:
        return self._inner

    @property
    def low(self) -> Tensor | None:
        return self._low

    @property
    def high(self) -> Tensor | None:
        return self._high

    def _batch_shape(self) -> TensorShape:
        return self._inner.batch_shape

    def _batch_shape_tensor(self) -> Tensor:
        return self._inner.batch_shape_tensor()

    def _event_shape(self) -> TensorShape:
        return self._inner.event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._inner.event_shape_tensor()

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        whole = ceil(self._inner.sample(n, seed))
        return self._within(whole, whole, self._low, self._high, strictly=True)

    def _within(self, j: Tensor, found: Tensor, below: Any, above: Any, strictly: bool = False) -> Tensor:
        """``found``, where ``j`` is below the bounds ``below``, where it is at the upper one or above it, or
        only ``strictly`` above it, ``above``.
        """
        at = j + zeros_like(found)
        if self._low is not None:
            found = where_v2(less(at, self._low), below + zeros_like(found), found)
        if self._high is not None:
            is_above = greater(at, self._high) if strictly else greater_equal(at, self._high)
            found = where_v2(is_above, above + zeros_like(found), found)
        return found

    def _cdf(self, y: Tensor) -> Tensor:
        return self._within(floor(y), self._inner.cdf(floor(y)), 0.0, 1.0)

    def _log_cdf(self, y: Tensor) -> Tensor:
        return self._within(floor(y), self._inner.log_cdf(floor(y)), -math.inf, 0.0)

    def _survival_function(self, y: Tensor) -> Tensor:
        return self._within(ceil(y), self._inner.survival_function(ceil(y)), 1.0, 0.0)

    def _log_survival_function(self, y: Tensor) -> Tensor:
        return self._within(ceil(y), self._inner.log_survival_function(ceil(y)), 0.0, -math.inf)

    def _prob(self, y: Tensor) -> Tensor:
        above, below = self._survival_function(y), self._cdf(y)
        return where_v2(
            less(above, below), self._survival_function(y - 1.0) - above, below - self._cdf(y - 1.0)
        )

    def _log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the difference of the tails on that side of the median where they are small."""
        above, below = self._log_survival_function(y), self._log_cdf(y)
        is_right = less(above, below)
        big = where_v2(is_right, self._log_survival_function(y - 1.0), below)
        small = where_v2(is_right, above, self._log_cdf(y - 1.0))
        return big + log(-expm1(small - big))
