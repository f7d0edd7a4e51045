"""Quantiles of a stream of weighted numbers, within an error of ``eps``, in little memory.

M. Greenwald and S. Khanna, Space-Efficient Online Computation of Quantile Summaries, SIGMOD (2001); as levels
of summaries that are merged and compressed: Q. Zhang and W. Wang, SSDBM (2007). The steps are TensorFlow's,
so that boundaries are the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import numpy as np

MAX_ELEMENTS = 1 << 40
"""Numbers that a stream of batches is made for."""


class Summary(NamedTuple):
    """Some of the numbers seen, ascending, with the weight of each, and its smallest and largest rank: the
    weight of all numbers below it, and of these and itself. All are float32, [entries].
    """

    values: Any
    weights: Any
    low: Any
    high: Any

    @property
    def before(self) -> Any:
        """The largest rank of the numbers below each entry."""
        return self.high - self.weights

    @property
    def after(self) -> Any:
        """The smallest rank of the numbers above each entry."""
        return self.low + self.weights


NOTHING = Summary(*[np.zeros(0, np.float32)] * 4)


def summary_of(values: Any, weights: Any) -> Summary:
    """The summary that has all of ``values``, once each. NaN, and what has no weight, does not count."""
    counts = (weights > 0) & ~np.isnan(values)
    distinct, places = np.unique(values[counts], return_inverse=True)
    totals = np.bincount(places, weights[counts], len(distinct)).astype(np.float32)
    high = np.cumsum(totals, dtype=np.float32)
    return Summary(distinct.astype(np.float32), totals, high - totals, high)


def merged(a: Summary, b: Summary) -> Summary:
    """The summary of what both have seen; its error is at most the larger of theirs."""
    if not len(a.values) or not len(b.values):
        return a if len(a.values) else b
    first, second = _among(a, b), _among(b, a)
    is_new = ~np.isin(b.values, a.values)
    both = [np.concatenate([x, y[is_new]]) for x, y in zip(first, second, strict=True)]
    order = np.argsort(both[0], kind="stable")
    return Summary(*[each[order] for each in both])


def _among(a: Summary, b: Summary) -> Summary:
    """The entries of ``a``, with their ranks among the numbers of both."""
    place = np.searchsorted(b.values, a.values)
    last = len(b.values) - 1
    here = np.minimum(place, last)
    is_equal = (place <= last) & (b.values[here] == a.values)
    low = np.where(is_equal, b.low[here], np.where(place > 0, b.after[place - 1], 0))
    high = np.where(is_equal, b.high[here], np.where(place <= last, b.before[here], b.high[-1]))
    weights = a.weights + np.where(is_equal, b.weights[here], 0)
    return Summary(a.values, weights.astype(np.float32), a.low + low, a.high + high)


def compressed(summary: Summary, size: int, eps: float) -> Summary:
    """About ``size`` of its entries, the first and the last among them: the error grows by at most ``eps``,
    or by one over the size.
    """
    count, size = len(summary.values), max(size, 2)
    if count <= size:
        return summary
    gap = float(summary.high[-1]) * max(1 / size, eps)
    limits = np.searchsorted(summary.before, summary.after.astype(np.float64) + gap, "right").tolist()
    kept, at, owed = [0], 0, 0
    while at + 1 < count:
        most = at + 1 + max(0, -(-(count - owed) // size))
        following = max(at + 1, min(limits[at], most, count))
        owed += (following - at - 1) * size - count
        at = max(at + 1, following - 1)
        kept.append(at)
    if kept[-1] != count - 1:
        kept.append(count - 1)
    return Summary(*[each[kept] for each in summary])


def boundaries(summary: Summary, count: int) -> Any:
    """Values that split what was seen into about ``count`` buckets of equal weight, float32."""
    if not len(summary.values):
        return summary.values
    eps = np.float32(_error(summary) + 1 / count)
    return np.unique(compressed(summary, count, float(eps)).values)


def _error(summary: Summary) -> float:
    """The largest error of a rank, as a share of the total weight."""
    within = summary.high[1:] - summary.low[1:] - summary.weights[1:]
    between = summary.before[1:] - summary.after[:-1]
    gap = max(within.max(initial=0), between.max(initial=0))
    return float(gap) / float(summary.high[-1])


@final
class QuantileStream:
    """A stream of numbers as levels of summaries; a level that is full is compressed into the next."""

    def __init__(self, eps: float, max_elements: int = MAX_ELEMENTS) -> None:
        self._eps, self._block = eps, _block_size(eps, max_elements)
        self._buffer = min(2 * self._block, max_elements)
        self._levels: list[Summary] = []

    def add(self, values: Any, weights: Any) -> None:
        """Add numbers, [n], with their weights."""
        whole = summary_of(values, weights)
        if len(whole.values) <= self._block:  # no part of it would be compressed
            self._push(whole)
            return
        counts = weights > 0
        values, weights = values[counts], weights[counts]
        for start in range(0, len(values), self._buffer):
            part = slice(start, start + self._buffer)
            self._push(compressed(summary_of(values[part], weights[part]), self._block, self._eps))

    def add_summary(self, summary: Summary) -> None:
        """Add what another stream has seen."""
        self._push(compressed(summary, self._block, self._eps))

    def _push(self, summary: Summary) -> None:
        if not len(summary.values):
            return
        for level in range(len(self._levels) + 1):
            if level == len(self._levels):
                self._levels.append(NOTHING)
            here = self._levels[level]
            summary = merged(summary, here)
            if not len(here.values) or len(summary.values) <= self._block + 1:
                self._levels[level] = summary
                return
            self._levels[level] = NOTHING
            summary = compressed(summary, self._block, self._eps)

    def summary(self) -> Summary:
        """The summary of all that was added."""
        whole = NOTHING
        for level in self._levels:
            whole = merged(whole, level)
        return whole


def _block_size(eps: float, max_elements: int) -> int:
    """Entries of a level, with which as many levels as are needed keep the error below ``eps``."""
    level, size = 1, 2
    while size << level < max_elements:
        size = math.ceil(level / eps) + 1
        level += 1
    return size
