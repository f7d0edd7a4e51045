"""Control nests: printed as the golden file says, paused and resumed anywhere, with the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowrt.device.llvm import host_jit
from flowrt.device.llvm.call_sequence import Table
from flowrt.loops.control_nest import (
    LEFT,
    POSITION,
    BasicBlock,
    Cell,
    Choice,
    ControlNest,
    Invoke,
    Push,
    Repetition,
    live_cells,
)
from flowrt.loops.llvm_nest import llvm_nest
from flowrt.loops.loop_program import LoopBuilder

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "loops"


def program(rule, *dtypes):
    """The scalar program of ``rule(builder, *values)``, a value for each of the last operands."""
    builder = LoopBuilder()
    operands = [builder.operand(dtype) for dtype in dtypes]
    values = [builder.load(operand, is_row=True) for operand in operands]
    for operand, value in rule(builder, *values).items():
        builder.put(value, operand)
    return builder.build()


def counting(step=1):
    """i + step, and whether it is less than n."""
    count = lambda b, i, n, more: {0: i + step, 2: i + step < n}  # noqa: E731
    return program(count, "int32", "int32", "bool")


def mixed():
    """A loop with a branch: one side calls a compiled loop that may fail, the other pushes a row."""
    larger = program(lambda b, x, flag: {1: x > 1.0}, "float32", "bool")
    branches = (Invoke(10, status=14),), (Push(15, 64),)
    body = BasicBlock(counting(), (0, 1, 2)), BasicBlock(larger, (3, 4)), Choice(4, branches)
    cells = [Cell("int32", 2, False), Cell("int32", 4, False), Cell("bool", 6, False)]
    cells += [Cell("float32", 8, True), Cell("bool", 16, False)]
    return ControlNest((Repetition(None, 2, body),), tuple(cells), frozenset({0}))


def test_a_mixed_nest_is_printed_as_the_golden_file_says():
    expected = (GOLDEN / "control_nest.txt").read_text("utf-8")
    assert f"{mixed()}\n---\n{llvm_nest(mixed())}" == expected


def test_equal_nests_have_equal_text_and_others_another():
    assert llvm_nest(mixed()) == llvm_nest(mixed())
    other = mixed()._replace(results=frozenset())
    assert llvm_nest(other) != llvm_nest(mixed())


def test_a_pause_keeps_what_is_read_after_it():
    """The number of iterations and the limit, but not the branch's predicate, which is computed again."""
    begin, live = live_cells(mixed())
    (loop,) = mixed().steps
    assert begin == {0, 1, 3}
    assert live[loop] == {0, 1, 3}
    assert live[Push(15, 64)] == {0, 1, 2, 3}


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
@pytest.mark.parametrize("slice_", [1, 2, 3, 1000])
def test_nested_loops_pause_after_any_number_of_iterations(slice_):
    """The outer loop runs the inner one from 0 to the outer's counter, and adds up its iterations."""
    clear = program(lambda b, j, i, more: {0: i - i, 2: i > 0}, "int32", "int32", "bool")
    add = program(lambda b, total: {0: total + 1}, "int32")
    inner = Repetition(4, 4, (BasicBlock(counting(), (3, 0, 4)), BasicBlock(add, (5,))))
    outer = Repetition(None, 2, (BasicBlock(clear, (3, 0, 4)), inner, BasicBlock(counting(), (0, 1, 2))))
    dtypes = ["int32", "int32", "bool", "int32", "bool", "int32"]
    cells = tuple([Cell(dtype, 2 + 2 * n, False) for n, dtype in enumerate(dtypes)])
    loop = host_jit.compile_loop(llvm_nest(ControlNest((outer,), cells, frozenset({0, 5}))))
    arrays = [np.array(value, dtype) for value, dtype in zip([0, 7, 1, 0, 0, 0], dtypes, strict=True)]
    table = Table.of([0, 0, *[word for array in arrays for word in (array, 0)]], 1.0)
    calls = 0
    while not calls or table.words[POSITION]:
        loop.call(table, 0, slice_)
        calls += 1
    assert (arrays[0], arrays[5]) == (7, sum(range(7)))
    assert (calls == 1) == (slice_ == 1000)
    assert table.words[LEFT] <= slice_
