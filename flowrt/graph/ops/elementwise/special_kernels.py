"""erf, erfc, erfinv, lgamma, digamma, polygamma, zeta on float64 arrays, from elementary functions.

NumPy has none of them. Each docstring states the largest relative error found against 40-digit values.
Polynomials are written highest power first; those without another source are Chebyshev fits to 40 digits.
"""

from __future__ import annotations

import math
from typing import Any

_ERF = (
    -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07, 1.6447424703317362e-06,
    -1.492473690741966e-05, 0.00012055294904839707, -0.0008548325975389692, 0.0052239776071164225,
    -0.02686617064323777, 0.11283791670945006, -0.37612638903183543, 1.1283791670955126,
)  # fmt: skip
"""erf(x) / x as a polynomial in x**2, for abs(x) <= 1; relative error 7e-18."""

_ERFCX = (
    2.5308175984725495e-08, 3.0464758190634305e-08, -3.725273380603777e-07, 1.4492115252488493e-07,
    2.8279662022240054e-06, -5.606689311541875e-06, -1.2189210405931738e-05, 7.530868807353793e-05,
    -9.963080868725322e-05, -0.0003788861088468063, 0.0025159853494136912, -0.00809886710278349,
    0.018583757737078894, -0.03316518290055977, 0.04686641750071311, -0.05051953301835635,
    0.034048527127311656, 0.007689826051312706, -0.06981055842028103, 0.6164975593127763,
)  # fmt: skip
"""(x + 1/2) exp(x**2) erfc(x) in t = (x - 4) / (x + 4), for 1 <= x <= 28; error 1e-17."""

_LGAMMA = (
    1.1820969445467145e-05, -1.8527803997032962e-05, 1.3584275459130943e-05, -2.148770252062576e-05,
    4.281642862794779e-05, -6.793733027397047e-05, 0.00010541715222185904, -0.0001685717945035172,
    0.00027130273545114005, -0.00043803516132580534, 0.0007115202752051298, -0.001164411377219605,
    0.0019229162321227923, -0.0032120742206072908, 0.005446457842219553, -0.009425622444829649,
    0.01679709863121395, -0.03130848750105327, 0.06291140107456485, -0.14595989591430594,
    0.4831289505409809,
)  # fmt: skip
"""lgamma(x) / ((x - 1) (x - 2)) in t = x - 3/2, for 1 <= x <= 2; error 1e-17."""

_ERF_32 = (
    7.875875062685488e-05, -0.000801686428716587, 0.005189087423433974, -0.026854212010626412,
    0.11283594715160218, -0.37612626666720334, 1.1283791658483509,
)  # fmt: skip
"""Coefficients like `_ERF` for float32; relative error 1.2e-9."""

_LOG_ERFC_32 = (
    -1.3272361811238555e-05, 0.00022403048981273858, -0.0018094488437878013, 0.009732538008525199,
    -0.041311334666674825, -0.843204155080985, -2.638953472846454, -1.8496058399157782,
)  # fmt: skip
"""log(erfc(x)) in x - 1, for 1 <= x <= 4; error 3.4e-7."""

_QUANTILE_CENTRE = (
    (
        2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987, 13731.69376550946,
        1971.5909503065513, 133.14166789178438, 3.3871328727963665,
    ),
    (
        5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597, 5394.196021424751,
        687.1870074920579, 42.31333070160091, 1.0,
    ),
)  # fmt: skip
_QUANTILE_TAIL = (
    (
        0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
        3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835,
    ),
    (
        1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
        0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0,
    ),
)  # fmt: skip
_QUANTILE_FAR_TAIL = (
    (
        2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
        0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103,
    ),
    (
        2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
        0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0,
    ),
)  # fmt: skip
"""The normal quantile: M. J. Wichura, Algorithm AS 241, Applied Statistics 37 (1988)."""

STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
"""B[2k] / (2k (2k - 1)), k = 8 to 1: the series of lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2."""

_DIGAMMA = (-3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
"""B[2k] / 2k, k = 8 to 1: the series of log(x) - 1 / 2x - digamma(x) in 1 / x**2."""

_ZETA = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
"""B[2k] / (2k)!, k = 1 to 6: the Euler-Maclaurin corrections."""

SHIFT = 10
"""The asymptotic series are used from here on: their first left-out term is below 1e-17."""


def polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Horner's rule, in place from the second step on."""
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value


def _erf_centre(xp: Any, x: Any) -> Any:
    """erf(x) for abs(x) <= 1; anything finite elsewhere."""
    return x * polynomial(_ERF, xp.minimum(x * x, 1))


def _erfc_tail(xp: Any, size: Any) -> Any:
    """erfc(size) for size >= 1; anything finite below. The square in exp(-size**2) is split, to be exact."""
    size = xp.minimum(xp.maximum(size, 1), 28)  # erfc(28) is 0 in float64
    high = size.astype("float32").astype("float64")
    gauss = xp.exp(-high * high) * xp.exp((high - size) * (high + size))
    return gauss * polynomial(_ERFCX, (size - 4) / (size + 4)) / (size + 0.5)


def erf(xp: Any, x: Any) -> Any:
    """2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x; error 2.1e-16."""
    size = xp.abs(x)
    return xp.where(size < 1, _erf_centre(xp, x), xp.copysign(1 - _erfc_tail(xp, size), x))


def erf_32(xp: Any, x: Any) -> Any:
    """erf of float32 in float32: at most 2.4 ulp, never above 1, a third of the time."""
    size = xp.abs(x)
    centre = x * polynomial(_ERF_32, xp.minimum(x * x, 1))
    tail = 1 - xp.exp(polynomial(_LOG_ERFC_32, xp.minimum(size, 4) - 1))  # erf(4) is 1 in float32
    return xp.where(size < 1, centre, xp.copysign(tail, x))


def erfc(xp: Any, x: Any) -> Any:
    """1 - erf(x); error 7.6e-16, for large x too."""
    tail = _erfc_tail(xp, xp.abs(x))
    return xp.where(xp.abs(x) < 1, 1 - _erf_centre(xp, x), xp.where(x < 0, 2 - tail, tail))


def erfinv(xp: Any, y: Any) -> Any:
    """The x with erf(x) = y; infinite at -1 and 1, NaN outside; error 5.9e-16."""
    size = xp.abs(y)
    half = y / 2
    centre = half * _ratio(_QUANTILE_CENTRE, 0.180625 - half * half)
    depth = xp.sqrt(-xp.log((1 - size) / 2))
    tail = xp.where(depth <= 5, _ratio(_QUANTILE_TAIL, depth - 1.6), _ratio(_QUANTILE_FAR_TAIL, depth - 5))
    tail = xp.where(size == 1, xp.inf, tail)
    return xp.where(size <= 0.85, centre, xp.copysign(tail, y)) / math.sqrt(2)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Any) -> Any:
    return polynomial(coefficients[0], x) / polynomial(coefficients[1], x)


def lgamma(xp: Any, x: Any) -> Any:
    """log(abs(gamma(x))); infinite at 0, -1, -2 ...; error 5.4e-15, except near negative roots."""
    positive = _lgamma_positive(xp, xp.where(x <= 0, 1 - x, x))
    reflected = math.log(math.pi) - xp.log(xp.sin(math.pi * xp.abs(_from_pole(xp, x)))) - positive
    return xp.where(xp.isinf(x), xp.inf, xp.where(x <= 0, reflected, positive))


def _lgamma_positive(xp: Any, x: Any) -> Any:
    """Up to 3 shifted by one recurrence step to [1, 2]: near the zeros 1 and 2 the relative error stays
    small.
    """
    step = xp.where(x < 1, -1.0, xp.where(x > 2, 1.0, 0.0))
    near = x - step  # in [1, 2]
    centre = (x - (1 + step)) * (x - (2 + step)) * polynomial(_LGAMMA, xp.minimum(near, 2) - 1.5)
    centre += step * xp.log(xp.where(step < 0, x, xp.where(step > 0, x - 1, 1.0)))
    product, shifted = xp.ones_like(x), x
    for _ in range(SHIFT - 3):
        product = xp.where(shifted < SHIFT, product * shifted, product)
        shifted = xp.where(shifted < SHIFT, shifted + 1, shifted)
    series = polynomial(STIRLING, 1 / (shifted * shifted)) / shifted
    far = (shifted - 0.5) * (xp.log(shifted) - 1) + (0.5 * math.log(2 * math.pi) - 0.5) + series
    return xp.where(x <= 3, centre, far - xp.log(product))


def _from_pole(xp: Any, x: Any) -> Any:
    """Distance of ``x`` from the nearest integer, exactly: ``x - floor(x)`` would be 1 just below 0."""
    return x - xp.rint(x)


def digamma(xp: Any, x: Any) -> Any:
    """The derivative of lgamma; NaN at 0, -1, -2 ...; error 1.1e-14, except near roots."""
    distance = _from_pole(xp, x)
    value = _digamma_positive(xp, xp.where(x <= 0, 1 - x, x))
    reflected = xp.where(distance == 0, xp.nan, value - math.pi / xp.tan(math.pi * distance))
    return xp.where(x <= 0, reflected, value)


def _digamma_positive(xp: Any, x: Any) -> Any:
    below, shifted = xp.zeros_like(x), x
    for _ in range(SHIFT):
        below = xp.where(shifted < SHIFT, below + 1 / shifted, below)
        shifted = xp.where(shifted < SHIFT, shifted + 1, shifted)
    square = 1 / (shifted * shifted)
    return xp.log(shifted) - 0.5 / shifted - square * polynomial(_DIGAMMA, square) - below


def polygamma(xp: Any, n: Any, x: Any) -> Any:
    """Derivative n of digamma; infinite at 0, -1, -2 ..., NaN unless n is 0, 1, 2 ...; error 1.9e-15 for x >
    0, 6e-15 for x < 0, except near roots, for n to 5.
    """
    sign = 1 - 2 * xp.remainder(n + 1, 2)
    is_positive = x > 0
    zeta = _hurwitz_zeta(xp, n + 1, xp.where(is_positive, x, 1.0))
    if not is_positive.all():
        reflected = _reflected_zeta(xp, n + 1, xp.where(is_positive, 0.5, x))
        zeta = xp.where(is_positive, zeta, xp.where(n == xp.floor(n), reflected, xp.nan))
    found = xp.where(n == 0, digamma(xp, x), sign * xp.exp(lgamma(xp, n + 1)) * zeta)
    return xp.where((n == xp.floor(n)) & (n >= 0), found, xp.nan)


def zeta(xp: Any, s: Any, q: Any) -> Any:
    """The sum of (q + k)**-s over k >= 0; infinite at s = 1 and, for even s, at q = 0, -1, -2 ...; NaN for
    s < 1, at those q for other s, and for q < 0 and no integer s; error 2e-15 for q > 0.
    """
    order, is_positive = xp.where(s > 1, xp.minimum(s, 1e20), 2.0), q > 0  # powers of 1e20 are finite
    found = _hurwitz_zeta(xp, order, xp.where(is_positive, q, 1.0))
    if not is_positive.all():
        is_whole = order == xp.floor(order)
        is_pole = q == xp.floor(q)
        reflected = _reflected_zeta(xp, order, xp.where(is_positive | is_pole, 0.5, q))
        at_pole = xp.where(xp.remainder(order, 2) == 0, xp.inf, xp.nan)
        below = xp.where(is_pole, at_pole, xp.where(is_whole, reflected, xp.nan))
        found = xp.where(is_positive, found, below)
    return xp.where(s > 1, found, xp.where(s == 1, xp.inf, xp.nan))


def _reflected_zeta(xp: Any, s: Any, q: Any) -> Any:
    """`_hurwitz_zeta` for q <= 0 and integers s: the sum over all integers k has period 1 in q, and the
    surplus terms, k < 0, are a sum for 1 - q.
    """
    distance = _from_pole(xp, q)
    mirrored = _hurwitz_zeta(xp, s, 1 - distance) - _hurwitz_zeta(xp, s, 1 - q)
    return distance**-s + _hurwitz_zeta(xp, s, 1 + distance) + (1 - 2 * xp.remainder(s, 2)) * mirrored


def _hurwitz_zeta(xp: Any, s: Any, q: Any) -> Any:
    """The sum of (q + k)**-s over k >= 0, q > 0, s > 1: terms, an integral, Euler-Maclaurin corrections."""
    total = q**-s
    for k in range(1, SHIFT):
        total = total + (q + k) ** -s
    end = q + SHIFT
    factor = end**-s
    total = total + end ** (1 - s) / (s - 1) + 0.5 * factor  # 0, not 0 * inf, at infinity
    for k, coefficient in enumerate(_ZETA):
        factor = factor * (s + 2 * k - 1 if k else 1) * (s + 2 * k) / (end * end if k else end)
        total = total + coefficient * factor
    return total
