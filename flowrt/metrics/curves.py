"""Areas under curves with a point for each of several thresholds, which rise: true positives (``hits``) and
false positives (``alarms``), of ``positives`` and ``negatives`` in all.
"""

from __future__ import annotations

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import greater, logical_and, where_v2
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import log

_LEAST = 1e-6
"""Added to both counts of a precision, as in TensorFlow: it is 1 where nothing is found."""


def area_under(x: Tensor, y: Tensor, heights: str = "trapezoidal") -> Tensor:
    """The area under points that fall along x. ``heights`` of two neighbours: "trapezoidal", their mean,
    "minoring" or "majoring", the lower or the upper.
    """
    if heights == "trapezoidal":
        height = (y[:-1] + y[1:]) / 2.0
    else:
        height = (minimum if heights == "minoring" else maximum)(y[:-1], y[1:])
    return reduce_sum((x[:-1] - x[1:]) * height)


def roc(hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of false and of true positives."""
    return div_no_nan(alarms, negatives), div_no_nan(hits, positives)


def precision_over_recall(hits: Tensor, alarms: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Recalls and precisions."""
    return (hits + _LEAST) / (positives + _LEAST), (hits + _LEAST) / (hits + alarms + _LEAST)


def area_under_precision(hits: Tensor, alarms: Tensor, positives: Tensor) -> Tensor:
    """The area under precision over recall: true positives are interpolated between thresholds, not the
    precision (Davis and Goadrich, 2006). ``positives`` may be one number or one for each threshold but the
    first.
    """
    found = hits + alarms
    before, after = found[:-1], found[1:]
    gained = hits[:-1] - hits[1:]
    slope = div_no_nan(gained, maximum(before - after, 0.0))
    offset = hits[1:] - slope * after
    both = logical_and(greater(before, 0.0), greater(after, 0.0))
    ratio = where_v2(both, div_no_nan(before, maximum(after, 0.0)), ones_like(after))
    areas = slope * (gained + offset * log(ratio))
    return reduce_sum(div_no_nan(areas, maximum(positives, 0.0)))
