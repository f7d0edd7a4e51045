"""Control nests: loops and branches around scalar arithmetic, calls of compiled loops, and rows of lists.

    repeat while $1
      block $0, $1                      i + 1, and whether it is less than n
      choose $3
        invoke 12, status 16            a compiled loop over a small tensor
      or
        push 20, 64 bytes               a row onto the stack with the table in word 20

A nest is compiled to one function (`flowrt.loops.llvm_nest`) with one table of int64 words. Scalars are
*cells*, numbered in the nest. A cell that calls or rows access is shared: it is always in memory. Any other
is in a register while the function runs. Everything that a step refers to is in a word: a nest contains no
addresses, so equal nests have equal code.

The function can pause: after a number of iterations, after a call that has set its status, and before a row
that there is no room for. Called again, it continues there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from flowrt.loops.loop_program import LoopProgram

POSITION, LEFT = 0, 1
"""Words of a nest's table: where it has paused, 0 if it has not; the number of iterations left."""

TOP, END, STATUS, VALUE = range(4)
"""Words of a stack's table: the address after the last row; for a push the end of the memory, for a take its
beginning; the status, which is set by a push without room and by a take without a row; the address of the
value.
"""

MATRIX, INDEX, ROW, ROWS, REFUSED, NUMBER, FLAGS = range(7)
"""Words of an indexed list's table: the addresses of the rows, of the index, and of the row's value; the
number of rows; whether an index was refused, and the first such index; the address of one byte per row, which
is set to `WRITTEN`.
"""

WRITTEN = 2


class Cell(NamedTuple):
    """A scalar. Its address is in ``word`` of the table; the next word has its value during a pause."""

    dtype: str
    word: int
    is_shared: bool


class BasicBlock(NamedTuple):
    """A program of row values, and the cells of its operands: all are read before one is written."""

    program: LoopProgram
    cells: tuple[int, ...]

    @property
    def read(self) -> frozenset[int]:
        return frozenset([self.cells[i.data] for i in self.program.instructions if i.op == "load"])

    @property
    def written(self) -> frozenset[int]:
        return frozenset([self.cells[output.operand] for output in self.program.outputs])


class Invoke(NamedTuple):
    """A call of a compiled loop: its function, table, begin and end are the four words from ``word`` on. The
    nest pauses after it if it has set the int64 with the address in word ``status``.
    """

    word: int
    status: int | None = None


class Push(NamedTuple):
    """A push of ``nbytes`` onto the stack with the table in ``word``. Without room, the nest pauses here."""

    word: int
    nbytes: int


class Take(NamedTuple):
    """The reverse of a `Push`. If there is no row, the nest pauses before it."""

    word: int
    nbytes: int


class ReadRow(NamedTuple):
    """A copy of the row at an index of type ``dtype``, in the indexed list with the table in ``word``."""

    word: int
    nbytes: int
    dtype: str


class WriteRow(NamedTuple):
    """A copy to the row at an index, with ``once`` only if its flag is 0."""

    word: int
    nbytes: int
    dtype: str
    once: bool


class Repetition(NamedTuple):
    """``body`` as long as the cell ``predicate`` is true: not at all if the cell ``begins`` is false, which
    is None if that is known.
    """

    begins: int | None
    predicate: int
    body: Steps


class Choice(NamedTuple):
    """One of ``blocks``: that of the cell ``number``, a bool or an integer, or the last."""

    number: int
    blocks: tuple[Steps, ...]


Step: TypeAlias = "BasicBlock | Invoke | Push | Take | ReadRow | WriteRow | Repetition | Choice"
Steps: TypeAlias = "tuple[Step, ...]"


class ControlNest(NamedTuple):
    """The steps, the cells, and those of them that are in memory at the end."""

    steps: Steps
    cells: tuple[Cell, ...] = ()
    results: frozenset[int] = frozenset()

    def __str__(self) -> str:
        results = ", ".join([f"${cell}" for cell in sorted(self.results)])
        cells = [f"${n}: {c.dtype}{' shared' if c.is_shared else ''}" for n, c in enumerate(self.cells)]
        return "\n".join([*cells, *_lines(self.steps, ""), f"results {results}"])


def steps_in(steps: Steps) -> Iterator[Step]:
    """All steps, in loops and branches too."""
    for step in steps:
        yield step
        match step:
            case Repetition():
                yield from steps_in(step.body)
            case Choice():
                for block in step.blocks:
                    yield from steps_in(block)


def written_in(steps: Steps) -> frozenset[int]:
    """The cells that blocks among the steps write."""
    return frozenset().union(*[step.written for step in steps_in(steps) if isinstance(step, BasicBlock)])


# --- liveness


def live_cells(nest: ControlNest) -> tuple[frozenset[int], Mapping[Step, frozenset[int]]]:
    """The cells that are read before they are written: from the beginning, and from each pause on."""
    live: dict[Step, frozenset[int]] = {}
    return _live_before(nest.steps, nest.results, live), live


def _live_before(steps: Steps, after: frozenset[int], live: dict[Step, frozenset[int]]) -> frozenset[int]:
    for step in reversed(steps):
        match step:
            case BasicBlock():
                after = after - step.written | step.read
            case Choice():
                blocks = [_live_before(block, after, live) for block in step.blocks]
                after = frozenset([step.number]).union(*blocks)
            case Repetition():
                end = after | {step.predicate}
                top = _live_before(step.body, end, live)
                _live_before(step.body, end | top, live)  # for what resumes in the body
                live[step] = live.get(step, frozenset()) | top
                after = top if step.begins is None else after | top | {step.begins}
            case _:
                live[step] = live.get(step, frozenset()) | after
    return after


# --- text


def _lines(steps: Steps, indent: str) -> Iterator[str]:
    inner = f"{indent}  "
    for step in steps:
        match step:
            case BasicBlock():
                yield f"{indent}block {', '.join([f'${cell}' for cell in step.cells])}"
                yield from [f"{inner}{line}" for line in str(step.program).splitlines()]
            case Repetition():
                begins = "" if step.begins is None else f"if ${step.begins} "
                yield f"{indent}{begins}repeat while ${step.predicate}"
                yield from _lines(step.body, inner)
            case Choice():
                for position, block in enumerate(step.blocks):
                    yield f"{indent}{'or' if position else f'choose ${step.number}'}"
                    yield from _lines(block, inner)
            case Invoke():
                yield f"{indent}invoke {step.word}{'' if step.status is None else f', status {step.status}'}"
            case _:
                words = [str(word) for word in step]
                yield f"{indent}{_NAMES[type(step)]} {', '.join(words)}"


_NAMES = {Push: "push", Take: "take", ReadRow: "read row", WriteRow: "write row"}


def instruction_count(steps: Sequence[Step]) -> int:
    """The number of scalar instructions."""
    return sum(len(s.program.instructions) for s in steps_in(tuple(steps)) if isinstance(s, BasicBlock))
