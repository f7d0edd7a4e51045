"""CUDA C of loops against a second reading of their programs: compiled as C++, run by the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.loops.cuda_grid import INT_ELEMENTS, MAX_THREADS, THREADS
from flowrt.loops.cuda_loops import LOOP, SUMS, cuda_loop
from flowrt.loops.loop_program import FUNCTIONS, LoopBuilder, Store
from tests.loops import cuda_on_host
from tests.loops.cuda_on_host import load_kernels
from tests.loops.loop_reference import domain_of, evaluate_loops, matrices_of
from tests.loops.test_llvm_loops import programs, quotients

pytestmark = pytest.mark.skipif(
    cuda_on_host.why_no_compiler() is not None, reason=str(cuda_on_host.why_no_compiler())
)

EPS = {"float32": 2**-23, "float64": 2**-52}
IS_SUM = (Store.SUM_ROWS, Store.SUM_ALL)


def steps(array):
    """In elements, of a matrix or what broadcasts to one."""
    return tuple([
        0 if size == 1 else stride // array.itemsize
        for size, stride in zip(array.shape, array.strides, strict=True)
    ])  # fmt: skip


def on_host(loop, operands, sums):
    """Launch a loop's kernels on arrays of the host."""
    kernels = load_kernels(loop.text)
    kernels[LOOP](loop.blocks, loop.threads, [a.ctypes.data for a in operands])
    if sums:
        kernels[SUMS](loop.sum_blocks, THREADS, [a.ctypes.data for a in sums])


def run(program, operands, transposed=(), launch=on_host):
    """A program's results by its kernels. Operands are what broadcasts to [rows, columns], or matrices; parts
    of sums, and results, are full of garbage before.
    """
    rows, columns = domain_of(program, operands)
    matrices = matrices_of(program)
    transposed = set(transposed) - matrices
    arrays = [a if a is None else np.copy(a, "F" if i in transposed else "C") for i, a in enumerate(operands)]
    for store, value, operand in program.outputs:
        if arrays[operand] is None and store is not Store.CHECK:
            per_row = 1 if program.instructions[value].is_row else columns
            sizes = {Store.PUT: (rows, per_row), Store.SUM_ROWS: (1, columns), Store.SUM_ALL: (1, 1)}
            arrays[operand] = np.full(sizes[store], 77, program.dtypes[operand])
    dtypes = ["" if array is None else array.dtype.name for array in arrays]
    strides = [(0, 0) if array is None else steps(array) for array in arrays]
    strides = [(0, 1) if i in matrices else lies for i, lies in enumerate(strides)]
    loop = cuda_loop(program, (rows, columns), strides, dtypes)
    parts = {s.operand: np.full((s.parts, s.columns), 77, s.dtype) for s in loop.sums}
    sums = [a for s in loop.sums for a in (parts[s.operand], arrays[s.operand])]
    launch(loop, [parts.get(i, arrays[i]) for i in loop.operands], sums)
    return [None if o.store is Store.CHECK else arrays[o.operand] for o in program.outputs]


def check(program, operands, ulps=64, **how):
    expected = evaluate_loops(program, operands)
    for output, one, other in zip(program.outputs, run(program, operands, **how), expected, strict=True):
        if one is not None:
            tolerance = ulps * EPS.get(program.instructions[output.value].dtype, 0)
            scale = 1.0 + np.abs(other[np.isfinite(other)]).max(initial=0.0)
            np.testing.assert_allclose(one.reshape(other.shape), other, tolerance, tolerance * scale)


def random(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@settings(max_examples=25)
@given(programs(), st.sets(st.integers(0, 3)))
def test_random_programs(made, transposed):
    program, operands = made
    check(program, operands, ulps=0, transposed=transposed)


def softmax(dtype):
    b = LoopBuilder()
    x, result, sums, total = (b.operand(d) for d in (dtype, dtype, dtype, "float64"))
    powers = b.exp(b.load(x) - b.row_max(b.load(x)))
    quotients = powers / b.row_sum(powers)
    b.put(quotients, result)
    b.put(quotients, sums, Store.SUM_ROWS)
    b.put(quotients * quotients, total, Store.SUM_ALL)
    return b.build()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (300, 10), (7, 64), (3, 5000)])
def test_softmax_and_sums_of_it(dtype, shape):
    check(softmax(dtype), [random(*shape, dtype=dtype) * 10, None, None, None])


def test_lanes_go_on_to_other_rows_and_each_makes_a_part():
    program, values = softmax("float32"), random(5000, 2)
    loop = cuda_loop(program, (5000, 2), [(2, 1)] * 4, ["float32"] * 4)
    assert (loop.blocks, loop.threads) == (20, THREADS)
    assert [(s.parts, s.columns) for s in loop.sums] == [(5000, 2), (20, 1)]
    many = cuda_loop(program, (500_000, 2), [(2, 1)] * 4, ["float32"] * 4)
    assert (many.blocks, [s.parts for s in many.sums]) == (256, [256 * THREADS, 256])
    check(program, [values, None, None, None])


def test_a_program_without_rows_is_an_element_a_thread():
    b = LoopBuilder()
    x, y, total = b.operand("float32"), b.operand("float32"), b.operand("float32")
    b.put(b.tanh(b.load(x)) * b.load(y), total)
    loop = cuda_loop(b.build(), (3, 50, 1), [(0, 1, 0), (100, 2, 0), (50, 1, 0)], ["float32"] * 3)
    assert (loop.blocks, loop.threads, loop.sums) == (1, THREADS, ())
    x, y, result = random(50), random(3, 50, 2), np.zeros((3, 50), np.float32)
    load_kernels(loop.text)[LOOP](loop.blocks, loop.threads, [a.ctypes.data for a in (x, y, result)])
    np.testing.assert_allclose(result, np.tanh(x) * y[..., 0], rtol=1e-6)


def test_a_large_domain_is_counted_in_64_bits():
    b = LoopBuilder()
    x = b.operand("float32")
    b.put(b.load(x) + 1.0, x)
    for rows, index in ((INT_ELEMENTS - 1, "int"), (INT_ELEMENTS, "long long")):
        assert f"typedef {index} Index;" in cuda_loop(b.build(), (rows, 1), [(1, 0)], ["float32"]).text


def test_a_row_has_no_more_threads_than_a_block_may():
    loop = cuda_loop(softmax("float32"), (2, 1 << 20), [(1 << 20, 1)] * 4, ["float32"] * 4)
    assert (loop.blocks, loop.threads) == (2, MAX_THREADS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_functions(dtype):
    check(*all_functions(dtype), ulps=8)


def all_functions(dtype):
    b = LoopBuilder()
    x, y = b.operand(dtype), b.operand(dtype)
    values = [b.load(x), b.load(y)]
    for name in sorted(FUNCTIONS):
        arguments = values if name == "pow" else values[:1]
        b.put(b.emit(name, *arguments), b.operand(dtype))
    operands = [np.abs(random(4, 25, dtype=dtype)) * 3, random(4, 25, dtype=dtype, seed=1)]
    operands[0][0, :3] = [0.0, np.inf, np.nan]
    return b.build(), [*operands, *[None] * len(FUNCTIONS)]


def test_integers_wrap_and_bits_are_bits():
    b = LoopBuilder()
    x, f = b.operand("int32"), b.operand("float32")
    n, r = b.load(x), b.load(f)
    least = b.const(-(2**31), "int32")
    for value in (
        n * 65537 + 7, least - n, -n, abs(n), n << 3, n >> 3, ~n, n ^ 12345, b.cast(n, "int64") * 2**40,
        b.bits(r), b.from_bits(n & 0x3FFFFFFF), b.cast(r, "int32"), b.cast(n, "float32"), b.cast(n, "bool"),
        (n < 5) | ~(r > 0.5), b.copysign(r, -r), b.round(r * 4.5), b.fma(r, r, r), b.select(n < 0, r, 1.0),
    ):  # fmt: skip
        b.put(value, b.operand(value.dtype))
    program = b.build()
    numbers = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 9)).astype(np.int32)
    check(program, [numbers, random(5, 9) * 100, *[None] * (len(program.dtypes) - 2)], ulps=0)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_quotients_and_remainders_are_exact(dtype):
    program, operands = quotients(dtype)
    for one, other in zip(run(program, operands), evaluate_loops(program, operands), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nan_and_infinity_go_where_they_should():
    b = LoopBuilder()
    x, y = b.operand("float32"), b.operand("float32")
    for value in (b.min(b.load(x), b.load(y)), b.max(b.load(x), b.load(y)), b.row_max(b.load(x))):
        b.put(value, b.operand("float32"))
    b.put(b.select(b.load(x).equals(1.0), b.const(np.nan, "float32"), -np.inf), b.operand("float32"))
    special = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float32)
    grid = np.meshgrid(special, special)
    check(b.build(), [*grid, None, None, None, None], ulps=0)


def test_a_result_may_take_the_place_of_an_operand():
    b = LoopBuilder()
    x, y = b.operand("float32"), b.operand("float32")
    b.put(b.load(x) * 2.0 + b.load(y), x)
    values, other = random(4, 900), random(4, 900, seed=1)
    assert np.allclose(run(b.build(), [values, other])[0], values * 2 + other)


def test_a_row_value_is_written_over_when_all_threads_of_its_lane_have_read_it():
    b = LoopBuilder()
    x, y, product = b.operand("float32"), b.operand("float32"), b.operand("float32")
    row = b.load(x, is_row=True)
    b.put(b.spread(row) * b.load(y), product)
    b.put(row + 1.0, x)
    values, other = random(5, 1), random(5, 900, seed=1)
    found = run(b.build(), [values, other, None])
    assert np.array_equal(found[0], values * other)
    assert np.array_equal(found[1], values + 1)


def test_rows_of_a_matrix_are_found_by_their_numbers():
    b = LoopBuilder()
    matrix, numbers, result = b.operand("float32"), b.operand("int64"), b.operand("float32")
    b.put(b.load_at(matrix, b.load(numbers, is_row=True)) * 2.0, result)
    values, rows = random(6, 33), np.array([[5], [0], [5], [2]])
    loop = cuda_loop(b.build(), (4, 33), [(0, 1), (1, 0), (33, 1)], ["float32", "int64", "float32"])
    found = np.zeros((4, 33), np.float32)
    load_kernels(loop.text)[LOOP](loop.blocks, loop.threads, [a.ctypes.data for a in (values, rows, found)])
    assert np.array_equal(found, values[rows[:, 0]] * 2)


def test_checks_are_left_out():
    b = LoopBuilder()
    x = b.operand("int64")
    b.check(b.load(x) < 10)
    b.put(b.load(x) + 1, b.operand("int64"))
    assert run(b.build(), [np.full((3, 4), 10), None, None])[1].tolist() == [[11] * 4] * 3


def test_what_is_unknown_is_left_to_others():
    b = LoopBuilder()
    b.put(b.load(b.operand("float32")), b.operand("float32"))
    program = b.build()
    strange = program.instructions[0]._replace(op="reverse", args=(0,))
    program = program._replace(instructions=(program.instructions[0], strange))
    assert cuda_loop(program, (2, 2), [(2, 1)] * 2, ["float32"] * 2) is None


def test_a_missing_barrier_is_seen():
    """The shim itself: the tree without its barriers gives another sum."""
    b = LoopBuilder()
    x, total = b.operand("float32"), b.operand("float64")
    b.put(b.load(x), total, Store.SUM_ALL)
    loop = cuda_loop(b.build(), (1000, 1), [(1, 0), (0, 0)], ["float32", "float32"])
    values, parts = np.ones(1000, np.float32), np.zeros(loop.blocks)
    addresses = [values.ctypes.data, parts.ctypes.data]
    load_kernels(loop.text)[LOOP](loop.blocks, loop.threads, addresses)
    assert parts.sum() == 1000
    broken = loop.text.replace("__syncthreads();\n    if (place", "if (place")
    load_kernels(broken)[LOOP](loop.blocks, loop.threads, addresses)
    assert parts.sum() != 1000
