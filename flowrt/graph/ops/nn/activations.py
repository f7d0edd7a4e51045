"""Activation functions: the relu family, softplus, softsign, and functions composed of them.

Rules of this file: a gradient is a separate op, as in TensorFlow (`ReluGrad` etc.: linear in its first input,
the gradient), so that a training step runs one kernel for it; every kernel works in its input's dtype, with
scalars of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, define_op, parse_attrs, sample
from flowrt.graph.op_facets import Kernel, Loop, LoopRule, Traits
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.identities import attributes_of, cast, unchanged
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import abs_op, neg, negative, number, sigmoid, sign, tanh
from flowrt.graph.ops.elementwise.special import erf
from flowrt.graph.shapes import merge
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "crelu", "elu", "gelu", "leaky_relu", "log_sigmoid", "relu", "relu6", "selu", "silu", "softplus",
    "softsign", "swish",
]  # fmt: skip

SELU_SCALE = 1.0507009873554805
SELU_SCALE_ALPHA = 1.7580993408473766
"""Scale and scale * alpha of Klambauer et al., "Self-normalizing neural networks" (2017)."""

Second: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor | None]


def _inputs(rng: np.random.Generator, attrs: Mapping[str, Any]) -> Iterable[Sample]:
    yield sample(rng.uniform(-3, 8, (3, 4)), **attrs)
    yield sample(rng.uniform(-3, 3, ()), **attrs)
    yield sample(np.zeros((0, 2)), **attrs)
    for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16):
        yield sample(rng.uniform(-3, 8, 5).astype(dtype.np), **attrs)
    yield sample(np.array([-800.0, -1e-30, 0.0, 1e-30, 800.0, np.inf, np.nan]), differentiable=False, **attrs)


def _activation(
    name: str,
    kernel: Kernel,
    loop: LoopRule,
    gradient: OpDef,
    types: str,
    doc: str,
    is_same_at_output: bool = False,
    attrs: str = "",
) -> OpDef[Tensor]:
    """``features: T -> T`` with the derivative ``gradient`` at the input, or at the output if it is defined
    there or equal: then the input is not kept for it and may be overwritten.
    """
    by_output = is_same_at_output or gradient.inputs[1].name == "outputs"

    def derivative(op: Operation, d: Tensor) -> list[Tensor]:
        at = op.outputs[0] if by_output else op.inputs[0]
        return [gradient(d, at, **attributes_of(op))]

    return define_op(
        name,
        f"features: T in {types} -> activations: T",
        attrs=attrs,
        shape=unchanged,
        kernel=kernel,
        vjp=derivative,
        jvp=derivative,
        samples=lambda rng: _inputs(rng, {key: attr.default for key, attr in parse_attrs(attrs).items()}),
        traits=Traits(elementwise=True),
        loop=Loop(loop),
        doc=doc,
    )


def _gradient(
    name: str,
    at: str,
    kernel: Kernel,
    loop: LoopRule,
    types: str,
    doc: str,
    second: Second | None = None,
    attrs: str = "",
) -> OpDef[Tensor]:
    """``gradients: T, at: T -> T``; ``second(g, gradients, at)`` is g times its slope in ``at`` if not 0."""

    def vjp(op: Operation, g: Tensor) -> list[Tensor | None]:
        dy, value = op.inputs
        first = op.op_def(g, value, **attributes_of(op))
        return [first, None if second is None else second(g, dy, value)]

    return define_op(
        name,
        f"gradients: T in {types}, {at}: T -> backprops: T",
        attrs=attrs,
        shape=lambda s: [merge(s.shapes[0], s.shapes[1])],
        kernel=kernel,
        vjp=vjp,
        samples=lambda rng: [
            sample(
                rng.standard_normal(s.inputs[0].shape).astype(s.inputs[0].dtype),
                *s.inputs,
                differentiable=s.differentiable,
            )
            for s in _inputs(rng, {})
        ],
        traits=Traits(elementwise=True),
        loop=Loop(loop),
        doc=doc,
    )


# --- relu and its kin


def _leaky(xp: Any, features: Any, alpha: float, out: Any = None) -> Any:
    scaled = features * features.dtype.type(alpha)
    return (xp.maximum if alpha <= 1 else xp.minimum)(features, scaled, out=out)


def _leaky_grad(xp: Any, gradients: Any, features: Any, alpha: float, out: Any = None) -> Any:
    number = features.dtype.type
    return xp.multiply(gradients, xp.where(features > 0, number(1), number(alpha)), out=out)


relu_grad = _gradient(
    "ReluGrad",
    "features",
    lambda xp, dy, x, out=None: xp.multiply(dy, x > 0, out=out),
    lambda b, dy, x: dy * b.cast(x > 0, dy.dtype),
    "REAL",
    "The gradient of relu: dy where x > 0, and so where relu(x) > 0.",
)
relu = _activation(
    "Relu",
    lambda xp, x, out=None: xp.maximum(x, x.dtype.type(0), out=out),
    lambda b, x: b.max(x, 0),
    relu_grad,
    "REAL",
    """max(x, 0).

    Args:
        features: A tensor of real numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.nn.relu([-1.0, 2.0]).eval()
        array([0., 2.], dtype=float32)
    """,
    is_same_at_output=True,
)

relu6_grad = _gradient(
    "Relu6Grad",
    "features",
    lambda xp, dy, x, out=None: xp.multiply(dy, (x > 0) & (x < 6), out=out),
    lambda b, dy, x: dy * b.cast((x > 0) & (x < 6), dy.dtype),
    "REAL",
    "The gradient of relu6: dy where 0 < x < 6, and so where 0 < relu6(x) < 6.",
)
relu6 = _activation(
    "Relu6",
    lambda xp, x, out=None: xp.minimum(xp.maximum(x, x.dtype.type(0), out=out), x.dtype.type(6), out=out),
    lambda b, x: b.min(b.max(x, 0), 6),
    relu6_grad,
    "REAL",
    "min(max(x, 0), 6).",
    is_same_at_output=True,
)

leaky_relu_grad = _gradient(
    "LeakyReluGrad",
    "features",
    _leaky_grad,
    lambda b, dy, x, *, alpha: dy * b.select(x > 0, b.const(1, x.dtype), alpha),
    "FLOATING",
    "The gradient of leaky_relu: dy where x > 0, otherwise alpha * dy.",
    attrs="alpha: float = 0.2",
)
leaky_relu_op = _activation(
    "LeakyRelu",
    _leaky,
    lambda b, x, *, alpha: (b.max if alpha <= 1 else b.min)(x, x * alpha),
    leaky_relu_grad,
    "FLOATING",
    "x if positive, otherwise alpha * x.",
    attrs="alpha: float = 0.2",
)


def _where_negative(g: Tensor, dy: Tensor, y: Tensor) -> Tensor:
    return relu_grad(multiply(g, dy), neg(y))


def _elu(xp: Any, x: Any, out: Any = None) -> Any:
    zero = x.dtype.type(0)
    return xp.add(xp.maximum(x, zero), xp.expm1(xp.minimum(x, zero)), out=out)


def _elu_loop(b: LoopBuilder, x: LoopValue) -> LoopValue:
    return b.max(x, 0) + b.expm1(b.min(x, 0))


def _selu(xp: Any, x: Any, out: Any = None) -> Any:
    number = x.dtype.type
    below = number(SELU_SCALE_ALPHA) * xp.expm1(xp.minimum(x, number(0)))
    return xp.add(number(SELU_SCALE) * xp.maximum(x, number(0)), below, out=out)


def _selu_loop(b: LoopBuilder, x: LoopValue) -> LoopValue:
    return SELU_SCALE * b.max(x, 0) + SELU_SCALE_ALPHA * b.expm1(b.min(x, 0))


def _selu_grad(xp: Any, dy: Any, y: Any, out: Any = None) -> Any:
    number = y.dtype.type
    return xp.multiply(dy, xp.where(y < 0, y + number(SELU_SCALE_ALPHA), number(SELU_SCALE)), out=out)


elu_grad = _gradient(
    "EluGrad",
    "outputs",
    lambda xp, dy, y, out=None: xp.multiply(dy, xp.minimum(y, y.dtype.type(0)) + y.dtype.type(1), out=out),
    lambda b, dy, y: dy * (b.min(y, 0) + 1),
    "FLOATING",
    "The gradient of elu from its value: dy * (y + 1) where y < 0, otherwise dy.",
    _where_negative,
)
elu = _activation(
    "Elu",
    _elu,
    _elu_loop,
    elu_grad,
    "FLOATING",
    """x where it is positive, otherwise exp(x) - 1.

    Example:
        >>> tf.nn.elu([0.0, 2.0]).eval()
        array([0., 2.], dtype=float32)
    """,
)

selu_grad = _gradient(
    "SeluGrad",
    "outputs",
    _selu_grad,
    lambda b, dy, y: dy * b.select(y < 0, y + SELU_SCALE_ALPHA, SELU_SCALE),
    "FLOATING",
    "The gradient of selu from its value.",
    _where_negative,
)
selu = _activation("Selu", _selu, _selu_loop, selu_grad, "FLOATING", "The self-normalizing scaled elu.")


# --- smooth ones


def _softplus_second(g: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    """The derivative of sigmoid(x) is sigmoid(x) * sigmoid(-x)."""
    return multiply(g, softplus_grad(softplus_grad(dy, x), neg(x)))


def _softsign_second(g: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    slope = softsign_grad(multiply(g, dy), x)
    return realdiv(multiply(multiply(number(-2, x), sign(x)), slope), add(number(1, x), abs_op(x)))


def _one_plus_abs(xp: Any, x: Any) -> Any:
    return x.dtype.type(1) + xp.abs(x)


softplus_grad: OpDef[Tensor] = _gradient(
    "SoftplusGrad",
    "features",
    lambda xp, dy, x, out=None: xp.true_divide(dy, xp.exp(-x) + x.dtype.type(1), out=out),
    lambda b, dy, x: dy / (b.exp(-x) + 1),
    "FLOATING",
    "The gradient of softplus: dy / (1 + exp(-x)).",
    _softplus_second,
)
softplus = _activation(
    "Softplus",
    lambda xp, x, out=None: xp.add(xp.maximum(x, x.dtype.type(0)), xp.log1p(xp.exp(-xp.abs(x))), out=out),
    lambda b, x: b.max(x, 0) + b.log1p(b.exp(-abs(x))),
    softplus_grad,
    "FLOATING",
    """log(1 + exp(x)), which never overflows.

    Example:
        >>> tf.nn.softplus([0.0]).eval()
        array([0.6931472], dtype=float32)
    """,
)

softsign_grad: OpDef[Tensor] = _gradient(
    "SoftsignGrad",
    "features",
    lambda xp, dy, x, out=None: xp.true_divide(dy, _one_plus_abs(xp, x) ** 2, out=out),
    lambda b, dy, x: dy / ((1 + abs(x)) * (1 + abs(x))),
    "FLOATING",
    "The gradient of softsign: dy / (1 + abs(x)) ** 2.",
    _softsign_second,
)
softsign = _activation(
    "Softsign",
    lambda xp, x, out=None: xp.true_divide(x, _one_plus_abs(xp, x), out=out),
    lambda b, x: x / (1 + abs(x)),
    softsign_grad,
    "FLOATING",
    "x / (1 + abs(x)).",
)


def leaky_relu(features: NumericLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """``features`` where they are positive, otherwise ``alpha`` times them; integers become float32.

    Example:
        >>> tf.nn.leaky_relu([-1.0, 2.0], alpha=0.1).eval()
        array([-0.1,  2. ], dtype=float32)
    """
    x = convert_to_tensor(features)
    if x.dtype.is_integer:
        x = cast(x, dtypes.float32)
    return leaky_relu_op(x, alpha=alpha, name=name)


def swish(features: NumericLike, beta: Any = 1.0, name: str | None = None) -> Tensor:
    """``features * sigmoid(beta * features)``."""
    with get_default_graph().name_scope(name or "swish") as scope:
        x = convert_to_tensor(features)
        inner = (
            x
            if isinstance(beta, (int, float)) and beta == 1
            else multiply(convert_to_tensor(beta, x.dtype), x)
        )
        return multiply(x, sigmoid(inner), name=scope)


silu = swish


def gelu(features: NumericLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """``x * P(X <= x)``, X standard normal (Hendrycks and Gimpel, 2016), or its approximation by tanh."""
    with get_default_graph().name_scope(name or "Gelu") as scope:
        x = convert_to_tensor(features)
        if not x.dtype.is_floating:
            raise DTypeError(f"gelu: expected a floating dtype; got {x!r}")
        if approximate:
            cubic = multiply(number(0.044715, x), multiply(multiply(x, x), x))
            bend = tanh(multiply(number(math.sqrt(2 / math.pi), x), add(x, cubic)))
        else:
            bend = erf(multiply(x, number(math.sqrt(0.5), x)))
        return multiply(multiply(number(0.5, x), x), add(number(1, x), bend), name=scope)


def crelu(features: NumericLike, name: str | None = None, axis: int = -1) -> Tensor:
    """`relu` of ``features`` and of their negative, concatenated along ``axis`` (Shang et al., 2016)."""
    with get_default_graph().name_scope(name or "CRelu") as scope:
        x = convert_to_tensor(features)
        return relu(concat([x, neg(x)], axis), name=scope)


def log_sigmoid(x: NumericLike, name: str | None = None) -> Tensor:
    """``log(1 / (1 + exp(-x)))``, exact for large ``|x|`` too."""
    with get_default_graph().name_scope(name or "LogSigmoid"):
        return negative(softplus(negative(convert_to_tensor(x))))
