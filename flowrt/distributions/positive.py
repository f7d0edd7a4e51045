"""Distributions of positive numbers and of shares: `Gamma`, `Exponential`, `Chi2`, `InverseGamma`, `Beta`,
`Dirichlet`.

Samples are differentiable by all parameters, those of `Gamma`, `Beta` and `Dirichlet` by the implicit
gradients of `flowrt.random_gamma`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.distributions.distribution import (
    FULLY_REPARAMETERIZED,
    NOT_REPARAMETERIZED,
    Distribution,
    checked,
    floats,
)
from flowrt.distributions.kullback_leibler import RegisterKL
from flowrt.distributions.special import lbeta
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.array.reductions import reduce_all, reduce_sum
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape
from flowrt.graph.ops.elementwise.comparison import greater, logical_and
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import xlogy
from flowrt.graph.ops.elementwise.incomplete import betainc, igamma, igammac
from flowrt.graph.ops.elementwise.math import expm1, floor, log, log1p, square
from flowrt.graph.ops.elementwise.special import digamma, lgamma
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag
from flowrt.graph.ops.nn.activations import softplus
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import random_gamma
from flowrt.graph.ops.text.assertions import assert_less, assert_near, assert_positive
from flowrt.graph.shapes import TensorShape


class Gamma(Distribution):
    """The gamma distribution with density ``x ** (concentration - 1) * exp(-rate * x)`` over its integral."""

    def __init__(
        self,
        concentration: Any,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Gamma",
    ) -> None:
        given = {"concentration": concentration, "rate": rate, "validate_args": validate_args}
        alpha, beta = floats(concentration=concentration, rate=rate)
        self._concentration = checked(alpha, validate_args, assert_positive)
        self._rate = checked(beta, validate_args, assert_positive)
        super().__init__(
            self._rate.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "allow_nan_stats": allow_nan_stats}, [self._concentration, self._rate], name,
        )  # fmt: skip

    @property
    def concentration(self) -> Tensor:
        return self._concentration

    @property
    def rate(self) -> Tensor:
        return self._rate

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return random_gamma(reshape(n, [1]), self._concentration, self._rate, self.dtype, seed)

    def _log_prob(self, x: Any) -> Tensor:
        norm = lgamma(self._concentration) - self._concentration * log(self._rate)
        return xlogy(self._concentration - 1.0, x) - self._rate * x - norm

    def _cdf(self, x: Any) -> Tensor:
        return igamma(self._concentration, self._rate * x)

    def _entropy(self) -> Tensor:
        alpha = self._concentration
        return alpha - log(self._rate) + lgamma(alpha) + (1.0 - alpha) * digamma(alpha)

    def _mean(self) -> Tensor:
        return self._concentration / self._rate

    def _variance(self) -> Tensor:
        return self._concentration / square(self._rate)

    def _mode(self) -> Tensor:
        found = (self._concentration - 1.0) / self._rate
        message = "mode not defined when any concentration <= 1"
        return self._defined(found, greater(self._concentration, 1.0), message)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return [assert_positive(value)]


class GammaWithSoftplusConcentrationRate(Gamma):
    """`Gamma` with the softplus of its arguments."""

    def __init__(
        self,
        concentration: Any,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "GammaWithSoftplusConcentrationRate",
    ) -> None:
        super().__init__(softplus(concentration), softplus(rate), validate_args, allow_nan_stats, name)
        self._parameters |= {"concentration": concentration, "rate": rate}


@RegisterKL(Gamma, Gamma)
def _kl_gamma(a: Gamma, b: Gamma, name: str | None = None) -> Tensor:
    return (
        (a.concentration - b.concentration) * digamma(a.concentration)
        + lgamma(b.concentration)
        - lgamma(a.concentration)
        + b.concentration * log(a.rate)
        - b.concentration * log(b.rate)
        + a.concentration * (b.rate / a.rate - 1.0)
    )


class Exponential(Gamma):
    """The exponential distribution with density ``rate * exp(-rate * x)``."""

    def __init__(
        self, rate: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Exponential"
    ) -> None:
        (inner,) = floats(rate=rate)
        super().__init__(ones_like(inner), inner, validate_args, allow_nan_stats, name)
        self._parameters = {
            "rate": rate, "validate_args": validate_args, "allow_nan_stats": allow_nan_stats
        }  # fmt: skip

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        tiny = float(np.finfo(self.dtype.as_numpy_dtype).tiny)  # of which the logarithm is finite
        return -log(random_uniform(self._rows(n), tiny, 1.0, self.dtype, seed)) / self._rate

    def _cdf(self, x: Any) -> Tensor:
        return -expm1(-self._rate * x)

    def _log_survival_function(self, x: Any) -> Tensor:
        return -self._rate * x

    def _quantile(self, p: Any) -> Tensor:
        return -log1p(-p) / self._rate


class ExponentialWithSoftplusRate(Exponential):
    """`Exponential` with the softplus of ``rate``."""

    def __init__(
        self,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "ExponentialWithSoftplusRate",
    ) -> None:
        super().__init__(softplus(rate), validate_args, allow_nan_stats, name)
        self._parameters["rate"] = rate


class Chi2(Gamma):
    """The chi-squared distribution of ``df`` degrees of freedom: that of the sum of as many squared normal
    numbers.
    """

    def __init__(
        self, df: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Chi2"
    ) -> None:
        (self._df,) = floats(df=df)
        half = convert_to_tensor(0.5, self._df.dtype)
        super().__init__(0.5 * self._df, half, validate_args, allow_nan_stats, name)
        self._parameters = {
            "df": df, "validate_args": validate_args, "allow_nan_stats": allow_nan_stats
        }  # fmt: skip

    @property
    def df(self) -> Tensor:
        return self._df


class Chi2WithAbsDf(Chi2):
    """`Chi2` with ``floor(abs(df))`` degrees of freedom."""

    def __init__(
        self, df: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Chi2WithAbsDf"
    ) -> None:
        super().__init__(floor(absolute(floats(df=df)[0])), validate_args, allow_nan_stats, name)
        self._parameters["df"] = df


class InverseGamma(Distribution):
    """The distribution of 1 / x for x of a `Gamma`; density ``x ** -(concentration + 1) * exp(-rate / x)``
    over its integral.
    """

    def __init__(
        self,
        concentration: Any,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "InverseGamma",
    ) -> None:
        given = {"concentration": concentration, "rate": rate, "validate_args": validate_args}
        alpha, beta = floats(concentration=concentration, rate=rate)
        self._concentration = checked(alpha, validate_args, assert_positive)
        self._rate = checked(beta, validate_args, assert_positive)
        super().__init__(
            self._rate.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "allow_nan_stats": allow_nan_stats}, [self._concentration, self._rate], name,
        )  # fmt: skip

    @property
    def concentration(self) -> Tensor:
        return self._concentration

    @property
    def rate(self) -> Tensor:
        return self._rate

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return 1.0 / random_gamma(reshape(n, [1]), self._concentration, self._rate, self.dtype, seed)

    def _log_prob(self, x: Any) -> Tensor:
        norm = lgamma(self._concentration) - self._concentration * log(self._rate)
        return -(1.0 + self._concentration) * log(x) - self._rate / x - norm

    def _cdf(self, x: Any) -> Tensor:
        return igammac(self._concentration, self._rate / x)

    def _entropy(self) -> Tensor:
        alpha = self._concentration
        return alpha + log(self._rate) + lgamma(alpha) - (1.0 + alpha) * digamma(alpha)

    def _mean(self) -> Tensor:
        found = self._rate / (self._concentration - 1.0)
        message = "mean undefined when any concentration <= 1"
        return self._defined(found, greater(self._concentration, 1.0), message)

    def _variance(self) -> Tensor:
        alpha = self._concentration
        found = square(self._rate) / square(alpha - 1.0) / (alpha - 2.0)
        return self._defined(found, greater(alpha, 2.0), "variance undefined when any concentration <= 2")

    def _mode(self) -> Tensor:
        return self._rate / (1.0 + self._concentration)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return [assert_positive(value)]


class InverseGammaWithSoftplusConcentrationRate(InverseGamma):
    """`InverseGamma` with the softplus of its arguments."""

    def __init__(
        self,
        concentration: Any,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "InverseGammaWithSoftplusConcentrationRate",
    ) -> None:
        super().__init__(softplus(concentration), softplus(rate), validate_args, allow_nan_stats, name)
        self._parameters |= {"concentration": concentration, "rate": rate}


class Beta(Distribution):
    """The beta distribution with density ``x ** (concentration1 - 1) * (1 - x) ** (concentration0 - 1)`` over
    its integral. Both concentrations are 1 by default.
    """

    def __init__(
        self,
        concentration1: Any = None,
        concentration0: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Beta",
    ) -> None:
        given = {"concentration1": concentration1, "concentration0": concentration0}
        one, zero = floats(**{name: 1.0 if value is None else value for name, value in given.items()})
        self._one = checked(one, validate_args, assert_positive)
        self._zero = checked(zero, validate_args, assert_positive)
        super().__init__(
            self._one.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {**given, "validate_args": validate_args, "allow_nan_stats": allow_nan_stats},
            [self._one, self._zero], name,
        )  # fmt: skip

    @property
    def concentration1(self) -> Tensor:
        return self._one

    @property
    def concentration0(self) -> Tensor:
        return self._zero

    @property
    def total_concentration(self) -> Tensor:
        return self._one + self._zero

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        wide = ones_like(self.total_concentration)
        first = random_gamma(reshape(n, [1]), self._one * wide, None, self.dtype, seed)
        second = random_gamma(
            reshape(n, [1]), self._zero * wide, None, self.dtype, None if seed is None else seed + 1
        )
        return first / (first + second)

    def _log_norm(self) -> Tensor:
        return lgamma(self._one) + lgamma(self._zero) - lgamma(self.total_concentration)

    def _log_prob(self, x: Any) -> Tensor:
        return xlogy(self._one - 1.0, x) + (self._zero - 1.0) * log1p(-x) - self._log_norm()

    def _cdf(self, x: Any) -> Tensor:
        return betainc(self._one, self._zero, x)

    def _entropy(self) -> Tensor:
        one, zero, total = self._one, self._zero, self.total_concentration
        return (
            self._log_norm()
            - (one - 1.0) * digamma(one)
            - (zero - 1.0) * digamma(zero)
            + (total - 2.0) * digamma(total)
        )

    def _mean(self) -> Tensor:
        return self._one / self.total_concentration

    def _variance(self) -> Tensor:
        total = self.total_concentration
        return self._one * self._zero / (square(total) * (total + 1.0))

    def _mode(self) -> Tensor:
        found = (self._one - 1.0) / (self.total_concentration - 2.0)
        inside = logical_and(greater(self._one, 1.0), greater(self._zero, 1.0))
        return self._defined(found, inside, "Mode undefined for concentration1 <= 1 or concentration0 <= 1.")

    def _conditions(self, value: Tensor) -> list[Operation]:
        below = assert_less(value, 1.0, message="sample must be less than `1`.")
        return [assert_positive(value, message="sample must be positive"), below]


class BetaWithSoftplusConcentration(Beta):
    """`Beta` with the softplus of its arguments."""

    def __init__(
        self,
        concentration1: Any,
        concentration0: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "BetaWithSoftplusConcentration",
    ) -> None:
        super().__init__(
            softplus(concentration1), softplus(concentration0), validate_args, allow_nan_stats, name
        )
        self._parameters |= {"concentration1": concentration1, "concentration0": concentration0}


@RegisterKL(Beta, Beta)
def _kl_beta(a: Beta, b: Beta, name: str | None = None) -> Tensor:
    pairs = [
        (a.concentration1, b.concentration1, 1.0),
        (a.concentration0, b.concentration0, 1.0),
        (a.total_concentration, b.total_concentration, -1.0),
    ]
    found = b._log_norm() - a._log_norm()
    for first, second, sign in pairs:
        found = found - sign * digamma(first) * (second - first)
    return found


class Dirichlet(Distribution):
    """The Dirichlet distribution of shares that add up to 1; ``concentration`` is ``[..., k]``."""

    def __init__(
        self,
        concentration: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Dirichlet",
    ) -> None:
        (alpha,) = floats(concentration=concentration)
        self._concentration = checked(alpha, validate_args, assert_positive)
        super().__init__(
            alpha.dtype, FULLY_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "concentration": concentration, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._concentration], name,
        )  # fmt: skip

    @property
    def concentration(self) -> Tensor:
        return self._concentration

    @property
    def total_concentration(self) -> Tensor:
        return reduce_sum(self._concentration, -1)

    def _batch_shape(self) -> TensorShape:
        return self._concentration.shape[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return shape(self._concentration)[:-1]

    def _event_shape(self) -> TensorShape:
        return self._concentration.shape[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return shape(self._concentration)[-1:]

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        drawn = random_gamma(reshape(n, [1]), self._concentration, None, self.dtype, seed)
        return drawn / reduce_sum(drawn, -1, keepdims=True)

    def _log_prob(self, x: Any) -> Tensor:
        return reduce_sum(xlogy(self._concentration - 1.0, x), -1) - lbeta(self._concentration)

    def _entropy(self) -> Tensor:
        alpha, total = self._concentration, self.total_concentration
        rest = reduce_sum((alpha - 1.0) * digamma(alpha), -1)
        return lbeta(alpha) + reduce_sum(alpha - 1.0, -1) * digamma(total) - rest

    def _mean(self) -> Tensor:
        return self._concentration / expand_dims(self.total_concentration, -1)

    def _variance(self) -> Tensor:
        mean = self._mean()
        return mean * (1.0 - mean) / (1.0 + expand_dims(self.total_concentration, -1))

    def _covariance(self) -> Tensor:
        mean, total = self._mean(), expand_dims(expand_dims(self.total_concentration, -1), -1)
        both = expand_dims(mean, -1) * expand_dims(mean, -2)
        return (matrix_diag(mean) - both) / (1.0 + total)

    def _mode(self) -> Tensor:
        rest = self._concentration - 1.0
        found = rest / reduce_sum(rest, -1, keepdims=True)
        inside = reduce_all(greater(self._concentration, 1.0), -1, keepdims=True)
        return self._defined(found, inside, "Mode undefined for dirichlet concentration <= 1.")

    def _conditions(self, value: Tensor) -> list[Operation]:
        whole = assert_near(reduce_sum(value, -1), 1.0, message="sample last-dimension must sum to `1`")
        return [assert_positive(value, message="samples must be positive"), whole]


@RegisterKL(Dirichlet, Dirichlet)
def _kl_dirichlet(a: Dirichlet, b: Dirichlet, name: str | None = None) -> Tensor:
    digammas = digamma(a.concentration) - expand_dims(digamma(a.total_concentration), -1)
    difference = reduce_sum((a.concentration - b.concentration) * digammas, -1)
    return difference - lbeta(a.concentration) + lbeta(b.concentration)
