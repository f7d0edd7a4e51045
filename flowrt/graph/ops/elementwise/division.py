"""Quotients and remainders with all kinds of rounding, and variants that are 0 where an operand is 0.

Rule of this file: an integer divided by zero is an `InvalidArgumentError`, and on a GPU, where zeros are not
checked, an arbitrary integer; a float divided by zero is infinite or not a number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Ufunc, op_def
from flowrt.graph.op_facets import Kernel, Loop, LoopRule, Vjp, instruction
from flowrt.graph.ops.base.filling import unbroadcast
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import (
    add_v2,
    binary_op,
    conjugated,
    drops_neutral,
    integer_value,
    is_one,
    multiply,
    unbroadcast_pair,
)
from flowrt.graph.ops.elementwise.comparison import elementwise_op, not_equal, pairs, zero_of
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue

__all__ = [
    "atan2", "div", "div_no_nan", "divide", "floordiv", "floormod", "mod", "realdiv", "truediv",
    "truncatediv", "truncatemod",
]  # fmt: skip

# --- quotients


def _check_divisor(xp: Any, y: Any) -> None:
    if xp is np and y.dtype.kind in "iu" and not y.all():
        raise InvalidArgumentError("expected a divisor without zeros; got one: integer division by zero")


def _floor_divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    if y.dtype.kind in "iu":
        _check_divisor(xp, y)
        return xp.floor_divide(x, y, out)
    return xp.floor(xp.true_divide(x, y, out), out)


def truncate_divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    if y.dtype.kind not in "iu":
        return xp.trunc(xp.true_divide(x, y, out), out)
    _check_divisor(xp, y)
    quotient = xp.floor_divide(x, y)
    if y.dtype.kind == "u":
        return xp.add(quotient, y.dtype.type(0), out)
    inexact = (xp.remainder(x, y) != 0) & ((x < 0) != (y < 0))
    return xp.add(quotient, inexact.astype(y.dtype), out)


def _divide(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    return truncate_divide(xp, x, y, out) if y.dtype.kind in "iu" else xp.true_divide(x, y, out)


def _remainder(ufunc: str) -> Kernel:
    def kernel(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
        _check_divisor(xp, y)
        return getattr(xp, ufunc)(x, y, out)

    return kernel


# --- quotients of integers in loops


def _by_kind(of_floats: LoopRule, of_integers: LoopRule) -> Loop:
    return Loop(lambda b, x, y: (of_floats if x.dtype.startswith("float") else of_integers)(b, x, y))


def _harmless(b: LoopBuilder, y: LoopValue) -> LoopValue:
    """The divisor ``y``, or 1 where the processor would stop: at 0, which is checked, and at -1."""
    if not b.known(y):
        b.check(y.differs(0))
    return b.select(y.equals(0) | y.equals(-1), 1, y)


def _truncated_quotient(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    return b.select(y.equals(-1), -x, b.emit("div", x, _harmless(b, y)))


def _truncated_remainder(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    return b.emit("rem", x, _harmless(b, y))


def _floored_quotient(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    quotient = _truncated_quotient(b, x, y)
    rest = x - quotient * y
    return b.select(rest.differs(0) & ((rest ^ y) < 0), quotient - 1, quotient)


def _floored_remainder(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    rest = _truncated_remainder(b, x, y)
    return b.select(rest.differs(0) & ((rest ^ y) < 0), rest + y, rest)


def _floored_remainder_of_floats(b: LoopBuilder, x: LoopValue, y: LoopValue) -> LoopValue:
    """The remainder with y's sign, even if it is 0."""
    rest = b.emit("rem", x, y)
    return b.select(rest.equals(0), b.copysign(0.0, y), b.select((rest < 0).differs(y < 0), rest + y, rest))


def _div_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    dx = realdiv(dz, conjugated(y))
    dy = multiply(dx, conjugated(op.outputs[0]))
    return [unbroadcast(dx, x, y), op_def("Neg")(unbroadcast(dy, y, x))]


def _mod_vjp(quotient: Callable[[Any, Any], Any]) -> Vjp:
    """x mod y is x - y q with a quotient q that is constant between its jumps."""

    def vjp(op: Operation, dz: Tensor) -> list[Tensor]:
        x, y = op.inputs
        dy = multiply(dz, quotient(x, y))
        return [unbroadcast(dz, x, y), op_def("Neg")(unbroadcast(dy, y, x))]

    return vjp


realdiv = binary_op(
    "RealDiv",
    Ufunc("true_divide"),
    "INEXACT",
    vjp=_div_vjp,
    samples=pairs(gap=0.5, dtype=np.complex64),
    simplify=drops_neutral(is_one, 1),
    loop=instruction("div"),
    doc="x / y for floating and complex dtypes.",
)


div_op = binary_op(
    "Div",
    _divide,
    "NUMERIC",
    vjp=_div_vjp,
    samples=pairs(gap=0.5),
    simplify=drops_neutral(is_one, 1),
    loop=_by_kind(lambda b, x, y: x / y, _truncated_quotient),
    doc="x / y, as older graphs have it; integers are divided towards zero.",
)


floor_div = binary_op(
    "FloorDiv",
    _floor_divide,
    "REAL",
    vjp=NONDIFFERENTIABLE,
    samples=pairs(gap=0.5),
    value=integer_value(operator.floordiv),
    loop=_by_kind(lambda b, x, y: b.floor(x / y), _floored_quotient),
    doc="floor(x / y).",
)


floormod = binary_op(
    "FloorMod",
    _remainder("remainder"),
    "REAL",
    vjp=_mod_vjp(floor_div),
    samples=pairs(gap=0.5),
    value=integer_value(operator.mod),
    loop=_by_kind(_floored_remainder_of_floats, _floored_remainder),
    doc="""x - floor(x / y) * y: the remainder that has y's sign.

    Example:
        >>> tf.mod([7, -7], 3).eval()
        array([1, 2], dtype=int32)
    """,
)


truncatediv = binary_op(
    "TruncateDiv",
    truncate_divide,
    "REAL",
    vjp=NONDIFFERENTIABLE,
    samples=pairs(gap=0.5),
    loop=_by_kind(lambda b, x, y: b.trunc(x / y), _truncated_quotient),
    doc="x / y without its fraction.",
)


truncatemod = binary_op(
    "TruncateMod",
    _remainder("fmod"),
    "REAL",
    vjp=_mod_vjp(truncatediv),
    samples=pairs(gap=0.5),
    loop=_by_kind(lambda b, x, y: b.emit("rem", x, y), _truncated_remainder),
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


def _operands(x: Any, y: Any, scope: str) -> tuple[Tensor, Tensor]:
    """Two tensors of one dtype, the first tensor's; constants get names in ``scope``."""
    if not isinstance(x, Tensor) and isinstance(y, Tensor):
        return convert_to_tensor(x, y.dtype, f"{scope}x/"), y
    x = convert_to_tensor(x, name=f"{scope}x/")
    y = convert_to_tensor(y, None if isinstance(y, Tensor) else x.dtype, f"{scope}y/")
    if x.dtype is not y.dtype:
        raise DTypeError(
            f"{scope[:-1]}: expected two tensors of the same dtype; got {x.dtype.name} and {y.dtype.name}"
        )
    return x, y


@elementwise_of_composites
def truediv(x: NumericLike, y: NumericLike, name: str | None = None) -> Tensor:
    """x / y; integers of up to 16 bits are divided as float32, wider ones as float64.

    Example:
        >>> tf.divide([3.0, 4.0], 2.0).eval()
        array([1.5, 2. ], dtype=float32)
    """
    with get_default_graph().name_scope(name or "truediv") as scope:
        x, y = _operands(x, y, scope)
        wider = _TRUE_QUOTIENT.get(x.dtype, x.dtype)
        return realdiv(cast(x, wider), cast(y, wider), name=scope)


divide = truediv  # as Python 3 has it


@elementwise_of_composites
def div(x: NumericLike, y: NumericLike, name: str | None = None) -> Tensor:
    """x / y as Python 2 has it: the floor of the quotient for integers.

    Example:
        >>> tf.div([7, -7], 2).eval(), tf.div([7.0], 2.0).eval()
        (array([ 3, -4], dtype=int32), array([3.5], dtype=float32))
    """
    with get_default_graph().name_scope(name or "div") as scope:
        x, y = _operands(x, y, scope)
        return (floor_div if x.dtype.is_integer else realdiv)(x, y, name=scope)


@elementwise_of_composites
def floordiv(x: NumericLike, y: NumericLike, name: str | None = None) -> Tensor:
    """floor(x / y)."""
    return floor_div(x, y, name=name or "floordiv")


def _guarded(function: Callable[[Any, Any, Any, Any], Any], zero: int) -> Kernel:
    """The kernel that is 0 where input number ``zero`` is 0, and otherwise ``function``; its last argument is
    ``out``.
    """

    def kernel(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
        is_zero = (y if zero else x) == 0  # before ``out`` is written, which may be an input
        value = function(xp, x, y, out)
        if out is None:
            return xp.where(is_zero, x.dtype.type(0), value)
        xp.copyto(out, xp.zeros((), x.dtype), where=is_zero)
        return out

    return kernel


def _present(x: Tensor) -> Tensor:
    """1 where x is not 0, else 0."""
    return cast(not_equal(x, zero_of(x.dtype)), x.dtype)


def _xdivy_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = op.inputs
    dx = multiply(dz, xdivy(_present(x), y))
    dy = op_def("Neg")(multiply(dz, xdivy(op.outputs[0], y)))
    return unbroadcast_pair(op, dx, dy)


def _div_no_nan_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    dx = div_no_nan(dz, conjugated(op.inputs[1]))
    return unbroadcast_pair(op, dx, op_def("Neg")(multiply(dx, conjugated(op.outputs[0]))))


def _mul_no_nan_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    x, y = (conjugated(t) for t in op.inputs)
    return unbroadcast_pair(op, mul_no_nan(dz, y), mul_no_nan(x, dz))


def _times_log_op(name: str, log: str, shift: int, doc: str) -> OpDef[Tensor]:
    """The op ``x * log(shift + y)``, where ``log`` is the function of ``y``."""

    def vjp(op: Operation, dz: Tensor) -> list[Tensor]:
        x, y = op.inputs
        shifted = add_v2(y, constant(np.array(shift, y.dtype.np))) if shift else y
        return unbroadcast_pair(op, multiply(dz, op.op_def(_present(x), y)), multiply(dz, xdivy(x, shifted)))

    return binary_op(
        name,
        _guarded(lambda xp, x, y, out: xp.multiply(x, getattr(xp, log)(y), out), 0),
        "FLOATING",
        vjp=vjp,
        samples=pairs(0.5, 3, dtype=None),
        loop=Loop(lambda b, x, y: b.select(x.equals(0), 0, x * getattr(b, log)(y))),
        narrows=False,
        doc=doc,
    )


xlogy = _times_log_op("Xlogy", "log", 0, "x * log(y), and 0 where x is 0.")
xlog1py = _times_log_op("Xlog1py", "log1p", 1, "x * log(1 + y), and 0 where x is 0.")


xdivy = binary_op(
    "Xdivy",
    _guarded(lambda xp, x, y, out: xp.true_divide(x, y, out), 0),
    "FLOATING",
    vjp=_xdivy_vjp,
    samples=pairs(gap=0.5, dtype=None),
    loop=Loop(lambda b, x, y: b.select(x.equals(0), 0, x / y)),
    doc="x / y, and 0 where x is 0.",
)


div_no_nan = binary_op(
    "DivNoNan",
    _guarded(lambda xp, x, y, out: xp.true_divide(x, y, out), 1),
    "INEXACT",
    vjp=_div_no_nan_vjp,
    samples=pairs(gap=0.5, dtype=np.complex64),
    loop=Loop(lambda b, x, y: b.select(y.equals(0), 0, x / y)),
    doc="x / y, and 0 where y is 0.",
)


mul_no_nan = binary_op(
    "MulNoNan",
    _guarded(lambda xp, x, y, out: xp.multiply(x, y, out), 1),
    "INEXACT",
    vjp=_mul_no_nan_vjp,
    samples=pairs(gap=0.5, dtype=np.complex64),
    loop=Loop(lambda b, x, y: b.select(y.equals(0), 0, x * y)),
    doc="x * y, and 0 where y is 0, even if x is infinite or not a number.",
)


def _atan2_vjp(op: Operation, dz: Tensor) -> list[Tensor]:
    y, x = op.inputs
    scaled = realdiv(dz, add_v2(multiply(x, x), multiply(y, y)))
    return unbroadcast_pair(op, multiply(scaled, x), op_def("Neg")(multiply(scaled, y)))


atan2 = elementwise_op(
    "Atan2",
    "y: T in FLOATING, x: T -> z: T",
    kernel=Ufunc("arctan2"),
    vjp=_atan2_vjp,
    samples=pairs(gap=0.5, dtype=None),
    doc="The angle of the point (x, y), from -pi to pi.",
)
