"""CUDA C of a `LoopProgram`: a kernel for its elements, and one that completes sums over all rows. Pure;
nothing here needs CUDA.

    void flowrt_loop(const float *p0, float *p1, ...)         one pointer per operand
    void flowrt_sums(const double *s0, float *r0, ...)        partial sums and result, per sum

A block's threads form groups of neighbours, called lanes. A lane processes a row, with its threads striding
over the columns, then another row. A program without rows has rows of one column: each thread is a lane. A
row's loops over its columns are those of the nest (`flowrt.loops.nest`); a reduction along it is a tree in
shared memory. A lane's sum over its rows, column by column, is a partial sum over all
rows; a block's sum over all elements is a partial total.

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
from flowrt.loops.loop_program import LoopProgram, Output, Store, neutral
from flowrt.loops.nest import Accumulate, ColumnLoop, Compute, Keep, LoopNest, Put, Reload, loop_nest

LOOP, SUMS = "flowrt_loop", "flowrt_sums"
"""The names of the kernels."""

THREADS, MAX_THREADS = 256, 1024
"""Threads of a block: the default, and for rows of at least that length."""

COLUMNS_A_THREAD = 4
"""Minimum columns for several threads per lane: a level of a tree costs as much as an element or two."""

MAX_BLOCKS, MAX_SUMMING_BLOCKS = 4096, 256
"""Grid-size cap, for full occupancy of the largest GPU; each lane writes a partial sum that is read again."""

INT_ELEMENTS = 1 << 30
"""A domain below this size is indexed in 32 bits, where a division takes a quarter of the time of 64."""

_OPERATIONS = cuda_text.OPERATIONS | {"load", "load_at", "column", "columns"}


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
    return _Emitter(loop_nest(program._replace(outputs=outputs)), dims, strides, dtypes).run()


@final
class _Emitter:
    def __init__(
        self, nest: LoopNest, dims: Sequence[int], strides: Sequence[Sequence[int]], dtypes: Sequence[str]
    ) -> None:
        program = nest.program
        self._nest, self._program, self._instructions = nest, program, program.instructions
        self._strides, self._dtypes = strides, dtypes
        self._dims, self._columns, self._rows = dims[:-1], dims[-1], math.prod(dims[:-1])
        loaded = {data for op, _, _, data, _ in program.instructions if op in ("load", "load_at")}
        self._written = {output.operand for output in program.outputs}
        self._operands = tuple(sorted(loaded | self._written))
        self._sums = {o.operand: o for o in program.outputs if o.store in (Store.SUM_ROWS, Store.SUM_ALL)}
        self._totals = {i: output for i, output in self._sums.items() if output.store is Store.SUM_ALL}
        self._lines: list[str] = []
        self._depth = 0
        self._width = min(_power_of_two(-(-self._columns // COLUMNS_A_THREAD)), MAX_THREADS)
        self._threads = max(THREADS, self._width)
        self._lanes = self._threads // self._width
        most = MAX_SUMMING_BLOCKS if len(self._sums) > len(self._totals) else MAX_BLOCKS
        self._blocks = min(-(-self._rows // self._lanes), most)

    def run(self) -> CudaLoop:
        sums = tuple([self._sum(output) for output in self._sums.values()])
        elements = self._rows * self._columns
        self._say(f"typedef {'int' if elements < INT_ELEMENTS else 'long long'} Index;")
        self._emit_loop()
        sum_blocks = self._emit_sums(sums) if sums else 0
        text = "\n".join([cuda_text.PRELUDE, _ACROSS, *([_ADD_PARTS] if sums else []), *self._lines, ""])
        return CudaLoop(text, self._operands, self._blocks, self._threads, sums, sum_blocks)

    def _sum(self, output: Output) -> Sum:
        dtype = self._program.dtypes[output.operand]
        if output.store is Store.SUM_ALL:
            return Sum(output.operand, self._blocks, 1, dtype)
        return Sum(output.operand, min(self._rows, self._blocks * self._lanes), self._columns, dtype)

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

    def _emit_loop(self) -> None:
        with self._braces(self._kernel(LOOP, self._threads, self._parameters())):
            if any(loop.reductions for loop in self._nest.column_loops) or self._totals:
                self._say(f"__shared__ double shared[{self._threads}];")
            self._say(f"const Index lane = threadIdx.x / {self._width}, place = threadIdx.x % {self._width};")
            self._say(f"const Index first = (Index)blockIdx.x * {self._lanes};")
            for operand, output in self._sums.items():
                self._emit_start_of_sum(operand, output)
            step = self._blocks * self._lanes
            with self._braces(f"for (Index begin = first; begin < {self._rows}; begin += {step})"):
                self._emit_row()
            for operand, output in self._totals.items():
                self._emit_end_of_total(operand, output)

    def _parameters(self) -> list[str]:
        return [f"{self._pointer(operand)}__restrict__ p{operand}" for operand in self._operands]

    def _pointer(self, operand: int) -> str:
        const = "" if operand in self._written else "const "
        return f"{const}{cuda_text.STORED[self._program.dtypes[operand]]} *"

    def _emit_start_of_sum(self, operand: int, output: Output) -> None:
        dtype = self._instructions[output.value].dtype
        if output.store is Store.SUM_ALL:
            self._say(f"{cuda_text.TYPES[dtype]} t{operand} = 0;")
        else:
            type_ = cuda_text.STORED[self._program.dtypes[operand]]
            self._say(
                f"{type_} *const a{operand} = p{operand} + (long long)(first + lane) * {self._columns};"
            )

    def _emit_end_of_total(self, operand: int, output: Output) -> None:
        type_ = cuda_text.WIDE[self._instructions[output.value].dtype]
        total = f"across<{self._threads}, 1>(({type_})t{operand}, Add(), ({type_} *)shared)"
        with self._braces(""):
            self._say(f"const {type_} total = {total};")
            self._say(f"if (threadIdx.x == 0) p{operand}[blockIdx.x] = total;")

    # --- one row

    def _emit_row(self) -> None:
        self._say(f"const bool is_here = begin + lane < {self._rows};")
        self._say(f"const Index row = is_here ? begin + lane : {self._rows - 1};")
        self._say(f"const Index end = is_here ? {self._columns} : 0;")
        self._emit_addresses()
        of_rows: list[Output] = []
        for step in self._nest.row:
            if isinstance(step, ColumnLoop):
                self._emit_columns(step)
            elif isinstance(step, Compute):
                self._let(step.number, self._value(step.number, "0"))
            else:
                of_rows.append(step.output)
        if of_rows:
            self._say("__syncthreads();  // all have read what may be written over")
            with self._braces("if (is_here && place == 0)"):
                for output in of_rows:
                    self._put(output, "0")

    def _emit_addresses(self) -> None:
        """Emit the address of each operand in this row."""
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

    def _let(self, number: int, value: str) -> None:
        self._say(f"const {cuda_text.TYPES[self._instructions[number].dtype]} v{number} = {value};")

    # --- a loop over the columns

    def _emit_columns(self, loop: ColumnLoop) -> None:
        for number in loop.reductions:
            instruction = self._instructions[number]
            start = cuda_text.literal(neutral(instruction.op, instruction.dtype), instruction.dtype)
            self._say(f"{cuda_text.TYPES[instruction.dtype]} r{number} = {start};")
        with self._braces(f"for (Index column = place; column < end; column += {self._width})"):
            for statement in loop.body:
                match statement:
                    case Compute(number):
                        self._let(number, self._value(number, "column"))
                    case Keep(number, operand):
                        self._say(f"{self._element(operand, 'column')} = v{number};")
                    case Reload(number, operand):
                        self._let(number, self._element(operand, "column"))
                    case Put(output):
                        self._put(output, "column")
                    case Accumulate(number):
                        op, (argument,), *_ = self._instructions[number]
                        self._say(f"r{number} = {cuda_text.functor(op)}(r{number}, v{argument});")
        for number in loop.reductions:
            self._emit_reduction(number)

    def _emit_reduction(self, number: int) -> None:
        """Emit a reduction of the shares of the lane's threads."""
        op, _, dtype, *_ = self._instructions[number]
        type_ = cuda_text.WIDE[dtype] if op == "row_sum" else cuda_text.TYPES[dtype]
        shares = f"({type_})r{number}, {cuda_text.functor(op)}, ({type_} *)shared"
        self._let(number, f"({cuda_text.TYPES[dtype]})across<{self._width}, 1>({shares})")

    def _value(self, number: int, column: str) -> str:
        instruction = self._instructions[number]
        op, args, _, data, _ = instruction
        match op:
            case "load":
                return self._loaded(self._element(data, column), instruction.dtype)
            case "load_at":
                element = f"a{data}[v{args[0]} * {self._columns} + {column}]"
                return self._loaded(element, instruction.dtype)
            case "column":
                return "column"
            case "columns":
                return str(self._columns)
        source = self._instructions[args[0]].dtype if args else ""
        return cuda_text.expression(instruction, source, [f"v{a}" for a in args])

    # --- memory

    def _element(self, operand: int, column: str) -> str:
        stride = self._strides[operand][-1]
        place = {0: "0", 1: column}.get(stride, f"(long long){column} * {stride}")
        return f"a{operand}[{place}]"

    def _loaded(self, element: str, dtype: str) -> str:
        return f"{element} != 0" if dtype == "bool" else element

    def _put(self, output: Output, column: str) -> None:
        store, value, operand = output
        if store is Store.PUT:
            self._say(f"{self._element(operand, column)} = v{value};")
        elif store is Store.SUM_ROWS:
            place = f"a{operand}[column]"
            self._say(f"{place} = begin == first ? v{value} : Add()({place}, v{value});")
        else:  # the sum of a row value counts it once
            self._say(f"t{operand} = Add()(t{operand}, v{value});")

    # --- the kernel of the sums

    def _emit_sums(self, sums: Sequence[Sum]) -> int:
        """Emit the kernel; returns its number of blocks."""
        parameters, begin = [], 0
        for i, each in enumerate(sums):
            result = cuda_text.STORED[self._dtypes[each.operand]]
            parameters += [f"const {cuda_text.STORED[each.dtype]} *s{i}", f"{result} *r{i}"]
        with self._braces(self._kernel(SUMS, THREADS, parameters)):
            self._say(f"__shared__ double shared[{THREADS}];")
            for i, each in enumerate(sums):
                width = min(_power_of_two(each.columns), _WARP)
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


def _power_of_two(number: int) -> int:
    """The least that is not below ``number``."""
    return 1 << (number - 1).bit_length()
