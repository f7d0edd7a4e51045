"""Loop nests: verified, and printed as the golden files say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InternalError
from flowrt.loops.cuda_loops import cuda_loop
from flowrt.loops.llvm_loops import llvm_function
from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import LoopBuilder, LoopProgram, Store
from flowrt.loops.nest import (
    LONG,
    Accumulate,
    ColumnLoop,
    Compute,
    Keep,
    LoopNest,
    Reload,
    Vectors,
    block_sums,
    choose_vectors,
    loop_nest,
    verify_nest,
)
from tests.loops.test_llvm_loops import programs

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "loops"


# --- programs of golden files


def softmax(b: LoopBuilder) -> None:
    x = b.load(b.operand("float32"))
    powers = b.exp(x - b.row_max(x))
    b.put(powers / b.row_sum(powers), b.operand("float32"))


def layer_norm(b: LoopBuilder) -> None:
    x, scale = b.load(b.operand("float64")), b.load(b.operand("float64"))
    count = b.cast(b.columns(), "float64")
    centred = x - b.row_sum(x) / count
    deviation = b.sqrt(b.row_sum(centred * centred) / count + 1e-5)
    b.put(centred / deviation * scale, b.operand("float64"))
    b.put(deviation, b.operand("float64"))


def adam(b: LoopBuilder) -> None:
    v, m, a, gradient = [b.load(b.operand("float32")) for _ in range(4)]
    rate = b.load(b.operand("float32"), is_row=True)
    mean, square = m + (gradient - m) * 0.1, a + (gradient * gradient - a) * 0.001
    b.put(v - rate * mean / (b.sqrt(square) + 1e-8), 0)
    b.put(mean, 1)
    b.put(square, 2)


def bias_gradient(b: LoopBuilder) -> None:
    x = b.load(b.operand("float32"))
    b.put(x, b.operand("float32"), Store.SUM_ROWS)
    b.put(x * x, b.operand("float64"), Store.SUM_ALL)


def checked_gather(b: LoopBuilder) -> None:
    matrix, numbers = b.operand("float32"), b.load(b.operand("int32"), is_row=True)
    b.put(b.load_at(matrix, numbers), b.operand("float32"))
    b.check(numbers < 8)


PROGRAMS: tuple[Callable[[LoopBuilder], None], ...] = (
    softmax, layer_norm, adam, bias_gradient, checked_gather,
)  # fmt: skip


def built(build: Callable[[LoopBuilder], None]) -> LoopProgram:
    b = LoopBuilder()
    build(b)
    return b.build()


def printed(program: LoopProgram) -> str:
    """The nest, and what is printed of it for operands in C order, the last of them rows of 100 columns."""
    rows = {data for op, _, _, data, is_row in program.instructions if op == "load" and is_row}
    rows |= {o.operand for o in program.outputs if program.instructions[o.value].is_row}
    sums = {o.operand for o in program.outputs if o.store is not Store.PUT}
    count = range(len(program.dtypes))
    accesses = [
        "00" if i == program.status else "01" if i in sums else "s0" if i in rows else "s1" for i in count
    ]
    strides = [(0, 1) if i in sums else (1, 0) if i in rows else (100, 1) for i in count]
    cuda = cuda_loop(program, (30, 100), strides, program.dtypes)
    assert cuda is not None
    text = cuda.text[cuda.text.index("typedef") :]
    parts = (
        str(block_sums(loop_nest(program), False)),
        llvm_function(expand_functions(program), accesses),
        text,
    )
    return "\n---\n".join(parts)


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_the_texts_are_those_of_the_golden_file(build: Callable[[LoopBuilder], None]) -> None:
    assert printed(built(build)) == (GOLDEN / f"{build.__name__}.txt").read_text("utf-8")


def test_vectors_are_masked_where_rows_are_ragged_and_paired_where_a_body_is_long() -> None:
    nest = loop_nest(built(softmax))
    assert [loop.vectors for loop in choose_vectors(nest, True).column_loops] == [Vectors.MASKED] * 3
    assert [loop.vectors for loop in choose_vectors(nest, False).column_loops] == [Vectors.FREE] * 3
    b = LoopBuilder()
    x = y = b.load(b.operand("float32"))
    for _ in range(LONG):
        y = y * x
    b.put(y, b.operand("float32"))
    assert choose_vectors(loop_nest(b.build()), False).column_loops[0].vectors is Vectors.PAIRED


def test_brief_loops_that_add_nothing_up_are_computed_in_single_vectors() -> None:
    b = LoopBuilder()
    x = b.load(b.operand("float32"))
    b.put(x * x, b.operand("float32"))
    assert (
        choose_vectors(loop_nest(b.build()), False, is_brief=True).column_loops[0].vectors is Vectors.SINGLE
    )
    b.put(x, b.operand("float64"), Store.SUM_ALL)  # in the same order for each size
    assert choose_vectors(loop_nest(b.build()), False, is_brief=True).column_loops[0].vectors is Vectors.FREE
    softmaxes = choose_vectors(loop_nest(built(softmax)), False, is_brief=True).column_loops
    assert [loop.vectors for loop in softmaxes] == [Vectors.FREE, Vectors.FREE, Vectors.SINGLE]


# --- verification


@given(programs(), st.booleans())
def test_nests_of_random_programs_are_valid(made: tuple[LoopProgram, object], has_buffers: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowrt.loops.nest.KEPT_COST", 1)
        verify_nest(block_sums(loop_nest(made[0], has_buffers), has_buffers))


def doubled_later(b: LoopBuilder) -> None:
    """The double of a power is only computed in the second loop, although it could be in the first."""
    power = b.exp(b.load(b.operand("float32")))
    b.put((power + power) * b.row_sum(power), b.operand("float32"))


def computed_again(b: LoopBuilder) -> None:
    """The difference is computed again in the last loop; the memory of the power is then overwritten."""
    power = b.exp(b.load(b.operand("float32")))
    difference = power - b.row_max(power)
    b.put(power * b.row_max(power), b.operand("float32"))
    b.put(difference * b.row_sum(difference), b.operand("float64"), Store.SUM_ALL)


@pytest.mark.parametrize("build", [doubled_later, computed_again])
def test_a_value_is_kept_where_it_is_computed_and_as_long_as_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[LoopBuilder], None]
) -> None:
    monkeypatch.setattr("flowrt.loops.nest.KEPT_COST", 1)
    for has_buffers in (False, True):
        verify_nest(loop_nest(built(build), has_buffers))


def changed(nest: LoopNest, number: int, change: Callable[[ColumnLoop], ColumnLoop]) -> LoopNest:
    """``nest`` with a change of the column loop of that number."""
    loops = nest.column_loops
    return nest._replace(row=tuple([change(step) if step is loops[number] else step for step in nest.row]))


def without(*kinds: type) -> Callable[[ColumnLoop], ColumnLoop]:
    return lambda loop: loop._replace(body=tuple([s for s in loop.body if not isinstance(s, kinds)]))


def reversed_body(loop: ColumnLoop) -> ColumnLoop:
    return loop._replace(body=loop.body[::-1])


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, reversed_body, "accumulate %1 reads %0, which is not there yet"),
        (0, without(Accumulate), "%2 reads %1, which is not there yet"),
        (1, without(Compute), "keep %3 in $1 reads %3, which is not there yet"),
        (1, without(Keep), "expected %3 in $1; got another"),
        (2, without(Reload), "reads %3, which is not there yet"),
        (2, lambda loop: loop._replace(body=loop.body[:-1]), "expected each output once; got none"),
        (2, lambda loop: loop._replace(body=(*loop.body, loop.body[-1])), "expected each output once"),
    ],
)
def test_a_wrong_nest_is_refused(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[ColumnLoop], ColumnLoop], message: str
) -> None:
    monkeypatch.setattr("flowrt.loops.nest.KEPT_COST", 3)
    nest = loop_nest(built(softmax))
    with pytest.raises(InternalError) as error:
        verify_nest(changed(nest, number, change))
    assert message in str(error.value)
