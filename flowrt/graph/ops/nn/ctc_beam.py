"""The beam search over sequences of labels, with one class as the blank.

A. Graves, Supervised Sequence Labelling with Recurrent Neural Networks (2012), section 7.5, in the order of
TensorFlow's ``ctc_beam_search.h``. What a narrow beam finds depends on that order: a prefix that is pushed
out before its parent is looked at begins anew from the parent alone, or has no continuations. Of equals that
one remains that TensorFlow's heap leaves, which is the heap of `heapq`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Beam", "Prefix", "beam_search"]


class Scores(NamedTuple):
    """Logarithms of the probability of a prefix: of all its paths, and of those that end in a blank and in
    its last label; numbers of the logits' dtype, as floats, which compare quickly."""

    total: float
    blank: float
    label: float


NOTHING = Scores(-np.inf, -np.inf, -np.inf)


class Prefix:
    """A sequence of labels as a node of a tree: its last label, and the prefix without it.

    The scores of prefixes outside the beam are `NOTHING`.
    """

    __slots__ = ("before", "children", "label", "now", "parent")

    def __init__(self, parent: Prefix | None, label: int) -> None:
        self.parent, self.label = parent, label
        self.children: dict[int, Prefix] = {}
        self.before = self.now = NOTHING

    def __lt__(self, other: Prefix) -> bool:
        return self.now.total < other.now.total

    @property
    def is_followed(self) -> bool:
        return self.now.total != -np.inf

    def labels(self) -> list[int]:
        return [] if self.parent is None else [*self.parent.labels(), self.label]


class Beam:
    """The ``width`` most probable of the prefixes pushed: in the order of the pushes until there are more,
    then in a heap with the least probable in front."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.prefixes: list[Prefix] = []
        self._is_lowest_first = self._is_heap = False

    @property
    def is_full(self) -> bool:
        return len(self.prefixes) == self.width

    def lowest(self) -> Prefix:
        """The least probable prefix, the first of equals; it goes to the front."""
        kept = self.prefixes
        if not self._is_lowest_first:
            at = min(range(len(kept)), key=lambda i: kept[i].now.total)
            kept[0], kept[at] = kept[at], kept[0]
            self._is_lowest_first = True
        return kept[0]

    def push(self, prefix: Prefix) -> None:
        if not self.is_full:
            self.prefixes.append(prefix)
        elif not self._is_heap:
            self.prefixes.append(prefix)
            heapify(self.prefixes)
            heappop(self.prefixes)
            self._is_heap = self._is_lowest_first = True
        elif self.prefixes[0] < prefix:
            heappush(self.prefixes, prefix)
            heappop(self.prefixes)

    def best_first(self) -> list[Prefix]:
        """The prefixes from the most probable on; this empties the beam."""
        kept, self.prefixes = self.prefixes, []
        if self._is_heap:
            return [heappop(kept) for _ in range(len(kept))][::-1]
        return sorted(kept, key=lambda prefix: prefix.now.total, reverse=True)


def beam_search(logits: np.ndarray[Any, Any], width: int, count: int) -> list[tuple[list[int], float]]:
    """The ``count`` most probable sequences of labels and the logarithms of their probabilities, the best
    first; ``width`` prefixes are followed at each time. Fewer if there are not as many.

    ``logits`` are [time, classes], the blank the last class; the search computes in their dtype.

    Example:
        >>> beam_search(np.log([[0.3, 0.7], [0.4, 0.6]]), width=2, count=1)[0][0]  # P([]) is 0.42
        [0]
    """
    root = Prefix(None, -1)
    root.now = Scores(0.0, 0.0, -np.inf)
    beam = Beam(width)
    beam.push(root)
    for now in logits:
        beam = _continued(beam.best_first(), now, width)
    found = Beam(count)
    for prefix in beam.prefixes:
        found.push(prefix)
    return [(prefix.labels(), prefix.now.total) for prefix in found.best_first()]


def _continued(branches: list[Prefix], logits: np.ndarray[Any, Any], width: int) -> Beam:
    """The beam one time after that of ``branches``, which are sorted."""
    top = logits.max()
    norm = top + np.log(np.exp(logits - top).sum())
    beam = Beam(width)
    for prefix in branches:
        prefix.before = prefix.now
    for prefix in branches:
        prefix.now = _stayed(prefix, logits, norm)
        beam.push(prefix)
    for prefix in branches:
        if _is_candidate(prefix.before.total, beam):
            _grow(prefix, logits[:-1] - norm, beam)
    return beam


def _stayed(prefix: Prefix, logits: np.ndarray[Any, Any], norm: Any) -> Scores:
    """The scores of a prefix one time later: its paths go on, and so do those of its parent in the beam."""
    total, _, label = prefix.before
    parent = prefix.parent
    if parent is not None:
        if parent.is_followed:
            label = _log_add(label, _ready(parent, prefix.label))
        label += logits[prefix.label] - norm
    blank = total + logits[-1] - norm
    return Scores(float(_log_add(blank, label)), float(blank), float(label))


def _ready(prefix: Prefix, label: int) -> float:
    """The score of the paths that ``label`` continues: it begins anew behind itself only after a blank."""
    return prefix.before.blank if label == prefix.label else prefix.before.total


def _is_candidate(score: float, beam: Beam) -> bool:
    return score > -np.inf and (not beam.is_full or score > beam.lowest().now.total)


def _grow(prefix: Prefix, logs: np.ndarray[Any, Any], beam: Beam) -> None:
    """Push the continuations of ``prefix`` that have a place in the beam; ``logs`` are of all labels."""
    found = logs + prefix.before.total
    if prefix.parent is not None:
        found[prefix.label] = logs[prefix.label] + prefix.before.blank
    floor = beam.lowest().now.total if beam.is_full else -np.inf
    scores = found.tolist()
    for label in sorted({*np.flatnonzero(found > floor).tolist(), *prefix.children}):
        child = prefix.children.get(label) or prefix.children.setdefault(label, Prefix(prefix, label))
        if child.is_followed:
            continue
        if _is_candidate(scores[label], beam):
            child.now = Scores(scores[label], -np.inf, scores[label])
            if beam.is_full:
                beam.lowest().now = NOTHING
            beam.push(child)
        else:
            child.before = NOTHING


def _log_add(a: Any, b: Any) -> Any:
    """The logarithm of the sum of two numbers, of which ``a`` and ``b`` are the logarithms."""
    low, high = (a, b) if a < b else (b, a)
    return high if low == -np.inf else high + np.log1p(np.exp(low - high))
