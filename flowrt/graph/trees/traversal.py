"""Decision trees as arrays, and the way of examples through them.

A node has a feature, a threshold, and two nodes that follow: the left one if the feature is at most the
threshold. A leaf is followed by itself, so that all examples walk until nobody moves, without a mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import InvalidArgumentError

BLOCK = 1 << 18
"""Walks at once, an example in a tree each: their arrays stay in the cache."""


class Nodes(NamedTuple):
    """The nodes of one tree or several, by number."""

    feature: Any
    """int32, [nodes]."""
    threshold: Any
    """float32, [nodes]."""
    left: Any
    """int32, [nodes]; a leaf's own number."""
    right: Any


def leaves(nodes: Nodes, features: Any, roots: Any) -> Any:
    """The leaf of each example in the tree of each root, int64, [examples, roots]. ``features`` are
    [examples, features]; NaN goes to the right.

    Raises `InvalidArgumentError` for fewer features than nodes ask for: a walk would read the next example's.
    """
    examples, columns = features.shape
    needed = int(nodes.feature.max(initial=-1)) + 1
    if examples and columns < needed:
        raise InvalidArgumentError(f"expected at least the {needed} features of the trees; got {columns}")
    found = np.empty((examples, len(roots)), np.int64)
    rows = max(1, BLOCK // max(1, len(roots)))
    for start in range(0, examples, rows):
        part = slice(start, start + rows)
        found[part] = _walk(nodes, features[part], roots)
    return found


def _walk(nodes: Nodes, features: Any, roots: Any) -> Any:
    rows, columns = features.shape
    flat, first = features.reshape(-1), (np.arange(rows) * columns)[:, None]
    at = np.broadcast_to(np.asarray(roots, np.int64), (rows, len(roots)))
    while True:
        goes_left = flat[first + nodes.feature[at]] <= nodes.threshold[at]
        following = np.where(goes_left, nodes.left[at], nodes.right[at])
        if np.array_equal(following, at):
            return at
        at = following
