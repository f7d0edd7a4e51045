"""Boosted trees over buckets: statistics of a layer, its splits, pruning, contributions of features.

J. Friedman, Greedy Function Approximation: A Gradient Boosting Machine (2001), with second derivatives and
regularization as T. Chen and C. Guestrin, XGBoost, KDD (2016), section 2. Trees grow layer by layer: each
layer is fitted to the gradients after the one above it. The arithmetic is TensorFlow's, in float32, so that
splits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.graph.trees.traversal import Nodes, leaves

PRUNING_MODES = ("none", "pre", "post")
_SMALLEST_HESSIAN = 1e-15
_STEADY_BIAS = 0.01
"""The relative change at which a bias is steady."""
_SLOTS = 1 << 20
"""Elements that are counted at once."""


class Ensemble(NamedTuple):
    """The trees, one after the other; the newest one grows. Of nodes that split, ``numbers`` keeps the value
    that they had as leaves.
    """

    roots: Any
    """int32, [trees]: their first nodes."""
    splits: Any
    """int32, [nodes, 3]: a feature, the nodes to the left and right; see `Nodes`."""
    numbers: Any
    """float32, [nodes, 3]: a threshold, a value, the gain of the split."""
    progress: Any
    """int32, [4]: layers attempted, layers of the newest tree, the first node of its last layer, the end."""

    @property
    def nodes(self) -> Nodes:
        feature, left, right = self.splits.T
        return Nodes(feature, self.numbers[:, 0], left, right)


class Regularization(NamedTuple):
    """The arguments of `flowrt.estimator.BoostedTreesClassifier` that make leaves small and splits few."""

    l1: float
    l2: float
    tree_complexity: float
    min_node_weight: float


EMPTY = Ensemble(
    np.zeros(0, np.int32), np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32),
    np.array([0, 0, 0, 1], np.int32),
)  # fmt: skip


def with_tree(ensemble: Ensemble, value: float) -> Ensemble:
    """The ensemble with one more tree: a leaf."""
    root = len(ensemble.splits)
    return Ensemble(
        np.append(ensemble.roots, np.int32(root)),
        np.concatenate([ensemble.splits, np.array([[0, root, root]], np.int32)]),
        np.concatenate([ensemble.numbers, np.array([[0, value, 0]], np.float32)]),
        np.array([ensemble.progress[0], 0, root, root + 1], np.int32),
    )


def finished_trees(ensemble: Ensemble) -> int:
    """The number of trees that do not grow any more."""
    return max(0, len(ensemble.roots) - 1)


def logits_of(ensemble: Ensemble, buckets: Any, first: int, end: int) -> Any:
    """The sums of the values of the trees from ``first`` to ``end``, float32, [examples]."""
    reached = leaves(ensemble.nodes, buckets, ensemble.roots[first:end])
    return ensemble.numbers[reached, 1].sum(1, dtype=np.float32)


def newest_leaves(ensemble: Ensemble, buckets: Any) -> Any:
    """The leaf of each example in the tree that grows, int64, [examples]; 0 if there is none."""
    if not len(ensemble.roots):
        return np.zeros(len(buckets), np.int64)
    return leaves(ensemble.nodes, buckets, ensemble.roots[-1:])[:, 0]


# --- growth


def layer_statistics(
    buckets: Any, nodes: Any, gradients: Any, hessians: Any, layer: tuple[int, int], sizes: Sequence[int]
) -> Any:
    """The sums of ``gradients`` and ``hessians``, [examples], of each node of a layer and each bucket of each
    feature: float32, [nodes of the layer, sum(sizes), 2]. ``sizes`` are the features' numbers of buckets.
    """
    first, end = layer
    slots = sum(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    total = np.zeros((2, (end - first) * slots))
    inside = np.flatnonzero((nodes >= first) & (nodes < end))
    rows = max(1, _SLOTS // max(1, len(sizes)))
    for start in range(0, len(inside), rows):
        part = inside[start : start + rows]
        places = ((nodes[part] - first) * slots)[:, None] + (starts + buckets[part])
        for sums, each in zip(total, (gradients, hessians), strict=True):
            weights = np.repeat(each[part], len(sizes))
            sums += np.bincount(places.reshape(-1), weights, len(sums))
    return np.ascontiguousarray(total.astype(np.float32).T).reshape(end - first, slots, 2)


def _weights_and_gains(sums: Any, l1: float, l2: float) -> tuple[Any, Any]:
    """The best value of leaves with these sums, [..., 2], and how much the loss falls with it, times two."""
    gradients, hessians = sums[..., 0], sums[..., 1]
    if l1 > 0:
        gradients = np.sign(gradients) * np.maximum(np.abs(gradients) - np.float32(l1), 0)
    divisor = hessians + np.float32(l2)
    is_flat = divisor <= _SMALLEST_HESSIAN
    weights = np.where(is_flat, np.float32(0), -gradients / np.where(is_flat, np.float32(1), divisor))
    return weights, -gradients * weights


class _Splits(NamedTuple):
    """The best split of each node by each feature, [nodes, features]; a gain of -infinity: none."""

    gains: Any
    thresholds: Any
    left: Any
    right: Any


def _best_buckets(sums: Any, by: Regularization) -> _Splits:
    """The best splits by ``sums``, [nodes, features, buckets, 2]; of equal ones the first."""
    sums = np.cumsum(sums, axis=2, dtype=np.float32)
    total = sums[:, :, -1:]
    parents = _weights_and_gains(total, by.l1, by.l2)[1][:, :, 0]
    left, gains_left = _weights_and_gains(sums, by.l1, by.l2)
    right, gains_right = _weights_and_gains(total - sums, by.l1, by.l2)
    gains = gains_left + gains_right
    best = gains.argmax(2)[:, :, None]
    found = [np.take_along_axis(each, best, 2)[:, :, 0] for each in (gains, left, right)]
    gain = found[0] - parents - np.float32(by.tree_complexity)
    gain[total[:, :, 0, 1] < by.min_node_weight] = -np.inf
    return _Splits(gain, best[:, :, 0], found[1], found[2])


def _best_splits(statistics: Any, sizes: Sequence[int], by: Regularization) -> _Splits:
    """Features next to each other with as many buckets are one array."""
    parts, start = [], 0
    for size, run in itertools.groupby(sizes):
        features = len(list(run))
        end = start + features * size
        sums = statistics[:, start:end].reshape(len(statistics), features, size, 2)
        parts.append(_best_buckets(sums, by))
        start = end
    return _Splits(*[np.concatenate(each, 1) for each in zip(*parts, strict=True)])


def grow_layer(
    ensemble: Ensemble, statistics: Any, sizes: Sequence[int], by: Regularization, *,
    learning_rate: float, max_depth: int, pruning_mode: str,
) -> Ensemble:  # fmt: skip
    """The ensemble after its newest tree has grown a layer, by `layer_statistics` of its last one; then a
    tree of ``max_depth`` is pruned, and a new one begins.
    """
    attempted, layers, first, _ = ensemble.progress.tolist()
    ensemble = ensemble._replace(progress=ensemble.progress + np.array([1, 0, 0, 0], np.int32))
    splits = _best_splits(statistics, sizes, by)
    features = splits.gains.argmax(1)
    candidates = _Splits(*[each[np.arange(len(features)), features] for each in splits])
    least = 0 if pruning_mode == "pre" else -np.inf
    places = np.flatnonzero((candidates.gains >= least) & (candidates.gains > -np.inf))
    if not len(places):
        return ensemble
    if not len(ensemble.roots):
        ensemble = with_tree(ensemble, 0)
    count = len(ensemble.splits)
    nodes, children = first + places, count + np.arange(2 * len(places), dtype=np.int32)
    parents, numbers = ensemble.splits.copy(), ensemble.numbers.copy()
    parents[nodes] = np.stack([features[places], children[::2], children[1::2]], 1)
    numbers[nodes, 0] = candidates.thresholds[places]
    numbers[nodes, 2] = candidates.gains[places]
    values = np.zeros((len(children), 3), np.float32)
    for side, each in enumerate((candidates.left, candidates.right)):
        values[side::2, 1] = numbers[nodes, 1] + np.float32(learning_rate) * each[places]
    grown = Ensemble(
        ensemble.roots,
        np.concatenate([parents, np.stack([np.zeros_like(children), children, children], 1)]),
        np.concatenate([numbers, values]),
        np.array([attempted + 1, layers + 1, count, count + len(children)], np.int32),
    )
    if layers + 1 < max_depth:
        return grown
    return with_tree(_pruned(grown) if pruning_mode == "post" else grown, 0)


def _pruned(ensemble: Ensemble) -> Ensemble:
    """The ensemble without splits of its newest tree that make it worse and are followed by leaves."""
    root = int(ensemble.roots[-1])
    splits, numbers = ensemble.splits.copy(), ensemble.numbers.copy()
    is_kept = np.ones(len(splits), bool)
    for node in range(len(splits) - 1, root - 1, -1):  # children before their parents
        children = splits[node, 1:]
        if children[0] != node and numbers[node, 2] < 0 and (splits[children, 1] == children).all():
            is_kept[children] = False
            splits[node], numbers[node, [0, 2]] = (0, node, node), 0
    moved = (np.cumsum(is_kept) - 1).astype(np.int32)
    splits[:, 1:] = moved[splits[:, 1:]]
    return ensemble._replace(splits=splits[is_kept], numbers=numbers[is_kept])


def center_bias(
    ensemble: Ensemble, gradient: Any, hessian: Any, l1: float, l2: float
) -> tuple[Ensemble, bool]:
    """The ensemble with a better value of the first root, by the means of all gradients and hessians, and
    whether it is still far from steady.
    """
    change = _weights_and_gains(np.array([gradient, hessian], np.float32), l1, l2)[0]
    if not len(ensemble.roots):
        return with_tree(ensemble, change), True
    numbers = ensemble.numbers.copy()
    before = numbers[0, 1]
    numbers[0, 1] = before + change
    return ensemble._replace(numbers=numbers), bool(abs(change) > _STEADY_BIAS * abs(before))


# --- what features are worth


def gains_of_features(ensemble: Ensemble, features: int) -> Any:
    """The sum of the gains of each feature's splits, float64, [features]."""
    is_split = ensemble.splits[:, 1] != np.arange(len(ensemble.splits))
    return np.bincount(ensemble.splits[is_split, 0], ensemble.numbers[is_split, 2], features)


def contributions(ensemble: Ensemble, buckets: Any, is_logistic: bool) -> tuple[Any, Any]:
    """The prediction at the first root, [examples], and how much the splits of each feature change it,
    [examples, features]; both float64, and probabilities if ``is_logistic``.

    A. Palczewska et al., Interpreting random forest classification models (2013).
    """
    examples, features = buckets.shape
    nodes, values = ensemble.nodes, ensemble.numbers[:, 1].astype(np.float64)
    activation = _sigmoid if is_logistic else np.asarray
    rows, found = np.arange(examples), np.zeros((examples, features))
    past, bias = np.zeros(examples), np.zeros(examples)
    for tree, root in enumerate(ensemble.roots):
        at = np.full(examples, root)
        if tree == 0:
            bias = now = activation(values[at])
        else:
            now = activation(past)
        while True:
            feature = nodes.feature[at]
            goes_left = buckets[rows, feature] <= nodes.threshold[at]
            following = np.where(goes_left, nodes.left[at], nodes.right[at])
            is_split = following != at
            if not is_split.any():
                break
            then = np.where(is_split, activation(past + values[following]), now)
            found[rows, feature] += then - now
            at, now = following, then
        past = past + values[at]
    return bias, found


def _sigmoid(logits: Any) -> Any:
    return 1 / (1 + np.exp(-logits))
