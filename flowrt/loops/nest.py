"""Loop nests: a `LoopProgram` with its loops over rows and columns, and the place of each value in them.

    rows
      %3 = row_max                      a value of the row
      columns                           a loop over the columns: the first of softmax's three
        %0 = load $0
        accumulate %1
      ...
      columns
        put $1 %7                       a result's element
      put $2 %5                         a result's element of the row
    put $3                              a total: the sum over everything, or a check

A reduction along the row ends a loop over columns, and values that depend on its result belong to a later
one: softmax has three, for the maximum, the sum and the quotients. A value that several of them need is
computed again, unless that is expensive: then it is kept meanwhile in the memory of a later loop's result,
or, if there is none and rows are short, in a buffer.

`loop_nest` makes the nest in passes, `verify_nest` verifies it, and the printers of LLVM IR and CUDA C print
it statement by statement. `block_sums` and `choose_vectors` are passes for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeAlias

from flowrt.errors import InternalError
from flowrt.loops.loop_program import ROW_REDUCTIONS, LoopProgram, Output, Store

KEPT_COST = 8
"""Instructions from which on a value is kept for a later loop."""

BUFFER, MAX_BUFFERS = 1024, 2
"""Elements of a buffer for a row's kept values, and how many a nest may have: they share the first cache."""

BLOCK = 4096
"""Columns of a block: see `block_sums`."""

NOT_KEPT = frozenset({"load", "column", "const"})

LONG = 256
"""Statements of a body that fills a processor's reorder buffer: it does not begin the next vector before it
has ended this one. So two are computed side by side: 1,000 operations in a chain take 45 us instead of 63.
"""


class Compute(NamedTuple):
    """Compute the value of instruction ``number``."""

    number: int

    def __str__(self) -> str:
        return f"%{self.number}"


class Keep(NamedTuple):
    """Store the value in ``operand``, a later loop's result or a buffer."""

    number: int
    operand: int

    def __str__(self) -> str:
        return f"keep %{self.number} in ${self.operand}"


class Reload(NamedTuple):
    """Read the value from ``operand``, where an earlier loop has kept it."""

    number: int
    operand: int

    def __str__(self) -> str:
        return f"%{self.number} = reload ${self.operand}"


class Put(NamedTuple):
    """Store the output's value here, or add it to a sum."""

    output: Output

    def __str__(self) -> str:
        store, value, operand = self.output
        return f"{store.value} ${operand} %{value}"


class Accumulate(NamedTuple):
    """Add the argument of instruction ``number``, a reduction along the row, to what it is so far."""

    number: int

    def __str__(self) -> str:
        return f"accumulate %{self.number}"


Statement: TypeAlias = Compute | Keep | Reload | Put | Accumulate


class Vectors(Enum):
    """Ways in which the host computes the columns of a loop."""

    FREE = ""
    """Vectors as its compiler likes; the rest in shorter ones or one by one."""
    PAIRED = " in pairs of vectors"
    SINGLE = " in single vectors"
    """One after the other, for fewer elements than the four vectors that its compiler takes at once: what is
    left of those it computes in halves of a vector, or one by one.
    """
    MASKED = " in masked vectors"
    """The last vector of a row is masked, and nothing is left."""


class ColumnLoop(NamedTuple):
    """A loop over the columns of a row, after which its ``reductions`` are values of the row. The sums of
    statements that are ``in_blocks`` are added up in blocks of columns first.
    """

    body: tuple[Statement, ...]
    in_blocks: tuple[Accumulate | Put, ...] = ()
    vectors: Vectors = Vectors.FREE

    @property
    def reductions(self) -> list[Accumulate]:
        return [statement for statement in self.body if isinstance(statement, Accumulate)]


class LoopNest(NamedTuple):
    """The loop over the rows of ``program``, with the statements for each ``row``, which are its values and
    loops over its columns, followed by ``puts``. ``totals`` are put at the end.
    """

    program: LoopProgram
    row: tuple[Compute | ColumnLoop, ...]
    puts: tuple[Output, ...]
    totals: tuple[Output, ...]
    buffers: tuple[str, ...] = ()
    """The dtypes of buffers for the columns of a row: operands behind the program's."""
    block: int | None = None
    """The columns of a block of sums; None if a row is one block."""

    @property
    def column_loops(self) -> list[ColumnLoop]:
        return [step for step in self.row if isinstance(step, ColumnLoop)]

    def __str__(self) -> str:
        return "\n".join([str(self.program), *_lines(self)])


def loop_nest(program: LoopProgram, has_buffers: bool = False) -> LoopNest:
    """The nest of ``program``. ``has_buffers``: values may be kept in buffers as long as a row. Raises
    `InternalError` for a nest that is not valid.
    """
    stages = _stages_of(program)
    needed = _needed(program, stages)
    first = {number: stage for stage in sorted(needed, reverse=True) for number in needed[stage]}
    kept = _kept_values(program, stages, _last_uses(program, needed, first), has_buffers)
    needed = _needed(program, stages, {number: first[number] for number in kept})
    row: list[Compute | ColumnLoop] = []
    for stage in range(max(stages, default=0) + 1):
        row += [Compute(n) for n in _row_values(program) if stages[n] == stage]
        if stage in needed:
            reloaded = {n: operand for n, operand in kept.items() if first[n] < stage}
            row.append(_column_loop(program, stages, stage, needed[stage], kept, reloaded))
    puts = tuple([o for o in program.outputs if program.instructions[o.value].is_row])
    totals = tuple([o for o in program.outputs if o.store in (Store.SUM_ALL, Store.CHECK)])
    held = {operand: program.instructions[number].dtype for number, operand in kept.items()}
    buffers = tuple([dtype for operand, dtype in sorted(held.items()) if operand >= len(program.dtypes)])
    return verify_nest(LoopNest(program, tuple(row), puts, totals, buffers))


# --- passes


def _stages_of(program: LoopProgram) -> list[int]:
    """Index of the first column loop that computes each instruction; for a row value, of the loop after."""
    stages: list[int] = []
    for op, args, *_ in program.instructions:
        stage = max([stages[a] for a in args], default=0)
        stages.append(stage + 1 if op in ROW_REDUCTIONS else stage)
    return stages


def _row_values(program: LoopProgram) -> list[int]:
    """The values of rows, except reductions."""
    instructions = enumerate(program.instructions)
    return [number for number, i in instructions if i.is_row and i.op not in ROW_REDUCTIONS]


def _reductions(program: LoopProgram, stages: Sequence[int], stage: int) -> list[int]:
    """The reductions that the loop of ``stage`` accumulates."""
    instructions = enumerate(program.instructions)
    return [n for n, i in instructions if i.op in ROW_REDUCTIONS and stages[n] == stage + 1]


def _element_outputs(program: LoopProgram, stages: Sequence[int], stage: int) -> list[Output]:
    outputs = program.outputs
    return [o for o in outputs if not program.instructions[o.value].is_row and stages[o.value] == stage]


def _needed(
    program: LoopProgram, stages: Sequence[int], kept_since: Mapping[int, int] | None = None
) -> dict[int, list[int]]:
    """The element values that each stage's loop needs, in order; not those of which only values are made that
    an earlier stage has kept. A stage that only prepares row values has no loop.
    """
    kept_since = kept_since or {}
    needed: dict[int, list[int]] = {}
    for stage in range(max(stages, default=0) + 1):
        reductions = _reductions(program, stages, stage)
        outputs = _element_outputs(program, stages, stage)
        if reductions or outputs:
            ends = [output.value for output in outputs]
            ends += [a for number in reductions for a in program.instructions[number].args]
            needed[stage] = _closure(program, ends, [n for n, since in kept_since.items() if since < stage])
    return needed


def _closure(program: LoopProgram, ends: Iterable[int], kept: Collection[int] = ()) -> list[int]:
    """The element values that ``ends`` depend on, and themselves, in order; not what ``kept`` ones do."""
    found: set[int] = set()
    pending = list(ends)
    while pending:
        number = pending.pop()
        if number not in found and not program.instructions[number].is_row:
            found.add(number)
            pending += () if number in kept else program.instructions[number].args
    return sorted(found)


def _kept_values(
    program: LoopProgram, stages: Sequence[int], last_uses: Mapping[int, int], has_buffers: bool
) -> dict[int, int]:
    """Values of earlier loops that later ones reload, and the result or buffer that holds each."""
    read = program.read
    puts = [
        output
        for output in program.outputs
        if output.store is Store.PUT
        and output.operand not in read
        and not program.instructions[output.value].is_row
    ]
    kept: dict[int, int] = {}
    buffers = iter(range(len(program.dtypes), len(program.dtypes) + MAX_BUFFERS * has_buffers))
    for number, last in last_uses.items():
        instruction = program.instructions[number]
        if instruction.op in NOT_KEPT or len(_closure(program, [number])) < KEPT_COST:
            continue
        results = [
            output.operand
            for output in puts
            if program.dtypes[output.operand] == instruction.dtype
            and (
                output.value == number
                or (output.operand not in kept.values() and stages[output.value] >= last)
            )
        ]
        operand = results[0] if results else next(buffers, None)
        if operand is not None:
            kept[number] = operand
    return kept


def _last_uses(
    program: LoopProgram, needed: Mapping[int, Sequence[int]], first: Mapping[int, int]
) -> dict[int, int]:
    """The last loop that needs each element value, in order, of those that an instruction reads which is
    computed ``first`` in a later loop than the value.
    """
    read_later = {
        argument
        for user, stage in first.items()
        for argument in program.instructions[user].args
        if first.get(argument, stage) < stage
    }
    last = {number: stage for stage in sorted(needed) for number in needed[stage]}
    return {number: last[number] for number in sorted(read_later)}


def _column_loop(
    program: LoopProgram,
    stages: Sequence[int],
    stage: int,
    needed: Sequence[int],
    kept: Mapping[int, int],
    reloaded: Mapping[int, int],
) -> ColumnLoop:
    body: list[Statement] = []
    for number in needed:
        if number in reloaded:
            body.append(Reload(number, reloaded[number]))
            continue
        body.append(Compute(number))
        if number in kept and Output(Store.PUT, number, kept[number]) not in program.outputs:
            body.append(Keep(number, kept[number]))
    body += [Put(output) for output in _element_outputs(program, stages, stage)]
    body += [Accumulate(number) for number in _reductions(program, stages, stage)]
    return ColumnLoop(tuple(body))


def block_sums(nest: LoopNest, is_short: bool) -> LoopNest:
    """``nest`` with float32 sums added up in blocks, and the blocks in float64: the error of a sum is that of
    a block, for any length, as with NumPy's pairwise sums. If ``is_short``, a row is one block, which needs
    no loop: a third less to compile.
    """
    nest = nest._replace(block=None if is_short else BLOCK)
    return _with_loops(nest, partial(_in_blocks, nest.program, is_short))


def _in_blocks(program: LoopProgram, is_short: bool, loop: ColumnLoop) -> ColumnLoop:
    found: list[Accumulate | Put] = []
    for statement in loop.body:
        match statement:
            case Accumulate(number) if program.instructions[number].op == "row_sum" and not is_short:
                dtype = program.instructions[number].dtype
            case Put(output) if output.store is Store.SUM_ALL:
                dtype = program.instructions[output.value].dtype
            case _:
                continue
        if dtype == "float32":
            found.append(statement)
    return loop._replace(in_blocks=tuple(found))


def choose_vectors(nest: LoopNest, is_ragged: bool, is_brief: bool = False) -> LoopNest:
    """``nest`` with loops in masked vectors if rows are ragged; otherwise those that add nothing up in single
    vectors if they are brief, and long ones in pairs of them.
    """

    def chosen(loop: ColumnLoop) -> ColumnLoop:
        is_long = len(loop.body) > LONG and not loop.in_blocks
        vectors = Vectors.PAIRED if is_long else Vectors.FREE
        adds_up = loop.in_blocks or loop.reductions or nest.totals
        return loop._replace(vectors=Vectors.SINGLE if is_brief and not adds_up else vectors)

    def masked(loop: ColumnLoop) -> ColumnLoop:
        return loop._replace(vectors=Vectors.MASKED)

    return _with_loops(nest, masked if is_ragged else chosen)


def _with_loops(nest: LoopNest, change: Callable[[ColumnLoop], ColumnLoop]) -> LoopNest:
    return nest._replace(row=tuple([change(s) if isinstance(s, ColumnLoop) else s for s in nest.row]))


# --- verification


def verify_nest(nest: LoopNest) -> LoopNest:
    """``nest``. Raises `InternalError` if a value is read before it is there, a kept value was overwritten,
    or an output is not put exactly once.
    """
    there: set[int] = set()
    kept: dict[int, int] = {}
    """The value in each operand's memory that is one."""
    puts: list[Output] = []
    for step in nest.row:
        if isinstance(step, ColumnLoop):
            inside = set(there)
            for statement in step.body:
                _verify(nest, statement, inside, kept, puts)
            there.update(statement.number for statement in step.reductions)
        else:
            _verify(nest, step, there, kept, puts)
    for output in nest.puts:
        _verify(nest, Put(output), there, kept, puts)
    if sorted(puts, key=str) != sorted(nest.program.outputs, key=str):
        raise InternalError(f"loop nest: expected each output once; got {_named(puts)}\n{nest}")
    return nest


def _verify(
    nest: LoopNest, statement: Statement, there: set[int], kept: dict[int, int], puts: list[Output]
) -> None:
    instructions = nest.program.instructions
    match statement:
        case Compute(number):
            read: Sequence[int] = instructions[number].args
            there.add(number)
        case Keep(number, operand):
            read, kept[operand] = (number,), number
        case Reload(number, operand):
            read = ()
            there.add(number)
            if kept.get(operand) != number:
                raise InternalError(f"loop nest: expected %{number} in ${operand}; got another\n{nest}")
        case Put(output):
            read, kept[output.operand] = (output.value,), output.value
            puts.append(output)
        case Accumulate(number):
            read = instructions[number].args
    missing = [number for number in read if number not in there]
    if missing:
        raise InternalError(f"loop nest: {statement} reads %{missing[0]}, which is not there yet\n{nest}")


# --- text


def _lines(nest: LoopNest) -> Iterator[str]:
    yield "rows"
    for step in nest.row:
        if not isinstance(step, ColumnLoop):
            yield f"  {step}"
            continue
        yield f"  columns{step.vectors.value}"
        yield from [f"    {s}{' in blocks' if s in step.in_blocks else ''}" for s in step.body]
    yield from [f"  {Put(output)}" for output in nest.puts]
    yield from [f"{Put(output)}" for output in nest.totals]


def _named(outputs: Sequence[Output]) -> str:
    return ", ".join([str(Put(output)) for output in outputs]) or "none"
