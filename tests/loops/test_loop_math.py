"""`expand_functions`: what it replaces and leaves, and the functions' errors in ulp, edges and dtypes.

The programs are run by `evaluate_loops`, so this needs no compiler. References: NumPy's functions in float64
for many float32 values, mpmath for both dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import FUNCTIONS, Instruction, LoopBuilder, LoopProgram, Store
from tests.each import nightly
from tests.loops.loop_reference import FUNCTIONS_OF_FLOAT64, evaluate_loops

Array = np.ndarray[Any, Any]

ULP = {
    "exp": 0.92,
    "expm1": 1.6,
    "log": 0.85,
    "log1p": 1.4,
    "tanh": 1.9,
    "sigmoid": 2.0,
    "erf": 1.4,
    "sin": 1.2,
    "cos": 1.2,
    "rsqrt": 0.51,
}
"""The largest error; the module's docstrings say it for each function."""
POW_ULP = {"float32": 0.51, "float64": 1.5}
UNARY = sorted(ULP)
DTYPES = ("float32", "float64")

INF, NAN = float("inf"), float("nan")


def program_of(name: str, dtype: str) -> LoopProgram:
    b = LoopBuilder()
    arguments = [b.load(b.operand(dtype)) for _ in range(2 if name == "pow" else 1)]
    b.put(b.emit(name, *arguments), b.operand(dtype))
    return b.build()


def evaluate(name: str, *arguments: Array) -> Array:
    program = expand_functions(program_of(name, str(arguments[0].dtype)))
    return evaluate_loops(program, [*[array.reshape(1, -1) for array in arguments], None])[0].reshape(-1)


def contracted(program: LoopProgram) -> LoopProgram:
    """The same program by a back end that makes one `fma` of every product that is added or subtracted."""
    instructions: list[Instruction] = []
    numbers: list[int] = []

    def add(instruction: Instruction) -> int:
        instructions.append(instruction)
        return len(instructions) - 1

    for op, args, dtype, data, is_row in program.instructions:
        args = tuple(numbers[a] for a in args)
        products = [a for a in args if instructions[a].op == "mul" and dtype.startswith("float")]
        if op in ("add", "sub") and products:
            (left, right), other = instructions[products[0]].args, args[args[0] == products[0]]
            if op == "sub" and products[0] == args[1]:
                left = add(Instruction("neg", (left,), dtype, None, is_row))
            elif op == "sub":
                other = add(Instruction("neg", (other,), dtype, None, is_row))
            op, args = "fma", (left, right, other)
        numbers.append(add(Instruction(op, args, dtype, data, is_row)))
    outputs = [output._replace(value=numbers[output.value]) for output in program.outputs]
    return program._replace(instructions=tuple(instructions), outputs=tuple(outputs))


# --- errors in ulp


def ulp_errors(got: Array, exact: Array) -> Array:
    """Of float32 results, against float64 ones. An infinity stands for the first power of 2 that is none."""
    beyond = 2.0**128
    got = np.clip(got.astype(np.float64), -beyond, beyond)
    exact = np.clip(exact, -beyond, beyond)
    exponents = np.maximum(np.frexp(exact)[1], -125)
    errors = np.abs(got - exact) / np.ldexp(1.0, exponents - 24)
    return np.where(np.isnan(got) & np.isnan(exact), 0, np.where(np.isnan(errors), INF, errors))


def exact_ulp_error(got: np.floating[Any], exact: mpmath.mpf) -> float:
    digits, least, beyond = (24, -125, 128) if got.dtype == np.float32 else (53, -1021, 1024)
    limit = mpmath.mpf(2) ** beyond
    value = mpmath.mpf(float(got)) if np.isfinite(got) else limit * int(np.sign(got))
    exact = max(-limit, min(limit, exact))
    return float(abs(value - exact) / mpmath.mpf(2) ** (max(mpmath.frexp(exact)[1], least) - digits))


EXACT: dict[str, Callable[..., mpmath.mpf]] = {
    **{name: getattr(mpmath, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")},
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "pow": mpmath.power,
}


def is_in_domain(name: str, x: Array) -> Array:
    if name in ("log", "rsqrt"):
        return x > 0
    if name in ("sin", "cos"):
        return np.abs(x) <= 2.0**48
    return x > -1 if name == "log1p" else np.isfinite(x)


def any_float32(rng: np.random.Generator, count: int) -> Array:
    """All exponents alike, subnormal numbers, infinities and NaNs among them."""
    return rng.integers(-(2**31), 2**31, count).astype(np.int32).view(np.float32)


def interesting(rng: np.random.Generator, count: int) -> Array:
    """Where most functions do something, near 0, near 1, and all exponents."""
    sizes = rng.choice([-1.0, 1.0], count) * 2.0 ** rng.uniform(-40, 10, count)
    bits = rng.integers(-(2**63), 2**63, count).view(np.float64)
    return np.concatenate([rng.uniform(-4, 4, count), sizes, 1 + sizes / 2**12, bits[np.isfinite(bits)]])


HARD_FLOAT32 = {
    "exp": (-4.5424242, 15.622252),
    "expm1": (17.133692, -17.32868),
    "log": (1.3999861, 0.70710677, 0.70710683),
    "log1p": (0.42779097, 0.4372042, 3.4028235e38, 2.4061596e38),
    "tanh": (0.5493001, 0.5493062, 0.2599, 0.2730, 9.01),
    "sigmoid": (-0.00034499180, -1.1046847, -103.97, 16.779770),
    "erf": (0.77397323, 0.75, 0.7499999, 3.99),
    "sin": (-4834271.0, 0.79404813, 5.2455858e11, 1.2345e14),
    "cos": (-354449.40625, 524435554304.0, 1.5707964, 1.2345e14),
    "rsqrt": (1e-45, 3.4028235e38, 1.0000001),
}
"""The worst found, and both sides of where a function changes its formula."""

NEAR_WHOLE_TURNS = (
    *("0x1.6c6cbc45dc8dep+5", "0x1.b951f1572eba5p+23"),
    *("0x1.065c829d68730p+39", "0x1.7512069b7430dp+47"),
)
"""The float64 numbers up to 2**48 that are nearest to a multiple of π/2 (by continued fractions)."""


@pytest.mark.parametrize("name", UNARY)
def test_float32_of_all_exponents_against_float64(name):
    x = any_float32(np.random.default_rng(0), 100_000)
    x = x[(np.abs(x) <= 2.0**48) | ~np.isfinite(x)] if name in ("sin", "cos") else x
    with np.errstate(all="ignore"):
        exact = FUNCTIONS_OF_FLOAT64[name](x.astype(np.float64))
    assert ulp_errors(evaluate(name, x), exact).max() <= ULP[name]


@pytest.mark.parametrize("count", nightly([60_000, 900_000], 1))
@pytest.mark.parametrize("name", UNARY)
def test_float32_where_it_matters_against_float64(name, count):
    rng = np.random.default_rng(1)
    x = (rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-8, 6.7, count)).astype(np.float32)
    x = np.abs(x) if name in ("log", "rsqrt") else x
    with np.errstate(all="ignore"):
        exact = FUNCTIONS_OF_FLOAT64[name](x.astype(np.float64))
    assert ulp_errors(evaluate(name, x), exact).max() <= ULP[name]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("form", [lambda program: program, contracted])
def test_float32_against_mpmath(name, form):
    with np.errstate(over="ignore"):
        x = interesting(np.random.default_rng(2), 400).astype(np.float32)
    x = np.concatenate([x, np.array(HARD_FLOAT32[name], np.float32)])
    check_against_mpmath(name, form, x[np.isfinite(x)], ULP[name])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("form", [lambda program: program, contracted])
def test_float64_against_mpmath(name, form):
    check_against_mpmath(name, form, interesting(np.random.default_rng(3), 800), ULP[name])


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("form", [lambda program: program, contracted])
def test_angles_next_to_whole_quarter_turns(name, form):
    turns = np.arange(1, 2**45, 2**45 // 499) * (np.pi / 2)
    check_against_mpmath(name, form, np.array([*map(float.fromhex, NEAR_WHOLE_TURNS), *turns]), ULP[name])


def check_against_mpmath(
    name: str, form: Callable[[LoopProgram], LoopProgram], x: Array, bound: float
) -> None:
    x = x[is_in_domain(name, x)]
    program = form(expand_functions(program_of(name, str(x.dtype))))
    got = evaluate_loops(program, [x.reshape(1, -1), None])[0].reshape(-1)
    with mpmath.workprec(160):
        for argument, value in zip(x, got, strict=True):
            error = exact_ulp_error(value, exact_value(name, float(argument)))
            assert error <= bound, f"{name}({argument!r}) = {value!r}: {error} ulp"


@functools.cache  # both forms of a function are held against it
def exact_value(name: str, x: float) -> mpmath.mpf:
    """To 160 bits: mpmath's `expm1` and `log1p` take what their differences lose, and no other loses any."""
    return EXACT[name](mpmath.mpf(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [lambda program: program, contracted])
def test_pow_against_mpmath(dtype, form):
    """Over the whole range of results, which takes large exponents of what is near 1."""
    rng = np.random.default_rng(4)
    sizes = rng.choice([-1, 1], 700) * 2.0 ** rng.uniform(-20, 6, 700)
    logs = np.concatenate([rng.uniform(-0.4, 0.4, 700), sizes])
    x = np.exp(logs).astype(dtype)
    powers = rng.uniform(-104, 89, 1400) if dtype == "float32" else rng.uniform(-746, 710, 1400)
    with np.errstate(all="ignore"):
        y = (powers / np.log(x.astype(np.float64))).astype(dtype)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    program = form(expand_functions(program_of("pow", dtype)))
    got = evaluate_loops(program, [x.reshape(1, -1), y.reshape(1, -1), None])[0].reshape(-1)
    with mpmath.workprec(160):
        for base, exponent, value in zip(x, y, got, strict=True):
            error = exact_ulp_error(value, mpmath.mpf(float(base)) ** mpmath.mpf(float(exponent)))
            assert error <= POW_ULP[dtype], f"{base!r} ** {exponent!r} = {value!r}: {error} ulp"


# --- edges


def assert_same(got: Array, expected: Array) -> None:
    """Equal numbers with equal signs; NaNs are alike."""
    np.testing.assert_array_equal(got, expected)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[real], np.signbit(expected)[real])


EDGES = {
    "exp": "0:1 -0:1 inf:inf -inf:0 1e4:inf -1e4:0",
    "expm1": "0:0 -0:-0 inf:inf -inf:-1 1e4:inf -1e4:-1 1e-38:1e-38 -1e-40:-1e-40",
    "log": "1:0 0:-inf -0:-inf inf:inf -1:nan -1e-40:nan -inf:nan",
    "log1p": "0:0 -0:-0 -1:-inf inf:inf -2:nan -inf:nan 1e-38:1e-38 -1e-40:-1e-40",
    "tanh": "0:0 -0:-0 inf:1 -inf:-1 40:1 -40:-1 1e-38:1e-38 -1e-40:-1e-40",
    "sigmoid": "0:0.5 -0:0.5 inf:1 -inf:0 50:1 -1e4:0 1e-40:0.5",
    "erf": "0:0 -0:-0 inf:1 -inf:-1 7:1 -7:-1",
    "sin": "0:0 -0:-0 inf:nan -inf:nan 1e-38:1e-38 -1e-40:-1e-40 1e15:nan -1e30:nan",
    "cos": "0:1 -0:1 inf:nan -inf:nan 1e-40:1 1e15:nan -1e30:nan",
    "rsqrt": "1:1 4:0.5 0:inf -0:-inf inf:0 -1:nan -1e-40:nan -inf:nan",
}
"""Argument and result."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_edges(name, dtype):
    x, expected = np.array([pair.split(":") for pair in EDGES[name].split() + ["nan:nan"]], dtype).T
    assert_same(evaluate(name, x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_edges_of_pow_are_numpys(dtype):
    most, least = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    values = [0, 0.5, 1, 2, 3, 1e30, 2**24 + 2, most, least, INF]
    values = np.array([NAN, *values, *np.negative(values)], dtype)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    got = evaluate("pow", x, y)
    plain = np.isfinite(expected) & (expected != 0)
    assert_same(got[~plain], expected[~plain])
    np.testing.assert_array_max_ulp(got[plain], expected[plain], 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_to_whole_powers_are_exact(dtype):
    x, y = (grid.reshape(-1).astype(dtype) for grid in np.meshgrid(np.arange(-7, 8), np.arange(8)))
    assert_same(evaluate("pow", x, y), np.array([int(a) ** int(n) for a, n in zip(x, y, strict=True)], dtype))


@pytest.mark.parametrize("dtype, lowest", [("float32", -103.5), ("float64", -744.5)])
@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_underflow_is_gradual(name, dtype, lowest):
    x = np.linspace(lowest, lowest + 16, 1001).astype(dtype)
    got = evaluate(name, x)
    assert got[0] == np.finfo(dtype).smallest_subnormal
    assert (np.diff(got) >= 0).all()
    exact = np.array([float(EXACT["exp"](mpmath.mpf(float(a)))) for a in x], dtype)
    np.testing.assert_array_max_ulp(got, exact, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_that_are_zero_underflow_nowhere(dtype):
    """A processor takes far longer for what underflows: a mask of softmax is -1e9."""
    x = np.array([[-1e9, -1e4, -800.0, -INF]], dtype)
    program = expand_functions(program_of("exp", dtype))
    (found,) = evaluate_loops(program, [x, None], underflow="raise")
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("name", ["tanh", "erf", "sin"])
def test_odd_functions_are_odd(name):
    x = any_float32(np.random.default_rng(5), 10_000)
    x = x[~np.isnan(x)]
    np.testing.assert_array_equal(evaluate(name, -x), -evaluate(name, x))


# --- the program


def test_a_program_without_functions_is_the_same_object():
    b = LoopBuilder()
    x = b.load(b.operand("float32"))
    b.put(b.sqrt(x) + 1.0, b.operand("float32"))
    program = b.build()
    assert expand_functions(program) is program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_all_functions_become_arithmetic(name, dtype):
    program = program_of(name, dtype)
    before = str(program)
    expanded = expand_functions(program)
    assert not FUNCTIONS & {instruction.op for instruction in expanded.instructions}
    assert expand_functions(expanded) is expanded
    assert str(program) == before


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "rsqrt"])
def test_float32_is_computed_in_32_bits(name):
    program = expand_functions(program_of(name, "float32"))
    assert {instruction.dtype for instruction in program.instructions} <= {"float32", "int32", "bool"}


def test_all_else_is_copied():
    """Every instruction that is not arithmetic, every kind of output, and a status between the operands."""
    b = LoopBuilder()
    x, shift = b.load(b.operand("float32")), b.load(b.operand("float32"), is_row=True)
    places = b.column() + b.columns()
    b.check(places >= 0)
    e = b.exp(x - b.row_max(x) + shift)
    mixed = b.select(places > 2, e, b.from_bits(b.bits(e) ^ 1)) + b.cast(places, "float32")
    b.put(mixed, b.operand("float32"))
    b.put(b.log(b.row_sum(e)), b.operand("float32"))
    b.put(b.tanh(shift), b.operand("float32"), Store.SUM_ROWS)
    b.put(e, b.operand("float64"), Store.SUM_ALL)
    program = b.build()
    expanded = expand_functions(program)

    assert (expanded.dtypes, expanded.status) == (program.dtypes, program.status)
    assert [(o.store, o.operand) for o in expanded.outputs] == [(o.store, o.operand) for o in program.outputs]
    rng = np.random.default_rng(6)
    operands = [rng.normal(size=(3, 5)).astype("float32"), rng.normal(size=(3, 1)).astype("float32")]
    operands += [None] * (len(program.dtypes) - 2)
    for got, expected in zip(
        evaluate_loops(expanded, operands), evaluate_loops(program, operands), strict=True
    ):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_what_follows_from_row_values_is_one_a_row():
    b = LoopBuilder()
    row = b.load(b.operand("float64"), is_row=True)
    b.put(b.pow(b.exp(row), 2.0), b.operand("float64"))
    assert all(instruction.is_row for instruction in expand_functions(b.build()).instructions)


def test_equal_functions_are_expanded_once():
    b = LoopBuilder()
    x = b.load(b.operand("float32"))
    b.put(b.sin(x), b.operand("float32"))
    b.put(b.cos(x), b.operand("float32"))
    both = len(expand_functions(b.build()).instructions)
    alone = [len(expand_functions(program_of(name, "float32")).instructions) for name in ("sin", "cos")]
    assert both < 0.7 * sum(alone)
