"""Distributions of counts: `Poisson`, `Geometric`, `Binomial`, `NegativeBinomial`. Counts are floats."""

from __future__ import annotations

from typing import Any

from flowrt.distributions.discrete import chances, one_of
from flowrt.distributions.distribution import (
    NOT_REPARAMETERIZED,
    Distribution,
    after,
    checked,
    counts_assertions,
)
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal, greater_equal, less, where_v2
from flowrt.graph.ops.elementwise.incomplete import betainc, igammac
from flowrt.graph.ops.elementwise.math import exp, expm1, floor, log, log1p, sigmoid
from flowrt.graph.ops.elementwise.special import lgamma
from flowrt.graph.ops.nn.activations import log_sigmoid, softplus
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import random_gamma, random_poisson
from flowrt.graph.ops.text.assertions import assert_less_equal, assert_positive


class Poisson(Distribution):
    """Counts of mean ``rate``, or ``exp(log_rate)``, as floats."""

    def __init__(
        self,
        rate: Any = None,
        log_rate: Any = None,
        interpolate_nondiscrete: bool = True,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Poisson",
    ) -> None:
        is_rate, given = one_of(self, rate=rate, log_rate=log_rate)
        if is_rate:
            given = checked(given, validate_args, assert_positive)
        self._rate = given if is_rate else exp(given)
        self._log_rate = log(given) if is_rate else given
        self._interpolates = interpolate_nondiscrete
        super().__init__(
            given.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "rate": rate, "log_rate": log_rate, "interpolate_nondiscrete": interpolate_nondiscrete,
                "validate_args": validate_args, "allow_nan_stats": allow_nan_stats,
            },
            [given], name,
        )  # fmt: skip

    @property
    def rate(self) -> Tensor:
        return self._rate

    @property
    def log_rate(self) -> Tensor:
        return self._log_rate

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return random_poisson(self._rate, reshape(n, [1]), self.dtype, seed)

    def _log_prob(self, x: Any) -> Tensor:
        found = x * self._log_rate - lgamma(1.0 + x) - self._rate
        if self._interpolates:
            return found
        return where_v2(equal(x, floor(x)), found, -float("inf"))

    def _cdf(self, x: Any) -> Tensor:
        return igammac(1.0 + (x if self._interpolates else floor(x)), self._rate)

    def _mean(self) -> Tensor:
        return self._rate + 0

    _variance = _mean

    def _mode(self) -> Tensor:
        return floor(self._rate)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return counts_assertions(value)


class Geometric(Distribution):
    """The number of failures before the first success of probability ``probs``, as a float."""

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Geometric",
    ) -> None:
        self._logits, known = chances(self, logits, probs, validate_args)
        self._probs = checked(known, validate_args, assert_positive)
        super().__init__(
            self._probs.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "logits": logits, "probs": probs, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._logits], name,
        )  # fmt: skip

    @property
    def logits(self) -> Tensor:
        return self._logits

    @property
    def probs(self) -> Tensor:
        return self._probs

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        tiny = float(self.dtype.np.type(1e-37))  # of which the logarithm is finite
        drawn = random_uniform(self._rows(n), tiny, 1.0, self.dtype, seed)
        return floor(log(drawn) / log1p(-self._probs))

    def _log_prob(self, counts: Any) -> Tensor:
        """The logarithm at the whole number that is next below ``counts``."""
        whole = floor(counts)
        chances = where_v2(equal(whole, 0), zeros_like(self._probs), self._probs)  # never 0 * log(0)
        return whole * log1p(-chances) + log(self._probs)

    def _cdf(self, counts: Any) -> Tensor:
        """The probability of the whole numbers up to ``counts``."""
        whole = where_v2(less(counts, 0), zeros_like(counts), floor(counts))
        share = -expm1((1.0 + whole) * log1p(-self._probs))
        return where_v2(less(counts, 0), zeros_like(share), share)

    def _entropy(self) -> Tensor:
        return (softplus(self._logits) - self._logits * self._probs) / self._probs

    def _mean(self) -> Tensor:
        return exp(-self._logits)

    def _variance(self) -> Tensor:
        return self._mean() / self._probs

    def _mode(self) -> Tensor:
        return zeros_like(self._probs)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return counts_assertions(value)


class Binomial(Distribution):
    """The number of successes in ``total_count`` trials, each of the probability ``probs``, or
    ``sigmoid(logits)``. As in TensorFlow 1 there are no samples.
    """

    def __init__(
        self,
        total_count: Any,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Binomial",
    ) -> None:
        self._logits, self._probs = chances(self, logits, probs, validate_args)
        total = convert_to_tensor(total_count, self._probs.dtype)
        self._total = after(counts_assertions(total), total) if validate_args else total
        super().__init__(
            self._probs.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "total_count": total_count, "logits": logits, "probs": probs, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._total, self._probs], name,
        )  # fmt: skip

    @property
    def total_count(self) -> Tensor:
        return self._total

    @property
    def logits(self) -> Tensor:
        return self._logits

    @property
    def probs(self) -> Tensor:
        return self._probs

    def _log_prob(self, counts: Tensor) -> Tensor:
        rest = self._total - counts
        ways = lgamma(1.0 + self._total) - lgamma(1.0 + rest) - lgamma(1.0 + counts)
        return counts * log(self._probs) + rest * log1p(-self._probs) + ways

    def _cdf(self, counts: Tensor) -> Tensor:
        """The incomplete beta function; 1 from ``total_count`` on, where it has no arguments."""
        whole = counts + zeros_like(self._probs)
        is_all = greater_equal(whole, self._total)
        failures = where_v2(is_all, ones_like(whole), self._total - whole)
        below = betainc(failures, whole + 1.0, 1.0 - self._probs)
        return where_v2(is_all, ones_like(below), below)

    def _mean(self) -> Tensor:
        return self._total * self._probs

    def _variance(self) -> Tensor:
        return self._mean() * (1.0 - self._probs)

    def _mode(self) -> Tensor:
        """The larger one of two."""
        return floor((1.0 + self._total) * self._probs)

    def _conditions(self, value: Tensor) -> list[Operation]:
        message = "counts are not less than or equal to n."
        return [*counts_assertions(value), assert_less_equal(value, self._total, message=message)]


class NegativeBinomial(Distribution):
    """The number of successes, each of the probability ``probs``, or ``sigmoid(logits)``, before failure
    number ``total_count``, which need not be whole.
    """

    def __init__(
        self,
        total_count: Any,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "NegativeBinomial",
    ) -> None:
        self._logits, self._probs = chances(self, logits, probs, validate_args)
        total = convert_to_tensor(total_count, self._probs.dtype)
        self._total = checked(total, validate_args, assert_positive)
        super().__init__(
            self._probs.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "total_count": total_count, "logits": logits, "probs": probs, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._total, self._probs], name,
        )  # fmt: skip

    @property
    def total_count(self) -> Tensor:
        return self._total

    @property
    def logits(self) -> Tensor:
        return self._logits

    @property
    def probs(self) -> Tensor:
        return self._probs

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        """Poisson numbers of rates that a gamma distribution draws."""
        rate = random_gamma(reshape(n, [1]), self._total, exp(-self._logits), self.dtype, seed)
        return random_poisson(rate, [], self.dtype, None if seed is None else seed + 1)

    def _log_prob(self, x: Tensor) -> Tensor:
        ways = lgamma(self._total + x) - lgamma(1.0 + x) - lgamma(self._total)
        return self._total * log_sigmoid(-self._logits) + x * log_sigmoid(self._logits) + ways

    def _cdf(self, x: Tensor) -> Tensor:
        return betainc(self._total, 1.0 + x, sigmoid(-self._logits))

    def _mean(self) -> Tensor:
        return self._total * exp(self._logits)

    def _variance(self) -> Tensor:
        return self._mean() / sigmoid(-self._logits)

    def _mode(self) -> Tensor:
        return floor(maximum(self._total - 1.0, 0.0) * exp(self._logits))

    def _conditions(self, value: Tensor) -> list[Operation]:
        return counts_assertions(value)
