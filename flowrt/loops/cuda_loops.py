"""CUDA C of a `LoopProgram`: a kernel for its elements, and one that completes sums over all rows. Pure;
nothing here needs CUDA.

    void flowrt_loop(const float *p0, float *p1, ...)         one pointer per operand
    void flowrt_sums(const double *s0, float *r0, ...)        partial sums and result, per sum

A lane of threads computes a row, then another (`flowrt.loops.cuda_grid`). A row's loops over its columns are
those of the nest (`flowrt.loops.nest`); a reduction along it is a tree in shared memory. A lane's sum over
its rows, column by column, is a partial sum over all rows; a block's sum over all elements a partial total.

Rules of this file:

  1. Dimensions and strides are numbers in the text: the compiler divides by constants, and arguments are
     addresses only.
  2. All threads of a block reach the same barriers: a lane without a row has one without columns.
  3. The order of summation depends on shapes only, so results are reproducible. A thread sums its share in
     the values' dtype; shares are summed in float64.
  4. There are no checks, since they would synchronize with the host. Where one would fail, an operation's
     rule returns the same as its kernel on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, final

from flowrt.loops import cuda_text
from flowrt.loops.cuda_grid import THREADS, grid_of, power_of_two
from flowrt.loops.loop_program import (
    COMBINES,
    ROW_REDUCTIONS,
    Instruction,
    LoopProgram,
    Output,
    Store,
    neutral,
)
from flowrt.loops.nest import Accumulate, ColumnLoop, LoopNest, loop_nest
from flowrt.loops.nest_printer import NestPrinter

LOOP, SUMS = "flowrt_loop", "flowrt_sums"
"""The names of the kernels."""

_OPERATIONS = cuda_text.OPERATIONS | ROW_REDUCTIONS | {"load", "load_at", "column", "columns"}


class Sum(NamedTuple):
    """Partial sums that `LOOP` writes for the sum in operand ``operand``: [parts, columns] of ``dtype``."""

    operand: int
    parts: int
    columns: int
    dtype: str


class CudaLoop(NamedTuple):
    """``text`` is CUDA C of `LOOP`, to be launched as ``blocks`` of ``threads``, and, if there are ``sums``,
    of `SUMS`, as ``sum_blocks`` of `THREADS`.
    """

    text: str
    operands: tuple[int, ...]
    """Operands with addresses passed to `LOOP`, in order; `SUMS` takes each sum's parts and result."""
    blocks: int
    threads: int
    sums: tuple[Sum, ...]
    sum_blocks: int


def cuda_loop(
    program: LoopProgram, dims: Sequence[int], strides: Sequence[Sequence[int]], dtypes: Sequence[str]
) -> CudaLoop | None:
    """The kernels of ``program`` over the domain ``dims``, non-empty, of two dimensions or more, the last of
    which is the columns'. ``strides[i]`` are those of operand i, in elements, one per dimension;
    ``dtypes[i]`` is its array's dtype, to which a total is rounded. None for a program with an unsupported
    instruction.
    """
    if any(op not in _OPERATIONS for op, *_ in program.instructions):
        return None
    outputs = tuple([output for output in program.outputs if output.store is not Store.CHECK])
    return _Printer(loop_nest(program._replace(outputs=outputs)), dims, strides, dtypes).run()


@final
class _Printer(NestPrinter):
    def __init__(
        self, nest: LoopNest, dims: Sequence[int], strides: Sequence[Sequence[int]], dtypes: Sequence[str]
    ) -> None:
        super().__init__(nest)
        program = nest.program
        self._strides, self._dtypes = strides, dtypes
        self._dims, self._length, self._rows = dims[:-1], dims[-1], math.prod(dims[:-1])
        self._columns = str(self._length)
        self._written = {output.operand for output in program.outputs}
        self._operands = tuple(sorted(program.read | self._written))
        self._sums = {o.operand: o for o in program.outputs if o.store in (Store.SUM_ROWS, Store.SUM_ALL)}
        self._totals = {i: output for i, output in self._sums.items() if output.store is Store.SUM_ALL}
        self._lines: list[str] = []
        self._depth = 0
        self._grid = grid_of(self._rows, self._length, len(self._sums) > len(self._totals))

    def run(self) -> CudaLoop:
        sums = tuple([self._sum(output) for output in self._sums.values()])
        self._say(f"typedef {self._grid.index_type} Index;")
        self._print_loop()
        sum_blocks = self._print_sums(sums) if sums else 0
        text = "\n".join([cuda_text.PRELUDE, _ACROSS, *([_ADD_PARTS] if sums else []), *self._lines, ""])
        return CudaLoop(text, self._operands, self._grid.blocks, self._grid.threads, sums, sum_blocks)

    def _sum(self, output: Output) -> Sum:
        dtype = self._program.dtypes[output.operand]
        if output.store is Store.SUM_ALL:
            return Sum(output.operand, self._grid.blocks, 1, dtype)
        return Sum(output.operand, min(self._rows, self._grid.all_lanes), self._length, dtype)

    # --- text

    def _say(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    @contextmanager
    def _braces(self, head: str) -> Iterator[None]:
        self._say(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self._say("}")

    def _kernel(self, name: str, threads: int, parameters: Sequence[str]) -> str:
        return (
            f'extern "C" __global__ void __launch_bounds__({threads}) {name}(\n    {", ".join(parameters)})'
        )

    # --- the kernel of the elements

    def _print_loop(self) -> None:
        with self._braces(self._kernel(LOOP, self._grid.threads, self._parameters())):
            if any(loop.reductions for loop in self._nest.column_loops) or self._totals:
                self._say(f"__shared__ double shared[{self._grid.threads}];")
            width = self._grid.width
            self._say(f"const Index lane = threadIdx.x / {width}, place = threadIdx.x % {width};")
            self._say(f"const Index first = (Index)blockIdx.x * {self._grid.lanes};")
            for operand, output in self._sums.items():
                self._print_start_of_sum(operand, output)
            step = self._grid.all_lanes
            with self._braces(f"for (Index begin = first; begin < {self._rows}; begin += {step})"):
                self._print_row_of_lane()
            for operand, output in self._totals.items():
                self._print_end_of_total(operand, output)

    def _parameters(self) -> list[str]:
        return [f"{self._pointer(operand)}__restrict__ p{operand}" for operand in self._operands]

    def _pointer(self, operand: int) -> str:
        const = "" if operand in self._written else "const "
        return f"{const}{cuda_text.STORED[self._program.dtypes[operand]]} *"

    def _print_start_of_sum(self, operand: int, output: Output) -> None:
        dtype = self._instructions[output.value].dtype
        if output.store is Store.SUM_ALL:
            self._say(f"{cuda_text.TYPES[dtype]} t{operand} = 0;")
        else:
            type_ = cuda_text.STORED[self._program.dtypes[operand]]
            self._say(
                f"{type_} *const a{operand} = p{operand} + (long long)(first + lane) * {self._columns};"
            )

    def _print_end_of_total(self, operand: int, output: Output) -> None:
        type_ = cuda_text.WIDE[self._instructions[output.value].dtype]
        total = f"across<{self._grid.threads}, 1>(({type_})t{operand}, Add(), ({type_} *)shared)"
        with self._braces(""):
            self._say(f"const {type_} total = {total};")
            self._say(f"if (threadIdx.x == 0) p{operand}[blockIdx.x] = total;")

    # --- one row

    def _print_row_of_lane(self) -> None:
        self._say(f"const bool is_here = begin + lane < {self._rows};")
        self._say(f"const Index row = is_here ? begin + lane : {self._rows - 1};")
        self._say(f"const Index end = is_here ? {self._columns} : 0;")
        self._print_addresses()
        self._print_row()
        if self._nest.puts:
            self._say("__syncthreads();  // all have read what may be written over")
            with self._braces("if (is_here && place == 0)"):
                for output in self._nest.puts:
                    self._put(output, None)

    def _print_addresses(self) -> None:
        """Print the address of each operand in this row."""
        rest, inner = "row", self._rows
        for i, size in enumerate(self._dims):
            inner //= size
            self._say(f"const Index i{i} = {rest} / {inner};")
            rest = f"(row % {inner})"
        for operand in self._operands:
            if operand not in self._sums:
                steps = enumerate(self._strides[operand][:-1])
                offsets = "".join([f" + (long long)i{i} * {stride}" for i, stride in steps if stride])
                self._say(f"{self._pointer(operand)}const a{operand} = p{operand}{offsets};")

    # --- a loop over the columns

    def _print_columns(self, loop: ColumnLoop) -> None:
        for number, *_ in loop.reductions:
            instruction = self._instructions[number]
            start = cuda_text.literal(neutral(instruction.op, instruction.dtype), instruction.dtype)
            self._say(f"{cuda_text.TYPES[instruction.dtype]} r{number} = {start};")
        with self._braces(f"for (Index column = place; column < end; column += {self._grid.width})"):
            for statement in loop.body:
                self._print_statement(statement, "column")
        for number, *_ in loop.reductions:
            self._print_reduction(number)

    def _print_reduction(self, number: int) -> None:
        """Print a reduction of the shares of the lane's threads."""
        op, _, dtype, *_ = self._instructions[number]
        type_ = cuda_text.WIDE[dtype] if op == "row_sum" else cuda_text.TYPES[dtype]
        shares = f"({type_})r{number}, {cuda_text.functor(COMBINES[op])}, ({type_} *)shared"
        value = f"({cuda_text.TYPES[dtype]})across<{self._grid.width}, 1>({shares})"
        self._names[number] = self._let_value(number, value)

    # --- values

    def _expression(self, instruction: Instruction, arguments: list[str]) -> str:
        source = self._instructions[instruction.args[0]].dtype if instruction.args else ""
        return cuda_text.expression(instruction, source, arguments)

    def _let_value(self, number: int, value: str) -> str:
        self._say(f"const {cuda_text.TYPES[self._instructions[number].dtype]} v{number} = {value};")
        return f"v{number}"

    def _accumulate(self, statement: Accumulate) -> None:
        op, (argument,), *_ = self._instructions[statement.number]
        share, functor = f"r{statement.number}", cuda_text.functor(COMBINES[op])
        self._say(f"{share} = {functor}({share}, {self._names[argument]});")

    def _put(self, output: Output, column: str | None) -> None:
        store, number, operand = output
        value = self._names[number]
        if store is Store.PUT:
            self._store(value, operand, column)
        elif store is Store.SUM_ROWS:
            place = f"a{operand}[column]"
            self._say(f"{place} = begin == first ? {value} : Add()({place}, {value});")
        else:  # the sum of a row value counts it once
            self._say(f"t{operand} = Add()(t{operand}, {value});")

    # --- memory

    def _element(self, operand: int, column: str | None) -> str:
        stride = self._strides[operand][-1] if column else 0
        place = {0: "0", 1: column}.get(stride, f"(long long){column} * {stride}")
        return f"a{operand}[{place}]"

    def _load(self, operand: int, column: str | None) -> str:
        return self._loaded(self._element(operand, column), operand)

    def _load_at(self, operand: int, row: str, column: str) -> str:
        return self._loaded(f"a{operand}[{row} * {self._columns} + {column}]", operand)

    def _loaded(self, element: str, operand: int) -> str:
        return f"{element} != 0" if self._program.dtypes[operand] == "bool" else element

    def _store(self, value: str, operand: int, column: str | None) -> None:
        self._say(f"{self._element(operand, column)} = {value};")

    # --- the kernel of the sums

    def _print_sums(self, sums: Sequence[Sum]) -> int:
        """Print the kernel; returns its number of blocks."""
        parameters, begin = [], 0
        for i, each in enumerate(sums):
            result = cuda_text.STORED[self._dtypes[each.operand]]
            parameters += [f"const {cuda_text.STORED[each.dtype]} *s{i}", f"{result} *r{i}"]
        with self._braces(self._kernel(SUMS, THREADS, parameters)):
            self._say(f"__shared__ double shared[{THREADS}];")
            for i, each in enumerate(sums):
                width = min(power_of_two(each.columns), _WARP)
                end = begin + -(-each.columns // width)
                call = f"add_parts<{each.parts}, {each.columns}, {width}, {cuda_text.WIDE[each.dtype]}>"
                with self._braces(f"{'else ' * (i > 0)}if (blockIdx.x < {end})"):
                    self._say(f"{call}(s{i}, r{i}, blockIdx.x - {begin}, shared);")
                begin = end
        return begin


_WARP = 32
"""Threads that read neighbours together."""

_ACROSS = """\
// Every WIDTH neighbouring threads combine their values in a tree; each gets that of the threads whose places
// are the same modulo STEP. All threads of the block have to call it.
template <int WIDTH, int STEP, typename T, typename Combine>
__device__ T across(T value, Combine combine, T *shared) {
  if (WIDTH == STEP) return value;
  const int place = threadIdx.x % WIDTH;
  shared[threadIdx.x] = value;
  for (int step = WIDTH / 2; step >= STEP; step /= 2) {
    __syncthreads();
    if (place < step) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + step]);
  }
  __syncthreads();
  value = shared[threadIdx.x - place + place % STEP];
  __syncthreads();  // before the memory is used again
  return value;
}
"""

_ADD_PARTS = f"""\
// The sums over PARTS, for WIDTH of the COLUMNS.
template <int PARTS, int COLUMNS, int WIDTH, typename Wide, typename From, typename To>
__device__ void add_parts(const From *parts, To *result, int block, double *shared) {{
  const int column = block * WIDTH + threadIdx.x % WIDTH;
  Wide total = 0;
  if (column < COLUMNS)
    for (int part = threadIdx.x / WIDTH; part < PARTS; part += {THREADS} / WIDTH)
      total = Add()(total, (Wide)parts[(long long)part * COLUMNS + column]);
  total = across<{THREADS}, WIDTH>(total, Add(), (Wide *)shared);
  if (threadIdx.x < WIDTH && column < COLUMNS) result[column] = (To)total;
}}
"""
