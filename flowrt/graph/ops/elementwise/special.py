"""Special functions: the error function and its kin, the logarithm of gamma with its derivatives, zeta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, Sample, sample
from flowrt.graph.op_facets import Kernel, instruction
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise import special_kernels
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from flowrt.graph.ops.elementwise.comparison import elementwise_op
from flowrt.graph.ops.elementwise.math import exp, neg, number, square, unary_op, unary_samples

BLOCK = 32768
"""Elements a CPU computes at a time: the temporaries stay in a core's cache, half the time for a million."""


def _blockwise(
    function: Callable[[Any, Any], Any], narrow: Callable[[Any, Any], Any] | None = None
) -> Kernel:
    """The kernel that computes ``function`` in float64, or ``narrow`` in float32 up to 32 bits."""

    def kernel(xp: Any, x: Any, out: Any = None) -> Any:
        chosen, dtype = (
            (function, np.float64) if narrow is None or x.dtype.itemsize == 8 else (narrow, np.float32)
        )
        is_flat = out is not None and out.flags.c_contiguous
        flat = x.reshape(-1)
        result = out.reshape(-1) if is_flat else xp.empty(flat.shape, x.dtype)
        block = BLOCK if xp is np else max(1, flat.size)
        for start in range(0, flat.size, block):
            result[start : start + block] = chosen(xp, flat[start : start + block].astype(dtype))
        return out if is_flat else delivered(xp, result.reshape(x.shape), x.dtype, out)

    return kernel


def _gauss(d: Tensor, x: Tensor, factor: float, sign: int) -> Tensor:
    """d * factor * exp(sign * x**2)."""
    power = square(x)
    bell = exp(power if sign > 0 else neg(power))
    return multiply(multiply(d, number(factor, x)), bell)


erf = unary_op(
    "Erf",
    _blockwise(special_kernels.erf, special_kernels.erf_32),
    "FLOATING",
    lambda d, x, y: _gauss(d, x, 2 / math.sqrt(math.pi), -1),
    unary_samples(-3, 3),
    """2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.

    Example:
        >>> tf.erf([0.0]).eval()
        array([0.], dtype=float32)
    """,
    instruction("erf"),
)

erfc = unary_op(
    "Erfc",
    _blockwise(special_kernels.erfc),
    "FLOATING",
    lambda d, x, y: _gauss(d, x, -2 / math.sqrt(math.pi), -1),
    unary_samples(-3, 3),
    "1 - erf(x), exact for large x.",
)

erfinv = unary_op(
    "Erfinv",
    _blockwise(special_kernels.erfinv),
    "FLOATING",
    lambda d, x, y: _gauss(d, y, math.sqrt(math.pi) / 2, 1),
    unary_samples(-0.95, 0.95),
    "The inverse of erf on [-1, 1].",
    narrows=False,
)

lgamma = unary_op(
    "Lgamma",
    _blockwise(special_kernels.lgamma),
    "FLOATING",
    lambda d, x, y: multiply(d, digamma(x)),
    unary_samples(0.5, 5),
    "The logarithm of abs(gamma(x)).",
    narrows=False,
)

digamma: OpDef[Tensor] = unary_op(
    "Digamma",
    _blockwise(special_kernels.digamma),
    "FLOATING",
    lambda d, x, y: multiply(d, polygamma(number(1, x), x)),
    unary_samples(0.5, 5),
    "The derivative of lgamma.",
    narrows=False,
)


def _polygamma(xp: Any, a: Any, x: Any, out: Any = None) -> Any:
    found = xp.asarray(special_kernels.polygamma(xp, a.astype(np.float64), x.astype(np.float64)))
    return delivered(xp, found, x.dtype, out)


def _polygamma_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    a, x = op.inputs
    return [None, unbroadcast(multiply(dy, polygamma(add_v2(a, number(1, a)), x)), x, a)]


def _orders(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([[0.0], [1.0], [2.0]]), rng.uniform(0.5, 5, 3), differentiable=False)  # not by a
    yield sample(np.array(1, np.float32), np.array([0.5, 2], np.float32))


polygamma: OpDef[Tensor] = elementwise_op(
    "Polygamma",
    "a: T in float32 | float64, x: T -> z: T",
    kernel=_polygamma,
    narrows=False,
    vjp=_polygamma_vjp,
    samples=_orders,
    doc="Derivative number a of digamma at x.",
)


def _zeta(xp: Any, x: Any, q: Any, out: Any = None) -> Any:
    found = special_kernels.zeta(xp, x.astype(np.float64), q.astype(np.float64))
    return delivered(xp, xp.asarray(found), x.dtype, out)


def _zeta_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, q = op.inputs
    slope = neg(multiply(x, zeta(add_v2(x, number(1, x)), q)))
    return [None, unbroadcast(multiply(dy, slope), q, x)]


def _exponents(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([[1.5], [3.0]]), rng.uniform(0.5, 5, 3), differentiable=False)  # not by x
    yield sample(np.array(2, np.float32), np.array([0.5, -0.5], np.float32))


zeta: OpDef[Tensor] = elementwise_op(
    "Zeta",
    "x: T in float32 | float64, q: T -> z: T",
    kernel=_zeta,
    narrows=False,
    vjp=_zeta_vjp,
    samples=_exponents,
    doc="""Hurwitz's zeta function: the sum of (q + k) ** -x over k = 0, 1, 2 ..., x > 1.

    Infinite at x = 1, NaN below. Differentiable by ``q`` only.

    Example:
        >>> tf.zeta([2.0], [1.0]).eval().round(4)  # pi**2 / 6
        array([1.6449], dtype=float32)
    """,
)
