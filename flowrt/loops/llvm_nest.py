"""LLVM IR of control nests (`flowrt.loops.control_nest`): one function per nest. Pure.

    void flowrt_loop(ptr table, i64, i64 iterations)

The function runs the nest's steps. After the given number of iterations, of all loops together, it pauses: it
saves the live cells and its position in the table. Called again, it restores them, and continues there.

A branch of a few scalar operations takes less time than a mispredicted jump: if a choice has only such
branches, all of them are computed, and one is selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.loops.control_nest import (
    END,
    FLAGS,
    INDEX,
    LEFT,
    MATRIX,
    NUMBER,
    REFUSED,
    ROW,
    ROWS,
    STATUS,
    TOP,
    VALUE,
    WRITTEN,
    BasicBlock,
    Choice,
    ControlNest,
    Invoke,
    Push,
    ReadRow,
    Repetition,
    Step,
    Take,
    WriteRow,
    instruction_count,
    live_cells,
    steps_in,
    written_in,
)
from flowrt.loops.llvm_text import FUNCTION, TYPES, Writer, literal

MAX_SELECTED = 100
"""Instructions of the branches that are all computed: 10 ns, as long as a mispredicted jump."""

_MEMCPY = "llvm.memcpy.p0.p0.i64"


def llvm_nest(nest: ControlNest) -> str:
    """The text of a module with the function above."""
    return _Printer(nest).run()


@final
class _Printer(Writer):
    def __init__(self, nest: ControlNest) -> None:
        super().__init__(())
        self._nest = nest
        self._begin, self._live = live_cells(nest)
        self._written = written_in(nest.steps)
        self._variables: dict[int, str] = {}
        """The variables of cells in registers."""
        self._values: dict[int, str] = {}
        """The values of cells that nothing writes."""
        self._left = ""
        self._points = ["start"]
        """The labels at which the function continues, by position."""

    def run(self) -> str:
        position = self._word("i64", 0)
        self._open(self._let(f"icmp eq i64 {position}, 0"))
        self._left = self._variable("i64", "%iterations")
        entry, self._lines = self._lines, []
        self._steps(self._nest.steps)
        for cell in sorted(self._nest.results):
            self._write(self._get(cell), self._address(cell), self._dtype(cell))
        self._leave(0)
        points = " ".join(f"i64 {i}, label %{label}" for i, label in enumerate(self._points) if i)
        jump = f"  switch i64 {position}, label %start [ {points} ]"
        head = [f"define void @{FUNCTION}(ptr %table, i64 %begin, i64 %iterations) nounwind {{", "entry:"]
        return self._module(*head, *self._allocas, *entry, jump, "start:", *self._lines, "}")

    def _open(self, is_new: str) -> None:
        """Give each cell in a register its value: from memory, or from where the pause has saved it."""
        saved = frozenset().union(*self._live.values())
        for cell, (dtype, word, is_shared) in enumerate(self._nest.cells):
            if is_shared:
                continue
            if cell not in self._written:
                self._values[cell] = self._read(self._address(cell), dtype)
                continue
            if cell in saved:
                place = self._let(
                    f"select i1 {is_new}, ptr {self._address(cell)}, ptr {self._place(word + 1)}"
                )
                value = self._read(place, dtype)
            elif cell in self._begin:
                value = self._read(self._address(cell), dtype)
            else:
                value = "zeroinitializer"
            self._variables[cell] = self._variable(TYPES[dtype], value)

    def _leave(self, position: int) -> None:
        self._say(f"store i64 {position}, ptr %table")
        self._say(f"store i64 {self._let(f'load i64, ptr {self._left}')}, ptr {self._place(LEFT)}")
        self._say("ret void")

    def _pause(self, step: Step, label: str) -> None:
        """Save what is live at ``label``, and leave; the function continues there."""
        for cell in sorted(self._live[step]):
            if cell in self._variables:
                self._write(self._get(cell), self._place(self._nest.cells[cell].word + 1), self._dtype(cell))
        self._points.append(label)
        self._leave(len(self._points) - 1)

    # --- steps

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case BasicBlock():
                    self._basic_block(step)
                case Repetition():
                    self._repeat(step)
                case Choice() if _is_selected(step):
                    self._select(step)
                case Choice():
                    self._choose(step)
                case Invoke():
                    self._invoke(step)
                case Push() | Take():
                    self._move(step)
                case ReadRow() | WriteRow():
                    self._access(step)

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
            self._set(cells[output.operand], names[output.value])

    def _repeat(self, loop: Repetition) -> None:
        body, turn, pause, done = self._labels("body", "turn", "pause", "done")
        if loop.begins is None:
            self._say(f"br label %{body}")
        else:
            self._branch(self._get(loop.begins), body, done)
        self._label(body)
        self._steps(loop.body)
        self._change(self._left, "i64", lambda left: self._let(f"add nsw i64 {left}, -1"))
        holds, left = self._get(loop.predicate), self._let(f"load i64, ptr {self._left}")
        self._branch(self._let(f"and i1 {holds}, {self._let(f'icmp sgt i64 {left}, 0')}"), body, turn)
        self._label(turn)
        self._branch(holds, pause, done)
        self._label(pause)
        self._pause(loop, body)
        self._label(done)

    def _choose(self, choice: Choice) -> None:
        *blocks, end = self._labels(*[f"block{i}_" for i in range(len(choice.blocks))], "chosen")
        index, type_ = self._get(choice.number), self._type(choice.number)
        cases = " ".join(f"{type_} {i}, label %{label}" for i, label in enumerate(blocks[:-1]))
        self._say(f"switch {type_} {index}, label %{blocks[-1]} [ {cases} ]")
        for label, block in zip(blocks, choice.blocks, strict=True):
            self._label(label)
            self._steps(block)
            self._say(f"br label %{end}")
        self._label(end)

    def _select(self, choice: Choice) -> None:
        """Compute all blocks, each on variables of its own, and select the results of one."""
        changed = sorted(written_in((choice,)))
        index, type_ = self._get(choice.number), self._type(choice.number)
        outer, results = self._variables, []
        for block in choice.blocks:
            own = {cell: self._variable(self._type(cell), self._get(cell)) for cell in changed}
            self._variables = {**outer, **own}
            self._steps(block)
            results.append([self._get(cell) for cell in changed])
            self._variables = outer
        chosen = results.pop()
        for position, values in enumerate(results):
            is_this = self._let(f"icmp eq {type_} {index}, {literal(position, self._dtype(choice.number))}")
            chosen = [
                self._let(f"select i1 {is_this}, {self._type(cell)} {value}, {self._type(cell)} {other}")
                for cell, value, other in zip(changed, values, chosen, strict=True)
            ]
        for cell, value in zip(changed, chosen, strict=True):
            self._set(cell, value)

    def _invoke(self, call: Invoke) -> None:
        function, table = self._word("ptr", call.word), self._word("ptr", call.word + 1)
        begin, end = self._word("i64", call.word + 2), self._word("i64", call.word + 3)
        self._say(f"call void {function}(ptr {table}, i64 {begin}, i64 {end})")
        if call.status is None:
            return
        pause, done = self._labels("pause", "done")
        status = self._let(f"load i64, ptr {self._word('ptr', call.status)}")
        self._branch(self._let(f"icmp eq i64 {status}, 0"), done, pause)
        self._label(pause)
        self._pause(call, done)
        self._label(done)

    def _move(self, step: Push | Take) -> None:
        attempt, copy, refuse = self._labels("attempt", "copy", "refuse")
        self._say(f"br label %{attempt}")
        self._label(attempt)
        table, is_push = self._word("ptr", step.word), isinstance(step, Push)
        top, end = self._word("ptr", TOP, table), self._word("ptr", END, table)
        may = self._let(f"icmp {'ult' if is_push else 'ugt'} ptr {top}, {end}")
        self._branch(may, copy, refuse)
        self._label(refuse)
        self._say(f"store i64 1, ptr {self._place(STATUS, table)}")
        self._pause(step, attempt)
        self._label(copy)
        value, sign = self._word("ptr", VALUE, table), 1 if is_push else -1
        moved = self._let(f"getelementptr i8, ptr {top}, i64 {sign * step.nbytes}")
        self._copy(*((top, value) if is_push else (value, moved)), step.nbytes)
        self._say(f"store ptr {moved}, ptr {self._place(TOP, table)}")

    def _access(self, step: ReadRow | WriteRow) -> None:
        found, write, refuse, note, done = self._labels("found", "write", "refuse", "note", "done")
        table = self._word("ptr", step.word)
        index = self._read(self._word("ptr", INDEX, table), step.dtype)
        if step.dtype == "int32":
            index = self._let(f"sext i32 {index} to i64")
        self._branch(self._let(f"icmp ult i64 {index}, {self._word('i64', ROWS, table)}"), found, refuse)
        self._label(found)
        offset, matrix = self._let(f"mul i64 {index}, {step.nbytes}"), self._word("ptr", MATRIX, table)
        row, value = self._let(f"getelementptr i8, ptr {matrix}, i64 {offset}"), self._word("ptr", ROW, table)
        if isinstance(step, ReadRow):
            self._copy(value, row, step.nbytes)
        else:
            flag = self._let(f"getelementptr i8, ptr {self._word('ptr', FLAGS, table)}, i64 {index}")
            is_again = (
                self._let(f"icmp ne i8 {self._let(f'load i8, ptr {flag}')}, 0") if step.once else "false"
            )
            self._branch(is_again, refuse, write)
            self._label(write)
            self._copy(row, value, step.nbytes)
            self._say(f"store i8 {WRITTEN}, ptr {flag}")
        self._say(f"br label %{done}")
        self._label(refuse)
        self._branch(self._let(f"icmp eq i64 {self._word('i64', REFUSED, table)}, 0"), note, done)
        self._label(note)
        self._say(f"store i64 1, ptr {self._place(REFUSED, table)}")
        self._say(f"store i64 {index}, ptr {self._place(NUMBER, table)}")
        self._say(f"br label %{done}")
        self._label(done)

    # --- text

    def _labels(self, *words: str) -> list[str]:
        self._count += 1
        return [f"{word}{self._count}" for word in words]

    def _label(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def _branch(self, condition: str, then: str, otherwise: str) -> None:
        self._say(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def _copy(self, target: str, source: str, nbytes: int) -> None:
        self._declared[_MEMCPY] = f"declare void @{_MEMCPY}(ptr, ptr, i64, i1)"
        self._say(f"call void @{_MEMCPY}(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")

    # --- cells and tables

    def _dtype(self, cell: int) -> str:
        return self._nest.cells[cell].dtype

    def _type(self, cell: int) -> str:
        return TYPES[self._dtype(cell)]

    def _address(self, cell: int) -> str:
        return self._word("ptr", self._nest.cells[cell].word)

    def _get(self, cell: int) -> str:
        if cell in self._values:
            return self._values[cell]
        if cell in self._variables:
            return self._let(f"load {self._type(cell)}, ptr {self._variables[cell]}")
        return self._read(self._address(cell), self._dtype(cell))

    def _set(self, cell: int, value: str) -> None:
        if cell in self._variables:
            self._say(f"store {self._type(cell)} {value}, ptr {self._variables[cell]}")
        else:
            self._write(value, self._address(cell), self._dtype(cell))

    def _word(self, type_: str, number: int, table: str = "%table") -> str:
        return self._let(f"load {type_}, ptr {self._place(number, table)}")

    def _place(self, number: int, table: str = "%table") -> str:
        return self._let(f"getelementptr i64, ptr {table}, i64 {number}")


def _is_selected(choice: Choice) -> bool:
    """Whether all blocks of the choice are computed."""
    is_scalar = all(isinstance(step, BasicBlock | Choice) for step in steps_in((choice,)))
    return is_scalar and instruction_count((choice,)) <= MAX_SELECTED
