"""Functions of one number: values against Python's ``math``, edges of domains, complex parts, derivatives."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.elementwise import complex_parts, division, special
from flowrt.graph.ops.elementwise import math as m
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, power, subtract
from flowrt.graph.ops.nn import fake_quant
from tests.graph.evaluation import value_of

EULER = 0.57721566490153286


def ulps(result: Any, exact: Any, dtype: Any, floor: float = 0.0) -> float:
    """The largest distance in units of the last place of ``dtype``; numbers below ``floor`` count as that."""
    spacing = np.spacing(np.maximum(np.abs(exact), floor).astype(dtype)).astype(np.float64)
    return float(np.max(np.abs(np.asarray(result, np.float64) - exact) / spacing))


def compute(op: Callable[..., Any], x: Any) -> Any:
    with Graph():
        return value_of(op(constant(x)))


# --- special functions

FUNCTIONS = [
    pytest.param(special.erf, math.erf, (-6, 6), 4, 0.0, id="erf"),
    pytest.param(special.erfc, math.erfc, (-6, 26), 12, 0.0, id="erfc"),
    pytest.param(
        special.lgamma, math.lgamma, (1e-3, 60), 40, 1.0, id="lgamma"
    ),  # Python's is off beside 1 and 2
]


@pytest.mark.parametrize(("op", "exact", "interval", "limit", "floor"), FUNCTIONS)
def test_special_functions_agree_with_python(
    op: Any, exact: Any, interval: tuple[float, float], limit: float, floor: float
) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(*interval, 3000), rng.uniform(0.4, 3.2, 3000)])
    assert ulps(compute(op, x), np.array([exact(v) for v in x]), np.float64, floor) < limit
    x = x[x < 9].astype(np.float32)  # beyond, erfc is below float32's normal numbers
    assert ulps(compute(op, x), np.array([exact(float(v)) for v in x]), np.float32) < 3


def test_lgamma_keeps_its_relative_accuracy_beside_its_zeros() -> None:
    """There lgamma(1 + d) is -EULER d and lgamma(2 + d) is (1 - EULER) d, to the first order."""
    d = np.random.default_rng(4).uniform(-1e-12, 1e-12, 100)
    near_one, near_two = 1 + d, 2 + d
    np.testing.assert_allclose(compute(special.lgamma, near_one), -EULER * (near_one - 1), rtol=1e-10)
    np.testing.assert_allclose(compute(special.lgamma, near_two), (1 - EULER) * (near_two - 2), rtol=1e-10)


def test_lgamma_of_negative_numbers_and_at_poles() -> None:
    x = np.random.default_rng(1).uniform(-20, 0, 1000)
    np.testing.assert_allclose(
        compute(special.lgamma, x), [math.lgamma(v) for v in x], rtol=1e-10, atol=1e-12
    )
    edges = np.array([0.0, -1.0, -7.0, np.inf, -np.inf])
    assert compute(special.lgamma, edges).tolist() == [math.inf] * 5
    assert np.isnan(compute(special.lgamma, np.nan))
    assert compute(special.lgamma, np.float64(1e300)) == pytest.approx(math.lgamma(1e300), rel=1e-15)


def test_digamma_has_its_known_values_and_recurrence() -> None:
    assert compute(special.digamma, np.float64(1)) == pytest.approx(-EULER, rel=1e-14)
    assert compute(special.digamma, np.float64(0.5)) == pytest.approx(-EULER - 2 * math.log(2), rel=1e-14)
    x = np.random.default_rng(2).uniform(-9, 9, 1000)
    here, there = compute(special.digamma, x), compute(special.digamma, x + 1)
    np.testing.assert_allclose(there, here + 1 / x, rtol=1e-9, atol=1e-9)
    assert np.isnan(compute(special.digamma, np.array([0.0, -1.0, -5.0]))).all()


def test_polygamma_has_its_known_values() -> None:
    with Graph():
        first = value_of(special.polygamma(np.float64(1), np.array([1.0, 0.5])))
        np.testing.assert_allclose(first, [math.pi**2 / 6, math.pi**2 / 2], rtol=1e-14)
        assert value_of(special.polygamma(np.float64(3), np.float64(1))) == pytest.approx(
            math.pi**4 / 15, rel=1e-14
        )


def test_zeta_has_its_known_values() -> None:
    with Graph():
        found = value_of(special.zeta(np.array([2.0, 4, 2, 3, 1, 0.5]), np.array([1.0, 1, 0.5, -0.5, 1, 1])))
        apery = 1.2020569031595942
        known = [math.pi**2 / 6, math.pi**4 / 90, math.pi**2 / 2, 7 * apery - 8, math.inf, math.nan]
        np.testing.assert_allclose(found, known, rtol=1e-14)


BELOW_POLES = np.concatenate(
    [
        -(10.0 ** -np.arange(1, 300, 7)),
        *(sign * 10.0 ** -np.arange(3, 12) - k for k in (1, 2, 15) for sign in (-1, 1)),
        np.random.default_rng(3).uniform(-30, 0, 200),
    ]
)
"""Just below 0, on both sides of other poles, and anywhere."""


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 2e-14), (np.float32, 2e-7)])
@pytest.mark.parametrize("order", [None, 0, 1, 2, 3])
def test_gamma_functions_of_negative_numbers(order: int | None, dtype: Any, error: float) -> None:
    """lgamma, digamma and its derivatives, against 30 digits; errors are absolute below 1, for the roots."""
    x = np.unique(BELOW_POLES[(dtype is np.float64) | (BELOW_POLES < -1e-9)].astype(dtype))
    x = x[np.rint(x) != x]
    if order:
        x = x[np.abs(x - np.rint(x)) ** (order + 1) > np.finfo(dtype).tiny * 100]
    with mpmath.workdps(30):
        exact = [
            float(mpmath.log(abs(mpmath.gamma(v))) if order is None else mpmath.polygamma(order, v))
            for v in map(mpmath.mpf, x.tolist())
        ]
    with Graph():
        fed = constant(x)
        op = {None: special.lgamma, 0: special.digamma}.get(order)
        found = value_of(op(fed) if op else special.polygamma(dtype(order), fed))
    assert (np.abs(found - exact) <= error * np.maximum(1, np.abs(exact))).all()


def test_the_gradient_of_digamma_below_zero() -> None:
    x = np.array([-0.25, -1.5, -20.7])
    with Graph():
        fed = constant(x)
        (found,) = gradients(special.digamma(fed), fed)
        np.testing.assert_allclose(value_of(found), [float(mpmath.polygamma(1, v)) for v in x], rtol=1e-13)


def test_polygamma_at_poles_and_of_no_whole_order() -> None:
    with Graph():
        at_poles = value_of(special.polygamma(np.float64(1), np.array([0.0, -1.0, -30.0])))
        assert at_poles.tolist() == [math.inf] * 3
        assert np.isnan(value_of(special.polygamma(np.float64(1.5), np.float64(-0.5))))


def test_erfinv_inverts_erf_to_the_ends() -> None:
    x = np.linspace(-3, 3, 601)
    np.testing.assert_allclose(
        compute(special.erfinv, np.array([math.erf(v) for v in x])), x, rtol=1e-11, atol=1e-16
    )
    assert compute(special.erfinv, np.array([-1.0, 0.0, 1.0])).tolist() == [-math.inf, 0, math.inf]
    assert np.isnan(compute(special.erfinv, np.array([1.5, np.nan]))).all()


def test_special_functions_do_not_care_how_many_elements_come_at_a_time() -> None:
    x = np.random.default_rng(3).standard_normal((3, special.BLOCK)).astype(np.float32)
    whole = compute(special.erf, x)
    np.testing.assert_array_equal(whole[:, :10], compute(special.erf, x[:, :10].copy()))
    np.testing.assert_array_equal(compute(special.erf, x.T), whole.T)


def test_erf_is_odd_bounded_and_defined_everywhere() -> None:
    for dtype in (np.float32, np.float64):
        x = np.linspace(-30, 30, 100_001).astype(dtype)
        y = compute(special.erf, x)
        assert np.abs(y).max() == 1
        np.testing.assert_array_equal(y, -compute(special.erf, -x))
        assert compute(special.erf, np.array([np.inf, -np.inf], dtype)).tolist() == [1, -1]


# --- elementary functions


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sigmoid_is_stable_to_the_ends_of_every_dtype(dtype: str) -> None:
    numpy_dtype = dtypes.as_dtype(dtype).np
    x = np.array([-1e4, -12, -1, 0, 1, 12, 1e4]).astype(numpy_dtype)
    exact = [0 if v < -700 else 1 / (1 + math.exp(-v)) for v in x.astype(float)]
    eps = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-15}[dtype]
    np.testing.assert_allclose(compute(m.sigmoid, x).astype(float), exact, rtol=eps)


def test_halves_are_rounded_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    assert compute(m.round, x).tolist() == [0, 2, 2, 0, -2]
    assert compute(m.rint, x).tolist() == [0, 2, 2, 0, -2]
    with Graph():
        n = constant([1, 2])
        assert m.round(n) is n


def test_signs() -> None:
    assert compute(m.sign, np.array([-3.0, 0.0, 4.0])).tolist() == [-1, 0, 1]
    assert compute(m.sign, np.array([3 + 4j, 0])).tolist() == [0.6 + 0.8j, 0]
    with Graph():
        x = constant([-3.0, 2.0])
        assert value_of(gradients(m.sign(x), x)[0]).tolist() == [0, 0]
        assert gradients(m.floor(x), x) == [None]


def test_tests_for_infinities() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf])
    assert compute(m.is_nan, x).tolist() == [False, True, False, False]
    assert compute(m.is_inf, x).tolist() == [False, False, True, True]
    assert compute(m.is_finite, x).tolist() == [True, False, False, False]


def test_functions_of_integers_are_refused() -> None:
    with Graph():
        for op in (m.exp, m.sqrt, m.floor, m.sigmoid, special.erf):
            with pytest.raises(DTypeError, match="got int32"):
                op(constant(1))


def test_polyval_takes_the_highest_power_first() -> None:
    with Graph():
        assert value_of(m.polyval([2.0, 0.0, 1.0], [1.0, 3.0])).tolist() == [3, 19]
        assert value_of(m.polyval([], [1.0])).tolist() == [0]
        with pytest.raises(InvalidArgumentError, match="list"):
            m.polyval(2.0, 1.0)


# --- complex numbers


def test_complex_numbers_have_parts() -> None:
    z = np.array([3 + 4j, -1 - 1j])
    with Graph():
        assert value_of(complex_parts.real(z)).tolist() == [3, -1]
        assert value_of(complex_parts.imag(z)).tolist() == [4, -1]
        assert value_of(complex_parts.abs(z)).tolist() == [5, math.sqrt(2)]
        assert value_of(complex_parts.angle(z)).tolist() == [cmath.phase(v) for v in z]
        assert value_of(complex_parts.conj(z)).tolist() == z.conj().tolist()
        assert complex_parts.complex(1.0, 2.0).dtype is dtypes.complex64
        assert value_of(complex_parts.complex(np.float64(1), np.float64(np.inf))) == complex(1, math.inf)


def test_real_numbers_have_trivial_parts() -> None:
    with Graph():
        x = constant([-2.0, 3.0])
        assert complex_parts.real(x) is x
        assert complex_parts.conj(x) is x
        np.testing.assert_allclose(value_of(complex_parts.angle(x)), [math.pi, 0], rtol=1e-6)
        with pytest.raises(DTypeError):
            complex_parts.imag(x)
        with pytest.raises(DTypeError, match="float32 or float64"):
            complex_parts.complex(1, 2)


PARTS = [complex_parts.real, complex_parts.imag, complex_parts.abs, complex_parts.angle]


@pytest.mark.parametrize("part", PARTS)
def test_a_complex_gradient_is_the_direction_of_steepest_ascent(part: Callable[..., Any]) -> None:
    """gradient = d/dRe + i d/dIm, here against differences of a part of a holomorphic function."""
    z = np.array([0.7 - 0.4j, -1.2 + 0.5j])

    def total(value: Any) -> Any:
        return part(m.exp(m.square(value)))

    with Graph():
        x = constant(z)
        gradient = value_of(gradients(total(x), x)[0])
        for direction in (1.0, 1j):
            step = 1e-6 * direction
            up, down = value_of(total(z + step)), value_of(total(z - step))
            slope = (np.conj(gradient) * direction).real
            np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-6)


# --- derivatives


def test_gradients_of_common_activations_are_one_operation() -> None:
    for op, kind in (
        (m.tanh, "TanhGrad"),
        (m.sigmoid, "SigmoidGrad"),
        (m.sqrt, "SqrtGrad"),
        (m.rsqrt, "RsqrtGrad"),
    ):
        with Graph():
            x = placeholder("float32", [3])
            y, dy = op(x), placeholder("float32", [3])
            before = len(get_default_graph().get_operations())
            gradients(y, x, dy)
            assert [o.type for o in get_default_graph().get_operations()[before:]] == [kind]


def test_the_worked_example_of_automatic_differentiation() -> None:
    """f = ln x1 + x1 x2 - sin x2 at (2, 5): Baydin et al. (2018), table 2."""
    with Graph():
        x1, x2 = constant(2.0, "float64"), constant(5.0, "float64")
        f = subtract(add_v2(m.log(x1), multiply(x1, x2)), m.sin(x2))
        d1, d2 = gradients(f, [x1, x2])
        assert [round(float(value_of(t)), 3) for t in (f, d1, d2)] == [11.652, 5.5, 1.716]


def test_derivatives_of_every_order_of_lgamma() -> None:
    """lgamma', '' and ''' at 1 are -gamma, pi**2 / 6 and -2 zeta(3)."""
    with Graph():
        x = constant(np.float64(1))
        y = special.lgamma(x)
        for expected in (-EULER, math.pi**2 / 6, -2 * 1.2020569031595942):
            (y,) = gradients(y, x)
            assert value_of(y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("jit", ["off", "eager"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_and_half_powers_are_products_and_roots(dtype: Any, jit: str, monkeypatch: Any) -> None:
    """Bit for bit, as the expressions that a reader would write for them."""
    monkeypatch.setenv("FLOWRT_JIT", jit)
    x = np.random.default_rng(0).uniform(0.1, 9, 1000).astype(dtype)
    written = {
        2: x * x,
        3: x * x * x,
        0.5: np.sqrt(x),
        -0.5: 1 / np.sqrt(x),
        -1: 1 / x,
        -2: (1 / x) * (1 / x),  # not 1 / (x * x): x * x overflows first
        1: x,
    }
    with Graph(), Session() as session:
        fed = placeholder(dtypes.as_dtype(dtype), [None])
        got = session.run([fed**exponent for exponent in written], {fed: x})
    for exponent, found in zip(written, got, strict=True):
        np.testing.assert_array_equal(found, written[exponent], err_msg=str(exponent))


@pytest.mark.parametrize("jit", ["off", "eager"])
def test_inverse_squares_do_not_overflow_on_their_way(jit: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLOWRT_JIT", jit)
    with Graph(), Session() as session:
        fed = placeholder(dtypes.float32, [None])
        got = session.run(fed**-2, {fed: np.full(1000, 2e19, np.float32)})  # its square is 4e38: infinite
    np.testing.assert_allclose(got, 2.5e-39, rtol=1e-5)


def test_powers_of_integers_and_of_other_exponents_are_powers() -> None:
    with Graph():
        assert value_of(power(constant([3, -2]), 3)).tolist() == [27, -8]
        assert value_of(power(constant([3, -2]), 2)).tolist() == [9, 4]
        with pytest.raises(InvalidArgumentError):
            value_of(power(constant([3]), -1))
        np.testing.assert_allclose(value_of(power(constant([2.0, 4.0]), [3.0, 0.5])), [8, 2])
        x = constant(np.array([0.0, 2.0]))
        first = gradients(power(x, 3.0), x)[0]
        assert value_of(first).tolist() == [0, 12]
        assert value_of(gradients(first, x)[0]).tolist() == [0, 12]
        assert value_of(gradients(gradients(power(x, 2.0), x)[0], x)[0]).tolist() == [2, 2]


# --- fake quantization


@pytest.mark.parametrize("by_channel", [False, True], ids=["vars", "per_channel"])
def test_gradients_pass_a_fake_quantization_that_has_no_range_yet(by_channel: bool) -> None:
    x, ends = constant(np.array([[-1, 2], [3, -4]], np.float32)), np.zeros(2, np.float32)
    quantize = fake_quant.fake_quant_with_min_max_vars
    if by_channel:
        quantize, high = fake_quant.fake_quant_with_min_max_vars_per_channel, np.array([0, 5], np.float32)
    else:
        ends, high = ends[0], np.float32(0)
    inputs = [x, constant(ends), constant(high)]
    slopes = [value_of(slope).tolist() for slope in gradients(quantize(*inputs), inputs)]
    if by_channel:  # the second channel has a range, from 0 to 5
        assert slopes == [[[1, 1], [1, 0]], [0, 1], [0, 0]]
    else:
        assert slopes == [[[1, 1], [1, 1]], 0, 0]


def test_fake_quantization_needs_a_range_with_a_width() -> None:
    with pytest.raises(InvalidArgumentError, match=r"min: expected less than max; got min=2.0, max=-1.0"):
        fake_quant.fake_quant_with_min_max_args([1.0], 2.0, -1.0)


@pytest.mark.parametrize("name", ["div_no_nan", "mul_no_nan"])
def test_complex_numbers_without_nan(name: str) -> None:
    x, y = np.array([1 + 2j, 3 - 1j, np.inf]), np.array([1j, 2 - 2j, 0])
    inputs = [constant(x), constant(y)]
    z = getattr(division, name)(*inputs)
    slopes = [value_of(slope) for slope in gradients([complex_parts.real(z), complex_parts.imag(z)], inputs)]
    is_quotient = name == "div_no_nan"
    dx, dy = (1 / y[:2], -x[:2] / y[:2] ** 2) if is_quotient else (y[:2], x[:2])
    np.testing.assert_allclose(value_of(z), [*(x[:2] / y[:2] if is_quotient else x[:2] * y[:2]), 0])
    for slope, expected in zip(slopes, (dx, dy), strict=True):
        np.testing.assert_allclose(slope[:2], (1 + 1j) * expected.conj())
