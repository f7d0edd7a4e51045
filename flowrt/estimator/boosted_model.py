"""The graph of boosted trees: variables of trees, what they say of a batch, and steps that grow them.

Training first looks at batches of numbers to find their buckets, then moves the bias on request, then grows a
layer for each batch, or for each ``batches`` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrt.control_flow.branches import cond
from flowrt.errors import InvalidArgumentError
from flowrt.estimator.boosted_features import BoostedFeatures
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.reductions import reduce_mean
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.ops.trees.boosted_trees import (
    boosted_trees_center_bias,
    boosted_trees_grow_layer,
    boosted_trees_layer_statistics,
    boosted_trees_training_logits,
)
from flowrt.graph.ops.trees.quantile_buckets import (
    quantile_buckets,
    quantile_streams_add,
    quantile_streams_op,
    quantile_streams_take,
)
from flowrt.graph.source import misuse
from flowrt.graph.trees.boosting import EMPTY, PRUNING_MODES, Ensemble
from flowrt.summary import scalar
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.variables.graph_scopes import control_dependencies
from flowrt.variables.variable import GraphKeys, Variable


class Growth(NamedTuple):
    """The arguments of the estimators that say how trees grow."""

    n_trees: int
    max_depth: int
    learning_rate: float
    l1: float
    l2: float
    tree_complexity: float
    min_node_weight: float
    center_bias: bool
    pruning_mode: str
    quantile_sketch_epsilon: float

    def check(self) -> None:
        """Raise `InvalidArgumentError` for what cannot be."""
        if self.pruning_mode not in PRUNING_MODES:
            raise misuse(
                f"pruning_mode: expected one of {', '.join(PRUNING_MODES)}; got {self.pruning_mode!r}",
                InvalidArgumentError,
            )
        if (self.pruning_mode == "none") != (self.tree_complexity <= 0):
            raise misuse(
                "tree_complexity: expected more than 0 with pruning, and 0 without; got "
                f"{self.tree_complexity} with pruning_mode={self.pruning_mode!r}",
                InvalidArgumentError,
            )
        if self.n_trees < 1 or self.max_depth < 1 or not 0 < self.quantile_sketch_epsilon < 1:
            raise misuse(
                "expected n_trees and max_depth from 1 on, and quantile_sketch_epsilon between 0 and 1; got "
                f"{self.n_trees}, {self.max_depth}, {self.quantile_sketch_epsilon}",
                InvalidArgumentError,
            )

    @property
    def num_quantiles(self) -> int:
        """About how many buckets a column of numbers has."""
        return int(1 / self.quantile_sketch_epsilon)


def _kept(value: Any, name: str) -> Variable:
    """A variable of any shape, which checkpoints have."""
    return Variable(value, trainable=False, validate_shape=False, name=name)


def _passing(value: Any, name: str) -> Variable:
    """A variable of any shape, which begins anew in each session."""
    local = [GraphKeys.LOCAL_VARIABLES]
    return Variable(value, trainable=False, validate_shape=False, collections=local, name=name)


def _set(variables: Iterable[Variable], values: Iterable[Any]) -> Operation:
    return group(*[each.assign(value).op for each, value in zip(variables, values, strict=True)])


class BoostedModel:
    """The variables of trees and of the boundaries of buckets."""

    def __init__(self, columns: BoostedFeatures) -> None:
        self.columns = columns
        self.trees = [_kept(value, name) for name, value in EMPTY._asdict().items()]
        self.boundaries = _kept(np.zeros((0, 0), np.float32), "bucket_boundaries")

    def ensemble(self) -> Ensemble:
        """The trees as tensors."""
        return Ensemble(*[variable.value() for variable in self.trees])

    def buckets(self, features: Mapping[str, Any]) -> Tensor:
        """The buckets of a batch, int32, [examples, features]."""
        numbers = self.columns.numbers(features)
        found = None if numbers is None else quantile_buckets(numbers, self.boundaries)
        return self.columns.buckets(features, found)


class _Batches:
    """Counts steps, to do something in one of ``batches``."""

    def __init__(self, batches: int, name: str) -> None:
        self._batches, self._name = batches, name
        if batches > 1:
            self._count = _passing(0, f"{name}_batches")

    def last(self, use: Callable[[], Any]) -> Any:
        """``use()`` in the last of the steps."""
        if self._batches <= 1:
            return use()
        count = self._count.value()
        return cond(
            count + 1 >= self._batches,
            lambda: group(self._count.assign(0).op, use()),
            lambda: group(self._count.assign(count + 1).op),
        )

    def last_with_mean(self, value: Tensor, use: Callable[[Tensor], Any]) -> Any:
        """``use`` of the mean of ``value`` over the steps, in the last of them."""
        if self._batches <= 1:
            return use(value)
        total = self._total
        added = cond(equal(self._count, 0), lambda: value, lambda: total + value)
        with control_dependencies([total.assign(added).op]):
            return self.last(lambda: use(added / float(self._batches)))

    @property
    def _total(self) -> Variable:
        return _passing(np.zeros(0, np.float32), f"{self._name}_total")


class _Cache:
    """The buckets of the one batch that all steps have, and what finished trees say of it."""

    def __init__(self) -> None:
        self._buckets = _passing(np.zeros((0, 0), np.int32), "cached_buckets")
        self._finished = _passing(np.zeros(0, np.float32), "cached_logits")
        self._trees = _passing(0, "cached_trees")

    def buckets(self, made: Callable[[], Tensor]) -> Tensor:
        return cond(shape(self._buckets)[0] > 0, self._buckets.value, made)

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        return self._finished.value(), self._trees.value()

    def keep(self, buckets: Tensor, finished: Tensor, trees: Tensor) -> Operation:
        return _set((self._buckets, self._finished, self._trees), (buckets, finished, trees))


class BoostedTraining:
    """The training of ``model`` by the batch ``features``. With ``in_memory`` all steps have the same one."""

    def __init__(
        self, model: BoostedModel, features: Mapping[str, Any], growth: Growth, batches: int, in_memory: bool
    ) -> None:
        self._model, self._growth = model, growth
        self._numbers = model.columns.numbers(features)
        self._trees = model.ensemble()
        self._are_buckets_known = _kept(self._numbers is None, "are_boundaries_ready")
        self._needs_bias = _kept(growth.center_bias, "center_bias_needed")
        self._batches = {name: _Batches(batches, name) for name in ("quantiles", "bias", "layer")}
        self._cache = _Cache() if in_memory else None
        known: Any = (np.zeros(0, np.float32), 0)
        buckets = model.buckets(features)
        if self._cache is not None:
            known = self._cache.known
            buckets = self._cache.buckets(lambda: model.buckets(features))
        self._buckets = buckets
        self.logits, self._nodes, *self._finished = boosted_trees_training_logits(
            *self._trees, buckets, *known
        )
        trees = shape(self._trees.roots)[0]
        self.done = stack([maximum(trees - 1, 0), self._trees.progress[0]])
        """The numbers of finished trees and of attempted layers, before the step."""
        for name, value in (
            ("trees", trees),
            ("finalized_trees", self.done[0]),
            ("attempted_layers", self.done[1]),
        ):
            scalar(f"ensemble/num_{name}", value)

    def step(self, loss: Tensor, weights: Tensor) -> Operation:
        """The operation of one step; ``weights``, [examples] or [1], are those of numbers in buckets."""
        first = gradients(loss, self.logits)[0]
        second = gradients(first, self.logits)[0]
        if self._numbers is None:
            return self._grow(first, second)
        return cond(self._are_buckets_known, lambda: self._grow(first, second), lambda: self._look(weights))

    def _look(self, weights: Tensor) -> Any:
        """Look at numbers, and decide on boundaries after enough of them."""
        streams = quantile_streams_op(epsilon=self._growth.quantile_sketch_epsilon)
        added = quantile_streams_add(streams, self._numbers, weights)

        def decide() -> Operation:
            found = quantile_streams_take(streams, count=self._growth.num_quantiles)
            return _set((self._model.boundaries, self._are_buckets_known), (found, True))

        with control_dependencies([added]):
            return self._batches["quantiles"].last(decide)

    def _grow(self, first: Tensor, second: Tensor) -> Operation:
        def grow() -> Any:
            return self._layer(first, second)

        if self._growth.center_bias:
            layer = cond(self._needs_bias, lambda: self._bias(first, second), grow)
        else:
            layer = grow()
        kept = [] if self._cache is None else [self._cache.keep(self._buckets, *self._finished)]
        with control_dependencies([layer]):
            return group(*kept, get_or_create_global_step().assign_add(1).op)

    def _bias(self, first: Tensor, second: Tensor) -> Any:
        l1, l2 = self._growth.l1, self._growth.l2

        def move(means: Tensor) -> Operation:
            moved = boosted_trees_center_bias(*self._trees, means[0], means[1], l1=l1, l2=l2)
            return _set((*self._model.trees, self._needs_bias), moved)

        means = stack([reduce_mean(first), reduce_mean(second)])
        return self._batches["bias"].last_with_mean(means, move)

    def _layer(self, first: Tensor, second: Tensor) -> Any:
        growth = self._growth
        sizes = self._model.columns.sizes(growth.num_quantiles)
        statistics = boosted_trees_layer_statistics(
            self._buckets, self._nodes, first, second, self._trees.progress, sizes=sizes
        )

        def grow(means: Tensor) -> Operation:
            grown = boosted_trees_grow_layer(
                *self._trees, means, sizes=sizes, l1=growth.l1, l2=growth.l2,
                tree_complexity=growth.tree_complexity, min_node_weight=growth.min_node_weight,
                learning_rate=growth.learning_rate, max_depth=growth.max_depth,
                pruning_mode=growth.pruning_mode,
            )  # fmt: skip
            return _set(self._model.trees, grown)

        return self._batches["layer"].last_with_mean(statistics, grow)
