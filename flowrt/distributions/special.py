"""Functions of distributions: the normal distribution's and their logarithms, the multivariate beta's."""

from __future__ import annotations

import math
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import greater, where_v2
from flowrt.graph.ops.elementwise.math import expm1, log, square
from flowrt.graph.ops.elementwise.special import erfc, erfinv, lgamma


def ndtr(x: Any) -> Tensor:
    """The normal distribution function."""
    return 0.5 * erfc(-convert_to_tensor(x) / math.sqrt(2))


def ndtri(p: Any) -> Tensor:
    """The inverse of `ndtr`."""
    return math.sqrt(2) * erfinv(2.0 * convert_to_tensor(p) - 1.0)


def log_ndtr(x: Any) -> Tensor:
    """The logarithm of `ndtr`, also where that underflows: there by its asymptotic series, Abramowitz and
    Stegun (1972) 26.2.12, in TensorFlow's ranges.
    """
    given = convert_to_tensor(x)
    lower, upper = (-20.0, 8.0) if given.dtype.size == 8 else (-10.0, 5.0)
    far = minimum(given, lower)
    inverse = 1.0 / square(far)
    series = 1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse))
    tail = -0.5 * square(far) - log(-far) - 0.5 * math.log(2 * math.pi) + log(series)
    return where_v2(
        greater(given, upper),
        -ndtr(-given),
        where_v2(greater(given, lower), log(ndtr(maximum(given, lower))), tail),
    )


def softplus_inverse(x: Any, name: str | None = None) -> Tensor:
    """The y of which ``x`` is the softplus: exact near 0 and for large x."""
    with get_default_graph().name_scope(name or "softplus_inverse"):
        given = convert_to_tensor(x)
        return given + log(-expm1(-given))


def lbeta(x: Any) -> Tensor:
    """The logarithm of the multivariate beta function along the last axis."""
    given = convert_to_tensor(x)
    return reduce_sum(lgamma(given), -1) - lgamma(reduce_sum(given, -1))
