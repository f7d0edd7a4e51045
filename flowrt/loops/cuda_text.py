"""CUDA C of instructions: the expression that one value is. Pure; nothing here needs CUDA.

Functions are CUDA's own. Their errors, by NVIDIA's table: at most 2 ulp, but `powf`, which has up to 9 in the
older versions; `sigmoid`, which is made of them here, has at most 4. Nothing is compiled with fast math.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowrt.loops.loop_program import COMPARISONS, FUNCTIONS, Instruction, is_float

TYPES = {"bool": "bool", "int32": "int", "int64": "long long", "float32": "float", "float64": "double"}
STORED = {**TYPES, "bool": "unsigned char"}
WIDE = {**TYPES, "float32": "double"}
"""Accumulation dtype of shares of a sum."""

_INFIX = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "div": "/", "and": "&", "or": "|", "xor": "^", "shr": ">>",
}  # fmt: skip
_FLOAT_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_INTEGER_INFIX = {"rem": "%"}
_FUNCTORS = {
    "add": "Add", "sub": "Subtract", "mul": "Multiply", "shl": "ShiftLeft",
    "min": "Minimum", "max": "Maximum",
}  # fmt: skip
_MATH = {
    **{name: name for name in FUNCTIONS - {"sigmoid"}},
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "copysign": "copysign", "fma": "fma", "rem": "fmod",
}  # fmt: skip
_REINTERPRET = {
    "int32": "__float_as_int", "int64": "__double_as_longlong",
    "float32": "__int_as_float", "float64": "__longlong_as_double",
}  # fmt: skip

PRELUDE = """\
template <typename T> struct Raw { typedef T type; };
template <> struct Raw<int> { typedef unsigned int type; };  // integers wrap
template <> struct Raw<long long> { typedef unsigned long long type; };
#define ARITHMETIC(Name, operation)                                       \\
  struct Name {                                                           \\
    template <typename T> __device__ T operator()(T first, T second) const { \\
      const typename Raw<T>::type a = first, b = second;                  \\
      return (T)(operation);                                              \\
    }                                                                     \\
  };
ARITHMETIC(Add, a + b)
ARITHMETIC(Subtract, a - b)
ARITHMETIC(Multiply, a * b)
ARITHMETIC(ShiftLeft, a << b)
struct Minimum {  // a NaN stays one
  template <typename T> __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};
struct Maximum {
  template <typename T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
__device__ inline float sigmoid(float x) {
  const float power = expf(-fabsf(x));
  return (x < 0 ? power : 1.0f) / (1.0f + power);
}
__device__ inline double sigmoid(double x) {
  const double power = exp(-fabs(x));
  return (x < 0 ? power : 1.0) / (1.0 + power);
}
"""


def expression(instruction: Instruction, source: str, arguments: Sequence[str]) -> str:
    """The expression for ``instruction`` with the named ``arguments``; the first has the dtype ``source``."""
    op, dtype = instruction.op, instruction.dtype
    if op == "const":
        return literal(instruction.data, dtype)
    infix = _INFIX.get(op) or (_FLOAT_INFIX if is_float(dtype) else _INTEGER_INFIX).get(op)
    if infix is not None:
        return f"{arguments[0]} {infix} {arguments[1]}"
    if op in _FUNCTORS:
        return f"{functor(op)}({', '.join(arguments)})"
    if op in _MATH and is_float(dtype):
        return f"{_MATH[op]}{'f' * (dtype == 'float32')}({', '.join(arguments)})"
    return _special(op, dtype, source, arguments)


def _special(op: str, dtype: str, source: str, arguments: Sequence[str]) -> str:
    first = arguments[0]
    match op:
        case "spread":
            return first
        case "select":
            return f"{first} ? {arguments[1]} : {arguments[2]}"
        case "cast":
            return f"{first} != 0" if dtype == "bool" else f"({TYPES[dtype]}){first}"
        case "bits" | "from_bits":
            return f"{_REINTERPRET[dtype]}({first})"
        case "sigmoid":
            return f"sigmoid({first})"
        case "not":
            return f"{'!' if dtype == 'bool' else '~'}{first}"
        case "neg":
            return f"-{first}" if is_float(dtype) else f"Subtract()({literal(0, dtype)}, {first})"
        case "abs":
            return f"{first} < 0 ? Subtract()({literal(0, dtype)}, {first}) : {first}"
    raise NotImplementedError(op)


OPERATIONS = (
    frozenset(_INFIX) | frozenset(_FUNCTORS) | frozenset(_MATH) | COMPARISONS
    | {"const", "spread", "select", "cast", "bits", "from_bits", "sigmoid", "not", "neg", "abs"}
)  # fmt: skip
"""Operations supported by `expression`."""


def functor(op: str) -> str:
    """Functor of an instruction of two values."""
    return f"{_FUNCTORS[op]}()"


def literal(value: float | int | bool, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return f"({TYPES[dtype]}){int(value) % 2 ** (32 if dtype == 'int32' else 64)}ull"
    value = float(value)
    if math.isfinite(value):
        return f"({value!r}{'f' * (dtype == 'float32')})"
    bits = {math.inf: 0x7F800000, -math.inf: 0xFF800000}.get(value, 0x7FC00000)
    return f"({TYPES[dtype]})__int_as_float((int)0x{bits:08x}u)"
