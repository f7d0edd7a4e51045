"""Math functions of loops, expanded to arithmetic.

`expand_functions` replaces every one of `FUNCTIONS` in a `LoopProgram`, so that a back end needs only machine
instructions, and its vectoriser sees no call. Rules of this file:

  1. No branches: both sides are computed, `select` chooses one. Exponents are built and extracted as
     integers.
  2. float32 is computed in float32; only `pow` and the range reduction of `sin` and `cos` use float64. One
     function serves both dtypes; its coefficients are in a table (`flowrt.loops.loop_formats`).
  3. A sum with a critical error uses an explicit `fma`, or has an exact product: results keep their bounds
     whether or not a back end contracts ``a * b + c``.
  4. NaN gives NaN, infinities and signed zeros are IEEE 754's (C's Annex F), underflow is gradual.

The docstrings give errors in ulp of the exact result, for float32 and float64: the largest found, in float32
over all values of the non-trivial range (`pow`: 10**6 pairs), in float64 over 10**6 values. Sources: Cody and
Waite, "Software Manual for the Elementary Functions" (1980); Muller et al., "Handbook of Floating-Point
Arithmetic" (2nd ed., 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.loops.loop_formats import FORMATS
from flowrt.loops.loop_program import FUNCTIONS, LoopBuilder, LoopProgram, LoopValue


def expand_functions(program: LoopProgram) -> LoopProgram:
    """``program`` with arithmetic in place of `FUNCTIONS`; the same object if it has none of them."""
    if not any(instruction.op in FUNCTIONS for instruction in program.instructions):
        return program
    b = LoopBuilder()
    for dtype in program.dtypes:
        b.operand(dtype)
    values: list[LoopValue] = []
    for instruction in program.instructions:
        arguments = [values[number] for number in instruction.args]
        rule = _RULES.get(instruction.op)
        values.append(rule(b, *arguments) if rule else b.again(instruction, arguments))
    for output in program.outputs:  # stand-ins: they keep the names and dependencies of outputs
        b.put(values[output.value], b.operand(values[output.value].dtype))
    built = b.build()
    outputs = [old._replace(value=new.value) for old, new in zip(program.outputs, built.outputs, strict=True)]
    return program._replace(instructions=built.instructions, outputs=tuple(outputs))


# --- coefficients of float64 alone

_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
"""2/3, and its rounding error in float64."""
_LOG_FIFTH = (
    *(0.40000000000002284, 0.2857142857008533, 0.22222222522625035, 0.18181784117815072),
    *(0.15386769365124892, 0.1325652561632246, 0.13199143317910492),
)
"""``(ln((1 + s) / (1 - s)) - 2 s - 2/3 s**3) / s**5`` in s², for `_log_in_two`."""

_HALF_PI = (1.5707963267948983, -1.7151244994428829e-15, 8.4784276603689e-32)
"""π/2 in three parts. The first has 48 fractional bits: its products with whole numbers below 2**48,
subtracted from a nearby number, are exact.
"""
_LARGEST_ANGLE = 2.0**48


# --- pieces


def _polynomial(b: LoopBuilder, x: LoopValue, coefficients: Sequence[float]) -> LoopValue:
    """Horner's rule."""
    value = b.const(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        value = b.fma(value, x, coefficient)
    return value


def _clamp(b: LoopBuilder, x: LoopValue, low: float, high: float) -> LoopValue:
    """One instruction a side, and a NaN stays (`min` and `max` need three to keep it)."""
    x = b.select(x > high, high, x)
    return b.select(x < low, low, x)


def _two_sum(a: LoopValue, c: LoopValue) -> tuple[LoopValue, LoopValue]:
    """``a + c`` and its rounding error (Knuth)."""
    total = a + c
    part = total - a
    return total, (a - (total - part)) + (c - part)


def _fast_two_sum(a: LoopValue, c: LoopValue) -> tuple[LoopValue, LoopValue]:
    """``a + c`` and its rounding error, for ``|a| >= |c|`` or ``a == 0`` (Dekker)."""
    total = a + c
    return total, (a - total) + c


def _nearest(b: LoopBuilder, x: LoopValue, factor: float) -> tuple[LoopValue, LoopValue]:
    """``x * factor`` rounded to a whole number: as a float, and as an integer that is correct in its low
    half.

    Adding 1.5 * 2**fraction_bits, with a last place of 1, rounds; its low bits are the integer.
    """
    magic = 1.5 * 2.0 ** FORMATS[x.dtype].fraction_bits
    shifted = b.fma(x, factor, magic)
    return shifted - magic, b.bits(shifted)


def _power_of_two(b: LoopBuilder, n: LoopValue) -> LoopValue:
    """``2**n``, normal numbers only; of the integer n the low 9 (float32) or 12 bits count."""
    form = FORMATS["float32" if n.dtype == "int32" else "float64"]
    return b.from_bits((n << form.fraction_bits) + form.one)


def _halved_power(b: LoopBuilder, n: LoopValue) -> tuple[LoopValue, LoopValue]:
    """Two factors of ``2**n``, which may be no normal number itself; ``y * first * second`` rounds once."""
    half = n >> 1
    return _power_of_two(b, half), _power_of_two(b, n - half)


def _split(b: LoopBuilder, x: LoopValue) -> tuple[LoopValue, LoopValue]:
    """m in [√½, √2) and the integer e with ``x = m * 2**e``, for normal x > 0."""
    form = FORMATS[x.dtype]
    bits = b.bits(x)
    e = (bits - form.sqrt_half) >> form.fraction_bits
    return b.from_bits(bits - (e << form.fraction_bits)), e


def _split_any(b: LoopBuilder, x: LoopValue) -> tuple[LoopValue, LoopValue]:
    """The same as `_split`, for subnormal x too; e is a float."""
    form = FORMATS[x.dtype]
    tiny = x < form.least_normal
    m, e = _split(b, b.select(tiny, x * 2.0**form.fraction_bits, x))
    return m, b.cast(e, x.dtype) - b.select(tiny, b.const(form.fraction_bits, x.dtype), 0.0)


# --- exp and its kin


def _exp_reduced(b: LoopBuilder, x: LoopValue, low: LoopValue | None = None) -> tuple[LoopValue, LoopValue]:
    """r and the integer n with ``x + low = n ln 2 + r``, |r| <= ln 2 / 2 (Cody and Waite)."""
    ln2_high, ln2_low = FORMATS[x.dtype].ln2
    whole, n = _nearest(b, x, 1 / math.log(2))
    r = b.fma(whole, -ln2_high, x)
    return (b.fma(whole, -ln2_low, r) if low is None else r + b.fma(whole, -ln2_low, low)), n


def _exp_of_reduced(b: LoopBuilder, r: LoopValue) -> LoopValue:
    return _polynomial(b, r, (1.0, 1.0, *FORMATS[r.dtype].exp))


def _exp(b: LoopBuilder, x: LoopValue, low: LoopValue | None = None) -> LoopValue:
    """``2**n e**r``. 0.91 and 0.88 ulp. ``low`` is added to x, for `_pow`.

    Where the result is 0, another one is computed, a normal number: underflow takes a processor about 150
    cycles, and masks of softmax are full of it.
    """
    least, most = FORMATS[x.dtype].exp_range
    is_zero = x < least
    x = b.select(is_zero, 0.0, b.select(x > most, most, x))
    r, n = _exp_reduced(b, x, low)
    first, second = _halved_power(b, n)
    return b.select(is_zero, 0.0, _exp_of_reduced(b, r) * first * second)


def _expm1(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """``2**n ((1 - 2**-n + r) + (e**r - 1 - r))``. 1.28 and 1.55 ulp."""
    form = FORMATS[x.dtype]
    r, n = _exp_reduced(b, _clamp(b, x, -form.saturation, form.exp_range[1]))
    start = b.fma(_power_of_two(b, 2 - n), -0.25, 1.0)  # 2**-n itself is subnormal for the largest x
    value = b.fma(r * r, _polynomial(b, r, form.exp), start + r)
    first, second = _halved_power(b, n)
    return b.copysign(value * first * second, x)


def _tanh(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """``(E - 1) / (E + 1)``, from 1/2 on ``1 - 2 / (E + 1)``, of E = e**|2 x|. 1.75 and 1.9 ulp.

    E is 2**n (1 + g) / (1 - g) with |2 x| = n ln 2 + 2 h and g = tanh h, which is small, and so is its error;
    for n = 0 it is the result.
    """
    form = FORMATS[x.dtype]
    size = abs(x)
    size = b.select(size > form.saturation / 2, form.saturation / 2, size)
    whole, n = _nearest(b, size - 0.0867, 2 / math.log(2))  # n = 0 up to 1/4, n = 1 above 1/2
    h = b.fma(whole, -form.ln2[0] / 2, size)
    h = b.fma(whole, -form.ln2[1] / 2, h)
    square = h * h
    g = b.fma(h * square, _polynomial(b, square, form.tanh), h)
    power = _power_of_two(b, n)
    less, more = power - 1.0, power + 1.0
    is_far = size > math.log(3) / 2
    quotient = b.select(is_far, b.fma(g, -2.0, 2.0), b.fma(g, more, less)) / b.fma(g, less, more)
    return b.copysign(b.select(is_far, 1.0 - quotient, quotient), x)


def _sigmoid(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """``q = 1 / (1 + E)``, above 0 ``1 - q``, of E = e**|x|. 2.0 and 2.0 ulp.

    E is 2**n (1 + (e**r - 1)); numerator and denominator are divided by a part of 2**n, so that q underflows
    gradually and no E overflows.
    """
    form = FORMATS[x.dtype]
    size = abs(x)
    r, n = _exp_reduced(b, b.select(size > -form.exp_range[0], -form.exp_range[0], size))
    rest = b.fma(r * r, _polynomial(b, r, form.exp), r)
    half = n >> 1
    first, second = _power_of_two(b, half), _power_of_two(b, half - n)
    q = second / (b.fma(first, rest, second) + first)
    return b.select(x < 0.0, q, 1.0 - q)


def _erf(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """``x + x P(x²)`` near 0, ``1 - e**Q(|x|)`` farther out. 1.39 and 1.15 ulp.

    There e**Q is small, and its relative error counts little.
    """
    form = FORMATS[x.dtype]
    size = abs(x)
    size = b.select(size > form.erf_end, form.erf_end, size)
    near = b.fma(size, _polynomial(b, size * size, form.erf_near), size)
    r, n = _exp_reduced(b, _polynomial(b, size, form.erf_far))
    far = b.fma(_exp_of_reduced(b, r), -_power_of_two(b, n), 1.0)
    return b.copysign(b.select(size < form.erf_bound, near, far), x)


# --- log and its kin


def _log_of_parts(b: LoopBuilder, f: LoopValue, e: LoopValue) -> LoopValue:
    """``ln((1 + f) 2**e)``, f in [√½ - 1, √2 - 1], e a whole number.

    With s = f / (2 + f), ln(1 + f) = 2 atanh s = f - (f²/2 - s (f²/2 + s² L(s²))).
    """
    form = FORMATS[f.dtype]
    s = f / (f + 2.0)
    square = s * s
    half = f * f * 0.5
    series = b.fma(square, _polynomial(b, square, form.log), half)
    correction = half - b.fma(s, series, e * form.ln2[1])
    total, error = _fast_two_sum(e * form.ln2[0], f)
    return total - (correction - error)


def _log_edges(b: LoopBuilder, value: LoopValue, x: LoopValue, pole: float) -> LoopValue:
    """``value`` with the edge cases of a logarithm with its pole at ``x = pole``."""
    finite = b.select(x < math.inf, value, x)
    return b.select(x > pole, finite, b.select(x.equals(pole), b.const(-math.inf, x.dtype), math.nan))


def _log(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """`_log_of_parts` of x's fraction and exponent. 0.83 and 0.82 ulp."""
    m, e = _split_any(b, x)
    return _log_edges(b, _log_of_parts(b, m - 1.0, e), x, 0.0)


def _log1p(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """`_log` of ``1 + x``, with the rounding error of the sum added to the fraction. 1.39 and 1.35 ulp."""
    total, error = _two_sum(x, b.const(1.0, x.dtype))
    m, e = _split(b, total)
    scale = _power_of_two(b, 1 - e) * 0.5  # 2**-e itself is subnormal for the largest x
    f = b.fma(error, scale, m - 1.0)
    value = b.copysign(_log_of_parts(b, f, b.cast(e, x.dtype)), x)
    return _log_edges(b, value, x, -1.0)


# --- roots and powers


def _rsqrt(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """``1 / sqrt(x)`` and a step of Newton's, the residual ``1 - x y²`` in twice the precision. 0.501 ulp."""
    y = 1.0 / b.sqrt(x)
    product = x * y
    residual = b.fma(-b.fma(x, y, -product), y, b.fma(-product, y, 1.0))
    better = b.fma(y * 0.5, residual, y)
    return b.select(abs(residual) < 1.0, better, y)  # NaN there for 0, infinity and negative values


def _log_in_two(b: LoopBuilder, x: LoopValue) -> tuple[LoopValue, LoopValue]:
    """``ln x`` of float64 x >= 0 as high and low part, relative error below 2**-64.

    The series of `_log_of_parts` with s and its cube in two parts each.
    """
    m, e = _split_any(b, x)
    f = m - 1.0
    divisor = f + 2.0
    s = f / divisor
    s_low = b.fma(-s, f - (divisor - 2.0), b.fma(-s, divisor, f)) / divisor
    square = s * s
    square_low = b.fma(s + s, s_low, b.fma(s, s, -square))
    cube = s * square
    cube_low = b.fma(s_low, square, b.fma(s, square_low, b.fma(s, square, -cube)))
    ln2_high, ln2_low = FORMATS["float64"].ln2
    start, start_low = _fast_two_sum(e * ln2_high, s + s)
    high = b.fma(cube, _TWO_THIRDS[0], start)
    low = b.fma(cube, _TWO_THIRDS[0], start - high)
    low = b.fma(cube, _TWO_THIRDS[1], b.fma(cube_low, _TWO_THIRDS[0], low)) + start_low
    low = b.fma(cube * square, _polynomial(b, square, _LOG_FIFTH), low)
    low = b.fma(e, ln2_low, b.fma(s_low, 2.0, low))
    high, low = _fast_two_sum(high, low)
    high = b.select(x > 0.0, b.select(x < math.inf, high, x), b.select(x.equals(0.0), -math.inf, x))
    return high, low


def _power_of_size(b: LoopBuilder, size: LoopValue, y: LoopValue) -> LoopValue:
    """``size**y`` for size >= 0; NaN for ``1**inf``."""
    if size.dtype == "float32":
        return b.cast(_exp(b, b.cast(y, "float64") * _log(b, b.cast(size, "float64"))), "float32")
    log, log_low = _log_in_two(b, size)
    product = y * log
    low = b.fma(y, log_low, b.fma(y, log, -product))
    return _exp(b, product, b.select(abs(product) < 1e3, low, 0.0))  # an infinite product has a NaN there


def _pow(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    """``e**(y ln|x|)`` with x's sign where y is odd; the logarithm in twice the precision. 0.501 and
    1.45 ulp. Its edges are those of C and NumPy.
    """
    whole = b.floor(y).equals(y)
    half = y * 0.5
    odd = whole & b.floor(half).differs(half)
    size = abs(x)
    power = b.select(size.equals(1.0), 1.0, _power_of_size(b, size, y))
    signed = b.select(odd, b.copysign(power, x), power)
    undefined = (x < 0.0) & (size < math.inf) & ~whole
    return b.select(y.equals(0.0), 1.0, b.select(undefined, math.nan, signed))


# --- sin and cos


def _quarter_turns(b: LoopBuilder, x: LoopValue) -> tuple[LoopValue, LoopValue, LoopValue]:
    """An integer n (its low bits) and r in two parts with ``x = n π/2 + r``, |r| < 1.05 π/4."""
    if x.dtype == "float32":
        wide = b.cast(x, "float64")
        whole, n = _nearest(b, wide, 2 / math.pi)
        r = b.fma(whole, -_HALF_PI[1], b.fma(whole, -_HALF_PI[0], wide))
        rounded = b.cast(r, "float32")
        return b.cast(n, "int32"), rounded, b.cast(r - b.cast(rounded, "float64"), "float32")
    whole, n = _nearest(b, x, 2 / math.pi)
    first = b.fma(whole, -_HALF_PI[0], x)
    second = b.fma(whole, -_HALF_PI[1], first)
    taken, error = _two_sum(first, -second)
    low = b.fma(whole, -_HALF_PI[2], b.fma(whole, -_HALF_PI[1], taken) + error)
    return n, *_fast_two_sum(second, low)


def _sine(b: LoopBuilder, x: LoopValue, quarters: int) -> LoopValue:
    """The sine of x and a number of quarter turns: ± sin r or ± cos r of the remainder r."""
    form = FORMATS[x.dtype]
    n, r, low = _quarter_turns(b, b.select(abs(x) <= _LARGEST_ANGLE, x, math.inf))
    n = n + quarters
    square = r * r
    sine = r + b.fma(r * square, _polynomial(b, square, form.sin), low)
    cosine = b.fma(square, b.fma(square, _polynomial(b, square, form.cos), -0.5), -(r * low)) + 1.0
    size = b.select((n & 1).equals(0), sine, cosine)
    sign_bit = 30 if x.dtype == "float32" else 62
    return b.from_bits(b.bits(size) ^ ((n & 2) << sign_bit))


def _sin(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """1.2 ulp for |x| <= 2**48, the limit of Cody and Waite's reduction; NaN beyond."""
    return b.select(x.equals(0.0), x, _sine(b, x, 0))  # -0 stays


_RULES: dict[str, Callable[..., Any]] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": _sin,
    "cos": lambda b, x: _sine(b, x, 1),
    "rsqrt": _rsqrt,
    "pow": _pow,
}
