"""LLVM IR of a `LoopProgram`: one function of nested loops, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table holds int64: the operands' addresses, the domain's dimensions, each operand's strides, in elements,
one per dimension, and a grain; for a matrix indexed by row, the strides of a row. ``begin`` and ``end`` are a
part of dimension 0, by which threads share the work. A part that begins at ``i`` has its sums over rows, or
over everything, at index ``i / grain`` of their operand.

It prints a loop nest (`flowrt.loops.nest`). Addresses are arguments of an inner function, where they are
``noalias``: results are written to memory that no other operand shares. Without that the vectoriser adds a
run-time check for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.loops.llvm_text import STORED, TYPES, Writer, literal
from flowrt.loops.loop_program import COMBINES, Instruction, LoopProgram, Output, Store, is_float, neutral
from flowrt.loops.nest import (
    BUFFER,
    Accumulate,
    ColumnLoop,
    LoopNest,
    Put,
    Statement,
    Vectors,
    block_sums,
    choose_vectors,
    loop_nest,
)
from flowrt.loops.nest_printer import NestPrinter

WHOLE = 64
"""Elements of four vectors: LLVM computes so many at a time."""

_HINTS = {
    Vectors.FREE: "",
    Vectors.PAIRED: '!"llvm.loop.interleave.count", i32 2',
    Vectors.SINGLE: '!"llvm.loop.interleave.count", i32 1',
    Vectors.MASKED: '!"llvm.loop.vectorize.predicate.enable", i1 true',
}


def llvm_function(
    program: LoopProgram,
    accesses: Sequence[str],
    is_ragged: bool = False,
    is_short: bool = False,
    is_whole: bool = False,
    is_brief: bool = False,
) -> str:
    """The text of a module with `FUNCTION`. ``accesses[i]`` is the access pattern of operand i, a letter per
    dimension: ``0`` broadcast, ``1`` contiguous (in the last dimension only), ``s`` any stride.
    ``is_ragged``: rows end within a vector, in a part of them that matters. ``is_short``: they have at most
    `BUFFER` elements. ``is_whole``: their length is a multiple of `WHOLE`.
    ``is_brief``: the domain is one row of fewer than `WHOLE`, of a vector or more.
    """
    nest = block_sums(loop_nest(program, has_buffers=is_short), is_short)
    return _Printer(choose_vectors(nest, is_ragged, is_brief), accesses, is_whole).run()


@final
class _Printer(NestPrinter, Writer):
    def __init__(self, nest: LoopNest, accesses: Sequence[str], is_whole: bool) -> None:
        NestPrinter.__init__(self, nest)
        Writer.__init__(self, nest.program.instructions)
        self._accesses, self._rank = accesses, len(accesses[0])
        self._columns, self._is_whole = f"%d{self._rank - 1}", is_whole
        self._dtypes = (*nest.program.dtypes, *nest.buffers)
        self._bases: dict[int, str] = {}
        """Start of each operand for this part."""
        self._addresses: dict[int, str] = {}
        """Address of each operand in this row."""
        self._accumulators: dict[Statement, str] = {}
        """The variables of sums over everything, of checks, and of reductions along the row."""
        self._narrow: dict[Statement, str] = {}
        """The variables of sums in the current block."""

    def run(self) -> str:
        self._print_body()
        pointers = [f"p{i}" for i in range(len(self._accesses))]
        numbers = [f"d{i}" for i in range(self._rank)]
        for operand, access in enumerate(self._accesses):
            numbers += [f"s{operand}_{i}" if letter == "s" else "" for i, letter in enumerate(access)]
        places = enumerate([*numbers, "grain"], len(pointers))
        return self._behind_table(pointers, {name: place for place, name in places if name})

    # --- the domain

    def _print_body(self) -> None:
        if self._is_whole:  # so nothing is left of a row after its vectors, and LLVM makes no loops for that
            self._columns = self._let(f"and i64 {self._columns}, {-WHOLE}")
        part = self._let("sdiv i64 %begin, %grain")
        self._bases = {i: f"%p{i}" for i in range(len(self._accesses))}
        for store, _, operand in self._program.outputs:
            if store in (Store.SUM_ALL, Store.SUM_ROWS):
                width = self._columns if store is Store.SUM_ROWS else "1"
                offset = self._let(f"mul nsw i64 {part}, {width}")
                type_ = STORED[self._program.dtypes[operand]]
                self._bases[operand] = self._let(f"getelementptr {type_}, ptr %p{operand}, i64 {offset}")
        for operand, dtype in enumerate(self._nest.buffers, len(self._accesses)):
            self._addresses[operand] = self._buffer(STORED[dtype], BUFFER)
        for output in self._nest.totals:
            self._accumulators[Put(output)] = self._variable(*_total_start(self._program, output))
        self._print_dimension(0, ())
        for output in self._nest.totals:
            self._put_total(output, self._accumulators[Put(output)])

    def _print_dimension(self, dimension: int, indices: tuple[str, ...]) -> None:
        if dimension < self._rank - 1:
            ends = ("%begin", "%end") if dimension == 0 else ("0", f"%d{dimension}")
            with self._loop(*ends) as index:
                self._print_dimension(dimension + 1, (*indices, index))
            return
        self._addresses |= {operand: self._row_address(operand, indices) for operand in self._bases}
        self._print_row()
        for output in self._nest.puts:
            self._put(output, None)

    def _row_address(self, operand: int, indices: Sequence[str]) -> str:
        address, type_ = self._bases[operand], STORED[self._program.dtypes[operand]]
        for i, index in enumerate(indices):
            if self._accesses[operand][i] == "s":
                offset = self._let(f"mul nsw i64 {index}, %s{operand}_{i}")
                address = self._let(f"getelementptr inbounds {type_}, ptr {address}, i64 {offset}")
        return address

    # --- a loop over the columns

    def _print_columns(self, loop: ColumnLoop) -> None:
        begin, end = ("%begin", "%end") if self._rank == 1 else ("0", self._columns)
        for statement in loop.reductions:
            is_wide = statement in loop.in_blocks
            start = self._variable("double", "0.0") if is_wide else self._start_of(statement)
            self._accumulators[statement] = start
        if loop.in_blocks and self._nest.block is not None:
            with self._loop(begin, end, self._nest.block) as first:
                beyond = self._let(f"add nsw i64 {first}, {self._nest.block}")
                self._print_block(loop, first, self._call("llvm.smin.i64", "i64", beyond, end))
        elif loop.in_blocks:
            self._print_block(loop, begin, end)
        else:
            self._print_range(loop, begin, end)
        for statement in loop.reductions:
            type_ = TYPES[self._instructions[statement.number].dtype]
            variable = self._accumulators[statement]
            if statement in loop.in_blocks:
                total = self._let(f"load double, ptr {variable}")
                self._names[statement.number] = self._let(f"fptrunc double {total} to float")
            else:
                self._names[statement.number] = self._let(f"load {type_}, ptr {variable}")

    def _print_block(self, loop: ColumnLoop, first: str, last: str) -> None:
        """The columns from ``first`` to ``last``, a block of sums."""
        self._narrow = {statement: self._variable("float", "0.0") for statement in loop.in_blocks}
        self._print_range(loop, first, last)
        for statement, variable in self._narrow.items():
            part = self._let(f"load float, ptr {variable}")
            self._add_to(self._accumulators[statement], part, "float32")
        self._narrow = {}

    def _print_range(self, loop: ColumnLoop, begin: str, end: str) -> None:
        with self._loop(begin, end, hint=_HINTS[loop.vectors]) as column:
            for statement in loop.body:
                self._print_statement(statement, column)

    def _start_of(self, statement: Accumulate) -> str:
        instruction = self._instructions[statement.number]
        start = literal(neutral(instruction.op, instruction.dtype), instruction.dtype)
        return self._variable(TYPES[instruction.dtype], start)

    # --- values

    def _expression(self, instruction: Instruction, arguments: list[str]) -> str:
        return self._emit(instruction, self._names.__getitem__)

    def _let_value(self, number: int, value: str) -> str:
        return value

    def _accumulate(self, statement: Accumulate) -> None:
        op, (argument,), dtype, *_ = self._instructions[statement.number]
        accumulator = self._narrow.get(statement, self._accumulators[statement])
        self._combine(accumulator, self._names[argument], dtype, COMBINES[op])

    def _put(self, output: Output, column: str | None) -> None:
        store, number, operand = output
        value, dtype = self._names[number], self._instructions[number].dtype
        if store is Store.PUT:
            self._store(value, operand, column)
        elif store is Store.CHECK:
            failed = self._let(f"xor i1 {value}, true")
            variable = self._accumulators[Put(output)]
            self._change(variable, "i1", lambda before: self._let(f"or i1 {before}, {failed}"))
        elif store is Store.SUM_ROWS:
            before = self._load(operand, column)
            self._store(self._binary("add", dtype, before, value), operand, column)
        elif Put(output) in self._narrow:
            self._combine(self._narrow[Put(output)], value, dtype)
        else:  # the sum of a row value counts it once
            self._add_to(self._accumulators[Put(output)], value, dtype)

    # --- accumulators

    def _combine(self, accumulator: str, value: str, dtype: str, op: str = "add") -> None:
        """Combine in any order, but for products: in another one an intermediate result may overflow."""
        flags = "contract " if op == "mul" else "reassoc contract "
        self._change(accumulator, TYPES[dtype], lambda old: self._binary(op, dtype, old, value, flags))

    def _add_to(self, total: str, value: str, dtype: str) -> None:
        """Add to a total, which is float64 for floats."""
        if dtype == "float32":
            value = self._let(f"fpext float {value} to double")
        self._combine(total, value, "float64" if is_float(dtype) else dtype)

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
        address = self._addresses[operand]
        letter = self._accesses[operand][-1] if operand in self._bases else "1"
        if column is None or letter == "0":
            return address
        if letter == "s":
            column = self._let(f"mul nsw i64 {column}, %s{operand}_{self._rank - 1}")
        type_ = STORED[self._dtypes[operand]]
        return self._let(f"getelementptr inbounds {type_}, ptr {address}, i64 {column}")

    def _load(self, operand: int, column: str | None) -> str:
        return self._read(self._address(operand, column), self._dtypes[operand])

    def _load_at(self, operand: int, row: str, column: str) -> str:
        before = self._let(f"mul nsw i64 {row}, {self._columns}")
        return self._load(operand, self._let(f"add nsw i64 {before}, {column}"))

    def _store(self, value: str, operand: int, column: str | None) -> None:
        self._write(value, self._address(operand, column), self._dtypes[operand])


def _total_start(program: LoopProgram, output: Output) -> tuple[str, str]:
    if output.store is Store.CHECK:
        return "i1", "false"
    dtype = program.dtypes[output.operand]
    return TYPES[dtype], literal(0, dtype)
