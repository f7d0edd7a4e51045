"""LLVM IR of a `LoopProgram`: one function of nested loops, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table holds int64: the operands' addresses, the domain's dimensions, each operand's strides, in elements,
one per dimension, and a grain; for a matrix indexed by row, the strides of a row. ``begin`` and ``end`` are a
part of dimension 0, by which threads share the work. A part that begins at ``i`` has its sums over rows, or
over everything, at index ``i / grain`` of their operand.

A row is processed in stages (`flowrt.loops.loop_stages`), one loop over its columns each.

Rules of this file:

  1. Addresses are arguments of an inner function, where they are ``noalias``: results are written to memory
     that no other operand shares. Without that the vectoriser adds a run-time check for each pair.
  2. A float32 sum is added up in blocks of `BLOCK`, and the blocks in float64: its error is that of a block,
     for any length, as with NumPy's pairwise sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.loops.llvm_text import STORED, TYPES, Writer, literal
from flowrt.loops.loop_program import LoopProgram, Output, Store, is_float, neutral
from flowrt.loops.loop_stages import kept_values, loops_of, stages_of

BLOCK = 4096

_COMBINE = {"row_sum": "add", "row_prod": "mul", "row_max": "max", "row_min": "min"}


def llvm_function(program: LoopProgram, accesses: Sequence[str]) -> str:
    """The text of a module with `FUNCTION`. ``accesses[i]`` is the access pattern of operand i, a letter per
    dimension: ``0`` broadcast, ``1`` contiguous (in the last dimension only), ``s`` any stride.
    """
    return _Emitter(program, accesses).run()


@final
class _Emitter(Writer):
    def __init__(self, program: LoopProgram, accesses: Sequence[str]) -> None:
        super().__init__(program.instructions)
        self._program, self._accesses = program, accesses
        self._rank = len(accesses[0])
        self._stages = stages_of(program)
        self._loops = loops_of(program, self._stages)
        self._kept = kept_values(program, self._stages, self._loops)
        self._rows: dict[int, str] = {}
        """The names of row values that are there."""
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
        for output in self._program.outputs:
            if output.store in (Store.SUM_ALL, Store.CHECK):
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
        self._rows.clear()
        for operand, access in enumerate(self._accesses):
            address = self._bases[operand]
            type_ = STORED[self._program.dtypes[operand]]
            for i, index in enumerate(indices):
                if access[i] == "s":
                    offset = self._let(f"mul nsw i64 {index}, %s{operand}_{i}")
                    address = self._let(f"getelementptr inbounds {type_}, ptr {address}, i64 {offset}")
            self._addresses[operand] = address
        for stage in range(max(self._stages, default=0) + 1):
            self._emit_row_values(stage)
            self._emit_stage(stage)
        for output in self._program.outputs:
            if self._instructions[output.value].is_row:
                self._put_row(output)

    def _emit_row_values(self, stage: int) -> None:
        """Emit the values of the stage with one value per row, except reductions."""
        for number, instruction in enumerate(self._instructions):
            if instruction.is_row and self._stages[number] == stage and number not in self._rows:
                if instruction.op == "load":
                    self._rows[number] = self._load(instruction.data, None)
                elif instruction.op == "columns":
                    self._rows[number] = f"%d{self._rank - 1}"
                else:
                    self._rows[number] = self._emit(instruction, self._rows.__getitem__)

    def _put_row(self, output: Output) -> None:
        value, dtype = self._rows[output.value], self._instructions[output.value].dtype
        if output.store is Store.PUT:
            self._store(value, output.operand, None)
        elif output.store is Store.CHECK:
            self._add_check(output, value)
        else:  # the sum of a row value counts it once
            self._add_to(self._totals[output], value, dtype)

    # --- one stage: a loop over the columns

    def _emit_stage(self, stage: int) -> None:
        sinks = self._loops.get(stage)
        if sinks is None:
            return
        ends = ("%begin", "%end") if self._rank == 1 else ("0", f"%d{self._rank - 1}")
        sums = [n for n in sinks.reductions if self._instructions[n].op == "row_sum"]
        wide = {n: self._variable("double", "0.0") for n in sums if self._instructions[n].dtype == "float32"}
        is_blocked = bool(wide) or any(self._is_float32_sum(output) for output in sinks.outputs)
        if not is_blocked:
            found = {n: self._accumulator(n) for n in sinks.reductions}
            with self._loop(*ends) as column:
                self._emit_column(stage, column, found, {})
        else:
            found = {n: self._accumulator(n) for n in sinks.reductions if n not in wide}
            with self._loop(*ends, BLOCK) as first:
                self._emit_block(stage, first, ends[1], found, wide)
        for number in sinks.reductions:
            instruction = self._instructions[number]
            type_ = TYPES[instruction.dtype]
            if number in wide:
                total = self._let(f"load double, ptr {wide[number]}")
                self._rows[number] = self._let(f"fptrunc double {total} to float")
            else:
                self._rows[number] = self._let(f"load {type_}, ptr {found[number]}")

    def _emit_block(
        self, stage: int, first: str, end: str, found: dict[int, str], wide: dict[int, str]
    ) -> None:
        """Rule 2: the columns from ``first`` to the end of its block."""
        beyond = self._let(f"add nsw i64 {first}, {BLOCK}")
        last = self._call("llvm.smin.i64", "i64", beyond, end)
        narrow = {number: self._accumulator(number) for number in wide}
        totals = {
            output: self._variable("float", "0.0")
            for output in self._loops[stage].outputs
            if self._is_float32_sum(output)
        }
        with self._loop(first, last) as column:
            self._emit_column(stage, column, {**found, **narrow}, totals)
        for number, accumulator in narrow.items():
            self._widen(accumulator, wide[number])
        for output, accumulator in totals.items():
            self._widen(accumulator, self._totals[output])

    def _widen(self, accumulator: str, into: str) -> None:
        part = self._let(f"load float, ptr {accumulator}")
        self._add_to(into, part, "float32")

    def _is_float32_sum(self, output: Output) -> bool:
        return output.store is Store.SUM_ALL and self._instructions[output.value].dtype == "float32"

    def _accumulator(self, number: int) -> str:
        instruction = self._instructions[number]
        start = literal(neutral(instruction.op, instruction.dtype), instruction.dtype)
        return self._variable(TYPES[instruction.dtype], start)

    def _emit_column(self, stage: int, column: str, found: dict[int, str], totals: dict[Output, str]) -> None:
        """One element: ``found`` accumulates reductions along the row, ``totals`` sums that are blocked."""
        names: dict[int, str] = {}
        sinks = self._loops[stage]
        for number in sinks.needed:
            names[number] = self._element(number, stage, column, names)
        for output in sinks.outputs:
            self._put_element(output, names[output.value], column, totals)
        for number, accumulator in found.items():
            if number in sinks.reductions:
                self._accumulate(number, accumulator, names)

    def _element(self, number: int, stage: int, column: str, names: dict[int, str]) -> str:
        instruction, kept = self._instructions[number], self._kept.get(number)
        if instruction.op == "load":
            return self._load(instruction.data, column)
        if instruction.op == "load_at":
            (row,) = instruction.args
            return self._load_at(
                instruction.data, self._rows[row] if row in self._rows else names[row], column
            )
        if instruction.op == "column":
            return column
        if kept is not None and self._stages[number] < stage:
            return self._load(kept, column)
        name = self._emit(instruction, lambda a: self._rows[a] if a in self._rows else names[a])
        if kept is not None and Output(Store.PUT, number, kept) not in self._program.outputs:
            self._store(name, kept, column)
        return name

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

    def _accumulate(self, number: int, accumulator: str, names: dict[int, str]) -> None:
        instruction = self._instructions[number]
        (argument,) = instruction.args
        value = self._rows[argument] if argument in self._rows else names[argument]
        self._combine(accumulator, value, instruction.dtype, _COMBINE[instruction.op])

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
