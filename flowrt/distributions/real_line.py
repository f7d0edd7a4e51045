"""Distributions of real numbers: `Normal`, `HalfNormal`, `Laplace`, `Cauchy`, `Logistic`, `StudentT`,
`Uniform`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt.distributions.distribution import FULLY_REPARAMETERIZED, Distribution, checked, floats
from flowrt.distributions.kullback_leibler import RegisterKL
from flowrt.distributions.special import lbeta, log_ndtr, ndtr, ndtri
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.base.filling import fill, ones_like, zeros_like
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import greater, greater_equal, less, logical_or, where_v2
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.incomplete import betainc
from flowrt.graph.ops.elementwise.math import (
    atan,
    exp,
    expm1,
    floor,
    is_nan,
    log,
    log1p,
    rsqrt,
    sigmoid,
    sign,
    square,
    tan,
)
from flowrt.graph.ops.elementwise.special import digamma, erf, erfinv, lgamma
from flowrt.graph.ops.nn.activations import log_sigmoid, softplus
from flowrt.graph.ops.random.random_ops import random_normal, random_uniform
from flowrt.graph.ops.random.sampling import random_gamma
from flowrt.graph.ops.text.assertions import assert_less, assert_positive
from flowrt.graph.source import misuse


class _LocationScale(Distribution):
    """``loc + scale * z``, z of a distribution without parameters: a subclass has the functions of z."""

    def __init__(
        self,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str | None = None,
    ) -> None:
        given = {"loc": loc, "scale": scale, "validate_args": validate_args}
        self._loc, width = floats(loc=loc, scale=scale)
        self._scale = checked(width, validate_args, assert_positive)
        super().__init__(
            self._scale.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "allow_nan_stats": allow_nan_stats}, [self._loc, self._scale], name,
        )  # fmt: skip

    @property
    def loc(self) -> Tensor:
        return self._loc

    @property
    def scale(self) -> Tensor:
        return self._scale

    def _z(self, x: Any) -> Tensor:
        return (x - self._loc) / self._scale

    def _log_prob(self, x: Any) -> Tensor:
        return self._log_density(self._z(x)) - log(self._scale)

    def _log_density(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _mean(self) -> Tensor:
        return self._loc * ones_like(self._scale)

    _mode = _mean

    def _spread(self, of_z: float) -> Tensor:
        """``of_z`` in units of the scale, for the whole batch."""
        return of_z * self._scale * ones_like(self._loc)

    def _entropy_of(self, of_z: float) -> Tensor:
        return of_z + log(self._scale) + zeros_like(self._loc)

    def _uniform(self, n: Any, seed: int | None, low: float = 0.0) -> Tensor:
        """Samples from ``low`` to 1 without the ends, of which logarithms are finite."""
        tiny = float(np.finfo(self.dtype.as_numpy_dtype).tiny)
        first = tiny if low == 0 else float(np.nextafter(self.dtype.as_numpy_dtype(low), 0))
        return random_uniform(self._rows(n), first, 1.0, self.dtype, seed)


class Normal(_LocationScale):
    """The normal distribution of mean ``loc`` and standard deviation ``scale``.

    Normal(0.0, [1.0, 2.0]).log_prob(0.5)  # [2]
    """

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return random_normal(self._rows(n), dtype=self.dtype, seed=seed) * self._scale + self._loc

    def _log_density(self, z: Tensor) -> Tensor:
        return -0.5 * square(z) - 0.5 * math.log(2 * math.pi)

    def _cdf(self, x: Any) -> Tensor:
        return ndtr(self._z(x))

    def _log_cdf(self, x: Any) -> Tensor:
        return log_ndtr(self._z(x))

    def _survival_function(self, x: Any) -> Tensor:
        return ndtr(-self._z(x))

    def _log_survival_function(self, x: Any) -> Tensor:
        return log_ndtr(-self._z(x))

    def _quantile(self, p: Any) -> Tensor:
        return ndtri(p) * self._scale + self._loc

    def _entropy(self) -> Tensor:
        return self._entropy_of(0.5 * math.log(2 * math.pi) + 0.5)

    def _stddev(self) -> Tensor:
        return self._spread(1.0)


class HalfNormal(Distribution):
    """The distribution of ``abs(x)`` for x of a `Normal` of mean 0 and standard deviation ``scale``."""

    def __init__(
        self, scale: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "HalfNormal"
    ) -> None:
        self._scale = checked(floats(scale=scale)[0], validate_args, assert_positive)
        super().__init__(
            self._scale.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {"scale": scale, "validate_args": validate_args, "allow_nan_stats": allow_nan_stats},
            [self._scale], name,
        )  # fmt: skip

    @property
    def scale(self) -> Tensor:
        return self._scale

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return absolute(random_normal(self._rows(n), dtype=self.dtype, seed=seed) * self._scale)

    def _prob(self, x: Any) -> Tensor:
        density = math.sqrt(2 / math.pi) / self._scale * exp(-0.5 * square(x / self._scale))
        return where_v2(less(x, 0.0), zeros_like(density), density)

    def _cdf(self, x: Any) -> Tensor:
        return erf(maximum(x, 0.0) / self._scale / math.sqrt(2))

    def _quantile(self, p: Any) -> Tensor:
        return math.sqrt(2) * self._scale * erfinv(p)

    def _entropy(self) -> Tensor:
        return 0.5 * log(math.pi * square(self._scale) / 2.0) + 0.5

    def _mean(self) -> Tensor:
        return self._scale * math.sqrt(2 / math.pi)

    def _mode(self) -> Tensor:
        return zeros_like(self._scale)

    def _variance(self) -> Tensor:
        return square(self._scale) * (1 - 2 / math.pi)


class NormalWithSoftplusScale(Normal):
    """`Normal` with the softplus of ``scale`` as its standard deviation."""

    def __init__(
        self,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(loc, softplus(scale), validate_args, allow_nan_stats, name)
        self._parameters["scale"] = scale


@RegisterKL(Normal, Normal)
def _kl_normal(a: Normal, b: Normal, name: str | None = None) -> Tensor:
    ratio = square(a.scale / b.scale)
    return 0.5 * (square((a.loc - b.loc) / b.scale) + ratio - 1.0 - log(ratio))


class Laplace(_LocationScale):
    """The Laplace distribution with density ``exp(-|x - loc| / scale) / (2 scale)``."""

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        drawn = self._uniform(n, seed, low=-1.0)
        return self._loc - self._scale * sign(drawn) * log1p(-absolute(drawn))

    def _log_density(self, z: Tensor) -> Tensor:
        return -absolute(z) - math.log(2)

    def _cdf(self, x: Any) -> Tensor:
        z = self._z(x)
        return 0.5 - 0.5 * sign(z) * expm1(-absolute(z))

    def _log_cdf(self, x: Any) -> Tensor:
        return self._log_half(self._z(x))

    def _log_survival_function(self, x: Any) -> Tensor:
        return self._log_half(-self._z(x))

    def _log_half(self, z: Tensor) -> Tensor:
        return where_v2(less(z, 0), z - math.log(2), log1p(-0.5 * exp(-absolute(z))))

    def _entropy(self) -> Tensor:
        return self._entropy_of(1 + math.log(2))

    def _stddev(self) -> Tensor:
        return self._spread(math.sqrt(2))


class LaplaceWithSoftplusScale(Laplace):
    """`Laplace` with the softplus of ``scale`` as its scale."""

    def __init__(
        self,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(loc, softplus(scale), validate_args, allow_nan_stats, name)
        self._parameters["scale"] = scale


class Cauchy(_LocationScale):
    """The Cauchy distribution with density ``1 / (pi scale (1 + z^2))``; it has no mean."""

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return self._quantile(self._uniform(n, seed))

    def _log_density(self, z: Tensor) -> Tensor:
        return -log1p(square(z)) - math.log(math.pi)

    def _cdf(self, x: Any) -> Tensor:
        return atan(self._z(x)) / math.pi + 0.5

    def _quantile(self, p: Any) -> Tensor:
        return self._loc + self._scale * tan(math.pi * (p - 0.5))

    def _entropy(self) -> Tensor:
        return self._entropy_of(math.log(4 * math.pi))

    def _mean(self) -> Tensor:
        if not self.allow_nan_stats:
            raise misuse(f"{self.name}: the Cauchy distribution has no mean, variance or deviation")
        return fill(self.batch_shape_tensor(), constant(float("nan"), self.dtype))

    _stddev = _mean

    def _mode(self) -> Tensor:
        return self._loc * ones_like(self._scale)


class Logistic(_LocationScale):
    """The logistic distribution, with the distribution function sigmoid(z)."""

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        drawn = self._uniform(n, seed)
        return self._loc + self._scale * (log(drawn) - log1p(-drawn))

    def _log_density(self, z: Tensor) -> Tensor:
        return -z - 2.0 * softplus(-z)

    def _cdf(self, x: Any) -> Tensor:
        return sigmoid(self._z(x))

    def _log_cdf(self, x: Any) -> Tensor:
        return log_sigmoid(self._z(x))

    def _log_survival_function(self, x: Any) -> Tensor:
        return log_sigmoid(-self._z(x))

    def _entropy(self) -> Tensor:
        return self._entropy_of(2.0)

    def _stddev(self) -> Tensor:
        return self._spread(math.pi / math.sqrt(3))


class StudentT(Distribution):
    """Student's t distribution with ``df`` degrees of freedom, moved by ``loc``, stretched by ``scale``."""

    def __init__(
        self,
        df: Any,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "StudentT",
    ) -> None:
        given = {"df": df, "loc": loc, "scale": scale, "validate_args": validate_args}
        freedom, self._loc, self._scale = floats(df=df, loc=loc, scale=scale)
        self._df = checked(freedom, validate_args, assert_positive)
        super().__init__(
            self._scale.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "allow_nan_stats": allow_nan_stats}, [self._df, self._loc, self._scale], name,
        )  # fmt: skip

    @property
    def df(self) -> Tensor:
        return self._df

    @property
    def loc(self) -> Tensor:
        return self._loc

    @property
    def scale(self) -> Tensor:
        return self._scale

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        rows = self._rows(n)
        df = self._df * ones_like(self._mode())
        drawn = random_gamma(rows[:1], 0.5 * df, 0.5, self.dtype, None if seed is None else seed + 1)
        return random_normal(rows, dtype=self.dtype, seed=seed) * rsqrt(drawn / df) * self._scale + self._loc

    def _log_prob(self, x: Any) -> Tensor:
        z = (x - self._loc) / self._scale
        half = 0.5 * (self._df + 1.0)
        norm = log(absolute(self._scale)) + 0.5 * log(math.pi * self._df) + lgamma(0.5 * self._df)
        return -half * log1p(square(z) / self._df) - norm + lgamma(half)

    def _cdf(self, x: Any) -> Tensor:
        z = (x - self._loc) / self._scale
        tail = 0.5 * betainc(0.5 * self._df, 0.5, self._df / (square(z) + self._df))
        return where_v2(less(z, 0.0), tail, 1.0 - tail)

    def _entropy(self) -> Tensor:
        df = self._df * ones_like(self._mode())
        half = 0.5 * (df + 1.0)
        beta = lbeta(stack([0.5 * df, 0.5 * ones_like(df)], -1))
        return log(absolute(self._scale)) + 0.5 * log(df) + beta + half * (digamma(half) - digamma(0.5 * df))

    def _mean(self) -> Tensor:
        finite = greater(self._df * ones_like(self._mode()), 1.0)
        return self._defined(self._mode(), finite, "mean not defined for components of df <= 1")

    def _variance(self) -> Tensor:
        df = self._df * ones_like(self._mode())
        finite = greater(df, 2.0)
        spread = square(self._scale) * df / (where_v2(finite, df, 3.0) - 2.0)
        found = where_v2(finite, spread, math.inf * ones_like(df))
        return self._defined(found, greater(df, 1.0), "variance not defined for components of df <= 1")

    def _mode(self) -> Tensor:
        return self._loc * ones_like(self._scale) * ones_like(self._df)


class StudentTWithAbsDfSoftplusScale(StudentT):
    """`StudentT` with ``floor(abs(df))`` degrees of freedom and the softplus of ``scale``."""

    def __init__(
        self,
        df: Any,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "StudentTWithAbsDfSoftplusScale",
    ) -> None:
        whole = floor(absolute(floats(df=df)[0]))
        super().__init__(whole, loc, softplus(scale), validate_args, allow_nan_stats, name)
        self._parameters |= {"df": df, "scale": scale}


class Uniform(Distribution):
    """The uniform distribution on ``[low, high)``."""

    def __init__(
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Uniform",
    ) -> None:
        given = {"low": low, "high": high, "validate_args": validate_args}
        self._low, upper = floats(low=low, high=high)
        self._high = checked(upper, validate_args, lambda end: assert_less(
            self._low, end, message="uniform not defined when low >= high."
        ))  # fmt: skip
        super().__init__(
            self._low.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "allow_nan_stats": allow_nan_stats}, [self._low, self._high], name,
        )  # fmt: skip

    @property
    def low(self) -> Tensor:
        return self._low

    @property
    def high(self) -> Tensor:
        return self._high

    def range(self, name: str = "range") -> Tensor:
        """``high - low``."""
        return self._high - self._low

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return self._low + self.range() * random_uniform(self._rows(n), dtype=self.dtype, seed=seed)

    def _prob(self, x: Any) -> Tensor:
        everywhere = x + zeros_like(self.range())
        inside = where_v2(
            logical_or(less(x, self._low), greater_equal(x, self._high)),
            zeros_like(everywhere),
            ones_like(everywhere) / self.range(),
        )
        return where_v2(is_nan(everywhere), everywhere, inside)

    def _cdf(self, x: Any) -> Tensor:
        inside = (x - self._low) / self.range()
        below = where_v2(less(x, self._low), zeros_like(inside), inside)
        return where_v2(greater_equal(x, self._high), 1.0, below)

    def _quantile(self, p: Any) -> Tensor:
        return p * self.range() + self._low

    def _entropy(self) -> Tensor:
        return log(self.range())

    def _mean(self) -> Tensor:
        return (self._low + self._high) / 2.0

    def _stddev(self) -> Tensor:
        return self.range() / math.sqrt(12)
