"""Quotients, remainders, shifts and casts in loops: machine code that gives what the kernels give, or refuses
what they refuse; and reductions of scalars there.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError
from tests.each import daily
from tests.executor.test_nests import check, counted
from tests.executor.test_scalar_branches import both, repeated
from tests.graph.test_loop_rules import EXTREMES

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

DIVISIONS = {
    "floormod": tf.floormod,
    "truncatemod": tf.truncatemod,
    "floordiv": tf.floordiv,
    "truncatediv": tf.truncatediv,
}
DTYPES = ["int32", "int64", "float32", "float64"]


def assert_one_function(monkeypatch, step, *first, count=20):
    """That a loop of ``step`` is one function, which gives what its kernels do."""
    plain, compiled, is_whole = both(monkeypatch, lambda *v: repeated(step, *v, count=count), first)
    assert is_whole == [True]
    for one, other in zip(compiled, plain, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))


@pytest.mark.parametrize(
    ("dtype", "divisor"),
    daily(product(DTYPES, [1, -1, 3, -10, 65536]), lambda dtype, divisor: dtype == "int32" or divisor == -10),
)
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
def test_by_a_constant_it_is_one_function(monkeypatch, division, dtype, divisor):
    def step(i, x, total):
        return x * 2 + 5, total + division(x, tf.constant(divisor, dtype))

    for first in (-7, 12):
        assert_one_function(monkeypatch, step, np.array(first, dtype), np.array(0, dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
def test_the_lowest_integer_over_minus_one_wraps(monkeypatch, division, dtype):
    lowest = np.array(np.iinfo(dtype).min, dtype)
    by_minus_one = lambda i, x: [division(x, tf.constant(-1, dtype))]  # noqa: E731
    assert_one_function(monkeypatch, by_minus_one, lowest, count=1)

    def build():
        x, y = tf.placeholder(dtype, ()), tf.placeholder(dtype, ())
        return counted(2, lambda i, z: [division(x, y) + z], x), {x: lowest, y: -1}

    check(build)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("division", [tf.floormod, tf.truncatemod], ids=["floored", "truncated"])
def test_remainders_of_strange_floats(monkeypatch, division, dtype):
    values = [np.array(v, dtype) for v in (np.nan, np.inf, -np.inf, 0.0, -0.0, 7.5, -7.5, 1e30)]
    pairs = [(x, y) for x in values for y in values]

    def build(*numbers):
        taken = zip(numbers[::2], numbers[1::2], strict=True)
        return [repeated(lambda i, z, x=x, y=y: [division(x, y) + z * 0], y, count=1)[1] for x, y in taken]

    with np.errstate(all="ignore"):
        plain, compiled, _ = both(monkeypatch, build, [v for pair in pairs for v in pair])
    np.testing.assert_array_equal(compiled, plain)
    np.testing.assert_array_equal(np.signbit(compiled), np.signbit(plain))


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_euclid(shape):
    def build():
        a, b = tf.fill(shape, 832040), tf.fill(shape, 514229)
        again = lambda a, b: tf.reduce_any(tf.not_equal(b, 0))  # noqa: E731
        return tf.while_loop(again, lambda a, b: (b, a % b), [a, b]), {}

    divisors, _ = check(build, is_one_call=not shape)
    np.testing.assert_array_equal(divisors, np.ones(shape))


def test_collatz(monkeypatch):
    def build(n):
        def step(i, n):
            return i + 1, tf.cond(tf.equal(n % 2, 0), lambda: n // 2, lambda: 3 * n + 1)

        return tf.while_loop(lambda i, n: tf.not_equal(n, 1), step, [0, n])

    plain, compiled, is_whole = both(monkeypatch, build, [np.array(97)])
    assert is_whole == [True]
    assert plain == compiled == [118, 1]


@pytest.mark.parametrize("mode", ["off", "eager"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("division", DIVISIONS.values(), ids=DIVISIONS)
def test_a_divisor_that_becomes_zero_is_refused_by_name(monkeypatch, division, shape, mode):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    ones = tf.ones(shape, tf.int32)
    numbers = tf.placeholder(tf.int32, ())
    found = counted(numbers, lambda i, x: [x + division(x, (5 - i) * ones, name="divided")], ones)
    with tf.Session() as session:
        session.run(found, {numbers: 5})
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="divisor without zeros") as error:
                session.run(found, {numbers: 9})
            assert error.value.op.endswith("divided")
        session.run(found, {numbers: 5})


@pytest.mark.parametrize("mode", ["off", "eager"])
def test_a_constant_divisor_that_is_zero_is_refused(monkeypatch, mode):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    found = counted(3, lambda i, x: [x % 0], 1)
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match="divisor without zeros"):
        session.run(found)


def test_a_branch_that_is_not_taken_may_divide_by_zero():
    def step(i, x):
        rest = tf.cond(tf.equal(i, 2), lambda: x, lambda: 100 // (i - 2) + x % (i - 2))
        return [x * 3 + rest]

    check(lambda: (counted(6, step, tf.constant(7)), {}), is_one_call=False)


@pytest.mark.parametrize("places", [0, 5, 31, 32, 63, 64, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shift", [tf.bitwise.left_shift, tf.bitwise.right_shift], ids=["left", "right"])
def test_shifts_are_one_function(monkeypatch, shift, dtype, places):
    for first in (-1234567, 89):
        step = lambda i, x: [shift(x, tf.constant(places, dtype)) + 3]  # noqa: E731
        assert_one_function(monkeypatch, step, np.array(first, dtype))


@pytest.mark.parametrize(
    ("source", "target"),
    daily(
        product(["float32", "float64"], ["int32", "int64"]), lambda source, target: source[-2:] != target[-2:]
    ),
)
def test_casts_to_integers_are_those_of_the_kernel(monkeypatch, source, target):
    beside = [2.0**31, -(2.0**31), -(2.0**31) - 0.5, -(2.0**31) - 1, 2.0**63, -(2.0**63), 1e30, -2.9]
    for value in [*EXTREMES[source], *beside]:
        step = lambda i, x, y: (x, tf.cast(x, target))  # noqa: E731
        first = np.array(value, source)
        with np.errstate(all="ignore"):
            assert_one_function(monkeypatch, step, first, np.array(0, target), count=1)


@pytest.mark.parametrize(
    ("dtype", "first"), [*product(DTYPES[:2], [5]), *product(DTYPES[2:], [0.5, -0.0, np.nan, np.inf])]
)
@pytest.mark.parametrize(
    "reduce",
    [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod],
    ids=lambda reduce: reduce.__name__,
)
def test_a_reduction_of_a_scalar_is_a_part_of_one_call(reduce, dtype, first):
    first = np.array(first, dtype)

    def build():
        h = tf.placeholder(dtype, ())
        (found,) = counted(3, lambda i, h: [reduce(h)], h)
        return [found, 1.0 / tf.cast(found, tf.float64)], {h: first}  # a zero's sign too

    check(build)
