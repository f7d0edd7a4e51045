"""Random forests: one operation trains all trees, one asks them. On the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Node
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    ShapeContext,
    define_handle,
    define_op,
    sample,
)
from flowrt.graph.ops.trees.on_host import on_host, to_device
from flowrt.graph.resources.variables import VariableResource, locks_of
from flowrt.graph.shapes import Shape
from flowrt.graph.trees.forest import ForestRules, Growth, RandomTree, leaves_of, probabilities_of


@final
class ForestGrowth:
    """The growth of all trees of a session: what their leaves have counted."""

    def __init__(self, node: Node) -> None:
        attrs = node.attrs
        self._rules = ForestRules(*[attrs[name] for name in ForestRules._fields])
        self._trees, seed = attrs["trees"], attrs["seed"]
        self._bags, self._share = attrs["bagged_features"], attrs["bagging_fraction"]
        self._seeds = [seed + i if seed else None for i in range(self._trees)]
        self._rngs = [np.random.default_rng(seed) for seed in self._seeds]
        self._growths: list[Growth] = []
        self._lock = threading.Lock()

    def step(
        self, variables: Sequence[VariableResource], examples: Any, labels: Any, weights: Any,
        first: int, end: int,
    ) -> None:  # fmt: skip
        """Let the trees from ``first`` to ``end`` learn a batch."""
        count, outputs = len(examples), self._rules.outputs
        needed = count * (outputs if self._rules.is_regression else 1)
        if len(labels) != count or labels.size != needed or weights.size not in (0, count):
            raise InvalidArgumentError(
                f"expected {needed} labels and, with any, a weight for each of {count} examples; got "
                f"labels of shape {labels.shape} and weights of shape {weights.shape}"
            )
        if not self._rules.is_regression and count and not (labels.min() >= 0 and labels.max() < outputs):
            raise InvalidArgumentError(
                f"expected labels from 0 to {outputs - 1}; got {labels.min():g} to {labels.max():g}"
            )
        weights = weights.reshape(-1) if weights.size else np.ones(count, np.float32)
        with self._lock, ExitStack() as held:
            for lock in locks_of(variables):
                held.enter_context(lock)
            self._growths = self._growths or self._begun(examples.shape[1])
            splits, thresholds, values, sizes = [variable.read() for variable in variables]
            for i in range(first, end):
                rows = self._bag(i, count)
                size = sizes[i : i + 1].reshape(())
                tree = RandomTree(splits[i], thresholds[i], values[i], size)
                self._growths[i].step(tree, examples[rows], labels[rows], weights[rows])

    def _begun(self, features: int) -> list[Growth]:
        bags = [np.arange(features, dtype=np.int32)] * self._trees
        if self._bags:
            bags = np.split(np.array(self._bags, np.int32), self._trees)
        return [Growth(self._rules, bag, seed) for bag, seed in zip(bags, self._seeds, strict=True)]

    def _bag(self, tree: int, count: int) -> Any:
        if self._share >= 1:
            return slice(None)
        return np.flatnonzero(self._rngs[tree].random(count) < self._share)


forest_growth_op: OpDef[Tensor] = define_handle(
    "ForestGrowth",
    ForestGrowth,
    "The handle of what the leaves of a session's random trees have counted.",
    output="growth: resource",
    attrs="outputs: int, is_regression: bool, candidates: int, split_after: float, max_nodes: int, "
    "is_strict: bool, trees: int, seed: int, bagged_features: list(int) = (), bagging_fraction: float = 1.0",
)


def _train(
    xp: Any, splits: Any, thresholds: Any, values: Any, sizes: Any, growth: ForestGrowth, examples: Any,
    labels: Any, weights: Any, first: int, end: int,
) -> None:  # fmt: skip
    examples, labels, weights = on_host(xp, examples, labels, weights)
    growth.step((splits, thresholds, values, sizes), examples, labels, weights, first, end)


forest_train: OpDef[Operation] = define_op(
    "ForestTrain",
    "splits: resource, thresholds: resource, values: resource, sizes: resource, growth: resource, "
    "examples: float32, labels: float32, weights: float32 ->",
    attrs="first: int, end: int",
    kernel=_train,
    effects=Effects(Effect.WRITE),
    doc="Lets the trees from ``first`` to ``end`` learn a batch and grow. The variables are on the host.",
)


def _predict(
    xp: Any, splits: Any, thresholds: Any, values: Any, examples: Any, is_regression: bool,
    out: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    splits, thresholds, values, examples = on_host(xp, splits, thresholds, values, examples)
    found = np.empty((len(examples), len(splits), values.shape[2]), np.float32)
    reached = np.empty(found.shape[:2], np.int32)
    for i in range(len(splits)):
        tree = RandomTree(splits[i], thresholds[i], values[i], None)
        reached[:, i] = leaves_of(tree, examples)
        found[:, i] = values[i][reached[:, i]]
    return to_device(xp, (found if is_regression else probabilities_of(found), reached), out)


def _shapes(s: ShapeContext) -> list[Shape]:
    trees, rows = s.shapes[0], s.shapes[3]
    examples, count = rows[0] if rows else None, trees[0] if trees else None
    outputs = s.shapes[2][2] if s.shapes[2] else None
    return [(examples, count, outputs), (examples, count)]


forest_predict: OpDef[list[Tensor]] = define_op(
    "ForestPredict",
    "splits: int32, thresholds: float32, values: float32, examples: float32 -> "
    "predictions: float32, leaves: int32",
    attrs="is_regression: bool",
    shape=_shapes,
    kernel=_predict,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: tuple(
        sample(
            np.array([[[1, 1, 2], [0, 1, 1], [0, 2, 2]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]]], np.int32),
            np.array([[0.5, 0, 0], [0, 0, 0]], np.float32),
            np.array([[[0, 0], [1, 3], [2, 0]], [[0, 0], [0, 0], [0, 0]]], np.float32),
            np.array([[0, 0.2], [0, 0.5], [1, 0.7]], np.float32),
            is_regression=is_regression,
        )
        for is_regression in (False, True)
    ),
    doc="The prediction of each tree for each example, ``[examples, trees, outputs]``: the shares of classes,"
    " or the values of leaves; and the leaves.",
)
