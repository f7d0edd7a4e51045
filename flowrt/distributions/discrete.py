"""Distributions of integers and classes: `Bernoulli`, `Categorical`, `OneHotCategorical`, `Multinomial`,
`DirichletMultinomial`, `Deterministic`.

Those of classes are given by ``logits`` or by ``probs`` ``[..., classes]``: exactly one of the two.
"""

from __future__ import annotations

import functools
from typing import Any

from flowrt.distributions.distribution import (
    NOT_REPARAMETERIZED,
    Distribution,
    checked,
    counts_assertions,
    floats,
)
from flowrt.distributions.kullback_leibler import RegisterKL
from flowrt.distributions.positive import Dirichlet
from flowrt.distributions.special import lbeta
from flowrt.dtypes import float32, int32
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import one_hot, sequence_mask
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.base.filling import broadcast_dynamic_shape, broadcast_to, zeros_like
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.comparison import equal, greater, less, where_v2
from flowrt.graph.ops.elementwise.math import log, log1p, sigmoid
from flowrt.graph.ops.elementwise.special import lgamma
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag
from flowrt.graph.ops.nn.activations import softplus
from flowrt.graph.ops.nn.losses import sigmoid_cross_entropy_with_logits
from flowrt.graph.ops.nn.softmax import log_softmax, softmax
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import multinomial
from flowrt.graph.ops.text.assertions import assert_equal, assert_less_equal, assert_near, assert_non_negative
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse


def chances(kind: Distribution, logits: Any, probs: Any, validate: bool) -> tuple[Tensor, Tensor]:
    """The logits and the probabilities of an event, one of which is given."""
    is_logits, given = one_of(kind, logits=logits, probs=probs)
    if is_logits:
        return given, sigmoid(given)
    at_most_1 = functools.partial(assert_less_equal, y=1.0, message="probs has components greater than 1.")
    known = checked(given, validate, assert_non_negative, at_most_1)
    return log(known) - log1p(-known), known


def class_chances(kind: Distribution, logits: Any, probs: Any, validate: bool) -> tuple[Tensor, Tensor]:
    """The logits and the probabilities of classes, ``[..., classes]``, one of which is given."""
    is_logits, given = one_of(kind, logits=logits, probs=probs)
    if is_logits:
        return given, softmax(given)
    known = checked(given, validate, assert_non_negative, lambda p: assert_near(
        reduce_sum(p, -1), 1.0, message="probs does not sum to 1."
    ))  # fmt: skip
    return log(known), known


def one_of(kind: Distribution, **given: Any) -> tuple[bool, Tensor]:
    """A pair: whether the first of two arguments is given, and the one that is.

    Raises `InvalidArgumentError` unless it is exactly one.
    """
    known = {name: value for name, value in given.items() if value is not None}
    if len(known) != 1:
        raise misuse(f"{type(kind).__name__}: expected {' or '.join(given)}; got {len(known)} of them")
    return next(iter(known)) == next(iter(given)), floats(**known)[0]


class Bernoulli(Distribution):
    """0 or 1, with the probability ``probs``, or ``sigmoid(logits)``, of 1."""

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Bernoulli",
    ) -> None:
        self._logits, self._probs = chances(self, logits, probs, validate_args)
        super().__init__(
            dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "logits": logits, "probs": probs, "dtype": dtype, "validate_args": validate_args,
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
        drawn = random_uniform(self._rows(n), dtype=self._probs.dtype, seed=seed)
        return cast(less(drawn, self._probs), self.dtype)

    def _log_prob(self, event: Any) -> Tensor:
        both = broadcast_dynamic_shape(shape(event), shape(self._logits))
        labels = broadcast_to(cast(event, self._logits.dtype), both)
        return -sigmoid_cross_entropy_with_logits(labels=labels, logits=broadcast_to(self._logits, both))

    def _entropy(self) -> Tensor:
        return -self._logits * (sigmoid(self._logits) - 1.0) + softplus(-self._logits)

    def _mean(self) -> Tensor:
        return self._probs + 0

    def _variance(self) -> Tensor:
        return self._probs * (1.0 - self._probs)

    def _mode(self) -> Tensor:
        return cast(greater(self._probs, 0.5), self.dtype)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return [assert_non_negative(value), assert_less_equal(value, 1)]


@RegisterKL(Bernoulli, Bernoulli)
def _kl_bernoulli(a: Bernoulli, b: Bernoulli, name: str | None = None) -> Tensor:
    zeros = softplus(-b.logits) - softplus(-a.logits)
    ones = softplus(b.logits) - softplus(a.logits)
    return sigmoid(a.logits) * zeros + sigmoid(-a.logits) * ones


class _Classes(Distribution):
    """Base of the distributions over classes, the last axis of ``logits``."""

    def __init__(
        self,
        logits: Any,
        probs: Any,
        dtype: Any,
        validate_args: bool,
        allow_nan_stats: bool,
        name: str,
        **more: Any,
    ) -> None:
        self._logits, self._probs = class_chances(self, logits, probs, validate_args)
        super().__init__(
            dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "logits": logits, "probs": probs, "dtype": dtype, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats, **more,
            },
            [self._logits], name,
        )  # fmt: skip

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

    def _classes(self, n: Any, seed: int | None) -> Tensor:
        """``n`` classes for each element of the batch, ``[n, ...]``."""
        rows = reshape(self._logits, [-1, self.event_size])
        drawn = transpose(multinomial(rows, n, seed))
        return reshape(drawn, concat([reshape(n, [1]), self.batch_shape_tensor()], 0))


def _entropy_of(kind: _Classes) -> Tensor:
    return -reduce_sum(log_softmax(kind.logits) * softmax(kind.logits), -1)


class Categorical(_Classes):
    """A class, an integer from 0 on.

    Categorical(logits=[[0.0, 1.0]]).sample(5)  # [5, 1]
    """

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Categorical",
    ) -> None:
        super().__init__(logits, probs, dtype, validate_args, allow_nan_stats, name)

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return cast(self._classes(n, seed), self.dtype)

    def _log_prob(self, k: Any) -> Tensor:
        known = _known_class(cast(k, int32), self.event_size)
        chosen = one_hot(known, self.event_size, dtype=self._logits.dtype)
        return reduce_sum(where_v2(greater(chosen, 0.5), log_softmax(self._logits) + 0 * chosen, 0), -1)

    def _cdf(self, k: Any) -> Tensor:
        """The probability of the classes before ``k``, as TensorFlow 1 has it."""
        before = sequence_mask(cast(k, int32), self.event_size)
        return reduce_sum(where_v2(before, self._probs, zeros_like(self._probs)), -1)

    _entropy = _entropy_of

    def _mode(self) -> Tensor:
        return cast(argmax(self._logits, -1), self.dtype)


def _covariance_of_shares(shares: Tensor) -> Tensor:
    """The covariance of one draw of a class as a vector with 1 at it, with the probabilities ``shares``."""
    return matrix_diag(shares) - expand_dims(shares, -1) * expand_dims(shares, -2)


def _known_class(k: Tensor, size: Tensor) -> Tensor:
    """``k``; a step fails where one of them is none of ``size`` classes."""
    return gather(range_(size), k)


class OneHotCategorical(_Classes):
    """A class as a vector with 1 at it."""

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "OneHotCategorical",
    ) -> None:
        super().__init__(logits, probs, dtype, validate_args, allow_nan_stats, name)

    def _event_shape(self) -> TensorShape:
        return self._logits.shape[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return shape(self._logits)[-1:]

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return one_hot(self._classes(n, seed), self.event_size, dtype=self.dtype)

    def _log_prob(self, x: Any) -> Tensor:
        chosen = stop_gradient(cast(x, self._logits.dtype))  # as in TensorFlow, classes have no gradient
        return reduce_sum(where_v2(equal(chosen, 0), 0 * chosen, chosen * log_softmax(self._logits)), -1)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return [assert_non_negative(value), assert_equal(reduce_sum(value, -1), 1)]

    def _mean(self) -> Tensor:
        return self._probs + 0

    def _variance(self) -> Tensor:
        return self._probs * (1.0 - self._probs)

    def _covariance(self) -> Tensor:
        return _covariance_of_shares(self._probs)

    _entropy = _entropy_of

    def _mode(self) -> Tensor:
        return one_hot(argmax(self._logits, -1), self.event_size, dtype=self.dtype)


def _kl_classes(a: _Classes, b: _Classes, name: str | None = None) -> Tensor:
    return reduce_sum(softmax(a.logits) * (log_softmax(a.logits) - log_softmax(b.logits)), -1)


RegisterKL(Categorical, Categorical)(_kl_classes)
RegisterKL(OneHotCategorical, OneHotCategorical)(_kl_classes)


def _total_assertions(value: Tensor, total: Tensor) -> list[Operation]:
    """Assertions that values are counts of classes, ``total`` together."""
    message = "counts must sum to total_count"
    return [*counts_assertions(value), assert_equal(reduce_sum(value, -1), total, message=message)]


class Multinomial(_Classes):
    """Counts of each class in ``total_count`` draws."""

    def __init__(
        self,
        total_count: Any,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Multinomial",
    ) -> None:
        dtype = floats(given=probs if logits is None else logits)[0].dtype
        super().__init__(logits, probs, dtype, validate_args, allow_nan_stats, name, total_count=total_count)
        del self._parameters["dtype"]
        self._total = checked(convert_to_tensor(total_count, dtype), validate_args, assert_non_negative)

    @property
    def total_count(self) -> Tensor:
        return self._total

    def _event_shape(self) -> TensorShape:
        return self._logits.shape[-1:]

    def _event_shape_tensor(self) -> Tensor:
        return shape(self._logits)[-1:]

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        most = cast(reduce_max(self._total), int32)
        drawn = one_hot(self._classes(n * most, seed), self.event_size, dtype=self.dtype)
        drawn = reshape(drawn, concat([[n, most], shape(drawn)[1:]], 0))  # [n, draws, ..., classes]
        counted = sequence_mask(cast(self._total, int32), most, self.dtype)  # [..., draws]
        rank = counted.shape.ndims or 1
        counted = transpose(counted, [rank - 1, *range(rank - 1)])
        return reduce_sum(drawn * expand_dims(counted, -1) if rank > 1 else drawn, 1)

    def _log_prob(self, counts: Any) -> Tensor:
        weights = reduce_sum(counts * log_softmax(self._logits), -1)
        ways = lgamma(self._total + 1.0) - reduce_sum(lgamma(counts + 1.0), -1)
        return weights + ways

    def _conditions(self, value: Tensor) -> list[Operation]:
        return _total_assertions(value, self._total)

    def _mean(self) -> Tensor:
        return self._probs * expand_dims(self._total, -1)

    def _variance(self) -> Tensor:
        return self._mean() * (1.0 - self._probs)

    def _covariance(self) -> Tensor:
        return _covariance_of_shares(self._probs) * expand_dims(expand_dims(self._total, -1), -1)


class DirichletMultinomial(Distribution):
    """Counts of each class in ``total_count`` draws, with probabilities that a `Dirichlet` of
    ``concentration`` ``[..., k]`` draws.
    """

    def __init__(
        self,
        total_count: Any,
        concentration: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "DirichletMultinomial",
    ) -> None:
        self._shares = Dirichlet(concentration, validate_args, allow_nan_stats)
        alpha = self._shares.concentration
        self._total = checked(convert_to_tensor(total_count, alpha.dtype), validate_args, assert_non_negative)
        super().__init__(
            alpha.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "total_count": total_count, "concentration": concentration, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._total, alpha], name,
        )  # fmt: skip

    @property
    def total_count(self) -> Tensor:
        return self._total

    @property
    def concentration(self) -> Tensor:
        return self._shares.concentration

    @property
    def total_concentration(self) -> Tensor:
        return self._shares.total_concentration

    def _batch_shape(self) -> TensorShape:
        return self._shares.batch_shape

    def _batch_shape_tensor(self) -> Tensor:
        return self._shares.batch_shape_tensor()

    def _event_shape(self) -> TensorShape:
        return self._shares.event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._shares.event_shape_tensor()

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        shares = self._shares.sample(n, seed)
        totals = self._total + zeros_like(reduce_sum(shares, -1))
        return Multinomial(totals, probs=shares).sample(seed=None if seed is None else seed + 1)

    def _log_prob(self, counts: Any) -> Tensor:
        ways = lgamma(self._total + 1.0) - reduce_sum(lgamma(counts + 1.0), -1)
        return ways + lbeta(self.concentration + counts) - lbeta(self.concentration)

    def _conditions(self, value: Tensor) -> list[Operation]:
        return _total_assertions(value, self._total)

    def _mean(self) -> Tensor:
        return self._shares.mean() * expand_dims(self._total, -1)

    def _spread(self) -> Tensor:
        """The variance over that of a `Multinomial`."""
        return (self._total + self.total_concentration) / (1.0 + self.total_concentration)

    def _variance(self) -> Tensor:
        mean = self._shares.mean()
        return mean * (1.0 - mean) * expand_dims(self._total * self._spread(), -1)

    def _covariance(self) -> Tensor:
        scale = expand_dims(expand_dims(self._total * self._spread(), -1), -1)
        return _covariance_of_shares(self._shares.mean()) * scale


class Deterministic(Distribution):
    """The value ``loc`` and no other."""

    def __init__(
        self,
        loc: Any,
        atol: Any = None,
        rtol: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Deterministic",
    ) -> None:
        self._loc = convert_to_tensor(loc)
        self._atol, self._rtol = atol or 0, rtol or 0
        super().__init__(
            self._loc.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "loc": loc, "atol": atol, "rtol": rtol, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            [self._loc], name,
        )  # fmt: skip

    @property
    def loc(self) -> Tensor:
        return self._loc

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return broadcast_to(self._loc, self._rows(n))

    def _prob(self, x: Any) -> Tensor:
        slack = self._atol + self._rtol * abs(self._loc)
        kind = self.dtype if self.dtype.is_floating else float32
        return cast(abs(x - self._loc) <= slack, kind)

    def _cdf(self, x: Any) -> Tensor:
        kind = self.dtype if self.dtype.is_floating else float32
        return cast(x >= self._loc - self._atol - self._rtol * abs(self._loc), kind)

    def _entropy(self) -> Tensor:
        return zeros_like(self._loc)

    def _mean(self) -> Tensor:
        return self._loc + 0

    _mode = _mean

    def _variance(self) -> Tensor:
        return zeros_like(self._loc)
