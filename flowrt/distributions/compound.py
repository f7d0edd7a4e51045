"""Distributions made of others: `Mixture`, `MixtureSameFamily`, `Independent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.distributions.discrete import Categorical
from flowrt.distributions.distribution import NOT_REPARAMETERIZED, Distribution
from flowrt.distributions.kullback_leibler import RegisterKL, kl_divergence
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.ranges import one_hot
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.statistics import reduce_logsumexp
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.elementwise.math import square
from flowrt.graph.ops.nn.softmax import log_softmax, softmax
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse


def _over_values(weights: Tensor, event_rank: int) -> Tensor:
    """``weights`` with an axis of length 1 for each axis of a value."""
    for _ in range(event_rank):
        weights = expand_dims(weights, -1)
    return weights


class Mixture(Distribution):
    """A value of ``components[i]``, where i is of ``cat``; all have one batch shape and one dtype.

    Raises `InvalidArgumentError` for another number of components than classes.
    """

    def __init__(
        self,
        cat: Categorical,
        components: Sequence[Distribution],
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        use_static_graph: bool = False,
        name: str = "Mixture",
    ) -> None:
        classes = cat.logits.shape.as_list()[-1]
        if not components or classes not in (None, len(components)):
            raise misuse(f"Mixture: expected {classes} components, one for each class; got {len(components)}")
        self._cat, self._components = cat, list(components)
        super().__init__(
            components[0].dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "cat": cat, "components": components, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats, "use_static_graph": use_static_graph,
            },
            (), name,
        )  # fmt: skip

    @property
    def cat(self) -> Categorical:
        return self._cat

    @property
    def components(self) -> list[Distribution]:
        return self._components

    @property
    def num_components(self) -> int:
        return len(self._components)

    def _batch_shape(self) -> TensorShape:
        return self._cat.batch_shape

    def _batch_shape_tensor(self) -> Tensor:
        return self._cat.batch_shape_tensor()

    def _event_shape(self) -> TensorShape:
        return self._components[0].event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._components[0].event_shape_tensor()

    def _weighted(self, values: Sequence[Tensor], weights: Tensor, event_rank: int) -> Tensor:
        """The sum of ``values`` along a new last axis of classes, times ``weights`` [..., classes]."""
        parts = [value * _over_values(weights[..., i], event_rank) for i, value in enumerate(values)]
        return sum(parts[1:], parts[0])

    def _event_rank(self) -> int:
        return self.event_shape.ndims or 0

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        chosen = one_hot(self._cat.sample(n, seed), self.num_components, dtype=self.dtype)
        drawn = [
            part.sample(n, None if seed is None else seed + 1 + i) for i, part in enumerate(self._components)
        ]
        return self._weighted(drawn, chosen, self._event_rank())

    def _log_prob(self, x: Any) -> Tensor:
        weights = log_softmax(self._cat.logits)
        each = [part.log_prob(x) + weights[..., i] for i, part in enumerate(self._components)]
        return reduce_logsumexp(stack(each, -1), -1)

    def _cdf(self, x: Any) -> Tensor:
        return self._weighted([part.cdf(x) for part in self._components], softmax(self._cat.logits), 0)

    def _mean(self) -> Tensor:
        means = [part.mean() for part in self._components]
        return self._weighted(means, softmax(self._cat.logits), self._event_rank())

    def _variance(self) -> Tensor:
        squares = [part.variance() + square(part.mean()) for part in self._components]
        total = self._weighted(squares, softmax(self._cat.logits), self._event_rank())
        return total - square(self._mean())

    def entropy_lower_bound(self, name: str = "entropy_lower_bound") -> Tensor:
        """The mean of the components' entropies."""
        return self._weighted([part.entropy() for part in self._components], softmax(self._cat.logits), 0)


class MixtureSameFamily(Distribution):
    """A value of the i-th distribution along the last axis of the batch of ``components_distribution``, where
    i is of ``mixture_distribution``, a `Categorical`.
    """

    def __init__(
        self,
        mixture_distribution: Categorical,
        components_distribution: Distribution,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MixtureSameFamily",
    ) -> None:
        self._cat, self._parts = mixture_distribution, components_distribution
        super().__init__(
            components_distribution.dtype, NOT_REPARAMETERIZED, validate_args, allow_nan_stats,
            {
                "mixture_distribution": mixture_distribution,
                "components_distribution": components_distribution, "validate_args": validate_args,
                "allow_nan_stats": allow_nan_stats,
            },
            (), name,
        )  # fmt: skip

    @property
    def mixture_distribution(self) -> Categorical:
        return self._cat

    @property
    def components_distribution(self) -> Distribution:
        return self._parts

    def _batch_shape(self) -> TensorShape:
        return self._parts.batch_shape[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return self._parts.batch_shape_tensor()[:-1]

    def _event_shape(self) -> TensorShape:
        return self._parts.event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._parts.event_shape_tensor()

    def _mixed(self, values: Tensor, weights: Tensor) -> Tensor:
        rank = self.event_shape.ndims or 0
        return reduce_sum(values * _over_values(weights, rank), -1 - rank)

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        drawn = self._parts.sample(n, seed)
        # a class for each distribution of the batch; the mixture's own batch may be smaller
        wide = Categorical(
            logits=self._cat.logits + 0 * ones_like(cast(self._batch_ones(), self._cat.logits.dtype))
        )
        classes = wide.sample(n, None if seed is None else seed + 1)
        chosen = one_hot(classes, shape(self._cat.logits)[-1], dtype=self.dtype)
        return self._mixed(drawn, chosen)

    def _batch_ones(self) -> Tensor:
        sample = self._parts.mean()
        rank = self.event_shape.ndims or 0
        return reduce_sum(ones_like(sample), list(range(-rank, 0))) if rank else ones_like(sample)

    def _log_prob(self, x: Any) -> Tensor:
        rank = self.event_shape.ndims or 0
        each = self._parts.log_prob(expand_dims(x, -1 - rank))
        return reduce_logsumexp(each + log_softmax(self._cat.logits), -1)

    def _cdf(self, x: Any) -> Tensor:
        rank = self.event_shape.ndims or 0
        return reduce_sum(self._parts.cdf(expand_dims(x, -1 - rank)) * softmax(self._cat.logits), -1)

    def _mean(self) -> Tensor:
        return self._mixed(self._parts.mean(), softmax(self._cat.logits))

    def _variance(self) -> Tensor:
        squares = self._parts.variance() + square(self._parts.mean())
        return self._mixed(squares, softmax(self._cat.logits)) - square(self._mean())

    def _covariance(self) -> Tensor:
        """The mean of the components' covariances, and the covariance of their means: only of vectors."""
        apart = self._parts.mean() - expand_dims(self._mean(), -2)
        each = self._parts.covariance() + expand_dims(apart, -1) * expand_dims(apart, -2)
        return reduce_sum(each * _over_values(softmax(self._cat.logits), 2), -3)


class Independent(Distribution):
    """``distribution`` with its last ``reinterpreted_batch_ndims`` axes of the batch as axes of a value: by
    default all but the first.
    """

    def __init__(
        self,
        distribution: Distribution,
        reinterpreted_batch_ndims: int | None = None,
        validate_args: bool = False,
        name: str | None = None,
    ) -> None:
        count = reinterpreted_batch_ndims
        if count is None:
            count = max(0, (distribution.batch_shape.ndims or 0) - 1)
        self._inner, self._count = distribution, int(count)
        super().__init__(
            distribution.dtype, distribution.reparameterization_type, validate_args,
            distribution.allow_nan_stats,
            {
                "distribution": distribution, "reinterpreted_batch_ndims": count,
                "validate_args": validate_args,
            },
            (), name,
        )  # fmt: skip

    @property
    def distribution(self) -> Distribution:
        return self._inner

    @property
    def reinterpreted_batch_ndims(self) -> int:
        return self._count

    def _batch_shape(self) -> TensorShape:
        known = self._inner.batch_shape
        return known[: (known.ndims or 0) - self._count] if known.ndims is not None else known

    def _event_shape(self) -> TensorShape:
        known = self._inner.batch_shape
        own = known[(known.ndims or 0) - self._count :] if known.ndims is not None else known
        return own.concatenate(self._inner.event_shape)

    def _batch_shape_tensor(self) -> Tensor:
        sizes = self._inner.batch_shape_tensor()
        return sizes[: shape(sizes)[0] - self._count]

    def _event_shape_tensor(self) -> Tensor:
        sizes = self._inner.batch_shape_tensor()
        return concat([sizes[shape(sizes)[0] - self._count :], self._inner.event_shape_tensor()], 0)

    def _summed(self, values: Tensor) -> Tensor:
        return reduce_sum(values, list(range(-self._count, 0))) if self._count else values

    def _sample_n(self, n: Any, seed: int | None) -> Tensor:
        return self._inner.sample(n, seed)

    def _log_prob(self, x: Any) -> Tensor:
        return self._summed(self._inner.log_prob(x))

    def _entropy(self) -> Tensor:
        return self._summed(self._inner.entropy())

    def _mean(self) -> Tensor:
        return self._inner.mean()

    def _variance(self) -> Tensor:
        return self._inner.variance()

    def _stddev(self) -> Tensor:
        return self._inner.stddev()

    def _mode(self) -> Tensor:
        return self._inner.mode()


@RegisterKL(Independent, Independent)
def _kl_independent(a: Independent, b: Independent, name: str | None = None) -> Tensor:
    return a._summed(kl_divergence(a.distribution, b.distribution))
