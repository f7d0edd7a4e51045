"""The beam search over sequences of labels, with one class as the blank.

A. Graves, Supervised Sequence Labelling with Recurrent Neural Networks (2012), section 7.5, in the order of
TensorFlow's ``ctc_beam_search.h``. What a narrow beam finds depends on that order: a prefix that is pushed
out before its parent is looked at begins anew from the parent alone, or has no continuations. Of equals that
one remains that the heap of TensorFlow's ``top_n.h`` leaves, which takes the steps of `heapq`.

The scores of a time are computed together, those of the prefixes and of all continuations; only continuations
that are better than the worst prefix so far are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

import numpy as np

__all__ = ["beam_search"]


class Prefix:
    """A sequence of labels as a node of a tree: its last label, and the prefix without it.

    ``scores`` are logarithms of probabilities: of all its paths, and of those that end in a blank and in its
    last label. They count while the prefix is in the beam; ``place`` is its place in the beam that is being
    continued, or -1.
    """

    __slots__ = ("children", "is_followed", "label", "parent", "place", "scores")

    def __init__(self, parent: Prefix | None, label: int) -> None:
        self.parent, self.label = parent, label
        self.children: dict[int, Prefix] = {}
        self.scores: Sequence[float] = (0.0, 0.0, -np.inf)
        self.is_followed, self.place = False, -1

    def labels(self) -> list[int]:
        return [] if self.parent is None else [*self.parent.labels(), self.label]


class Scored(float):
    """The score of a ``prefix``: a number, since the heap compares those quickly."""

    __slots__ = ("prefix",)
    prefix: Prefix

    @classmethod
    def of(cls, prefix: Prefix) -> Scored:
        made = cls(prefix.scores[0])
        made.prefix = prefix
        return made


class Beam:
    """The ``width`` most probable of the prefixes pushed: in the order of the pushes until there are more,
    then in a heap with the least probable in front."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.kept: list[Scored] = []
        self._is_lowest_first = self._is_heap = False

    def floor(self) -> float:
        """The least score, which another must exceed to have a place; it goes to the front."""
        kept = self.kept
        if len(kept) < self.width:
            return -np.inf
        if not self._is_lowest_first:
            at = kept.index(min(kept))
            kept[0], kept[at] = kept[at], kept[0]
            self._is_lowest_first = True
        return kept[0]

    def push(self, scored: Scored) -> None:
        kept = self.kept
        if self._is_heap:
            if scored > kept[0]:
                heapreplace(kept, scored)
            return
        kept.append(scored)
        if len(kept) > self.width:
            heapify(kept)
            heappop(kept)
            self._is_heap = self._is_lowest_first = True

    def push_above_floor(self, scored: Scored) -> float:
        """Push ``scored``, which is above the floor, and return a bound of the next one. If the beam is full,
        the lowest prefix is followed no more, and none that equals it goes in its place.
        """
        kept = self.kept
        if len(kept) < self.width:
            kept.append(scored)
            return -np.inf
        kept[0].prefix.is_followed = False
        if self._is_heap:
            heapreplace(kept, scored)
        else:
            kept[0] = Scored(-np.inf)
            self.push(scored)
        return kept[0]

    def best_first(self) -> list[Scored]:
        """The prefixes from the most probable on; this empties the beam."""
        kept, self.kept = self.kept, []
        if self._is_heap:
            return [heappop(kept) for _ in range(len(kept))][::-1]
        return sorted(kept, reverse=True)


def beam_search(logits: np.ndarray[Any, Any], width: int, count: int) -> list[tuple[list[int], float]]:
    """The ``count`` most probable sequences of labels and the logarithms of their probabilities, the best
    first; ``width`` prefixes are followed at each time. Fewer if there are not as many.

    ``logits`` are [time, classes], the blank the last class; the search computes in their dtype.

    Example:
        >>> beam_search(np.log([[0.3, 0.7], [0.4, 0.6]]), width=2, count=1)[0][0]  # P([]) is 0.42
        [0]
    """
    top = logits.max(1, keepdims=True)
    sums = np.add.accumulate(_rounded(np.exp, logits - top), 1)[:, -1:]  # one by one, as TensorFlow
    norms = top + _rounded(np.log, sums)
    beam = Beam(width)
    beam.push(Scored.of(Prefix(None, -1)))
    for now, norm in zip(logits, norms, strict=True):
        beam = _continued([scored.prefix for scored in beam.best_first()], now, norm, width)
    found = Beam(count)
    for scored in beam.kept:
        found.push(scored)
    return [(scored.prefix.labels(), float(scored)) for scored in found.best_first()]


def _continued(branches: list[Prefix], logits: Any, norm: Any, width: int) -> Beam:
    """The beam one time after that of ``branches``, which are sorted."""
    for place, prefix in enumerate(branches):
        prefix.place = place
    parents = np.array([-1 if prefix.parent is None else prefix.parent.place for prefix in branches])
    labels = np.array([prefix.label for prefix in branches])
    before = np.array([prefix.scores for prefix in branches], logits.dtype)
    beam = Beam(width)
    for prefix, scores in zip(branches, _stayed(before, parents, labels, logits, norm), strict=True):
        prefix.scores, prefix.is_followed = scores, True
        beam.push(Scored.of(prefix))
    _grow(branches, before, parents, labels, logits[:-1] - norm, beam)
    for prefix in branches:
        prefix.place = -1
    return beam


def _stayed(before: Any, parents: Any, labels: Any, logits: Any, norm: Any) -> list[list[float]]:
    """The scores of prefixes one time later: their paths go on, and so do those of their parents in the beam,
    which a label continues behind itself only after a blank.
    """
    total, blank, label = before.T
    ready = np.where(labels[parents] == labels, blank[parents], total[parents])
    label = np.where(parents >= 0, _log_add(label, ready), label) + (logits[labels] - norm)
    blank = total + logits[-1] - norm
    stayed: list[list[float]] = np.stack([_log_add(blank, label), blank, label], 1).tolist()
    return stayed


def _grow(branches: list[Prefix], before: Any, parents: Any, labels: Any, logs: Any, beam: Beam) -> None:
    """Push the continuations of ``branches`` that have a place in the beam; ``logs`` are of all labels.

    Beside those that may have one, the prefixes that were in the beam are looked at as continuations of their
    parents: one that was pushed out, and is not good enough by its parent alone, is not continued itself.
    """
    total, blank, _ = before.T
    found = logs + total[:, None]
    rows = np.flatnonzero(labels >= 0)
    found[rows, labels[rows]] = logs[labels[rows]] + blank[rows]
    looked_at = found > beam.floor()
    inside = np.flatnonzero(parents >= 0)
    looked_at[parents[inside], labels[inside]] = True
    rows, columns = np.nonzero(looked_at)
    scores, alive, row, least = found[rows, columns].tolist(), total.tolist(), -1, -np.inf
    for at, label, score in zip(rows.tolist(), columns.tolist(), scores, strict=True):
        if at != row:
            row, children = at, branches[at].children
            is_continued = alive[row] > beam.floor()
        if not is_continued or (score <= least and label not in children):
            continue
        child = children.get(label)
        if child is not None and child.is_followed:
            continue
        if score > beam.floor():
            if child is None:
                child = children[label] = Prefix(branches[row], label)
            child.scores, child.is_followed = (score, -np.inf, score), True
            least = beam.push_above_floor(Scored.of(child))
        elif child is not None and child.place >= 0:
            alive[child.place] = -np.inf


def _log_add(a: Any, b: Any) -> Any:
    """The logarithms of the sums of two numbers, of which ``a`` and ``b`` are the logarithms."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    apart = np.where(low == -np.inf, low, low - np.where(low == -np.inf, low.dtype.type(0), high))
    return high + _rounded(np.log1p, _rounded(np.exp, apart))


def _rounded(function: Callable[[Any], Any], x: Any) -> Any:
    """The function of ``x``, rounded to its dtype: NumPy's own of float32 are off by up to 2 units, by which
    labels that are equally probable would differ.
    """
    return function(x.astype(np.float64)).astype(x.dtype)
