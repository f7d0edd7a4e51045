"""Elementwise functions of one number: exponentials, roots, angles, rounding, complex parts.

Rules of this file: a derivative is written once, as ``slope(d, x, y)`` = d times the derivative at x, where y
is the value; the jvp applies it to a tangent, the vjp to a gradient with x and y conjugated. Functions with a
derivative that is an expression in y have a separate op for it (`TanhGrad` etc., as in TensorFlow), so that a
training step runs one op, not four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import (
    LINEAR,
    NONDIFFERENTIABLE,
    OpDef,
    Sample,
    Samples,
    Ufunc,
    define_op,
    sample,
    undoes_itself,
)
from flowrt.graph.op_facets import Kernel, Loop, LoopRule, Traits, instruction
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise.arithmetic import add_v2, conjugated, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import elementwise_op
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.shapes import merge
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1", "floor",
    "is_finite", "is_inf", "is_nan", "log", "log1p", "negative", "reciprocal", "rint", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
]  # fmt: skip

Slope: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

_SIGNED = "INEXACT | int8 | int16 | int32 | int64"


def number(value: float, like: Tensor) -> Tensor:
    """A scalar constant of ``like``'s dtype."""
    return constant(np.array(value, like.dtype.np))


def unary_samples(low: float, high: float, *extra: Any) -> Samples:
    """Samples for a function of one number: floats in [low, high] of all dtypes, and ``extra`` arrays."""

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        yield sample(rng.uniform(low, high, (2, 3)))
        yield sample(rng.uniform(low, high, ()))
        yield sample(rng.uniform(low, high, (3, 1)).astype(np.float32))
        yield sample(rng.uniform(low, high, 4).astype(np.float16))
        yield sample(rng.uniform(low, high, ()).astype(dtypes.bfloat16.np))
        yield sample(np.zeros((0, 2)))
        for array in extra:
            yield sample(array)

    return samples


def unary_op(
    name: str,
    kernel: Kernel,
    types: str,
    slope: Slope,
    samples: Samples,
    doc: str,
    loop: Loop | None = None,
    narrows: bool | None = None,
) -> OpDef[Tensor]:
    """A differentiable function of one number: see the rules above for ``slope``."""

    def vjp(op: Operation, dy: Tensor) -> list[Tensor]:
        return [slope(dy, conjugated(op.inputs[0]), conjugated(op.outputs[0]))]

    return elementwise_op(
        name,
        f"x: T in {types} -> y: T",
        kernel=kernel,
        vjp=vjp,
        jvp=lambda op, dx: [slope(dx, op.inputs[0], op.outputs[0])],
        samples=samples,
        loop=loop,
        narrows=narrows,
        doc=doc,
    )


# --- derivatives as ops of the value y


def _grad_op(
    name: str,
    kernel: Kernel,
    loop: LoopRule,
    by_y: Slope,
    doc: str,
    types: str = "FLOATING",
    narrows: bool | None = None,
) -> OpDef[Tensor]:
    """``y: T, dy: T -> T``, which is linear in dy; ``by_y(g, y, dy)`` is g times its derivative by y.

    Not all take complex numbers: some of TensorFlow's conjugate y then, and others do not.
    """

    def vjp(op: Operation, g: Tensor) -> list[Tensor]:
        y, dy = conjugated(op.inputs[0]), conjugated(op.inputs[1])
        return [by_y(g, y, dy), op.op_def(y, g)]

    return define_op(
        name,
        f"y: T in {types}, dy: T -> z: T",
        shape=lambda s: [merge(s.shapes[0], s.shapes[1])],
        kernel=kernel,
        vjp=vjp,
        samples=lambda rng: (
            sample(rng.uniform(0.2, 0.8, (2, 3)), rng.standard_normal((2, 3))),
            sample(rng.uniform(0.2, 0.8, ()), rng.standard_normal(())),
            sample(rng.uniform(0.2, 0.8, 3).astype(np.float32), np.ones(3, np.float32)),
            sample(rng.uniform(0.2, 0.8, 3).astype(dtypes.bfloat16.np), np.ones(3, dtypes.bfloat16.np)),
        ),
        traits=Traits(elementwise=True, narrows=narrows),
        loop=Loop(loop),
        doc=doc,
    )


def _unless_complex(grad_op: OpDef, general: Callable[[Tensor, Tensor], Tensor]) -> Slope:
    """The slope ``grad_op(y, d)``, or ``general(d, y)`` for complex dtypes."""
    return lambda d, x, y: general(d, y) if d.dtype.is_complex else grad_op(y, d)


def _scaled(factor: float, *factors: Tensor) -> Tensor:
    product = number(factor, factors[0])
    for other in factors:
        product = multiply(product, other)
    return product


tanh_grad = _grad_op(
    "TanhGrad",
    lambda xp, y, dy, out=None: xp.multiply(dy, 1 - y * y, out),
    lambda b, y, dy: dy * (1 - y * y),
    lambda g, y, dy: _scaled(-2, g, y, dy),
    "The gradient of tanh: dy * (1 - y * y).",
    "INEXACT",
)

sigmoid_grad = _grad_op(
    "SigmoidGrad",
    lambda xp, y, dy, out=None: xp.multiply(dy, y * (1 - y), out),
    lambda b, y, dy: dy * (y * (1 - y)),
    lambda g, y, dy: multiply(multiply(g, dy), subtract(number(1, y), _scaled(2, y))),
    "The gradient of sigmoid: dy * y * (1 - y).",
    "INEXACT",
)

sqrt_grad = _grad_op(
    "SqrtGrad",
    lambda xp, y, dy, out=None: xp.true_divide(dy, y + y, out),
    lambda b, y, dy: dy / (y + y),
    lambda g, y, dy: realdiv(_scaled(-0.5, g, dy), multiply(y, y)),
    "The gradient of sqrt: dy / (2 * y).",
    narrows=False,
)

rsqrt_grad = _grad_op(
    "RsqrtGrad",
    lambda xp, y, dy, out=None: xp.true_divide(dy * (y * y * y), -2, out),
    lambda b, y, dy: dy * (y * y * y) / -2,
    lambda g, y, dy: _scaled(-1.5, g, dy, y, y),
    "The gradient of rsqrt: dy * -y**3 / 2.",
    narrows=False,
)

reciprocal_grad = _grad_op(
    "ReciprocalGrad",
    lambda xp, y, dy, out=None: xp.multiply(dy, -y * y, out),
    lambda b, y, dy: dy * (-y * y),
    lambda g, y, dy: _scaled(-2, g, dy, y),
    "The gradient of 1 / x: -dy * y * y.",
    narrows=False,
)

# --- exponentials, logarithms, roots

_COMPLEX = np.array([0.5 + 0.25j, -0.75j], np.complex64)


def _ufunc_op(
    name: str,
    ufunc: str,
    slope: Slope,
    span: tuple[float, float],
    doc: str,
    loop: Loop | None = None,
    narrows: bool | None = None,
) -> OpDef[Tensor]:
    """A `unary_op` of inexact numbers that is one ufunc, with samples in ``span``."""
    samples = unary_samples(*span, _COMPLEX)
    return unary_op(name, Ufunc(ufunc), "INEXACT", slope, samples, doc, loop, narrows)


def _sigmoid(xp: Any, x: Any, out: Any = None) -> Any:
    """1 / (1 + exp(-x)): where exp overflows, the result 0 is correct except for float32's denormal numbers.

    16-bit floats are computed in float32: float16's exp overflows at 11, where its sigmoid is not nearly 0.
    """
    if x.dtype.itemsize == 2:
        wide = 1 / (1 + xp.exp(-x.astype(np.float32)))
        return delivered(xp, wide, x.dtype, out)
    denominator = xp.add(xp.exp(xp.negative(x, out), out), 1, out)
    return xp.reciprocal(denominator, out)


exp = _ufunc_op(
    "Exp",
    "exp",
    lambda d, x, y: multiply(d, y),
    (-2, 2),
    """e to the power of x.

    Args:
        x: A tensor of floats or complex numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.exp([0.0]).eval()
        array([1.], dtype=float32)
    """,
    instruction("exp"),
    False,
)

expm1 = _ufunc_op(
    "Expm1",
    "expm1",
    lambda d, x, y: multiply(d, exp(x)),
    (-2, 2),
    "exp(x) - 1, exact for small x.",
    instruction("expm1"),
    narrows=False,
)

log = _ufunc_op(
    "Log",
    "log",
    lambda d, x, y: realdiv(d, x),
    (0.5, 3),
    """The natural logarithm.

    Args:
        x: A tensor of floats or complex numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.log([1.0, 0.0]).eval()
        array([  0., -inf], dtype=float32)
    """,
    instruction("log"),
    False,
)

log1p = _ufunc_op(
    "Log1p",
    "log1p",
    lambda d, x, y: realdiv(d, add_v2(x, number(1, x))),
    (-0.5, 3),
    "log(1 + x), exact for small x.",
    instruction("log1p"),
    narrows=False,
)

sqrt = _ufunc_op(
    "Sqrt",
    "sqrt",
    _unless_complex(sqrt_grad, lambda d, y: realdiv(d, add_v2(y, y))),
    (0.5, 3),
    """The square root.

    Args:
        x: A tensor of floats or complex numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.sqrt([4.0, 9.0]).eval()
        array([2., 3.], dtype=float32)
    """,
    instruction("sqrt"),
)

rsqrt = unary_op(
    "Rsqrt",
    lambda xp, x, out=None: xp.reciprocal(xp.sqrt(x, out), out),
    "INEXACT",
    _unless_complex(rsqrt_grad, lambda d, y: _scaled(-0.5, d, y, y, y)),
    unary_samples(0.5, 3, _COMPLEX),
    """1 / sqrt(x).

    Example:
        >>> tf.rsqrt([4.0]).eval()
        array([0.5], dtype=float32)
    """,
    instruction("rsqrt"),
    narrows=False,
)

square = unary_op(
    "Square",
    Ufunc("square"),
    "NUMERIC",
    lambda d, x, y: multiply(d, multiply(number(2, x), x)),
    unary_samples(-3, 3, _COMPLEX, np.array([3, -4], np.int8)),
    """x * x.

    Args:
        x: A tensor of numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.square([1.0, -3.0]).eval()
        array([1., 9.], dtype=float32)
    """,
    Loop(lambda b, x: x * x),
    narrows=False,
)


def _reciprocal(name: str, doc: str) -> OpDef[Tensor]:
    slope = _unless_complex(reciprocal_grad, lambda d, y: _scaled(-1, d, y, y))
    return _ufunc_op(name, "reciprocal", slope, (0.5, 3), doc, Loop(lambda b, x: 1 / x), narrows=False)


reciprocal = _reciprocal("Reciprocal", "1 / x.")
inv = _reciprocal("Inv", "1 / x, in older graphs.")

sigmoid = unary_op(
    "Sigmoid",
    _sigmoid,
    "INEXACT",
    lambda d, x, y: sigmoid_grad(y, d),
    unary_samples(-3, 3, _COMPLEX, np.array([-1e4, 1e4], np.float32)),
    """1 / (1 + exp(-x)).

    Args:
        x: A tensor of floats or complex numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.sigmoid([0.0]).eval()
        array([0.5], dtype=float32)
    """,
    instruction("sigmoid"),
)

# --- angles


def _one_minus_square(x: Tensor) -> Tensor:
    return subtract(number(1, x), square(x))


def _one_plus_square(x: Tensor) -> Tensor:
    return add_v2(number(1, x), square(x))


def _angle(op: str) -> Loop:
    """Loop of a function of an angle, with range reduction up to 2**48; the kernel handles larger ones."""

    def build(b: LoopBuilder, x: LoopValue) -> LoopValue:
        b.check(~(abs(x) > 2.0**48) | abs(x).equals(math.inf))
        return b.emit(op, x)

    return Loop(build)


sin = _ufunc_op(
    "Sin",
    "sin",
    lambda d, x, y: multiply(d, cos(x)),
    (-3, 3),
    """The sine.

Example:
    >>> tf.sin([0.0]).eval()
    array([0.], dtype=float32)
""",
    _angle("sin"),
)
cos: OpDef[Tensor] = _ufunc_op(
    "Cos",
    "cos",
    lambda d, x, y: multiply(neg(d), sin(x)),
    (-3, 3),
    """The cosine.

    Example:
        >>> tf.cos([0.0]).eval()
        array([1.], dtype=float32)
    """,
    _angle("cos"),
)
tan = _ufunc_op(
    "Tan", "tan", lambda d, x, y: multiply(d, _one_plus_square(y)), (-1, 1), "The tangent.", narrows=False
)
asin = _ufunc_op(
    "Asin",
    "arcsin",
    lambda d, x, y: multiply(d, rsqrt(_one_minus_square(x))),
    (-0.9, 0.9),
    "The inverse of sin, in [-pi / 2, pi / 2].",
    narrows=False,
)
acos = _ufunc_op(
    "Acos",
    "arccos",
    lambda d, x, y: multiply(neg(d), rsqrt(_one_minus_square(x))),
    (-0.9, 0.9),
    "The inverse of cos, in [0, pi].",
    narrows=False,
)
atan = _ufunc_op(
    "Atan",
    "arctan",
    lambda d, x, y: realdiv(d, _one_plus_square(x)),
    (-3, 3),
    "The inverse of tan, in [-pi / 2, pi / 2].",
)
sinh = _ufunc_op(
    "Sinh", "sinh", lambda d, x, y: multiply(d, cosh(x)), (-2, 2), "The hyperbolic sine.", narrows=False
)
cosh: OpDef[Tensor] = _ufunc_op(
    "Cosh", "cosh", lambda d, x, y: multiply(d, sinh(x)), (-2, 2), "The hyperbolic cosine.", narrows=False
)
tanh = _ufunc_op(
    "Tanh",
    "tanh",
    lambda d, x, y: tanh_grad(y, d),
    (-2, 2),
    """The hyperbolic tangent.

    Args:
        x: A tensor of floats or complex numbers.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> tf.tanh([0.0]).eval()
        array([0.], dtype=float32)
    """,
    instruction("tanh"),
)
asinh = _ufunc_op("Asinh", "arcsinh", lambda d, x, y: realdiv(d, cosh(y)), (-2, 2), "The inverse of sinh.")
acosh = _ufunc_op("Acosh", "arccosh", lambda d, x, y: realdiv(d, sinh(y)), (1.5, 3), "The inverse of cosh.")
atanh = _ufunc_op(
    "Atanh",
    "arctanh",
    lambda d, x, y: realdiv(d, _one_minus_square(x)),
    (-0.9, 0.9),
    "The inverse of tanh.",
    narrows=False,
)

# --- signs and rounding

neg: OpDef[Tensor] = elementwise_op(
    "Neg",
    f"x: T in {_SIGNED} -> y: T",
    kernel=Ufunc("negative"),
    vjp=lambda op, dy: [neg(dy)],
    jvp=LINEAR,
    samples=unary_samples(-2, 2, _COMPLEX, np.array([1, -2], np.int8)),
    simplify=undoes_itself,
    loop=instruction("neg"),
    doc="-x.",
)

negative = neg

abs_op = unary_op(
    "Abs",
    Ufunc("absolute"),
    f"{_SIGNED} - COMPLEX",
    lambda d, x, y: multiply(d, sign(x)),
    unary_samples(-2, 2, np.array([1, -2], np.int64)),
    "The magnitude of a real x.",
    instruction("abs"),
)


def _sign_loop(b: LoopBuilder, x: LoopValue) -> LoopValue:
    """NaN of NaN, and 0.0 of -0.0."""
    return b.select(x > 0, 1, b.select(x < 0, -1, b.select(x.equals(0), 0, x)))


sign: OpDef[Tensor] = unary_op(
    "Sign",
    Ufunc("sign"),
    _SIGNED,
    lambda d, x, y: zeros_like(d),
    unary_samples(-2, 2, np.array([0, -2], np.int32), np.array([3 + 4j, 0])),
    """-1, 0 or 1; for a complex x, x / abs(x) or 0.

    Example:
        >>> tf.sign([-3.0, 0.0, 2.0]).eval()
        array([-1.,  0.,  1.], dtype=float32)
    """,
    Loop(_sign_loop),
)


def _flat_op(name: str, output: str, ufunc: str, loop: Loop, doc: str) -> OpDef[Tensor]:
    """A function ``x: T -> output`` of a float, with a derivative that is 0 or undefined."""
    return elementwise_op(
        name,
        f"x: T in FLOATING -> y: {output}",
        kernel=Ufunc(ufunc),
        vjp=NONDIFFERENTIABLE,
        samples=unary_samples(-3, 3, np.array([np.nan, np.inf, -np.inf])),
        loop=loop,
        doc=doc,
    )


floor = _flat_op(
    "Floor",
    "T",
    "floor",
    instruction("floor"),
    """The largest integer <= x.

Example:
    >>> tf.floor([1.7, -1.2]).eval()
    array([ 1., -2.], dtype=float32)
""",
)
ceil = _flat_op("Ceil", "T", "ceil", instruction("ceil"), "The smallest integer >= x.")
rint = _flat_op("Rint", "T", "rint", instruction("round"), "The nearest integer; of two, the even one.")
round_op = _flat_op("Round", "T", "rint", instruction("round"), "The nearest integer; of two, the even one.")


@elementwise_of_composites
def round(x: NumericLike, name: str | None = None) -> Tensor:
    """The nearest integers, the even one of two as near; integer tensors are returned as they are.

    Example:
        >>> tf.round([0.5, 1.5, 2.4]).eval()
        array([0., 2., 2.], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    if tensor.dtype.is_integer:
        return tensor
    return round_op(tensor, name=name)


is_nan = _flat_op("IsNan", "bool", "isnan", Loop(lambda b, x: x.differs(x)), "Whether x is not a number.")
is_inf = _flat_op(
    "IsInf", "bool", "isinf", Loop(lambda b, x: abs(x).equals(math.inf)), "Whether x is infinite."
)
is_finite = _flat_op(
    "IsFinite", "bool", "isfinite", Loop(lambda b, x: abs(x) < math.inf), "Whether x is a finite number."
)


def polyval(coeffs: Any, x: NumericLike, name: str | None = None) -> Tensor:
    """The polynomial with ``coeffs`` (a list of tensors, the highest power first) at ``x``, by Horner's rule.

    Raises `InvalidArgumentError` when ``coeffs`` is not a list.
    """
    if not isinstance(coeffs, list):
        raise InvalidArgumentError(f"polyval: expected a list of coefficients; got {coeffs!r}")
    with get_default_graph().name_scope(name or "polyval"):
        tensor = convert_to_tensor(x)
        if not coeffs:
            return zeros_like(tensor)
        terms = [convert_to_tensor(c, tensor.dtype) for c in coeffs]
        value = terms[0]
        for term in terms[1:]:
            value = add_v2(term, multiply(value, tensor))
        return value
