"""Compiled loops against a second reading of their programs, which are random, as is how operands lie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.device.llvm import host_jit
from flowrt.device.llvm.host_jit import compile_loop
from flowrt.loops.llvm_loops import llvm_function
from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import LoopBuilder, Store
from flowrt.loops.nest import BLOCK, BUFFER, Keep, loop_nest
from tests.loops.loop_reference import domain_of, evaluate_loops, matrices_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

EPS = {"float32": 2**-23, "float64": 2**-52}


class Compiled:
    """A program's results by compiled code. Operands are what broadcasts to ``[rows, columns]``."""

    def __init__(
        self, program, operands, parts=1, transposed=(), is_ragged=False, is_short=False, is_brief=False
    ):
        self.program, self.parts = program, parts
        self.rows = is_ragged, is_short, False, is_brief
        self.shape = domain_of(program, operands)
        transposed = set(transposed) - matrices_of(program)
        self.arrays = [self._memory(a, i in transposed) for i, a in enumerate(operands)]
        self.results = []
        for store, value, operand in program.outputs:
            is_row = program.instructions[value].is_row
            rows, columns = self.shape
            shape = {
                Store.PUT: (rows, 1 if is_row else columns),
                Store.SUM_ROWS: (parts, columns),
                Store.SUM_ALL: (parts, 1),
                Store.CHECK: (1, 1),
            }[store]
            result = np.zeros(shape, program.dtypes[operand])
            while len(self.arrays) <= operand:
                self.arrays.append(None)
            if self.arrays[operand] is None:
                self.arrays[operand] = result
            self.results.append(self.arrays[operand])

    def _memory(self, array, is_transposed):
        if array is None:
            return None
        return np.asfortranarray(array) if is_transposed else np.ascontiguousarray(array)

    def run(self):
        rows, columns = self.shape
        sums = {o.operand for o in self.program.outputs if o.store in (Store.SUM_ROWS, Store.SUM_ALL)}
        strides = []
        for i, array in enumerate(self.arrays):
            if i in matrices_of(self.program):
                strides.append((0, 1))  # of a row, also where it has one column
                continue
            across, along = (0, array.strides[1] // array.itemsize) if i in sums else [
                0 if size == 1 else stride // array.itemsize
                for size, stride in zip(array.shape, array.strides, strict=True)
            ]  # fmt: skip
            strides.append((across, 0 if array.shape[1] == 1 else along))
        accesses = [("s" if across else "0") + {0: "0", 1: "1"}.get(along, "s") for across, along in strides]
        loop = compile_loop(llvm_function(self.program, accesses, *self.rows))
        grain = max(1, -(-rows // self.parts))
        flat = [number for pair in strides for number in pair]
        table = np.array([*[a.ctypes.data for a in self.arrays], rows, columns, *flat, grain], np.int64)
        for begin in range(0, rows, grain):
            loop.call(table.ctypes.data, begin, min(begin + grain, rows))
        found = []
        for output, result in zip(self.program.outputs, self.results, strict=True):
            if output.store in (Store.SUM_ROWS, Store.SUM_ALL):
                result = result.sum(axis=0)
            found.append(result[0, 0] if output.store is Store.CHECK else result)
        return found


def check(program, operands, rtol=64, **how):
    expected = evaluate_loops(program, operands)
    found = Compiled(program, operands, **how).run()
    for output, one, other in zip(program.outputs, found, expected, strict=True):
        dtype = program.instructions[output.value].dtype
        one = np.asarray(one, other.dtype).reshape(other.shape)
        if dtype in EPS:
            scale = 1.0 + np.abs(other[np.isfinite(other)]).max(initial=0.0)
            np.testing.assert_allclose(one, other, rtol=rtol * EPS[dtype], atol=rtol * EPS[dtype] * scale)
        else:
            assert np.array_equal(one, other)


OPS = ["add", "sub", "min", "max", "neg", "row_sum", "row_max", "row_min", "select", "load_at"]


@st.composite
def programs(draw):
    """Arithmetic on small whole numbers, so that every order of adding up gives one result."""
    b, dtype = LoopBuilder(), draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    rows, columns = draw(st.sampled_from([(1, 1), (1, 7), (5, 1), (3, 33), (6, 130), (4, 16)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    operands, values = [], []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from([(rows, columns), (rows, 1), (1, columns), (1, 1)]))
        is_row = shape[1] == 1 and draw(st.booleans())
        operands.append(rng.integers(-3, 4, shape).astype(dtype))
        values.append(b.load(b.operand(dtype), is_row))
    operands.append(np.zeros((rows, columns), dtype))  # all of the domain
    values.append(b.load(b.operand(dtype)))
    matrix = b.operand(dtype)
    operands.append(rng.integers(-3, 4, (3, columns)).astype(dtype))
    for _ in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(OPS))
        x, y = (draw(st.sampled_from(values)) for _ in range(2))
        if op in ("neg", "row_sum", "row_max", "row_min"):
            values.append(b.emit(op, x))
        elif op == "load_at":
            values.append(b.load_at(matrix, b.max(b.min(x, 2), 0)))
        elif op == "select":
            values.append(b.select(x < y, x, y + 1))
        else:
            values.append(b.emit(op, x, y))
    for _ in range(draw(st.integers(1, 3))):
        value = draw(st.sampled_from(values))
        store = draw(st.sampled_from([Store.PUT, Store.SUM_ROWS, Store.SUM_ALL]))
        value = b.spread(value) if store is Store.SUM_ROWS or draw(st.booleans()) else value
        is_total = store is Store.SUM_ALL and dtype.startswith("float")
        b.put(value, b.operand("float64" if is_total else dtype), store)
    if draw(st.booleans()):
        b.check(draw(st.sampled_from(values)) < 4)
    program = b.build()
    if matrix not in matrices_of(program):  # nothing reads it
        operands[matrix] = np.zeros((1, 1), dtype)
    return program, [*operands, *[None] * (len(program.dtypes) - len(operands))]


@given(programs(), st.integers(1, 3), st.sets(st.integers(0, 3)), st.booleans(), st.booleans())
def test_random_programs(made, parts, transposed, is_ragged, is_short):
    program, operands = made
    rows = dict(is_ragged=is_ragged, is_short=is_short)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowrt.loops.nest.KEPT_COST", 3)
        check(program, operands, rtol=0, parts=parts, transposed=transposed, **rows)


def random(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 64), (2, 1000)])
def test_softmax_has_three_stages_and_computes_its_powers_once(dtype, shape):
    b = LoopBuilder()
    x, result = b.operand(dtype), b.operand(dtype)
    powers = b.exp(b.load(x) - b.row_max(b.load(x)))
    b.put(powers / b.row_sum(powers), result)
    program = expand_functions(b.build())
    check(program, [random(*shape, dtype=dtype) * 10, None])
    text = llvm_function(program, ["s1", "s1"])
    assert len(re.findall(r"^do\d", text, re.M)) == (
        5 if dtype == "float32" else 4
    )  # rows, stages, blocks of the sum
    loops = loop_nest(program).column_loops
    kept = [s.operand for loop in loops for s in loop.body if isinstance(s, Keep)]
    assert kept == [result], "the powers wait for their sum where the result will be"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 6, 15, 60, 100])
def test_ragged_rows_are_computed_in_masked_vectors(dtype, columns):
    b = LoopBuilder()
    x = b.load(b.operand(dtype))
    powers = b.exp(x - b.row_max(x))
    y = powers / b.row_sum(powers)
    b.put(y, b.operand(dtype))
    b.put(y * y, b.operand("float64"), Store.SUM_ALL)
    program = expand_functions(b.build())
    assert "predicate" in llvm_function(program, ["s1", "s1", "00"], is_ragged=True)
    check(program, [random(7, columns, dtype=dtype), None, None], is_ragged=True)


@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_without_a_result_wait_for_their_sum_in_a_buffer(dtype, is_ragged):
    b = LoopBuilder()
    x = b.load(b.operand(dtype))
    powers = b.exp(x - b.row_max(x))
    y = powers / b.row_sum(powers)
    b.put(y * y, b.operand("float64"), Store.SUM_ALL)
    program = expand_functions(b.build())
    assert loop_nest(program).buffers == ()
    nest = loop_nest(program, has_buffers=True)
    assert nest.buffers == (dtype,)
    assert [type(s).__name__ for s in nest.column_loops[2].body] == ["Reload", "Compute", "Compute", "Put"]
    for columns in (1, 60, BUFFER):
        check(program, [random(5, columns, dtype=dtype), None], is_ragged=is_ragged, is_short=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [16, 24, 31, 63])
def test_brief_loops_have_the_results_of_others(columns, dtype):
    b = LoopBuilder()
    x = b.load(b.operand(dtype))
    b.put(b.tanh(x) * x, b.operand(dtype))
    program = expand_functions(b.build())
    check(program, [random(3, columns, dtype=dtype), None], is_brief=True)


@pytest.mark.parametrize("columns", [1, 15, 64, 100])
def test_long_chains_are_computed_two_vectors_at_a_time(columns):
    b = LoopBuilder()
    x = y = b.load(b.operand("float32"))
    for _ in range(30):
        y = b.sin(y) * x
    b.put(y, b.operand("float32"))
    program = expand_functions(b.build())
    assert "interleave" in llvm_function(program, ["s1", "s1"])
    check(program, [random(3, columns), None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_less_the_largest_of_its_row_is_not_contracted(dtype):
    """Its rounding error would be left of the largest, and here its power would be infinite."""
    b = LoopBuilder()
    product = b.load(b.operand(dtype)) * b.load(b.operand(dtype))
    b.put(b.exp(product - b.row_max(product)), b.operand(dtype))
    operands = [random(5, 7, dtype=dtype) * 1e15, random(5, 7, dtype=dtype, seed=1) * 1e15]
    found = Compiled(expand_functions(b.build()), [*operands, np.zeros((5, 7), dtype)]).run()[0]
    np.testing.assert_array_equal(found.max(axis=1), np.ones(5, dtype))


def test_a_long_float32_sum_is_as_exact_as_its_blocks():
    b = LoopBuilder()
    x, row, total = b.operand("float32"), b.operand("float32"), b.operand("float64")
    b.put(b.row_sum(b.load(x)), row)
    b.put(b.load(x), total, Store.SUM_ALL)
    values = np.random.default_rng(0).random((1, 250 * BLOCK)).astype(np.float32)
    found = Compiled(b.build(), [values, None, None]).run()
    exact = values.sum(dtype=np.float64)
    assert abs(found[0][0, 0] - exact) < 1e-6 * exact
    assert abs(found[1][0] - exact) < 1e-6 * exact


def quotients(dtype):
    """A program of all divisions, and operands for it; integers are not divided by 0 and -1."""
    if dtype.startswith("float"):
        values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 7.25, np.finfo(dtype).max, 1e-30]
    else:
        values = [np.iinfo(dtype).min, np.iinfo(dtype).max, -7, -2, 1, 3, 10]
    x = np.array([*values, 0], dtype)
    b = LoopBuilder()
    loaded = [b.load(b.operand(dtype)), b.load(b.operand(dtype), True)]
    for op in ("div", "rem"):
        b.put(b.emit(op, *loaded), b.operand(dtype))
        b.put(b.emit(op, loaded[0], 3), b.operand(dtype))
    shape = (len(values), len(x))
    operands = [np.tile(x, (len(values), 1)), np.array(values, dtype)[:, None]]
    return b.build(), [*operands, *[np.zeros(shape, dtype) for _ in range(4)]]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_quotients_and_remainders_are_exact(dtype):
    program, operands = quotients(dtype)
    with np.errstate(all="ignore"):
        expected = evaluate_loops(program, operands)
    for one, other in zip(Compiled(program, operands).run(), expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one[one == 0]), np.signbit(other[one == 0]))


def test_nan_and_infinity_go_where_they_should():
    b = LoopBuilder()
    x, y = b.operand("float32"), b.operand("float32")
    least, most, top = (b.operand("float32") for _ in range(3))
    b.put(b.min(b.load(x), b.load(y)), least)
    b.put(b.max(b.load(x), b.load(y)), most)
    b.put(b.row_max(b.load(x)), top)
    special = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float32)
    grid = np.meshgrid(special, special)
    check(b.build(), [grid[0], grid[1], None, None, None], rtol=0)


def test_a_result_may_take_the_place_of_an_operand():
    b = LoopBuilder()
    x, y = b.operand("float32"), b.operand("float32")
    b.put(b.load(x) * 2.0 + b.load(y), x)
    values, other = random(4, 9), random(4, 9, seed=1)
    program = b.build()
    compiled = Compiled(program, [values.copy(), other])
    assert np.allclose(compiled.run()[0], values * 2 + other)


def test_a_check_that_fails_anywhere_is_reported_once_for_all():
    for bad in (0, 5, 11):
        b = LoopBuilder()
        x = b.operand("int64")
        b.check(b.load(x) < 10)
        values = np.zeros((3, 4), np.int64)
        values.flat[bad] = 10
        assert Compiled(b.build(), [values, None]).run() == [1]
        assert Compiled(b.build(), [np.zeros((3, 4), np.int64), None]).run() == [0]


def test_a_number_is_counted_once_for_each_element():
    b = LoopBuilder()
    x, total, result = b.operand("float32"), b.operand("float64"), b.operand("float32")
    b.put(b.spread(b.const(1.0, "float32")), total, Store.SUM_ALL)
    b.put(b.exp(b.load(x)), result)
    found = Compiled(expand_functions(b.build()), [np.zeros((3, 5), np.float32), None, None]).run()
    assert found[0] == [15.0]
