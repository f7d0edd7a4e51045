"""LLVM IR of a nest of loops over scalars: one function with all values in registers. Pure.

    void flowrt_loop(ptr table, i64, i64 iterations)

A nest is a tree: basic blocks of arithmetic, each a `LoopProgram`, with loops and branches between them.
Values passed from one block to another, or from one iteration to the next, are *cells*. The table has the
position of the pause, 0 if none; the number of ``iterations`` left; and the address of each cell.

The function runs the iterations of the outermost loop, at least one: the caller has evaluated the first
condition. After the given number, of all loops together, it pauses: it writes the cells to memory, and the
number of the current loop. Called again, it reads them, and resumes at that loop's next iteration. A body of
a few instructions takes a few nanoseconds, while calling each kernel takes 300.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.loops.llvm_text import FUNCTION, TYPES, Writer
from flowrt.loops.loop_program import LoopProgram

HEAD = 2
"""Words of the table before the addresses."""

OUTERMOST = 1 << 32
"""Pause position for the outermost loop. Not a loop number, so the function starts with a new iteration."""


class BasicBlock(NamedTuple):
    """A program with row values only, and the cells of its operands: all are read before one is written."""

    program: LoopProgram
    cells: tuple[int, ...]


class Repetition(NamedTuple):
    """``body`` as long as the cell ``predicate`` is true: of the outermost loop at least once."""

    predicate: int
    body: Steps


class Choice(NamedTuple):
    """One of ``blocks``: that of the cell ``number``, a bool or an integer, or the last."""

    number: int
    blocks: tuple[Steps, ...]


Step: TypeAlias = "BasicBlock | Repetition | Choice"
Steps: TypeAlias = "tuple[Step, ...]"


class Nest(NamedTuple):
    """A loop, the dtypes of its cells, and which of them are read only, or hold its results."""

    loop: Repetition
    dtypes: tuple[str, ...]
    fixed: frozenset[int]
    results: frozenset[int]


def llvm_iteration(nest: Nest) -> str:
    """The text of a module with the function above."""
    return _Emitter(nest).run()


@final
class _Emitter(Writer):
    def __init__(self, nest: Nest) -> None:
        super().__init__(())
        self._nest = nest
        self._addresses: list[str] = []
        self._cells: list[str] = []
        """The variable of each cell, or the value of one that is read only."""
        self._left = ""
        self._points: list[str] = []
        """The labels at which the function resumes after a pause; the first is its beginning."""

    def run(self) -> str:
        cells = range(len(self._nest.dtypes))
        self._addresses = [self._word("ptr", HEAD + cell) for cell in cells]
        self._cells = [self._opened(cell) for cell in cells]
        self._left = self._variable("i64", "%iterations")
        point = self._word("i64", 0)
        entry, self._lines = self._lines, []
        self._repeat(self._nest.loop)
        self._leave("0", self._nest.results)
        points = " ".join(f"i64 {i}, label %{label}" for i, label in enumerate(self._points) if i)
        jump = f"  switch i64 {point}, label %{self._points[0]} [ {points} ]"
        head = [f"define void @{FUNCTION}(ptr %table, i64 %begin, i64 %iterations) nounwind {{", "entry:"]
        body = [*head, *self._allocas, *entry, jump, *self._lines, "}"]
        return self._module(*body)

    def _opened(self, cell: int) -> str:
        dtype = self._nest.dtypes[cell]
        value = self._read(self._addresses[cell], dtype)
        return value if cell in self._nest.fixed else self._variable(TYPES[dtype], value)

    def _leave(self, point: str, cells: frozenset[int]) -> None:
        """Write ``cells``, where it pauses, and end."""
        for cell in sorted(cells - self._nest.fixed):
            self._write(self._get(cell), self._addresses[cell], self._nest.dtypes[cell])
        self._say(f"store i64 {point}, ptr %table")
        left = self._let(f"load i64, ptr {self._left}")
        self._say(f"store i64 {left}, ptr {self._place(1)}")
        self._say("ret void")

    # --- the tree

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, BasicBlock):
                self._basic_block(step)
            elif isinstance(step, Choice):
                self._choose(step)
            else:
                self._repeat(step)

    def _basic_block(self, block: BasicBlock) -> None:
        program, cells = block
        self._instructions = program.instructions
        names: list[str] = []
        for instruction in program.instructions:
            is_load = instruction.op == "load"
            names.append(
                self._get(cells[instruction.data]) if is_load else self._emit(instruction, names.__getitem__)
            )
        for output in program.outputs:  # all are computed before the first changes
            cell = cells[output.operand]
            self._say(
                f"store {TYPES[self._nest.dtypes[cell]]} {names[output.value]}, ptr {self._cells[cell]}"
            )

    def _repeat(self, loop: Repetition) -> None:
        number = len(self._points)
        body, turn, pause, done = [f"{word}{number}" for word in ("body", "turn", "pause", "done")]
        self._points.append(body)
        if number:
            self._say(f"br i1 {self._get(loop.predicate)}, label %{body}, label %{done}")
        self._lines.append(f"{body}:")
        self._steps(loop.body)
        left = self._let(f"add nsw i64 {self._let(f'load i64, ptr {self._left}')}, -1")
        self._say(f"store i64 {left}, ptr {self._left}")
        holds = self._get(loop.predicate)
        more = self._let(f"and i1 {holds}, {self._let(f'icmp sgt i64 {left}, 0')}")
        self._say(f"br i1 {more}, label %{body}, label %{turn}")
        self._lines.append(f"{turn}:")
        self._say(f"br i1 {holds}, label %{pause}, label %{done}")
        self._lines.append(f"{pause}:")
        self._leave(str(number or OUTERMOST), frozenset(range(len(self._cells))))
        self._lines.append(f"{done}:")

    def _choose(self, choice: Choice) -> None:
        self._count += 1
        labels = [f"block{self._count}_{i}" for i in range(len(choice.blocks))]
        end, last = f"chosen{self._count}", len(labels) - 1
        index, type_ = self._get(choice.number), TYPES[self._nest.dtypes[choice.number]]
        cases = " ".join(f"{type_} {i}, label %{label}" for i, label in enumerate(labels[:last]))
        self._say(f"switch {type_} {index}, label %{labels[last]} [ {cases} ]")
        for label, block in zip(labels, choice.blocks, strict=True):
            self._lines.append(f"{label}:")
            self._steps(block)
            self._say(f"br label %{end}")
        self._lines.append(f"{end}:")

    # --- cells and the table

    def _get(self, cell: int) -> str:
        name = self._cells[cell]
        if cell in self._nest.fixed:
            return name
        return self._let(f"load {TYPES[self._nest.dtypes[cell]]}, ptr {name}")

    def _word(self, type_: str, number: int) -> str:
        return self._let(f"load {type_}, ptr {self._place(number)}")

    def _place(self, number: int) -> str:
        return self._let(f"getelementptr i64, ptr %table, i64 {number}")
