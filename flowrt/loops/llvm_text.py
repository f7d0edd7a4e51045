"""LLVM IR of single instructions, as text. Pure; nothing here needs LLVM.

Rule of this file: variables are ``alloca``s. LLVM promotes them to registers, and the text needs no phi
nodes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from flowrt.loops.loop_program import COMPARISONS, EXTREMES, Instruction, is_float

FUNCTION = "flowrt_loop"
"""The name that every loop has, so that equal loops have equal text."""

TYPES = {"bool": "i1", "int32": "i32", "int64": "i64", "float32": "float", "float64": "double"}
STORED = {**TYPES, "bool": "i8"}
_SUFFIX = {"bool": "i1", "int32": "i32", "int64": "i64", "float32": "f32", "float64": "f64"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_INTEGER_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "sdiv", "rem": "srem", "and": "and", "or": "or",
    "xor": "xor", "shl": "shl", "shr": "ashr",
}  # fmt: skip
_FLOAT_INTRINSICS = {
    "min": "minimum", "max": "maximum", "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil",
    "round": "roundeven", "trunc": "trunc", "copysign": "copysign", "fma": "fma",
}  # fmt: skip
_FLOAT_ORDER = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INTEGER_ORDER = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_BOOL_ORDER = {**_INTEGER_ORDER, "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}


_FIELD = re.compile(r"%(\w+) = field (\w+), (.*)")


def with_fields(text: str) -> str:
    """``text``, where ``%x = field TYPE, OPERANDS`` is the field at ``%x_place``, their getelementptr."""
    return _FIELD.sub(r"%\1_place = getelementptr \3\n  %\1 = load \2, ptr %\1_place", text)


class Writer:
    """Writes one function, line by line: ``lines``, preceded by ``allocas``, with ``declared`` functions
    outside. ``instructions`` are the program's.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._declared: dict[str, str] = {}
        self._metadata: list[str] = []
        self._count = 0

    # --- text

    def _say(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def _let(self, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self._say(f"{name} = {text}")
        return name

    def _variable(self, type_: str, start: str) -> str:
        """A new variable, which is set to ``start`` here."""
        self._count += 1
        name = f"%v{self._count}"
        self._allocas.append(f"  {name} = alloca {type_}")
        self._say(f"store {type_} {start}, ptr {name}")
        return name

    def _buffer(self, type_: str, elements: int) -> str:
        """The address of new memory on the stack, for cache lines as vectors are."""
        self._count += 1
        name = f"%v{self._count}"
        self._allocas.append(f"  {name} = alloca {type_}, i64 {elements}, align 64")
        return name

    def _call(self, intrinsic: str, type_: str, *arguments: str) -> str:
        self._declared[intrinsic] = f"declare {type_} @{intrinsic}({', '.join([type_] * len(arguments))})"
        return self._let(f"call {type_} @{intrinsic}({', '.join(f'{type_} {a}' for a in arguments)})")

    @contextmanager
    def _loop(self, begin: str, end: str, step: int | str = 1, hint: str = "") -> Iterator[str]:
        """Context of a loop body, emitted for each number; yields the counter's name. ``hint``: a property of
        the loop for LLVM's vectoriser.
        """
        self._count += 1
        label = self._count
        counter = self._variable("i64", begin)
        self._say(f"br label %test{label}")
        self._lines.append(f"test{label}:")
        now = self._let(f"load i64, ptr {counter}")
        more = self._let(f"icmp slt i64 {now}, {end}")
        self._say(f"br i1 {more}, label %do{label}, label %done{label}")
        self._lines.append(f"do{label}:")
        yield now
        following = self._let(f"add nsw i64 {now}, {step}")
        self._say(f"store i64 {following}, ptr {counter}")
        self._say(f"br label %test{label}{self._hint(hint) if hint else ''}")
        self._lines.append(f"done{label}:")

    def _hint(self, hint: str) -> str:
        """A reference to the metadata of one loop."""
        n = len(self._metadata)
        self._metadata.append(f"!{n} = distinct !{{!{n}, !{n + 1}}}")
        self._metadata.append(f"!{n + 1} = !{{{hint}}}")
        return f", !llvm.loop !{n}"

    def _change(self, variable: str, type_: str, change: Callable[[str], str]) -> None:
        """Set it to what ``change`` makes of its value."""
        after = change(self._let(f"load {type_}, ptr {variable}"))
        self._say(f"store {type_} {after}, ptr {variable}")

    def _read(self, address: str, dtype: str) -> str:
        value = self._let(f"load {STORED[dtype]}, ptr {address}")
        return self._let(f"icmp ne i8 {value}, 0") if dtype == "bool" else value

    def _write(self, value: str, address: str, dtype: str) -> None:
        if dtype == "bool":
            value = self._let(f"zext i1 {value} to i8")
        self._say(f"store {STORED[dtype]} {value}, ptr {address}")

    # --- the module

    def _module(self, *functions: str) -> str:
        return "\n".join([*self._declared.values(), *functions, *self._metadata, ""])

    def _function(self, head: str) -> str:
        return "\n".join([f"define {head} {{", "entry:", *self._allocas, *self._lines, "  ret void", "}"])

    def _behind_table(self, pointers: Sequence[str], numbers: Mapping[str, int]) -> str:
        """The text of a module: what is written is a function of ``pointers``, which are ``noalias`` there,
        and of ``numbers``. `FUNCTION` reads these from their places in the table, behind the pointers.
        """
        places = {f"ptr %{name}": place for place, name in enumerate(pointers)}
        places |= {f"i64 %{name}": place for name, place in numbers.items()}
        passed = ", ".join([*places, "i64 %begin", "i64 %end"])
        body = f"internal void @body({passed.replace('ptr', 'ptr noalias')}) noinline nounwind"
        lines = [f"define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) {{"]
        for argument, place in places.items():
            type_, name = argument.split()
            lines.append(f"  %a{place} = getelementptr i64, ptr %table, i64 {place}")
            lines.append(f"  {name} = load {type_}, ptr %a{place}")
        lines += [f"  call void @body({passed})", "  ret void", "}"]
        return self._module(self._function(body), *lines)

    # --- instructions

    def _emit(self, instruction: Instruction, name_of: Callable[[int], str]) -> str:
        op, dtype, type_ = instruction.op, instruction.dtype, TYPES[instruction.dtype]
        if op == "const":
            return literal(instruction.data, dtype)
        arguments = [name_of(a) for a in instruction.args]
        source = self._instructions[instruction.args[0]].dtype
        if op in COMPARISONS:
            return self._compare(op, source, *arguments)
        if op == "spread":
            return arguments[0]
        if op == "select":
            return self._let(f"select i1 {arguments[0]}, {type_} {arguments[1]}, {type_} {arguments[2]}")
        if op == "cast":
            return self._cast(arguments[0], source, dtype)
        if op in ("bits", "from_bits"):
            return self._let(f"bitcast {TYPES[source]} {arguments[0]} to {type_}")
        if len(arguments) == 2:
            left, right = arguments
            return self._binary(op, dtype, left, right, self._freedom(instruction))
        return self._unary(op, dtype, arguments)

    def _freedom(self, instruction: Instruction) -> str:
        """Flag that permits contraction with a product. Not if a row's extreme is subtracted: ``a * b`` minus
        the extreme, itself ``a * b``, is 0, where ``fma`` leaves the rounding error, possibly 1e31, for which
        exp is infinite.
        """
        sources = [self._instructions[number].op for number in instruction.args]
        is_from_extreme = instruction.op == "sub" and not EXTREMES.isdisjoint(sources)
        return "" if is_from_extreme else "contract "

    def _unary(self, op: str, dtype: str, arguments: Sequence[str]) -> str:
        type_ = TYPES[dtype]
        if op == "not":
            return self._let(f"xor {type_} {arguments[0]}, {'true' if dtype == 'bool' else -1}")
        if is_float(dtype):
            if op == "neg":
                return self._let(f"fneg {type_} {arguments[0]}")
            return self._call(f"llvm.{_FLOAT_INTRINSICS[op]}.{_SUFFIX[dtype]}", type_, *arguments)
        negative = self._let(f"sub {type_} 0, {arguments[0]}")
        return negative if op == "neg" else self._call(f"llvm.smax.{type_}", type_, arguments[0], negative)

    def _binary(self, op: str, dtype: str, left: str, right: str, flags: str = "contract ") -> str:
        type_ = TYPES[dtype]
        if is_float(dtype):
            if op in _FLOAT_BINARY:
                return self._let(f"{_FLOAT_BINARY[op]} {flags}{type_} {left}, {right}")
            return self._call(f"llvm.{_FLOAT_INTRINSICS[op]}.{_SUFFIX[dtype]}", type_, left, right)
        if op in ("min", "max"):
            if dtype == "bool":
                return self._let(f"{'and' if op == 'min' else 'or'} i1 {left}, {right}")
            return self._call(f"llvm.s{op}.{type_}", type_, left, right)
        return self._let(f"{_INTEGER_BINARY[op]} {type_} {left}, {right}")

    def _compare(self, op: str, dtype: str, left: str, right: str) -> str:
        if is_float(dtype):
            return self._let(f"fcmp {_FLOAT_ORDER[op]} {TYPES[dtype]} {left}, {right}")
        order = _BOOL_ORDER if dtype == "bool" else _INTEGER_ORDER
        return self._let(f"icmp {order[op]} {TYPES[dtype]} {left}, {right}")

    def _cast(self, value: str, source: str, target: str) -> str:
        from_, to = TYPES[source], TYPES[target]
        if target == "bool":
            return self._compare("ne", source, value, literal(0, source))
        if source == "bool":
            return self._let(f"{'uitofp' if is_float(target) else 'zext'} i1 {value} to {to}")
        if is_float(source) != is_float(target):
            return self._let(f"{'fptosi' if is_float(source) else 'sitofp'} {from_} {value} to {to}")
        kinds = ("fpext", "fptrunc") if is_float(source) else ("sext", "trunc")
        return self._let(f"{kinds[0] if target.endswith('64') else kinds[1]} {from_} {value} to {to}")


def literal(value: float | int | bool, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if is_float(dtype):
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
    return str(int(value))
