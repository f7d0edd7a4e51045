"""A second reading of `flowrt.loops.loop_program`: NumPy runs a program instruction by instruction on
whole arrays.

Slow and plain, for tests. Arithmetic is exact where the machine's is: `fma` rounds once in both precisions.
`FUNCTIONS` are NumPy's, float32 ones computed in float64 and rounded.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from flowrt.loops.loop_program import Instruction, LoopProgram, Store

Array = np.ndarray[Any, Any]


def evaluate_loops(
    program: LoopProgram,
    operands: Sequence[Array | None],
    shape: tuple[int, int] | None = None,
    underflow: Literal["ignore", "raise"] = "ignore",
) -> list[Array]:
    """The results, one for each of ``program.outputs``, in that order; the operands stay as they are.

    An operand is [rows, columns], or what broadcasts to it ([rows, 1] where it is the same along a row), or
    None where the program only writes it, or a matrix with rows of its own (``load_at``). ``shape`` is
    (rows, columns), by default what the operands broadcast to. Results are [rows, columns], or [rows, 1] for
    a value that is one a row; [columns] for `Store.SUM_ROWS`; [] for `Store.SUM_ALL`, where a value that is
    one a row counts once, and for `Store.CHECK`, which is 1 if a check failed, else 0. ``underflow``: see
    `numpy.errstate`.
    """
    if shape is None:
        shape = domain_of(program, operands)
    values: list[Array] = []
    with np.errstate(all="ignore", under=underflow):
        for instruction in program.instructions:
            arguments = [values[number] for number in instruction.args]
            value = _instruction(instruction, arguments, operands, shape)
            values.append(value.astype(instruction.dtype, copy=False))
        is_row = [program.instructions[output.value].is_row for output in program.outputs]
        return [
            _stored(values[output.value], output.store, (shape[0], 1) if row else shape)
            for output, row in zip(program.outputs, is_row, strict=True)
        ]


def domain_of(program: LoopProgram, operands: Sequence[Array | None]) -> tuple[int, int]:
    """(rows, columns) that the operands broadcast to; matrices do not."""
    rest = [a for i, a in enumerate(operands) if a is not None and i not in matrices_of(program)]
    rows, columns = np.broadcast_shapes((1, 1), *[array.shape for array in rest])
    return rows, columns


def matrices_of(program: LoopProgram) -> set[int]:
    """The operands that have rows of their own."""
    return {instruction.data for instruction in program.instructions if instruction.op == "load_at"}


def _instruction(
    instruction: Instruction, arguments: list[Array], operands: Sequence[Array | None], shape: tuple[int, int]
) -> Array:
    op, _, dtype, data, is_row = instruction
    match op:
        case "load":
            array = operands[data]
            assert array is not None, f"operand {data} is read and was not given"
            assert array.dtype == dtype, f"operand {data}: expected {dtype}; got {array.dtype}"
            assert not is_row or array.shape[1] == 1, f"operand {data}: expected [rows, 1]; got {array.shape}"
            return np.broadcast_to(array, (shape[0], 1) if is_row else shape)
        case "load_at":
            matrix = operands[data]
            assert matrix is not None, f"operand {data} is read and was not given"
            return matrix[np.broadcast_to(arguments[0], shape), np.arange(shape[1])]
        case "const":
            return np.full((1, 1), data, dtype)
        case "column":
            return np.arange(shape[1])[None, :]
        case "columns":
            return np.full((1, 1), shape[1])
        case "spread":
            return np.broadcast_to(arguments[0], shape)
        case "cast":
            return arguments[0].astype(dtype)
        case "bits" | "from_bits":
            return arguments[0].view(dtype)
        case "row_sum" | "row_prod" | "row_max" | "row_min":
            whole = np.broadcast_to(arguments[0], (arguments[0].shape[0], shape[1]))
            return _REDUCTIONS[op](whole, axis=1, keepdims=True)
    return _ELEMENTWISE[op](*arguments)


def _stored(value: Array, store: Store, shape: tuple[int, int]) -> Array:
    if store is Store.PUT:
        return np.broadcast_to(value, shape).copy()
    if store is Store.CHECK:
        return np.array(not value.all(), np.int64)
    whole = np.broadcast_to(value, shape)
    if store is Store.SUM_ROWS:
        return whole.sum(axis=0, dtype=value.dtype)
    return np.asarray(whole.sum(dtype=np.float64 if value.dtype.kind == "f" else value.dtype))


# --- fma, rounded once


def _fma(a: Array, b: Array, c: Array) -> Array:
    return _fma_float32(a, b, c) if a.dtype == np.float32 else _FMA_FLOAT64(a, b, c).astype(np.float64)


def _fma_float32(a: Array, b: Array, c: Array) -> Array:
    """Through float64, where the product is exact. The sum is rounded to odd (Boldo and Melquiond, 2008): its
    last bit says whether something was lost, so that the second rounding, to float32, is right.
    """
    product, addend = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    away = np.where((lost > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(lost) & (lost != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + away, bits).view(np.float64).astype(np.float32)


def _libm_fma() -> Callable[..., Array]:
    function = ctypes.CDLL(ctypes.util.find_library("m")).fma
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    return np.frompyfunc(function, 3, 1)


_FMA_FLOAT64 = _libm_fma()


def _quotient(x: Array, y: Array) -> Array:
    """Of integers, cut towards zero."""
    down = np.floor_divide(x, y)
    return down + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)))


# --- tables


FUNCTIONS_OF_FLOAT64: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x))),
    "erf": lambda x: np.frompyfunc(math.erf, 1, 1)(x).astype(np.float64),
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "pow": np.power,
}


def _in_float64(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *arrays: function(*[array.astype(np.float64) for array in arrays])


_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "row_sum": np.sum,
    "row_prod": np.prod,
    "row_max": np.max,
    "row_min": np.min,
}

_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda x, y: np.divide(x, y) if x.dtype.kind == "f" else _quotient(x, y),
    "rem": np.fmod,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "fma": _fma,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "copysign": np.copysign,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "select": np.where,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    **{name: _in_float64(function) for name, function in FUNCTIONS_OF_FLOAT64.items()},
}
