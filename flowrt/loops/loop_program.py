"""Loops as data: a fused group of operations as one scalar program for all elements.

    e = b.exp(x - b.row_max(x)); e / b.row_sum(e)       an op's rule, over `LoopValue`s
      -> LoopProgram                                    load, row_max, sub, exp, row_sum, div, store
      -> machine code for the host (`flowrt.loops.llvm_loops`), CUDA C for a GPU

A program runs over a domain of rows and columns. An *element* value is computed for every (row, column), a
*row* value once per row: an operand broadcast along the row, a constant, a reduction along the row, or a
function of these. Softmax thus needs three loops over a row, with two row values between them. Without
reductions along rows the row boundaries do not matter. An operand may be a matrix indexed by row with a
value: an embedding.

Rules of this file:

  1. Instructions are in order: arguments precede their users. Equal instructions are merged.
  2. Arithmetic is that of the dtype: integers wrap, floats follow IEEE 754, and NaNs propagate. A back end
     may contract ``a * b + c``, except for the difference from a row's extreme, and sum a row in any order;
     nothing else.
  3. An operand that is also a result (a variable that is updated) is read before it is written, element by
     element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.errors import InternalError

DTYPES = ("bool", "int32", "int64", "float32", "float64")
"""Supported dtypes, by their NumPy names."""

ARITHMETIC = frozenset(
    ["add", "sub", "mul", "div", "rem", "neg", "abs", "min", "max", "fma", "sqrt", "floor", "ceil", "round"]
    + ["trunc", "copysign", "and", "or", "xor", "not", "shl", "shr"]
)
"""Operations of one or two machine instructions, except the remainder of floats, which is C's ``fmod``:
results have the arguments' dtype. ``div`` of integers truncates towards zero, and ``rem`` has the first one's
sign: the divisors 0 and -1 (which overflows for the lowest integer) are undefined.
"""

COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})

FUNCTIONS = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos", "rsqrt", "pow"}
)
"""Functions that a back end implements by its own library (`flowrt.loops.loop_math` on the host)."""

EXTREMES = frozenset({"row_max", "row_min"})

COMBINES = {"row_sum": "add", "row_prod": "mul", "row_max": "max", "row_min": "min"}
"""The operation of two values that each reduction along a row repeats."""

ROW_REDUCTIONS = frozenset(COMBINES)


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def neutral(op: str, dtype: str) -> float | int | bool:
    """Identity element of a reduction."""
    if op in ("row_sum", "row_prod"):
        return int(op == "row_prod")
    if is_float(dtype):
        return math.inf if op == "row_min" else -math.inf
    if dtype == "bool":
        return op == "row_min"
    largest: int = 2 ** (31 if dtype == "int32" else 63) - 1
    return largest if op == "row_min" else -largest - 1


class Instruction(NamedTuple):
    """``op`` of the earlier instructions ``args``. ``data``: a constant's value, an operand's number."""

    op: str
    args: tuple[int, ...]
    dtype: str
    data: Any
    is_row: bool
    """Whether it has one value per row."""


class Store(Enum):
    """Treatment of an output value."""

    PUT = "put"
    """Stored as the result's element, or the row's."""
    SUM_ROWS = "sum_rows"
    """The result has one element per column: the sum over the rows."""
    SUM_ALL = "sum_all"
    """The result is one number: the sum over all rows and columns, or over all rows of a row's value. Of
    floats it is a float64.
    """
    CHECK = "check"
    """The result, one int64, becomes 1 if the value is false anywhere, and is left alone otherwise."""


class Output(NamedTuple):
    """Source of operand number ``operand``."""

    store: Store
    value: int
    operand: int


@final
class LoopProgram(NamedTuple):
    """A scalar program over operands ``0 … len(dtypes) - 1``, which are read, written or both."""

    instructions: tuple[Instruction, ...]
    dtypes: tuple[str, ...]
    outputs: tuple[Output, ...]
    status: int | None = None
    """The operand of the checks, if there are any."""

    @property
    def read(self) -> set[int]:
        """The operands that are read."""
        return {i.data for i in self.instructions if i.op in ("load", "load_at")}

    def __str__(self) -> str:
        """Equal for programs that do the same on the same operands, and only for those."""
        lines = [f"operands {', '.join(self.dtypes)}; status {self.status}"]
        for number, (op, args, dtype, data, is_row) in enumerate(self.instructions):
            words = [f"%{a}" for a in args] + ([repr(data)] if data is not None else [])
            lines.append(f"%{number}: {'row ' if is_row else ''}{dtype} = {op} {', '.join(words)}".rstrip())
        lines += [f"{store.value} ${operand} %{value}" for store, value, operand in self.outputs]
        return "\n".join(lines)


Number: TypeAlias = "LoopValue | float | int | bool"


def _unary(op: str) -> Callable[[LoopValue], LoopValue]:
    return lambda value: value.builder.emit(op, value)


def _binary(op: str) -> Callable[[LoopValue, Number], LoopValue]:
    return lambda value, other: value.builder.emit(op, value, other)


def _reflected(op: str) -> Callable[[LoopValue, Number], LoopValue]:
    return lambda value, other: value.builder.emit(op, other, value)


@final
class LoopValue:
    """A value of a program under construction. Python numbers in arithmetic are converted to its dtype."""

    __slots__ = ("builder", "dtype", "is_row", "number")

    def __init__(self, builder: LoopBuilder, number: int, dtype: str, is_row: bool) -> None:
        self.builder, self.number, self.dtype, self.is_row = builder, number, dtype, is_row

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("not")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    equals, differs = _binary("eq"), _binary("ne")
    __and__, __or__, __xor__ = _binary("and"), _binary("or"), _binary("xor")
    __lshift__, __rshift__ = _binary("shl"), _binary("shr")
    """Shifts; to the right the sign stays."""


class Matrix(NamedTuple):
    """An operand with ``rows`` rows, in C order, each as long as the domain's."""

    builder: LoopBuilder
    operand: int
    rows: int

    def at(self, row: LoopValue) -> LoopValue:
        """The element of this column in the row of that number, which must be one."""
        return self.builder.load_at(self.operand, row)


@final
class LoopBuilder:
    """Builds a `LoopProgram`. ``operands`` are numbered in the order of `operand`."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._numbers: dict[Any, int] = {}
        self._dtypes: list[str] = []
        self._outputs: list[Output] = []
        self._status: int | None = None
        """The operand that reports whether a check failed."""

    def operand(self, dtype: str) -> int:
        """A new operand's number."""
        self._dtypes.append(dtype)
        return len(self._dtypes) - 1

    def load(self, operand: int, is_row: bool = False) -> LoopValue:
        """The operand's element here; ``is_row``: it is the same all along the row."""
        return self._add("load", (), self._dtypes[operand], operand, is_row)

    def load_at(self, operand: int, row: LoopValue) -> LoopValue:
        """The element of this column in a row of the operand, a matrix indexed by row: see `Matrix`."""
        row = self.cast(row, "int64")
        return self._add("load_at", (row.number,), self._dtypes[operand], operand, False)

    def put(self, value: LoopValue, operand: int, store: Store = Store.PUT) -> None:
        """Make the operand of ``value``."""
        is_total = store is Store.SUM_ALL and value.dtype.startswith("float")
        expected = "float64" if is_total else value.dtype
        if expected != self._dtypes[operand]:
            raise InternalError(f"operand {operand}: expected {expected}; got {self._dtypes[operand]}")
        self._outputs.append(Output(store, value.number, operand))

    def build(self) -> LoopProgram:
        """The program, without the instructions that nothing needs."""
        needed = {output.value for output in self._outputs}
        for number in reversed(range(len(self._instructions))):
            if number in needed:
                needed.update(self._instructions[number].args)
        renumbered: dict[int, int] = {}
        kept: list[Instruction] = []
        for number in sorted(needed):
            instruction = self._instructions[number]
            renumbered[number] = len(kept)
            kept.append(instruction._replace(args=tuple([renumbered[a] for a in instruction.args])))
        outputs = [output._replace(value=renumbered[output.value]) for output in self._outputs]
        return LoopProgram(tuple(kept), tuple(self._dtypes), tuple(outputs), self._status)

    # --- operations for rules

    def const(self, value: float | int | bool, dtype: str) -> LoopValue:
        """A number, rounded to ``dtype``."""
        return self._add("const", (), dtype, np.dtype(dtype).type(value).item(), True)

    def column(self) -> LoopValue:
        """The number of the element in its row, int64."""
        return self._add("column", (), "int64", None, False)

    def spread(self, value: LoopValue) -> LoopValue:
        """A row's value as one of each of its elements."""
        return self._add("spread", (value.number,), value.dtype, None, False) if value.is_row else value

    def columns(self) -> LoopValue:
        """Number of elements of a row, int64."""
        return self._add("columns", (), "int64", None, True)

    def check(self, condition: LoopValue) -> None:
        """Mark all results as invalid if ``condition`` is false for any element."""
        if self._status is None:
            self._status = self.operand("int64")
        self._outputs.append(Output(Store.CHECK, condition.number, self._status))

    def known(self, value: LoopValue) -> float | int | bool | None:
        """The number that ``value`` is, if it is a constant."""
        instruction = self._instructions[value.number]
        return instruction.data if instruction.op == "const" else None

    def cast(self, value: LoopValue, dtype: str) -> LoopValue:
        """``value`` cast to ``dtype`` as in C. A float out of range gives an arbitrary integer."""
        return (
            value if value.dtype == dtype else self._add("cast", (value.number,), dtype, None, value.is_row)
        )

    def bits(self, value: LoopValue) -> LoopValue:
        """The float's bits as an integer of its size."""
        dtype = {"float32": "int32", "float64": "int64"}[value.dtype]
        return self._add("bits", (value.number,), dtype, None, value.is_row)

    def from_bits(self, value: LoopValue) -> LoopValue:
        dtype = {"int32": "float32", "int64": "float64"}[value.dtype]
        return self._add("from_bits", (value.number,), dtype, None, value.is_row)

    def select(self, condition: LoopValue, then: Number, otherwise: Number) -> LoopValue:
        """``then`` where ``condition``, else ``otherwise``; both are computed."""
        left, right = self._alike(then, otherwise)
        return self._of("select", (condition, left, right), left.dtype)

    def emit(self, op: str, *arguments: Number) -> LoopValue:
        """One of `ARITHMETIC`, `COMPARISONS`, `FUNCTIONS` or `ROW_REDUCTIONS`. Numbers become constants of
        the values' dtype.
        """
        values = self._alike(*arguments)
        return self._of(op, values, "bool" if op in COMPARISONS else values[0].dtype)

    def again(self, instruction: Instruction, arguments: Sequence[LoopValue]) -> LoopValue:
        """The ``instruction`` of another program, with these arguments."""
        op, _, dtype, data, is_row = instruction
        return self._add(op, tuple([value.number for value in arguments]), dtype, data, is_row)

    def __getattr__(self, op: str) -> Callable[..., LoopValue]:
        """``b.exp(x)`` is ``b.emit("exp", x)``."""
        if op in _CALLABLE:
            return functools.partial(self.emit, op)
        raise AttributeError(op)

    def _alike(self, *arguments: Number) -> tuple[LoopValue, ...]:
        dtypes = {a.dtype for a in arguments if isinstance(a, LoopValue)}
        if len(dtypes) != 1:
            raise InternalError(
                f"expected arguments of the same dtype; got {', '.join(sorted(dtypes)) or 'none'}"
            )
        (dtype,) = dtypes
        return tuple([a if isinstance(a, LoopValue) else self.const(a, dtype) for a in arguments])

    def _of(self, op: str, values: Sequence[LoopValue], dtype: str) -> LoopValue:
        is_row = op in ROW_REDUCTIONS or all(value.is_row for value in values)
        return self._add(op, tuple([value.number for value in values]), dtype, None, is_row)

    def _add(self, op: str, args: tuple[int, ...], dtype: str, data: Any, is_row: bool) -> LoopValue:
        instruction = Instruction(op, args, dtype, data, is_row)
        key = (op, args, dtype, is_row, type(data), str(data))  # 0.0 and -0.0 are equal, NaNs are not
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._instructions)
            self._instructions.append(instruction)
        return LoopValue(self, number, dtype, is_row)


_CALLABLE = ARITHMETIC | FUNCTIONS | ROW_REDUCTIONS
