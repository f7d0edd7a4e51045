"""The incomplete gamma and beta functions on float64 arrays, from elementary functions.

NumPy has none of them. Each docstring states the largest error found against 30-digit values.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from flowrt.graph.ops.elementwise.special_kernels import STIRLING, digamma, lgamma, polynomial

LARGE = 20
"""The least ``a`` for which the lower tail of the gamma density is integrated; below, it is a series."""

TERMS = 64
"""Terms of the series: the first left out is below 1e-17 of the sum for x <= a < 20."""

NEGLIGIBLE = 40
"""A tail ends where the density is exp(-40) of its value at the tail's start."""

FRACTIONS = 20000
"""Steps of the beta function's continued fraction: enough for parameters up to 1e8."""


def igamma(xp: Any, a: Any, x: Any) -> Any:
    """The share of gamma(a) below x; relative error 5e-13 for a < 1e4, absolute above 0.5."""
    is_upper, share, _ = _gamma_tail(xp, a, x)
    return xp.where(is_upper, 1 - share, share)


def igammac(xp: Any, a: Any, x: Any) -> Any:
    """The share of gamma(a) above x; errors are those of `igamma`."""
    is_upper, share, _ = _gamma_tail(xp, a, x)
    return xp.where(is_upper, share, 1 - share)


def igamma_grad_a(xp: Any, a: Any, x: Any) -> Any:
    """The derivative of `igamma` by a; error 1e-12, relative or of the density's maximum."""
    is_upper, _, slope = _gamma_tail(xp, a, x)
    return xp.where(is_upper, -slope, slope)


def random_gamma_grad(xp: Any, a: Any, x: Any) -> Any:
    """The derivative by a of a value ``x`` of gamma(a), its share below held fixed; relative error 1e-12.

    M. Figurnov et al., "Implicit reparameterization gradients", NeurIPS (2018), equation 4: minus the
    derivative of `igamma` by a, over the density; of their common factor nothing underflows here.
    """
    is_upper, _, slope = _gamma_tail(xp, a, x, over_density=True)
    return xp.where(is_upper, slope, -slope)


def _gamma_tail(xp: Any, a: Any, x: Any, over_density: bool = False) -> tuple[Any, Any, Any]:
    """The tail of the density from x on, away from its bulk: if it is the upper one, the share of gamma(a) in
    it, and that share's derivative by a; both over the density at x, if that is wanted.
    """
    is_valid = (a > 0) & (x >= 0)
    is_inside = is_valid & (x > 0) & (x < xp.inf) & (a < xp.inf)
    inner_a, inner_x = xp.where(is_inside, a, 1.0), xp.where(is_inside, x, 1.0)
    is_upper = inner_x >= xp.maximum(inner_a, 1)
    is_series = ~is_upper & (inner_a < LARGE)
    tails = (
        _lower_series(xp, xp.where(is_series, inner_a, 1.0), xp.where(is_series, inner_x, 1.0), over_density),
        _integrated_tail(xp, xp.where(is_series, LARGE, inner_a), inner_x, is_upper, over_density),
    )
    share, slope = (xp.where(is_series, s, q) for s, q in zip(*tails, strict=True))
    at_edge = xp.where(is_valid & ~(xp.isinf(a) & xp.isinf(x)), 0.0, xp.nan)
    is_upper = xp.where(is_inside, is_upper, x == xp.inf)
    return is_upper, xp.where(is_inside, share, at_edge), xp.where(is_inside, slope, at_edge)


def _lower_series(xp: Any, a: Any, x: Any, over_density: bool) -> tuple[Any, Any]:
    """The share below x, and its derivative by a: the sum of x**n / ((a + 1) ... (a + n)) over n."""
    term, total = xp.ones_like(x), xp.ones_like(x)
    harmonic, slopes = xp.zeros_like(x), xp.zeros_like(x)
    for n in range(1, TERMS):
        term = term * (x / (a + n))
        harmonic = harmonic + 1 / (a + n)
        total = total + term
        slopes = slopes + term * harmonic
    first = x / a if over_density else xp.exp(a * xp.log(x) - x - lgamma(xp, a + 1))
    return first * total, first * (total * (xp.log(x) - digamma(xp, a + 1)) - slopes)


def _integrated_tail(xp: Any, a: Any, x: Any, is_upper: Any, over_density: bool) -> tuple[Any, Any]:
    """The integral of the density from x away from its maximum, and its derivative by a."""
    power = a - 1
    length = xp.where(is_upper, _upper_length(xp, power, x), -_lower_length(xp, xp.maximum(power, 1), x))
    offset = xp.log(x) - digamma(xp, a)
    share, slope = xp.zeros_like(x), xp.zeros_like(x)
    for node, weight in _nodes():
        step = length * node
        ratio = xp.log1p(step / x)
        part = weight * xp.exp(power * ratio - step)
        share = share + part
        slope = slope + part * (ratio + offset)
    scale = xp.abs(length)
    if not over_density:
        scale = scale * xp.exp(_log_gamma_density(xp, a, x))
    return scale * share, scale * slope


def _upper_length(xp: Any, power: Any, x: Any) -> Any:
    """An s with s - power log(1 + s / x) a little over `NEGLIGIBLE`: Newton's steps from above."""
    bell = xp.maximum(power, 0)
    s = NEGLIGIBLE + 10 * xp.sqrt(bell)
    for _ in range(5):
        s = s - (s - bell * xp.log1p(s / x) - NEGLIGIBLE) / xp.maximum(1 - bell / (x + s), 1e-300)
    return s


def _lower_length(xp: Any, power: Any, x: Any) -> Any:
    """A bound of the s < x with -s - power log(1 - s / x) = `NEGLIGIBLE`: the logarithm's first two terms."""
    slope = power / x - 1
    root = xp.sqrt(xp.maximum(slope * slope + 2 * NEGLIGIBLE * power / (x * x), 0))
    return xp.minimum(2 * NEGLIGIBLE / (slope + root), x * (1 - 1e-15))


@functools.cache
def _nodes() -> list[tuple[float, float]]:
    """Nodes in [0, 1] and weights of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return [(float(n + 1) / 2, float(w) / 2) for n, w in zip(nodes, weights, strict=True)]


def _log_gamma_density(xp: Any, a: Any, x: Any) -> Any:
    """(a - 1) log(x) - x - lgamma(a): for a large ``a`` by Stirling's series, so that nothing cancels."""
    power = xp.maximum(a - 1, LARGE - 1)
    distance = (x - power) / power
    series = polynomial(STIRLING, 1 / (power * power)) / power
    far = power * (xp.log1p(distance) - distance) - 0.5 * xp.log(2 * math.pi * power) - series
    return xp.where(a < LARGE, (a - 1) * xp.log(x) - x - lgamma(xp, a), far)


def betainc(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """The share of beta(a, b) below x; relative error 2e-12 for a, b < 1e3, absolute above 0.5, and
    growing with the parameters to 4e-8 for 1e7; NaN where the fraction has not settled.
    """
    is_valid = (a > 0) & (b > 0) & (x >= 0) & (x <= 1)
    is_inside = is_valid & (x > 0) & (x < 1)
    a, b, inner = (xp.where(is_inside, v, 0.5) for v in (a, b, x))
    is_upper = inner * (a + b + 2) > a + 1
    near, far = xp.where(is_upper, b, a), xp.where(is_upper, a, b)
    at = xp.where(is_upper, 1 - inner, inner)
    log_at = xp.where(is_upper, xp.log1p(-inner), xp.log(inner))
    log_rest = xp.where(is_upper, xp.log(inner), xp.log1p(-inner))
    log_norm = lgamma(xp, near + 1) + lgamma(xp, far) - lgamma(xp, a + b)
    share = xp.exp(near * log_at + far * log_rest - log_norm) * _beta_fraction(xp, near, far, at)
    return xp.where(is_inside, xp.where(is_upper, 1 - share, share), xp.where(is_valid, x, xp.nan))


def _beta_fraction(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """The continued fraction of the incomplete beta function, by Lentz's method (W. J. Lentz, Applied Optics
    15, 1976); NIST DLMF 8.17.22.
    """
    top, value = xp.ones_like(x), 1 / (1 - (a + b) * x / (a + 1))
    below = value
    for m in range(1, FRACTIONS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        below, top = 1 / (1 + even * below), 1 + even / top
        value = value * (below * top)
        below, top = 1 / (1 + odd * below), 1 + odd / top
        change = below * top
        value = value * change
        is_settled = xp.abs(change - 1) < 4e-16
        if m % 8 == 0 and is_settled.all():  # on a GPU the host waits here
            break
    return xp.where(is_settled, value, xp.nan)
