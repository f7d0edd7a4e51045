"""Elementwise sums, products, powers and extremes, and clipping with them.

Rules of this file: inputs have one dtype and broadcast as in NumPy; integers wrap around; every vjp sums over
broadcast dimensions with `unbroadcast`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.node import Ref
from flowrt.graph.op_def import (
    LINEAR,
    OpDef,
    PartialValue,
    ShapeContext,
    SimplifyContext,
    SimplifyRule,
    Ufunc,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.op_facets import Kernel, Loop, Traits, instruction, on_floats
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.comparison import (
    elementwise_op,
    greater,
    greater_equal,
    less_equal,
    not_equal,
    pairs,
    where_v2,
    zero_of,
)
from flowrt.graph.shapes import Shape, is_static, merge
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "accumulate_n", "add", "add_n", "clip_by_value", "maximum", "minimum", "multiply", "pow", "saturate_cast",
    "scalar_mul", "squared_difference", "subtract",
]  # fmt: skip


def binary_op(name: str, kernel: Kernel, types: str, **rules: Any) -> OpDef[Tensor]:
    """An elementwise op ``x: T, y: T -> T``."""
    return elementwise_op(name, f"x: T in {types}, y: T -> z: T", kernel=kernel, **rules)


def _rank(value: PartialValue) -> int:
    if not isinstance(value, tuple):
        return 0
    return 1 + (_rank(value[0]) if value else 0)


def integer_value(function: Callable[[int, int], int]) -> Callable[[ShapeContext], PartialValue]:
    """The ``value`` rule of an op that applies ``function`` to integers."""

    def combine(a: PartialValue, b: PartialValue) -> PartialValue:
        rank = max(_rank(a), _rank(b))
        if rank:
            left, right = (v if _rank(v) == rank else (v,) for v in (a, b))
            length = len(left) if len(right) == 1 else len(right)
            left, right = (v * length if len(v) == 1 else v for v in (left, right))
            return tuple(combine(p, q) for p, q in zip(left, right, strict=True))
        return None if a is None or b is None else function(a, b)

    def rule(s: ShapeContext) -> PartialValue:
        a, b = s.value(0), s.value(1)
        if a is None or b is None or not s.dtypes[0].is_integer:
            return None
        try:
            return combine(a, b)
        except ZeroDivisionError:
            return None

    return rule


def drops_neutral(is_neutral: Callable[[Any], Any], *positions: int) -> SimplifyRule:
    """The ``simplify`` rule of ops that return x when input y, at one of ``positions``, is all neutral.

    Only where y does not broadcast x to a larger shape. Complex numbers are left alone: 1 * inf is not inf
    there.
    """

    def rule(c: SimplifyContext) -> Sequence[Ref] | None:
        for position in positions:
            x, y = c.node.inputs[1 - position], c.constant(c.node.inputs[position])
            if y is None or c.spec(x).dtype.is_complex or not c.spec(x).dtype.is_numeric:
                continue
            dims = c.spec(x).shape
            if y.shape == ():  # without np.all: most constants are scalars, for which it costs 4 us
                if is_neutral(y):
                    return (x,)
            elif is_static(dims) and dims == c.node.outputs[0].shape and np.all(is_neutral(y)):
                return (x,)
        return None

    return rule


def _is_neutral_in_sum(y: Any) -> Any:
    return (y == 0) if y.dtype.kind in "iu" else (y == 0) & np.signbit(y)  # -0.0 + 0.0 is 0.0


def _is_neutral_in_difference(y: Any) -> Any:
    return (y == 0) if y.dtype.kind in "iu" else (y == 0) & ~np.signbit(y)  # -0.0 - -0.0 is 0.0


def is_one(y: Any) -> Any:
    return y == 1


def conjugated(x: Tensor) -> Tensor:
    """The complex conjugate of a complex tensor; others as they are."""
    if not x.dtype.is_complex:
        return x
    return op_def("Conj")(x)


# --- sums and products


def unbroadcast_pair(op: Operation, dx: Tensor, dy: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return [unbroadcast(dx, x, y), unbroadcast(dy, y, x)]


def _sub_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return [unbroadcast(dz, x, y), op_def("Neg")(unbroadcast(dz, y, x))]


def _mul_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return unbroadcast_pair(op, multiply(dz, conjugated(y)), multiply(dz, conjugated(x)))


def _mul_jvp(op: Operation, dx: Tensor | None, dy: Tensor | None) -> list[Tensor]:
    x, y = op.inputs
    if dx is None or dy is None:
        return [multiply(x, dy) if dx is None else multiply(dx, y)]
    return [add(multiply(dx, y), multiply(x, dy))]


def _sum_op(name: str, types: str, doc: str, *, commutative: bool) -> OpDef[Tensor]:
    return binary_op(
        name,
        Ufunc("add"),
        types,
        vjp=lambda op, dz: unbroadcast_pair(op, dz, dz),
        jvp=LINEAR,
        samples=pairs(),
        commutative=commutative,
        value=integer_value(operator.add),
        simplify=drops_neutral(_is_neutral_in_sum, 0, 1),
        loop=instruction("add"),
        doc=doc,
    )


add_v2 = _sum_op("AddV2", "NUMERIC", "x + y.", commutative=True)


add_v1 = _sum_op(
    "Add", "NUMERIC | string", "x + y, as older graphs have it; joins strings.", commutative=False
)


subtract = binary_op(
    "Sub",
    Ufunc("subtract"),
    "NUMERIC",
    vjp=_sub_vjp,
    jvp=LINEAR,
    samples=pairs(),
    value=integer_value(operator.sub),
    simplify=drops_neutral(_is_neutral_in_difference, 1),
    loop=instruction("sub"),
    doc="""x - y.

    Args:
        x: A tensor of numbers.
        y: A tensor of the same dtype; the shapes broadcast.

    Returns:
        A tensor of the common shape.

    Example:
        >>> tf.subtract([5, 7], [1, 2]).eval()
        array([4, 5], dtype=int32)
    """,
)


multiply = binary_op(
    "Mul",
    Ufunc("multiply"),
    "NUMERIC",
    vjp=_mul_vjp,
    jvp=_mul_jvp,
    samples=pairs(),
    commutative=True,
    linear_in=(0, 1),
    value=integer_value(operator.mul),
    simplify=drops_neutral(is_one, 0, 1),
    loop=instruction("mul"),
    doc="""x * y.

    Args:
        x: A tensor of numbers.
        y: A tensor of the same dtype; the shapes broadcast.

    Returns:
        A tensor of the common shape.

    Example:
        >>> tf.multiply([1, 2, 3], 2).eval()
        array([2, 4, 6], dtype=int32)
    """,
)


def add(x: NumericLike, y: NumericLike, name: str | None = None) -> Tensor:
    """x + y, elementwise; strings are joined.

    Args:
        x: A tensor.
        y: A tensor of the same dtype; the shapes broadcast.

    Returns:
        A tensor of the common shape.

    Example:
        >>> tf.add([1, 2], 10).eval()
        array([11, 12], dtype=int32)
    """
    build = add_v1 if getattr(x, "dtype", None) is dtypes.string else add_v2
    return build(x, y, name=name or "Add")


@elementwise_of_composites
def scalar_mul(scalar: NumericLike, x: NumericLike, name: str | None = None) -> Any:
    """``scalar * x`` for a tensor or an `IndexedSlices` x; the result is of the same kind.

    Raises `InvalidArgumentError` when ``scalar`` is not a scalar.
    """
    factor = convert_to_tensor(scalar, x.dtype if hasattr(x, "dtype") and hasattr(x, "graph") else None)
    if factor.spec.shape not in (None, ()):
        raise InvalidArgumentError(f"scalar_mul: expected a scalar; got {factor!r}")
    if isinstance(x, IndexedSlices):
        return IndexedSlices(multiply(factor, x.values, name=name), x.indices, x.dense_shape)
    return multiply(factor, x, name=name)


def _squared_difference(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    difference = xp.subtract(x, y, out)
    return xp.multiply(difference, xp.conjugate(difference), out)


def _squared_difference_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    dx = multiply(multiply(constant(np.array(2, dz.dtype.np)), dz), subtract(x, y))
    return [unbroadcast(dx, x, y), op_def("Neg")(unbroadcast(dx, y, x))]


squared_difference = binary_op(
    "SquaredDifference",
    _squared_difference,
    "INEXACT | INDEX",
    vjp=_squared_difference_vjp,
    samples=pairs(),
    commutative=True,
    narrows=False,
    loop=Loop(lambda b, x, y: (x - y) * (x - y)),
    doc="""conj(x - y) * (x - y).

    Args:
        x: A tensor of numbers.
        y: A tensor of the same dtype; the shapes broadcast.

    Returns:
        A tensor of the common shape.

    Example:
        >>> tf.squared_difference([1.0, 4.0], 2.0).eval()
        array([1., 4.], dtype=float32)
    """,
)


def _add_n_shape(s: ShapeContext) -> Sequence[Shape]:
    shape: Shape = None
    for other in s.shapes:
        shape = merge(shape, other)
    return [shape]


def _add_n(xp: Any, inputs: Any, out: Any = None) -> Any:
    first, *rest = inputs
    if any(x.shape != first.shape for x in rest):
        raise InvalidArgumentError(
            f"expected inputs of one shape; got {', '.join(str(list(x.shape)) for x in inputs)}"
        )
    if not rest:
        return xp.positive(first, out)
    total = first
    for x in rest[:-1]:  # not into out: it may share memory with a later input
        total = total + x
    return xp.add(total, rest[-1], out)


add_n_op = define_op(
    "AddN",
    "inputs: N * T in NUMERIC -> sum: T",
    shape=_add_n_shape,
    kernel=_add_n,
    vjp=lambda op, dy: [dy] * len(op.inputs),
    jvp=LINEAR,
    samples=lambda rng: (
        sample(tuple(rng.standard_normal((3, 2, 2)))),
        sample((rng.standard_normal(3),)),
        sample((np.array(3, np.int8), np.array(4, np.int8))),
        sample(tuple(np.ones((3, 2), dtypes.bfloat16.np))),
    ),
    traits=Traits(elementwise=True),
    simplify=lambda c: c.node.inputs if len(c.node.inputs) == 1 else None,
    loop=Loop(lambda b, inputs: functools.reduce(operator.add, inputs)),
    doc="The sum of inputs of one shape.",
)


@elementwise_of_composites
def add_n(inputs: NumericLike, name: str | None = None) -> Tensor:
    """The sum of tensors.

    Args:
        inputs: A list of tensors (or `IndexedSlices`, which become dense) of one shape and dtype.

    Returns:
        A tensor of that shape and dtype.

    Example:
        >>> tf.add_n([[1.0], [2.0], [3.0]]).eval()
        array([6.], dtype=float32)
    """
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise InvalidArgumentError(f"add_n: expected a list of at least one tensor; got {inputs!r}")
    if len(inputs) == 1:
        only = convert_to_tensor(inputs[0])
        return identity(only, name=name) if name else only
    return add_n_op(inputs, name=name)


def accumulate_n(
    inputs: NumericLike, shape: Any = None, tensor_dtype: DTypeLike | None = None, name: str | None = None
) -> Tensor:
    """`add_n` with the sum's ``shape`` and dtype given: raises `InvalidArgumentError` if they do not fit."""
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise InvalidArgumentError(f"accumulate_n: expected a list of at least one tensor; got {inputs!r}")
    dtype = None if tensor_dtype is None else as_dtype(tensor_dtype)
    total = add_n([convert_to_tensor(x, dtype) for x in inputs], name=name or "AccumulateNV2")
    total.set_shape(shape)
    return total


# --- powers, angles, extremes


def _cube(xp: Any, x: Any, new: Any, out: Any) -> Any:
    return xp.multiply(xp.multiply(x, x, new(x.shape, x.dtype)), x, out)


class _Power(NamedTuple):
    on_arrays: Callable[[Any, Any, Any, Any], Any]
    """``on_arrays(xp, x, new, out)``, where ``new(shape, dtype)`` is memory for the while."""
    in_loop: Callable[[Any], Any]
    of_integers: bool = False


_POWERS: dict[Any, _Power] = {
    2.0: _Power(lambda xp, x, new, out: xp.multiply(x, x, out), lambda x: x * x, of_integers=True),
    3.0: _Power(_cube, lambda x: x * x * x, of_integers=True),
    0.5: _Power(lambda xp, x, new, out: xp.sqrt(x, out), lambda x: x.builder.emit("sqrt", x)),
    -0.5: _Power(
        lambda xp, x, new, out: xp.reciprocal(xp.sqrt(x, out), out), lambda x: 1 / x.builder.emit("sqrt", x)
    ),
    -1.0: _Power(lambda xp, x, new, out: xp.reciprocal(x, out), lambda x: 1 / x),
    -2.0: _Power(
        lambda xp, x, new, out: xp.square(xp.reciprocal(x, out), out),  # x * x would overflow first
        lambda x: (1 / x) * (1 / x),
    ),
}
"""Exponents for which arithmetic is up to 140 times as fast as a power. As with TensorFlow's graph optimiser,
roots of -inf are NaN, and the root of -0 is -0.
"""


def _power(xp: Any, x: Any, y: Any, out: Any = None, workspace: Any = None) -> Any:
    if xp is np and y.ndim == 0:  # reading y would synchronize with a GPU, where powers are memory-bound
        fast = _POWERS.get(complex(y))
        if fast is not None and (fast.of_integers or x.dtype.kind not in "iu"):
            return fast.on_arrays(xp, x, xp.empty if workspace is None else workspace.begin(), out)
    try:
        return xp.power(x, y, out)
    except ValueError:
        if x.dtype.kind not in "iu" or not (y < 0).any():
            raise
        raise InvalidArgumentError(f"expected powers of at least 0 for integers; got {y.min()}") from None


def _power_in_loop(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    fast = _POWERS.get(b.known(y))
    return b.pow(x, y) if fast is None else fast.in_loop(x)


def _pow_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = (conjugated(t) for t in op.inputs)
    z = conjugated(op.outputs[0])
    one = constant(np.ones((), x.dtype.np))
    dx = multiply(multiply(dz, y), power(x, subtract(y, one)))
    zero = zero_of(x.dtype)
    has_log = not_equal(x, zero) if x.dtype.is_complex else greater(x, zero)
    log_x = where_v2(has_log, op_def("Log")(where_v2(has_log, x, one)), zero)
    return unbroadcast_pair(op, dx, multiply(multiply(dz, z), log_x))


def _simplify_power(c: SimplifyContext) -> Sequence[Ref] | None:
    exponent = c.constant(c.node.inputs[1])
    return c.node.inputs[:1] if exponent is not None and exponent.shape == () and exponent == 1 else None


power = binary_op(
    "Pow",
    _power,
    "NUMERIC",
    vjp=_pow_vjp,
    samples=pairs(0.5, 3),
    loop=on_floats(_power_in_loop),
    narrows=False,
    simplify=_simplify_power,
    doc="""x to the power of y.

    Args:
        x: A tensor of numbers.
        y: A tensor of the same dtype; the shapes broadcast.

    Returns:
        A tensor of the common shape.

    Raises:
        InvalidArgumentError: When run, for a negative power of an integer.

    Example:
        >>> tf.pow([2.0, 3.0], 2.0).eval()
        array([4., 9.], dtype=float32)
    """,
)

pow = power


def _extreme_op(
    name: str, of_two: Callable[[int, int], int], takes_x: OpDef[Tensor], doc: str
) -> OpDef[Tensor]:
    """The gradient flows to the selected input; to x if both are equal."""

    def vjp(op: Operation, dz: Tensor) -> list[Tensor]:
        taken, zero = takes_x(*op.inputs), zero_of(dz.dtype)
        return unbroadcast_pair(op, where_v2(taken, dz, zero), where_v2(taken, zero, dz))

    ufunc = name.lower()
    return binary_op(
        name,
        lambda xp, x, y, out=None: getattr(xp, ufunc)(x, y, out=out),
        "REAL",
        vjp=vjp,
        samples=pairs(),
        commutative=True,
        value=integer_value(of_two),
        loop=instruction(of_two.__name__),
        doc=doc,
    )


maximum = _extreme_op(
    "Maximum",
    max,
    greater_equal,
    """The larger of x and y.

Args:
    x: A tensor of real numbers.
    y: A tensor of the same dtype; the shapes broadcast.

Returns:
    A tensor of the common shape.

Example:
    >>> tf.maximum([1, 5], [3, 2]).eval()
    array([3, 5], dtype=int32)
""",
)


minimum = _extreme_op(
    "Minimum",
    min,
    less_equal,
    """The smaller of x and y.

Args:
    x: A tensor of real numbers.
    y: A tensor of the same dtype; the shapes broadcast.

Returns:
    A tensor of the common shape.

Example:
    >>> tf.minimum([1, 5], [3, 2]).eval()
    array([1, 2], dtype=int32)
""",
)


@elementwise_of_composites
def clip_by_value(
    t: NumericLike, clip_value_min: NumericLike, clip_value_max: NumericLike, name: str | None = None
) -> Any:
    """``t`` limited to [clip_value_min, clip_value_max]; the gradient is 0 outside. Slices stay slices.

    Args:
        t: A tensor, or `IndexedSlices`.
        clip_value_min: The least value: a scalar, or a tensor that broadcasts to the shape of ``t``.
        clip_value_max: The greatest value, likewise.

    Returns:
        A tensor, or `IndexedSlices`, of the shape and dtype of ``t``.

    Raises:
        InvalidArgumentError: The bounds would widen the shape of ``t``.

    Example:
        >>> tf.clip_by_value([-2.0, 0.5, 3.0], -1.0, 1.0).eval()
        array([-1. ,  0.5,  1. ], dtype=float32)
    """
    values = t.values if isinstance(t, IndexedSlices) else convert_to_tensor(t)
    with get_default_graph().name_scope(name or "clip_by_value") as scope:
        below = minimum(values, clip_value_max)
        clipped = maximum(below, clip_value_min, name=scope)
    for tensor in (below, clipped):
        if values.spec.shape is not None and tensor.spec.shape is not None:
            merge(values.spec.shape, tensor.spec.shape)
    clipped.set_shape(values.shape)
    return IndexedSlices(clipped, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else clipped


@elementwise_of_composites
def saturate_cast(value: NumericLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """``value`` cast to ``dtype`` and clipped to its range."""
    with get_default_graph().name_scope(name or "saturate_cast") as scope:
        tensor, target = convert_to_tensor(value), as_dtype(dtype)
        if tensor.dtype.is_complex or not (target.is_integer or target.is_floating):
            raise DTypeError(f"saturate_cast: expected real dtypes; got {tensor.dtype.name} to {target.name}")
        if tensor.dtype is dtypes.float16 and target.is_integer:  # its infinities are beyond any range
            tensor = cast(tensor, dtypes.float32)
        low, high = _range(target)
        if _range(tensor.dtype)[0] < low:
            tensor = maximum(tensor, constant(_within(tensor.dtype, low)))
        if _range(tensor.dtype)[1] > high:
            tensor = minimum(tensor, constant(_within(tensor.dtype, high)))
        return cast(tensor, target, name=scope)


def _range(dtype: DType) -> tuple[Any, Any]:
    """The ends of a dtype's range as Python numbers, which compare exactly."""
    number = int if dtype.is_integer else float
    return number(dtype.min), number(dtype.max)


def _within(dtype: DType, limit: Any) -> Any:
    """``limit`` in ``dtype``, or the next number of ``dtype`` towards 0: float32 has no 2**31 - 1."""
    nearest = np.array(limit).astype(dtype.np)
    beyond = dtype.is_floating and abs(int(nearest)) > abs(int(limit))
    return np.nextafter(nearest, dtype.np.type(0)) if beyond else nearest
