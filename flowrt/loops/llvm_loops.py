"""LLVM IR of a `LoopProgram`: one function of nested loops, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table holds int64: the operands' addresses, the domain's dimensions, each operand's strides, in elements,
one per dimension, and a grain; for a matrix indexed by row, the strides of a row. ``begin`` and ``end`` are a
part of dimension 0, by which threads share the work. A part that begins at ``i`` has its sums over rows, or
over everything, at index ``i / grain`` of their operand.

It prints a loop nest (`flowrt.loops.nest`).

Rules of this file:

  1. Addresses are arguments of an inner function, where they are ``noalias``: results are written to memory
     that no other operand shares. Without that the vectoriser adds a run-time check for each pair.
  2. Sums in blocks (`flowrt.loops.nest.block_sums`) have blocks of `BLOCK` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.loops.llvm_text import STORED, TYPES, Writer, literal
from flowrt.loops.loop_program import LoopProgram, Output, Store, is_float, neutral
from flowrt.loops.nest import (
    Accumulate,
    ColumnLoop,
    Compute,
    Keep,
    LoopNest,
    Put,
    Reload,
    Vectors,
    block_sums,
    choose_vectors,
    loop_nest,
)

BLOCK = 4096

_HINTS = {
    Vectors.FREE: "",
    Vectors.PAIRED: '!"llvm.loop.interleave.count", i32 2',
    Vectors.MASKED: '!"llvm.loop.vectorize.predicate.enable", i1 true',
}

_COMBINE = {"row_sum": "add", "row_prod": "mul", "row_max": "max", "row_min": "min"}


def llvm_function(program: LoopProgram, accesses: Sequence[str], is_ragged: bool = False) -> str:
    """The text of a module with `FUNCTION`. ``accesses[i]`` is the access pattern of operand i, a letter per
    dimension: ``0`` broadcast, ``1`` contiguous (in the last dimension only), ``s`` any stride.
    ``is_ragged``: rows end within a vector, in a part of them that matters.
    """
    return _Emitter(choose_vectors(block_sums(loop_nest(program)), is_ragged), accesses).run()


@final
class _Emitter(Writer):
    def __init__(self, nest: LoopNest, accesses: Sequence[str]) -> None:
        super().__init__(nest.program.instructions)
        self._nest, self._program, self._accesses = nest, nest.program, accesses
        self._rank = len(accesses[0])
        self._names: dict[int, str] = {}
        """The names of values that are there."""
        self._bases: dict[int, str] = {}
        """Start of each operand for this part."""
        self._addresses: dict[int, str] = {}
        """Address of each operand in this row."""
        self._totals: dict[Output, str] = {}
        """The accumulators of sums over everything, and of checks."""

    def run(self) -> str:
        self._emit_body()
        pointers = [f"p{i}" for i in range(len(self._accesses))]
        numbers = [f"d{i}" for i in range(self._rank)]
        for operand, access in enumerate(self._accesses):
            numbers += [f"s{operand}_{i}" if letter == "s" else "" for i, letter in enumerate(access)]
        places = enumerate([*numbers, "grain"], len(pointers))
        return self._behind_table(pointers, {name: place for place, name in places if name})

    # --- the domain

    def _emit_body(self) -> None:
        part = self._let("sdiv i64 %begin, %grain")
        self._bases = {i: f"%p{i}" for i in range(len(self._accesses))}
        for store, _, operand in self._program.outputs:
            if store in (Store.SUM_ALL, Store.SUM_ROWS):
                width = f"%d{self._rank - 1}" if store is Store.SUM_ROWS else "1"
                offset = self._let(f"mul nsw i64 {part}, {width}")
                type_ = STORED[self._program.dtypes[operand]]
                self._bases[operand] = self._let(f"getelementptr {type_}, ptr %p{operand}, i64 {offset}")
        for output in self._nest.totals:
            self._totals[output] = self._variable(*_total_start(self._program, output))
        self._emit_dimension(0, ())
        for output, total in self._totals.items():
            self._put_total(output, total)

    def _emit_dimension(self, dimension: int, indices: tuple[str, ...]) -> None:
        if dimension == self._rank - 1:
            self._emit_row(indices)
            return
        ends = ("%begin", "%end") if dimension == 0 else ("0", f"%d{dimension}")
        with self._loop(*ends) as index:
            self._emit_dimension(dimension + 1, (*indices, index))

    def _emit_row(self, indices: tuple[str, ...]) -> None:
        self._names.clear()
        for operand, access in enumerate(self._accesses):
            address = self._bases[operand]
            type_ = STORED[self._program.dtypes[operand]]
            for i, index in enumerate(indices):
                if access[i] == "s":
                    offset = self._let(f"mul nsw i64 {index}, %s{operand}_{i}")
                    address = self._let(f"getelementptr inbounds {type_}, ptr {address}, i64 {offset}")
            self._addresses[operand] = address
        for step in self._nest.row:
            if isinstance(step, ColumnLoop):
                self._emit_columns(step)
            elif isinstance(step, Compute):
                self._names[step.number] = self._value(step.number, None)
            else:
                self._put_row(step.output)

    def _put_row(self, output: Output) -> None:
        value, dtype = self._names[output.value], self._instructions[output.value].dtype
        if output.store is Store.PUT:
            self._store(value, output.operand, None)
        elif output.store is Store.CHECK:
            self._add_check(output, value)
        else:  # the sum of a row value counts it once
            self._add_to(self._totals[output], value, dtype)

    # --- a loop over the columns

    def _emit_columns(self, loop: ColumnLoop) -> None:
        ends = ("%begin", "%end") if self._rank == 1 else ("0", f"%d{self._rank - 1}")
        in_blocks = [n for n in loop.reductions if Accumulate(n) in loop.in_blocks]
        wide = {number: self._variable("double", "0.0") for number in in_blocks}
        found = {n: self._accumulator(n) for n in loop.reductions if n not in wide}
        if not loop.in_blocks:
            with self._loop(*ends, hint=_HINTS[loop.vectors]) as column:
                self._emit_column(loop, column, found, {})
        else:
            with self._loop(*ends, BLOCK) as first:
                self._emit_block(loop, first, ends[1], found, wide)
        for number in loop.reductions:
            instruction = self._instructions[number]
            type_ = TYPES[instruction.dtype]
            if number in wide:
                total = self._let(f"load double, ptr {wide[number]}")
                self._names[number] = self._let(f"fptrunc double {total} to float")
            else:
                self._names[number] = self._let(f"load {type_}, ptr {found[number]}")

    def _emit_block(
        self, loop: ColumnLoop, first: str, end: str, found: dict[int, str], wide: dict[int, str]
    ) -> None:
        """Rule 2: the columns from ``first`` to the end of its block."""
        beyond = self._let(f"add nsw i64 {first}, {BLOCK}")
        last = self._call("llvm.smin.i64", "i64", beyond, end)
        narrow = {number: self._accumulator(number) for number in wide}
        totals = {o: self._variable("float", "0.0") for o in loop.puts if Put(o) in loop.in_blocks}
        with self._loop(first, last, hint=_HINTS[loop.vectors]) as column:
            self._emit_column(loop, column, {**found, **narrow}, totals)
        for number, accumulator in narrow.items():
            self._widen(accumulator, wide[number])
        for output, accumulator in totals.items():
            self._widen(accumulator, self._totals[output])

    def _widen(self, accumulator: str, into: str) -> None:
        part = self._let(f"load float, ptr {accumulator}")
        self._add_to(into, part, "float32")

    def _accumulator(self, number: int) -> str:
        instruction = self._instructions[number]
        start = literal(neutral(instruction.op, instruction.dtype), instruction.dtype)
        return self._variable(TYPES[instruction.dtype], start)

    def _emit_column(
        self, loop: ColumnLoop, column: str, found: dict[int, str], totals: dict[Output, str]
    ) -> None:
        """One element: ``found`` accumulates reductions along the row, ``totals`` sums that are blocked."""
        for statement in loop.body:
            match statement:
                case Compute(number):
                    self._names[number] = self._value(number, column)
                case Keep(number, operand):
                    self._store(self._names[number], operand, column)
                case Reload(number, operand):
                    self._names[number] = self._load(operand, column)
                case Put(output):
                    self._put_element(output, self._names[output.value], column, totals)
                case Accumulate(number):
                    op, (argument,), dtype, *_ = self._instructions[number]
                    self._combine(found[number], self._names[argument], dtype, _COMBINE[op])

    def _value(self, number: int, column: str | None) -> str:
        instruction = self._instructions[number]
        op, args, _, data, _ = instruction
        match op:
            case "load":
                return self._load(data, column)
            case "load_at":
                assert column is not None
                return self._load_at(data, self._names[args[0]], column)
            case "column":
                assert column is not None
                return column
            case "columns":
                return f"%d{self._rank - 1}"
        return self._emit(instruction, self._names.__getitem__)

    def _put_element(self, output: Output, value: str, column: str, totals: dict[Output, str]) -> None:
        dtype = self._instructions[output.value].dtype
        if output.store is Store.PUT:
            self._store(value, output.operand, column)
        elif output.store is Store.CHECK:
            self._add_check(output, value)
        elif output.store is Store.SUM_ROWS:
            before = self._load(output.operand, column)
            self._store(self._binary("add", dtype, before, value), output.operand, column)
        elif output in totals:
            self._combine(totals[output], value, dtype)
        else:
            self._add_to(self._totals[output], value, dtype)

    # --- accumulators

    def _combine(self, accumulator: str, value: str, dtype: str, op: str = "add") -> None:
        self._change(
            accumulator, TYPES[dtype], lambda old: self._binary(op, dtype, old, value, "reassoc contract ")
        )

    def _add_to(self, total: str, value: str, dtype: str) -> None:
        """Add to a total, which is float64 for floats."""
        if dtype == "float32":
            value = self._let(f"fpext float {value} to double")
        self._combine(total, value, "float64" if is_float(dtype) else dtype)

    def _add_check(self, output: Output, condition: str) -> None:
        failed = self._let(f"xor i1 {condition}, true")
        self._change(self._totals[output], "i1", lambda before: self._let(f"or i1 {before}, {failed}"))

    def _put_total(self, output: Output, total: str) -> None:
        dtype = self._program.dtypes[output.operand]
        if output.store is Store.CHECK:
            failed = self._let(f"load i1, ptr {total}")
            set_flag = f"select i1 {failed}, i64 1, i64"
            self._change(f"%p{output.operand}", "i64", lambda before: self._let(f"{set_flag} {before}"))
            return
        value = self._let(f"load {TYPES[dtype]}, ptr {total}")
        self._say(f"store {TYPES[dtype]} {value}, ptr {self._bases[output.operand]}")

    # --- memory

    def _address(self, operand: int, column: str | None) -> str:
        address, letter = self._addresses[operand], self._accesses[operand][-1]
        if column is None or letter == "0":
            return address
        if letter == "s":
            column = self._let(f"mul nsw i64 {column}, %s{operand}_{self._rank - 1}")
        type_ = STORED[self._program.dtypes[operand]]
        return self._let(f"getelementptr inbounds {type_}, ptr {address}, i64 {column}")

    def _load(self, operand: int, column: str | None) -> str:
        return self._read(self._address(operand, column), self._program.dtypes[operand])

    def _load_at(self, operand: int, row: str, column: str) -> str:
        """The element of a row of the operand, which is row-major."""
        before = self._let(f"mul nsw i64 {row}, %d{self._rank - 1}")
        return self._load(operand, self._let(f"add nsw i64 {before}, {column}"))

    def _store(self, value: str, operand: int, column: str | None) -> None:
        self._write(value, self._address(operand, column), self._program.dtypes[operand])


def _total_start(program: LoopProgram, output: Output) -> tuple[str, str]:
    if output.store is Store.CHECK:
        return "i1", "false"
    dtype = program.dtypes[output.operand]
    return TYPES[dtype], literal(0, dtype)
