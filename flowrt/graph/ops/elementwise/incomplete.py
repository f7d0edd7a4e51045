"""The incomplete gamma and beta functions as ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, Sample, Samples, sample
from flowrt.graph.op_facets import Kernel
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise import incomplete_kernels
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import elementwise_op
from flowrt.graph.ops.elementwise.division import xlogy
from flowrt.graph.ops.elementwise.math import exp, neg, number
from flowrt.graph.ops.elementwise.special import BLOCK, lgamma


def _blockwise(function: Callable[..., Any]) -> Kernel:
    """The kernel that computes ``function`` of several arrays in float64, `BLOCK` elements at a time."""

    def kernel(xp: Any, *arrays: Any, out: Any = None) -> Any:
        wide = xp.broadcast_arrays(*arrays)
        flat = [array.reshape(-1) for array in wide]
        result = xp.empty(flat[0].shape, arrays[0].dtype)
        block = BLOCK if xp is np else max(1, result.size)
        for start in range(0, result.size, block):
            part = slice(start, start + block)
            result[part] = function(xp, *(array[part].astype(np.float64) for array in flat))
        return delivered(xp, result.reshape(wide[0].shape), result.dtype, out)

    return kernel


def _gamma_vjp(sign: int) -> Callable[[Operation, Tensor], list[Tensor | None]]:
    """The rule of `igamma`, or with sign -1 that of `igammac`."""

    def vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
        a, x = op.inputs
        density = exp(subtract(subtract(xlogy(subtract(a, number(1, a)), x), x), lgamma(a)))
        upward = dy if sign > 0 else neg(dy)
        by_a, by_x = multiply(upward, igamma_grad_a(a, x)), multiply(upward, density)
        return [unbroadcast(by_a, a, x), unbroadcast(by_x, x, a)]

    return vjp


def _no_second_derivative(op: Operation, dy: Tensor) -> list[Tensor | None]:
    raise op.error(UnimplementedError, f"{op.type} has no derivative")


def _shapes_and_bounds(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(rng.uniform(0.5, 4, (2, 1)), rng.uniform(0.5, 6, 3))
    yield sample(np.array([30.0, 30.0]), np.array([25.0, 40.0]))
    yield sample(np.array(2, np.float32), np.array([0.5, 3], np.float32))


def _gamma_op(
    name: str,
    kernel: Any,
    samples: Samples,
    doc: str,
    signature: str = "a: T in float32 | float64, x: T -> z: T",
    **rules: Any,
) -> OpDef[Tensor]:
    return elementwise_op(
        name, signature, kernel=_blockwise(kernel), narrows=False, samples=samples, doc=doc, **rules
    )


igamma: OpDef[Tensor] = _gamma_op(
    "Igamma",
    incomplete_kernels.igamma,
    _shapes_and_bounds,
    """The lower incomplete gamma function, over gamma(a): the integral of t ** (a - 1) * exp(-t) from 0 to x.

    ``a > 0``, ``x >= 0``; NaN elsewhere. They are broadcast together. Differentiable by both.

    Example:
        >>> tf.igamma([1.0], [1.0]).eval()  # 1 - exp(-1)
        array([0.63212055], dtype=float32)
    """,
    vjp=_gamma_vjp(1),
)

igammac: OpDef[Tensor] = _gamma_op(
    "Igammac",
    incomplete_kernels.igammac,
    _shapes_and_bounds,
    "The upper incomplete gamma function, over gamma(a): ``1 - igamma(a, x)``, exact for large x.",
    vjp=_gamma_vjp(-1),
)

igamma_grad_a: OpDef[Tensor] = _gamma_op(
    "IgammaGradA",
    incomplete_kernels.igamma_grad_a,
    lambda rng: (s._replace(differentiable=False) for s in _shapes_and_bounds(rng)),
    "The derivative of ``igamma(a, x)`` by a.",
    vjp=_no_second_derivative,
)


random_gamma_grad: OpDef[Tensor] = _gamma_op(
    "RandomGammaGrad",
    incomplete_kernels.random_gamma_grad,
    lambda rng: (s._replace(differentiable=False) for s in _shapes_and_bounds(rng)),
    "The derivative by alpha of ``sample``, a value drawn from the gamma distribution of shape alpha.",
    signature="alpha: T in float32 | float64, sample: T -> output: T",
    vjp=_no_second_derivative,
)


def _betainc_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    a, b, x = op.inputs
    one = number(1, x)
    log_norm = subtract(add_v2(lgamma(a), lgamma(b)), lgamma(add_v2(a, b)))
    power = add_v2(xlogy(subtract(a, one), x), xlogy(subtract(b, one), subtract(one, x)))
    return [None, None, unbroadcast(multiply(dy, exp(subtract(power, log_norm))), x)]


def _shares(rng: np.random.Generator) -> Iterable[Sample]:
    a, b = rng.uniform(0.5, 4, (2, 1)), rng.uniform(0.5, 4, ())
    yield sample(a, b, rng.uniform(0.1, 0.9, 3), differentiable=False)  # not by a and b
    yield sample(np.float32(2), np.float32(0.5), np.array([0.2, 0.9], np.float32))


betainc: OpDef[Tensor] = elementwise_op(
    "Betainc",
    "a: T in float32 | float64, b: T, x: T -> z: T",
    kernel=_blockwise(incomplete_kernels.betainc),
    narrows=False,
    vjp=_betainc_vjp,
    samples=_shares,
    doc="""The incomplete beta function, over beta(a, b): the integral of t ** (a - 1) * (1 - t) ** (b - 1).

    From 0 to ``x`` in [0, 1], for ``a, b > 0``; NaN elsewhere. They are broadcast together. Differentiable
    by ``x`` only.

    Example:
        >>> tf.betainc([2.0], [1.0], [0.5]).eval()  # x**2
        array([0.25], dtype=float32)
    """,
)
