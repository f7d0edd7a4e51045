"""Elementwise ops of two and more inputs: arithmetic, comparison, logic, choice, clipping.

Rules of this file: inputs have one dtype and broadcast as in NumPy; integers wrap around; dividing an integer by zero is
an `InvalidArgumentError`; every vjp sums with `unbroadcast` what broadcasting repeated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Operation, Tensor, get_default_graph
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.op_def import (
    BY_VJP,
    LINEAR,
    NONDIFFERENTIABLE,
    OpDef,
    PartialValue,
    Sample,
    ShapeContext,
    Ufunc,
    attr_bool,
    attr_float,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.ops.constant import constant
from flowrt.graph.ops.shaping import Samples, cast, identity, unbroadcast, unchanged
from flowrt.graph.shapes import Shape, TensorShape, as_shape, broadcast, format_shape, is_static, merge

# --- what binary ops share


def broadcast_shape(s: ShapeContext) -> Sequence[Shape]:
    """The shape rule of elementwise ops: all inputs broadcast together."""
    shape: Shape = ()
    for other in s.shapes:
        shape = broadcast(shape, other)
    return [shape]


def pairs(low: float = -3, high: float = 3, *, gap: float = 0.0, dtype: Any = np.int32) -> Samples:
    """Samples for a binary op: two floats in [low, high] and at least ``gap`` from 0, of shapes that broadcast."""

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        def draw(*shape: int) -> Any:
            x = rng.uniform(low, high, shape)
            return np.where(np.abs(x) < gap, gap, x)

        yield sample(draw(2, 3), draw(2, 3))
        yield sample(draw(2, 1), draw(3))
        yield sample(draw(), draw(2))
        yield sample(draw(3, 1).astype(np.float32), draw(1, 2).astype(np.float32))
        yield sample(draw(3).astype(dtypes.bfloat16.np), draw(3).astype(dtypes.bfloat16.np))
        yield sample(draw(3).astype(np.float16), draw().astype(np.float16))
        yield sample(draw(0, 3), draw(3))
        if dtype is not None:
            yield sample(np.array([[7], [8]], dtype), np.array([1, 2, 3], dtype))

    return samples


def _binary(name: str, kernel: Any, types: Iterable[DType], **rules: Any) -> OpDef:
    """An elementwise op ``x: T, y: T -> T``."""
    return define_op(
        name, "x: T, y: T -> T", types={"T": types}, shape=broadcast_shape, kernel=kernel, elementwise=True, **rules
    )


def _integer_value(function: Callable[[int, int], int]) -> Callable[[ShapeContext], PartialValue]:
    """The ``value`` rule of an op that is ``function`` on integers."""

    def combine(a: PartialValue, b: PartialValue) -> PartialValue:
        if isinstance(a, tuple) or isinstance(b, tuple):
            length = max(len(v) for v in (a, b) if isinstance(v, tuple))
            left, right = (v * length if isinstance(v, tuple) and len(v) == 1 else v for v in (a, b))
            left, right = (v if isinstance(v, tuple) else (v,) * length for v in (left, right))
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


def conjugated(x: Tensor) -> Tensor:
    """The complex conjugate of a complex tensor; others as they are."""
    if not x.dtype.is_complex:
        return x
    result: Tensor = op_def("Conj")(x)
    return result


def _zero(dtype: DType) -> Tensor:
    return constant(np.zeros((), dtype.np))


# --- sums and products


def _unbroadcast_pair(op: Operation, dx: Tensor, dy: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return [unbroadcast(dx, x, y), unbroadcast(dy, y, x)]


def _sub_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return [unbroadcast(dz, x, y), op_def("Neg")(unbroadcast(dz, y, x))]


def _mul_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return _unbroadcast_pair(op, multiply(dz, conjugated(y)), multiply(dz, conjugated(x)))


def _mul_jvp(op: Operation, dx: Tensor | None, dy: Tensor | None) -> list[Tensor]:
    x, y = op.inputs
    if dx is None or dy is None:
        return [multiply(x, dy) if dx is None else multiply(dx, y)]
    return [add(multiply(dx, y), multiply(x, dy))]


add_v2 = _binary(
    "AddV2",
    Ufunc("add"),
    dtypes.NUMERIC,
    vjp=lambda op, dz: _unbroadcast_pair(op, dz, dz),
    jvp=LINEAR,
    samples=pairs(),
    commutative=True,
    value=_integer_value(operator.add),
    doc="x + y.",
)

add_v1 = _binary(
    "Add",
    Ufunc("add"),
    dtypes.NUMERIC | {dtypes.string},
    vjp=lambda op, dz: _unbroadcast_pair(op, dz, dz),
    jvp=LINEAR,
    samples=pairs(),
    value=_integer_value(operator.add),
    doc="x + y, as older graphs have it; joins strings.",
)

subtract = _binary(
    "Sub",
    Ufunc("subtract"),
    dtypes.NUMERIC,
    vjp=_sub_vjp,
    jvp=LINEAR,
    samples=pairs(),
    value=_integer_value(operator.sub),
    doc="x - y.",
)

multiply = _binary(
    "Mul",
    Ufunc("multiply"),
    dtypes.NUMERIC,
    vjp=_mul_vjp,
    jvp=_mul_jvp,
    samples=pairs(),
    commutative=True,
    value=_integer_value(operator.mul),
    doc="x * y.",
)


def add(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x + y, elementwise; strings are joined."""
    build = add_v1 if getattr(x, "dtype", None) is dtypes.string else add_v2
    total: Tensor = build(x, y, name=name or "Add")
    return total


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """``scalar * x`` for a tensor or an `IndexedSlices` x, of whose kind the result is.

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


squared_difference = _binary(
    "SquaredDifference",
    _squared_difference,
    dtypes.INEXACT | dtypes.INDEX,
    vjp=_squared_difference_vjp,
    jvp=BY_VJP,
    samples=pairs(),
    commutative=True,
    doc="conj(x - y) * (x - y).",
)


def _add_n_shape(s: ShapeContext) -> Sequence[Shape]:
    shape: Shape = None
    for other in s.shapes:
        shape = merge(shape, other)
    return [shape]


def _add_n(xp: Any, inputs: Any, out: Any = None) -> Any:
    first, *rest = inputs
    if any(x.shape != first.shape for x in rest):
        raise InvalidArgumentError(f"expected inputs of one shape; got {', '.join(str(list(x.shape)) for x in inputs)}")
    if not rest:
        return xp.add(first, first.dtype.type(0), out)
    total = first
    for x in rest[:-1]:  # not into out: that may be the memory of an input still to come
        total = total + x
    return xp.add(total, rest[-1], out)


add_n_op = define_op(
    "AddN",
    "inputs: N * T -> T",
    types={"T": dtypes.NUMERIC},
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
    elementwise=True,
    doc="The sum of inputs of one shape.",
)


def add_n(inputs: Any, name: str | None = None) -> Tensor:
    """The sum of tensors (or `IndexedSlices`, which become dense) of one shape and dtype."""
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise InvalidArgumentError(f"add_n: expected a list of at least one tensor; got {inputs!r}")
    if len(inputs) == 1:
        only = convert_to_tensor(inputs[0])
        return identity(only, name=name) if name else only  # type: ignore[no-any-return]
    total: Tensor = add_n_op(inputs, name=name)
    return total


def accumulate_n(inputs: Any, shape: Any = None, tensor_dtype: Any = None, name: str | None = None) -> Tensor:
    """`add_n` with the sum's ``shape`` and dtype said beforehand: raises `InvalidArgumentError` if they do not fit."""
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise InvalidArgumentError(f"accumulate_n: expected a list of at least one tensor; got {inputs!r}")
    dtype = None if tensor_dtype is None else as_dtype(tensor_dtype)
    total = add_n([convert_to_tensor(x, dtype) for x in inputs], name=name or "AccumulateNV2")
    total.set_shape(shape)
    return total


# --- quotients


def _check_divisor(y: Any) -> None:
    if y.dtype.kind in "iu" and not y.all():
        raise InvalidArgumentError("expected a divisor without zeros; got one: integer division by zero")


def _floor_divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    if y.dtype.kind in "iu":
        _check_divisor(y)
        return xp.floor_divide(x, y, out)
    return xp.floor(xp.true_divide(x, y, out), out)


def _truncate_divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    if y.dtype.kind not in "iu":
        return xp.trunc(xp.true_divide(x, y, out), out)
    _check_divisor(y)
    quotient = xp.floor_divide(x, y)
    if y.dtype.kind == "u":
        return xp.add(quotient, y.dtype.type(0), out)
    inexact = (xp.remainder(x, y) != 0) & ((x < 0) != (y < 0))
    return xp.add(quotient, inexact.astype(y.dtype), out)


def _divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    return _truncate_divide(xp, x, y, out) if y.dtype.kind in "iu" else xp.true_divide(x, y, out)


def _floor_mod(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    _check_divisor(y)
    return xp.remainder(x, y, out)


def _truncate_mod(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    _check_divisor(y)
    return xp.fmod(x, y, out)


def _div_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    dx = realdiv(dz, conjugated(y))
    dy = multiply(dx, conjugated(op.outputs[0]))
    return [unbroadcast(dx, x, y), op_def("Neg")(unbroadcast(dy, y, x))]


def _mod_vjp(quotient: Callable[[Any, Any], Any]) -> Any:
    """x mod y is x - y q with a quotient q that is constant between its jumps."""

    def vjp(op: Operation, dz: Tensor) -> list[Tensor]:
        x, y = op.inputs
        dy = multiply(dz, quotient(x, y))
        return [unbroadcast(dz, x, y), op_def("Neg")(unbroadcast(dy, y, x))]

    return vjp


realdiv = _binary(
    "RealDiv",
    Ufunc("true_divide"),
    dtypes.INEXACT,
    vjp=_div_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5, dtype=np.complex64),
    doc="x / y for floating and complex dtypes.",
)

div_op = _binary(
    "Div",
    _divide,
    dtypes.NUMERIC,
    vjp=_div_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5),
    doc="x / y, as older graphs have it; integers are divided towards zero.",
)

floor_div = _binary(
    "FloorDiv",
    _floor_divide,
    dtypes.REAL,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=pairs(gap=0.5),
    value=_integer_value(operator.floordiv),
    doc="floor(x / y).",
)

floormod = _binary(
    "FloorMod",
    _floor_mod,
    dtypes.REAL,
    vjp=_mod_vjp(lambda x, y: floor_div(x, y)),
    jvp=BY_VJP,
    samples=pairs(gap=0.5),
    value=_integer_value(operator.mod),
    doc="x - floor(x / y) * y: the remainder that has y's sign.",
)

truncatediv = _binary(
    "TruncateDiv",
    _truncate_divide,
    dtypes.REAL,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=pairs(gap=0.5),
    doc="x / y without its fraction.",
)

truncatemod = _binary(
    "TruncateMod",
    _truncate_mod,
    dtypes.REAL,
    vjp=_mod_vjp(lambda x, y: truncatediv(x, y)),
    jvp=BY_VJP,
    samples=pairs(gap=0.5),
    doc="The remainder of x / y that has x's sign.",
)

mod = floormod

_TRUE_QUOTIENT = {
    dtypes.int8: dtypes.float32,
    dtypes.uint8: dtypes.float32,
    dtypes.int16: dtypes.float32,
    dtypes.uint16: dtypes.float32,
    dtypes.int32: dtypes.float64,
    dtypes.uint32: dtypes.float64,
    dtypes.int64: dtypes.float64,
    dtypes.uint64: dtypes.float64,
}
"""The dtype in which integers are divided by `truediv`: it holds every value of theirs, but for 64 bits."""


def _operands(x: Any, y: Any, what: str) -> tuple[Tensor, Tensor]:
    """Two tensors of one dtype: that of the first that is a tensor already."""
    if not isinstance(x, Tensor) and isinstance(y, Tensor):
        return convert_to_tensor(x, y.dtype), y
    x = convert_to_tensor(x)
    y = convert_to_tensor(y, None if isinstance(y, Tensor) else x.dtype)
    if x.dtype is not y.dtype:
        raise DTypeError(f"{what}: expected two tensors of one dtype; got {x.dtype.name} and {y.dtype.name}")
    return x, y


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y; integers of up to 16 bits are divided as float32, wider ones as float64."""
    graph = get_default_graph()
    with graph.name_scope(name or "truediv") as scope:
        x, y = _operands(x, y, "truediv")
        wider = _TRUE_QUOTIENT.get(x.dtype, x.dtype)
        quotient: Tensor = realdiv(cast(x, wider), cast(y, wider), name=scope)
        return quotient


def divide(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y as Python 3 has it: see `truediv`."""
    return truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y as Python 2 has it: the floor of the quotient for integers."""
    with get_default_graph().name_scope(name or "div") as scope:
        x, y = _operands(x, y, "div")
        quotient: Tensor = (floor_div if x.dtype.is_integer else realdiv)(x, y, name=scope)
        return quotient


def floordiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """floor(x / y)."""
    quotient: Tensor = floor_div(x, y, name=name or "floordiv")
    return quotient


def _guarded(function: Callable[[Any, Any, Any], Any], zero: int) -> Any:
    """The kernel that is 0 where input number ``zero`` is 0, and otherwise ``function``."""

    def kernel(xp: Any, x: Any, y: Any) -> Any:
        return xp.where((y if zero else x) == 0, x.dtype.type(0), function(xp, x, y))

    return kernel


def _xlogy_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    present = cast(not_equal(x, _zero(x.dtype)), x.dtype)
    dx = multiply(dz, xlogy(present, y))
    dy = multiply(dz, xdivy(x, y))
    return _unbroadcast_pair(op, dx, dy)


def _xlog1py_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    present = cast(not_equal(x, _zero(x.dtype)), x.dtype)
    dx = multiply(dz, xlog1py(present, y))
    dy = multiply(dz, xdivy(x, add_v2(y, constant(np.ones((), y.dtype.np)))))
    return _unbroadcast_pair(op, dx, dy)


def _xdivy_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    present = cast(not_equal(x, _zero(x.dtype)), x.dtype)
    dx = multiply(dz, xdivy(present, y))
    dy = op_def("Neg")(multiply(dz, xdivy(op.outputs[0], y)))
    return _unbroadcast_pair(op, dx, dy)


def _div_no_nan_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    y = op.inputs[1]
    dx = div_no_nan(dz, y)
    return _unbroadcast_pair(op, dx, op_def("Neg")(multiply(dx, op.outputs[0])))


def _mul_no_nan_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    return _unbroadcast_pair(op, mul_no_nan(dz, y), mul_no_nan(x, dz))


xlogy = _binary(
    "Xlogy",
    _guarded(lambda xp, x, y: x * xp.log(y), 0),
    dtypes.FLOATING,
    vjp=_xlogy_vjp,
    jvp=BY_VJP,
    samples=pairs(0.5, 3, dtype=None),
    doc="x * log(y), and 0 where x is 0.",
)

xlog1py = _binary(
    "Xlog1py",
    _guarded(lambda xp, x, y: x * xp.log1p(y), 0),
    dtypes.FLOATING,
    vjp=_xlog1py_vjp,
    jvp=BY_VJP,
    samples=pairs(0.5, 3, dtype=None),
    doc="x * log(1 + y), and 0 where x is 0.",
)

xdivy = _binary(
    "Xdivy",
    _guarded(lambda xp, x, y: x / y, 0),
    dtypes.FLOATING,
    vjp=_xdivy_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5, dtype=None),
    doc="x / y, and 0 where x is 0.",
)

div_no_nan = _binary(
    "DivNoNan",
    _guarded(lambda xp, x, y: x / y, 1),
    dtypes.FLOATING,
    vjp=_div_no_nan_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5, dtype=None),
    doc="x / y, and 0 where y is 0.",
)

mul_no_nan = _binary(
    "MulNoNan",
    _guarded(lambda xp, x, y: x * y, 1),
    dtypes.FLOATING,
    vjp=_mul_no_nan_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5, dtype=None),
    doc="x * y, and 0 where y is 0, even if x is infinite or not a number.",
)

# --- powers, angles, extremes


def _pow_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = (conjugated(t) for t in op.inputs)
    z = conjugated(op.outputs[0])
    one = constant(np.ones((), x.dtype.np))
    dx = multiply(multiply(dz, y), power(x, subtract(y, one)))
    zero = _zero(x.dtype)
    has_log = not_equal(x, zero) if x.dtype.is_complex else greater(x, zero)
    log_x = where_v2(has_log, op_def("Log")(where_v2(has_log, x, one)), zero)
    return _unbroadcast_pair(op, dx, multiply(multiply(dz, z), log_x))


power = _binary(
    "Pow",
    Ufunc("power"),
    dtypes.NUMERIC,
    vjp=_pow_vjp,
    jvp=BY_VJP,
    samples=pairs(0.5, 3),
    doc="x to the power of y.",
)


def pow(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x to the power of y; a negative power of an integer raises `InvalidArgumentError` when run."""
    result: Tensor = power(x, y, name=name)
    return result


def _atan2_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    y, x = op.inputs
    scaled = realdiv(dz, add_v2(multiply(x, x), multiply(y, y)))
    return _unbroadcast_pair(op, multiply(scaled, x), op_def("Neg")(multiply(scaled, y)))


atan2 = define_op(
    "Atan2",
    "y: T, x: T -> T",
    types={"T": dtypes.FLOATING},
    shape=broadcast_shape,
    kernel=Ufunc("arctan2"),
    vjp=_atan2_vjp,
    jvp=BY_VJP,
    samples=pairs(gap=0.5, dtype=None),
    elementwise=True,
    doc="The angle of the point (x, y), from -pi to pi.",
)


def _chosen_vjp(takes_x: Callable[[Tensor, Tensor], Any]) -> Any:
    """The gradient goes to the input that was taken; to x where both are equal."""

    def vjp(op: Operation, dz: Tensor) -> list[Tensor]:
        taken, zero = takes_x(*op.inputs), _zero(dz.dtype)
        return _unbroadcast_pair(op, where_v2(taken, dz, zero), where_v2(taken, zero, dz))

    return vjp


maximum = _binary(
    "Maximum",
    lambda xp, x, y, out=None: xp.maximum(x, y, out=out),
    dtypes.REAL,
    vjp=_chosen_vjp(lambda x, y: greater_equal(x, y)),
    jvp=BY_VJP,
    samples=pairs(),
    commutative=True,
    value=_integer_value(max),
    doc="The larger of x and y.",
)

minimum = _binary(
    "Minimum",
    lambda xp, x, y, out=None: xp.minimum(x, y, out=out),
    dtypes.REAL,
    vjp=_chosen_vjp(lambda x, y: less_equal(x, y)),
    jvp=BY_VJP,
    samples=pairs(),
    commutative=True,
    value=_integer_value(min),
    doc="The smaller of x and y.",
)


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """``t`` limited to [clip_value_min, clip_value_max]; the gradient is 0 outside. `IndexedSlices` stay such.

    The bounds are scalars or broadcast to t's shape; raises `InvalidArgumentError` if they would widen it.
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


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``value`` cast to ``dtype``, where values beyond its range become its nearest end."""
    with get_default_graph().name_scope(name or "saturate_cast") as scope:
        tensor, target = convert_to_tensor(value), as_dtype(dtype)
        if tensor.dtype.is_complex or not (target.is_integer or target.is_floating):
            raise DTypeError(f"saturate_cast: expected real dtypes; got {tensor.dtype.name} to {target.name}")
        low, high = _limits_within(tensor.dtype, target)
        if tensor.dtype.min < target.min:
            tensor = maximum(tensor, constant(low))
        if tensor.dtype.max > target.max:
            tensor = minimum(tensor, constant(high))
        return cast(tensor, target, name=scope)


def _limits_within(source: DType, target: DType) -> tuple[Any, Any]:
    """The ends of ``target``'s range as ``source``'s nearest values inside it (2**31 - 1 is no float32)."""
    low, high = (np.array(v).astype(source.np) for v in (target.min, target.max))
    if source.is_floating and int(high) > target.max:
        high = np.nextafter(high, source.np.type(0))
    return low, high


# --- comparison


def _comparison(name: str, kernel: Any, types: Iterable[DType], **rules: Any) -> OpDef:
    return define_op(
        name,
        "x: T, y: T -> bool",
        types={"T": types},
        shape=rules.pop("shape", broadcast_shape),
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=NONDIFFERENTIABLE,
        samples=pairs(),
        elementwise=True,
        **rules,
    )


def _equality_shape(s: ShapeContext) -> Sequence[Shape]:
    if not s.attrs["incompatible_shape_error"]:
        raise InvalidArgumentError("incompatible_shape_error: expected True; got False, which flowrt does not have")
    return broadcast_shape(s)


_EQUALITY: dict[str, Any] = {
    "types": dtypes.NUMERIC | {dtypes.bool_, dtypes.string},
    "attrs": {"incompatible_shape_error": attr_bool(True)},
    "shape": _equality_shape,
    "commutative": True,
}

less = _comparison("Less", Ufunc("less"), dtypes.REAL, doc="x < y.")
less_equal = _comparison("LessEqual", Ufunc("less_equal"), dtypes.REAL, doc="x <= y.")
greater = _comparison("Greater", Ufunc("greater"), dtypes.REAL, doc="x > y.")
greater_equal = _comparison("GreaterEqual", Ufunc("greater_equal"), dtypes.REAL, doc="x >= y.")
equal = _comparison("Equal", Ufunc("equal"), doc="x == y.", **_EQUALITY)
not_equal = _comparison("NotEqual", Ufunc("not_equal"), doc="x != y.", **_EQUALITY)

approximate_equal_op = define_op(
    "ApproximateEqual",
    "x: T, y: T -> bool",
    types={"T": dtypes.NUMERIC},
    attrs={"tolerance": attr_float(1e-5)},
    shape=lambda s: [merge(s.shapes[0], s.shapes[1])],
    kernel=lambda xp, x, y, tolerance: xp.abs(x - y) < tolerance,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.array([1.0, 2.0]), np.array([1.000001, 2.1])),
        sample(np.array(1 + 1j), np.array(1 + 1j), tolerance=0.5),
    ),
    doc="abs(x - y) < tolerance.",
)


def approximate_equal(x: Any, y: Any, tolerance: float = 1e-5, name: str | None = None) -> Tensor:
    """Whether ``abs(x - y) < tolerance``, elementwise, for tensors of one shape."""
    result: Tensor = approximate_equal_op(x, y, tolerance=tolerance, name=name)
    return result


# --- logic


def _truth_pairs(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([[True], [False]]), np.array([True, False]))
    yield sample(np.array(True), np.zeros(0, bool))


def _logical(name: str, kernel: Any, doc: str) -> OpDef:
    return define_op(
        name,
        "x: bool, y: bool -> bool",
        shape=broadcast_shape,
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=NONDIFFERENTIABLE,
        samples=_truth_pairs,
        elementwise=True,
        commutative=True,
        doc=doc,
    )


logical_and = _logical("LogicalAnd", Ufunc("logical_and"), "x and y.")
logical_or = _logical("LogicalOr", Ufunc("logical_or"), "x or y.")

logical_not = define_op(
    "LogicalNot",
    "x: bool -> bool",
    shape=unchanged,
    kernel=Ufunc("logical_not"),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(np.array([True, False]))],
    elementwise=True,
    doc="not x.",
)


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Either x or y, but not both."""
    either: Tensor = not_equal(convert_to_tensor(x, dtypes.bool_), convert_to_tensor(y, dtypes.bool_), name=name)
    return either


# --- choice


def _select_shape(s: ShapeContext) -> Sequence[Shape]:
    condition = s.shapes[0]
    shape = merge(s.shapes[1], s.shapes[2])
    if condition is None or condition == () or shape is None:
        return [shape]
    if len(condition) == 1 and len(shape) > 0:
        merge(condition, shape[:1])
        return [shape]
    return [merge(shape, condition)]


def _select(xp: Any, condition: Any, t: Any, e: Any) -> Any:
    if condition.ndim == 1 and t.ndim > 1:
        condition = condition.reshape((-1,) + (1,) * (t.ndim - 1))
    return xp.where(condition, t, e)


def _select_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    condition, zeros = op.inputs[0], op_def("ZerosLike")(dy)
    return [None, select(condition, dy, zeros), select(condition, zeros, dy)]


def _select_v2_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    condition, t, e = op.inputs
    zero = _zero(dy.dtype)
    return [None, unbroadcast(where_v2(condition, dy, zero), t), unbroadcast(where_v2(condition, zero, dy), e)]


def _choices(rng: np.random.Generator) -> Iterable[Sample]:
    condition = np.array([True, False])
    yield sample(condition, rng.standard_normal(2), rng.standard_normal(2))
    yield sample(condition, rng.integers(0, 9, (2, 2), np.int8), rng.integers(0, 9, (2, 2), np.int8))
    yield sample(np.array(True), *(rng.standard_normal((2, 2, 3))))
    yield sample(np.zeros(0, bool), np.zeros(0, np.complex64), np.zeros(0, np.complex64))


select = define_op(
    "Select",
    "condition: bool, t: T, e: T -> T",
    types={"T": dtypes.ANY},
    shape=_select_shape,
    kernel=_select,
    vjp=_select_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        *_choices(rng),
        sample(np.array([True, False, True]), rng.standard_normal((3, 2)), rng.standard_normal((3, 2))),
    ),
    doc="t where the condition holds, else e; a vector condition chooses rows.",
)

select_v2 = define_op(
    "SelectV2",
    "condition: bool, t: T, e: T -> T",
    types={"T": dtypes.ANY},
    shape=broadcast_shape,
    kernel=lambda xp, condition, t, e: xp.where(condition, t, e),
    vjp=_select_v2_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        *_choices(rng),
        sample(np.array([[True], [False]]), rng.standard_normal(3), rng.standard_normal((2, 1))),
    ),
    elementwise=True,
    doc="t where the condition holds, else e; all three broadcast.",
)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """x where ``condition`` holds, else y, which have one shape; the condition has it too, or is a vector over rows.

    Without x and y the coordinates of the true elements: int64 of shape ``[n, rank]``.
    """
    if x is None and y is None:
        coordinates: Tensor = op_def("Where")(convert_to_tensor(condition, preferred_dtype=dtypes.bool_), name=name)
        return coordinates
    if x is None or y is None:
        raise InvalidArgumentError("where: expected both x and y, or neither; got one")
    chosen: Tensor = select(condition, x, y, name=name)
    return chosen


def where_v2(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """x where ``condition`` holds, else y; all three broadcast. Without x and y as `where`."""
    if x is None or y is None:
        return where(condition, x, y, name)
    chosen: Tensor = select_v2(condition, x, y, name=name)
    return chosen


# --- broadcasting of shapes


def _known_pair(s: ShapeContext) -> tuple[Shape, Shape] | None:
    a, b = s.value(0), s.value(1)
    return None if a is None or b is None else (a, b)


def _broadcast_args_value(s: ShapeContext) -> PartialValue:
    known = _known_pair(s)
    return None if known is None else broadcast(*known)


def _repeated_axes(s0: Sequence[int], s1: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each of two shapes the axes of their broadcast along which it was repeated; all axes that are 1 count."""
    broadcast(tuple(s0), tuple(s1))
    rank = max(len(s0), len(s1))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in (s0, s1)]
    return tuple([axis for axis, dim in enumerate(shape) if dim == 1] for shape in padded)  # type: ignore[return-value]


def _shape_pairs(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([2, 1, 3], np.int32), np.array([4, 3], np.int32))
    yield sample(np.zeros(0, np.int64), np.array([4], np.int64))


broadcast_args = define_op(
    "BroadcastArgs",
    "s0: host T, s1: host T -> r0: host T",
    types={"T": dtypes.INDEX},
    shape=lambda s: [broadcast_rank(s)],
    kernel=lambda xp, s0, s1, T: np.array(np.broadcast_shapes(s0, s1), T.np),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=_shape_pairs,
    value=_broadcast_args_value,
    doc="The shape to which tensors of shapes s0 and s1 broadcast.",
)

broadcast_gradient_args = define_op(
    "BroadcastGradientArgs",
    "s0: host T, s1: host T -> r0: host T, r1: host T",
    types={"T": dtypes.INDEX},
    shape=lambda s: [(None,), (None,)],
    kernel=lambda xp, s0, s1, T: [np.array(axes, T.np) for axes in _repeated_axes(s0, s1)],
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=_shape_pairs,
    doc="For shapes s0 and s1 the axes along which their broadcast has to be summed to get each back.",
)


def broadcast_rank(s: ShapeContext) -> Shape:
    """The shape of the vector that holds the broadcast of two shapes."""
    if not all(is_static(shape) for shape in s.shapes):
        return (None,)
    ranks = [shape[0] for shape in s.shapes if shape]
    if len(ranks) != 2:
        raise InvalidArgumentError(f"expected two vectors; got shapes {', '.join(map(format_shape, s.shapes))}")
    return (max(r for r in ranks if r is not None),)


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> TensorShape:
    """The shape to which tensors of two (partial) shapes broadcast. Raises `InvalidArgumentError`."""
    return TensorShape(broadcast(as_shape(shape_x), as_shape(shape_y)))


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """The shape to which tensors of two shapes, given as integer vectors, broadcast."""
    result: Tensor = broadcast_args(shape_x, shape_y)
    return result
