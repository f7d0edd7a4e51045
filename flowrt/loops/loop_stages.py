"""Stages: the loops over a row's columns that a program needs, and the values of each.

A reduction along the row ends a stage, and values that depend on its result belong to a later one: softmax
has three, for the maximum, the sum and the quotients. Values of an earlier stage are recomputed, unless that
is expensive: then they are stored temporarily in the memory of a later stage's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from flowrt.loops.loop_program import ROW_REDUCTIONS, LoopProgram, Output, Store

KEPT_COST = 8
"""Instructions from which on a value is kept for a later stage."""


@final
class Stage:
    """A loop over the columns: the ``needed`` values in order, for ``outputs`` and row ``reductions``."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.reductions: list[int] = []
        self.needed: list[int] = []


def stages_of(program: LoopProgram) -> list[int]:
    """Index of the first loop that computes each instruction; for a row value, of the loop after it."""
    stages: list[int] = []
    for op, args, *_ in program.instructions:
        stage = max([stages[a] for a in args], default=0)
        stages.append(stage + 1 if op in ROW_REDUCTIONS else stage)
    return stages


def loops_of(program: LoopProgram, stages: Sequence[int]) -> dict[int, Stage]:
    """The loops over the columns, by stage. A stage that only prepares row values has none."""
    loops: dict[int, Stage] = {}
    instructions = program.instructions
    for number, instruction in enumerate(instructions):
        if instruction.op in ROW_REDUCTIONS:
            loops.setdefault(stages[number] - 1, Stage()).reductions.append(number)
    for output in program.outputs:
        if not instructions[output.value].is_row:
            loops.setdefault(stages[output.value], Stage()).outputs.append(output)
    for loop in loops.values():
        ends = [output.value for output in loop.outputs]
        ends += [a for number in loop.reductions for a in instructions[number].args]
        loop.needed = _closure(program, ends)
    return loops


def _closure(program: LoopProgram, ends: Iterable[int]) -> list[int]:
    """The element values that ``ends`` depend on, and themselves, in order."""
    found: set[int] = set()
    pending = list(ends)
    while pending:
        number = pending.pop()
        if number not in found and not program.instructions[number].is_row:
            found.add(number)
            pending += program.instructions[number].args
    return sorted(found)


def kept_values(program: LoopProgram, stages: Sequence[int], loops: dict[int, Stage]) -> dict[int, int]:
    """Values of earlier stages that later ones load from an operand, and the operand."""
    loaded = {data for op, _, _, data, _ in program.instructions if op == "load"}
    puts = [
        output
        for output in program.outputs
        if output.store is Store.PUT
        and output.operand not in loaded
        and not program.instructions[output.value].is_row
    ]
    kept: dict[int, int] = {}
    for number, (op, _, dtype, _, is_row) in enumerate(program.instructions):
        users = [s for s, loop in loops.items() if s > stages[number] and number in loop.needed]
        first = loops.get(stages[number])
        if is_row or op in ("load", "column", "const") or not users or first is None:
            continue
        if number not in first.needed or len(_closure(program, [number])) < KEPT_COST:
            continue
        for output in puts:
            is_itself = output.value == number
            is_free = output.operand not in kept.values() and stages[output.value] >= max(users)
            if program.dtypes[output.operand] == dtype and (is_itself or is_free):
                kept[number] = output.operand
                break
    return kept
