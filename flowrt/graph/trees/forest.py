"""Random trees that grow while examples stream by: candidates of splits in each leaf, and what they would do.

P. Domingos and G. Hulten, Mining High-Speed Data Streams, KDD (2000); L. Breiman, Random Forests (2001).
Each of the first examples of a leaf gives it a candidate, a random feature and the example's value; those
that follow are counted on either side of all candidates. After enough of them the leaf is split by the best.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np

from flowrt.graph.trees.traversal import Nodes, leaves


class ForestRules(NamedTuple):
    """The hyperparameters that growth depends on."""

    outputs: int
    """Classes, or numbers of a regression."""
    is_regression: bool
    candidates: int
    """Candidates of splits in each leaf."""
    split_after: float
    """The weight of examples that a leaf counts before it is split."""
    max_nodes: int
    is_strict: bool
    """Whether examples with the threshold itself go to the right."""


class RandomTree(NamedTuple):
    """A tree as rows of the forest's variables, which growth writes."""

    splits: Any
    """int32, [room, 3]: a feature, the nodes to the left and right; see `Nodes`."""
    thresholds: Any
    """float32, [room]."""
    values: Any
    """float32, [room, outputs]: the weight of each class in a leaf, or the means of a regression."""
    size: Any
    """int32, []: the number of nodes."""

    @property
    def nodes(self) -> Nodes:
        feature, left, right = self.splits.T
        return Nodes(feature, self.thresholds, left, right)


def room_of(max_nodes: int) -> int:
    """Nodes that a tree may get: the last split may begin with one node less than the most."""
    return max_nodes + 1


def probabilities_of(values: Any) -> Any:
    """Weights of classes, [..., classes], as shares of their sum; 0 where there are none."""
    total = values.sum(-1, keepdims=True)
    return values / np.where(total > 0, total, np.float32(1))


def leaves_of(tree: RandomTree, examples: Any) -> Any:
    """The leaf of each example, [examples, features]: int64, [examples]."""
    return leaves(tree.nodes, examples, np.zeros(1, np.int64))[:, 0]


@final
class Growth:
    """The candidates of one tree's leaves, and what was counted of them since the leaves are there."""

    def __init__(self, rules: ForestRules, features: Any, seed: int | None) -> None:
        self._rules, self._features = rules, features
        self._rng = np.random.default_rng(seed)
        self._width = rules.outputs * 2 + 1 if rules.is_regression else rules.outputs
        self._slot_of = np.full(room_of(rules.max_nodes), -1, np.int32)
        self._free: list[int] = []
        self._feature = np.zeros((0, rules.candidates), np.int32)
        self._threshold = np.zeros((0, rules.candidates), np.float32)
        self._known = np.zeros(0, np.int32)
        self._left = np.zeros((0, rules.candidates, self._width), np.float32)
        self._total = np.zeros((0, self._width), np.float32)

    def step(self, tree: RandomTree, examples: Any, labels: Any, weights: Any) -> None:
        """Let ``tree`` learn ``examples``, [examples, features], with ``labels`` as `marks` has them, and
        grow.
        """
        reached = leaves_of(tree, examples)
        marks = self._marks(labels, weights)
        if not self._rules.is_regression:
            np.add.at(tree.values, reached, marks)
        nodes, places = np.unique(reached, return_inverse=True)
        slots = np.array([self._slot(node) for node in nodes.tolist()], np.int64)
        is_counted = self._add_candidates(slots, places, examples)
        self._count(slots, places[is_counted], examples[is_counted], marks[is_counted])
        for node, slot in zip(nodes.tolist(), slots.tolist(), strict=True):
            if tree.size >= self._rules.max_nodes:
                return
            if self._is_full(slot):
                self._split(tree, node, slot)

    def _marks(self, labels: Any, weights: Any) -> Any:
        """The rows that examples add where they are counted, [examples, width]: their weight at their class,
        or their numbers, the squares of these, and 1.
        """
        if self._rules.is_regression:
            numbers = labels.reshape(len(labels), self._rules.outputs)
            return np.concatenate([numbers, numbers * numbers, np.ones((len(numbers), 1), np.float32)], 1)
        found = np.zeros((len(labels), self._width), np.float32)
        found[np.arange(len(labels)), labels.reshape(-1).astype(np.int64)] = weights
        return found

    # --- slots: the rows of these arrays that leaves have

    def _slot(self, node: int) -> int:
        slot = int(self._slot_of[node])
        if slot < 0:
            if not self._free:
                self._make_room()
            slot = self._free.pop()
            self._slot_of[node] = slot
            self._clear(slot)
        return slot

    def _make_room(self) -> None:
        count = len(self._known)
        more = max(8, count)
        self._free = list(range(count + more - 1, count - 1, -1))
        for name in ("_feature", "_threshold", "_known", "_left", "_total"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]), old.dtype)]))

    def _clear(self, slot: int) -> None:
        self._known[slot] = 0
        self._left[slot] = 0
        self._total[slot] = 0

    # --- counting

    def _add_candidates(self, slots: Any, places: Any, examples: Any) -> Any:
        """Make candidates of the first examples of leaves that have too few; which examples are left."""
        missing = self._rules.candidates - self._known[slots]
        if not missing.any():
            return np.ones(len(places), bool)
        order = np.argsort(places, kind="stable")
        sorted_places = places[order]
        first = np.searchsorted(sorted_places, np.arange(len(slots)))
        rank = np.arange(len(order)) - first[sorted_places]
        gives = np.empty(len(places), bool)
        gives[order] = rank < missing[sorted_places]
        rows = order[rank < missing[sorted_places]]
        at = slots[places[rows]]
        column = self._known[at] + rank[rank < missing[sorted_places]]
        chosen = self._features[self._rng.integers(len(self._features), size=len(rows))]
        threshold = examples[rows, chosen]
        if self._rules.is_strict:
            threshold = np.nextafter(threshold, np.float32(-np.inf))
        self._feature[at, column], self._threshold[at, column] = chosen, threshold
        self._known[slots] += np.minimum(missing, np.bincount(places, minlength=len(slots))).astype(np.int32)
        return ~gives

    def _count(self, slots: Any, places: Any, examples: Any, marks: Any) -> None:
        """Add what examples are to their leaves, and to the left side of candidates that send them there."""
        if not len(places):
            return
        at = slots[places]
        goes_left = np.take_along_axis(examples, self._feature[at], 1) <= self._threshold[at]
        order = np.argsort(places, kind="stable")
        starts = np.flatnonzero(np.diff(places[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        for start, end in zip(starts, ends, strict=True):  # one product a leaf: 10 us, where add.at takes 300
            rows = order[start:end]
            slot = slots[places[rows[0]]]
            self._left[slot] += goes_left[rows].T.astype(np.float32) @ marks[rows]
            self._total[slot] += marks[rows].sum(0)

    # --- splitting

    def _is_full(self, slot: int) -> bool:
        total = self._total[slot]
        if self._rules.is_regression:
            return bool(total[-1] >= self._rules.split_after)
        return bool(total.sum() >= self._rules.split_after and np.count_nonzero(total) > 1)

    def _split(self, tree: RandomTree, node: int, slot: int) -> None:
        """Split a leaf by its best candidate; without any that has examples on both sides it begins anew."""
        left, total = self._left[slot], self._total[slot]
        right = total - left
        scores = self._scores(left) + self._scores(right)
        weights = [side[:, -1] if self._rules.is_regression else side.sum(1) for side in (left, right)]
        scores[(weights[0] <= 0) | (weights[1] <= 0)] = np.inf
        best = int(scores.argmin())
        if np.isinf(scores[best]):
            self._clear(slot)
            return
        child = int(tree.size)
        tree.splits[node] = self._feature[slot, best], child, child + 1
        tree.thresholds[node] = self._threshold[slot, best]
        for number, side in ((child, left[best]), (child + 1, right[best])):
            tree.splits[number] = 0, number, number
            tree.values[number] = self._value(side)
        tree.size[...] = child + 2
        self._slot_of[node] = -1
        self._free.append(slot)

    def _scores(self, side: Any) -> Any:
        """The impurity of each candidate's examples on one side, [candidates]: Gini's, smoothed and weighted,
        or the variance.
        """
        outputs = self._rules.outputs
        if self._rules.is_regression:
            count = np.maximum(side[:, -1:], 1)
            mean = side[:, :outputs] / count
            return (side[:, outputs:-1] / count - mean * mean).sum(1)
        total, squares = side.sum(1), (side * side).sum(1)
        return total * (1 - (squares + 2 * total + outputs) / (outputs + total) ** 2)

    def _value(self, side: Any) -> Any:
        return side[: self._rules.outputs] / side[-1] if self._rules.is_regression else side
