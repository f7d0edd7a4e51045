"""Elementwise ops of two inputs, comparison, choice, clipping, bits, and Python's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise import arithmetic as a
from flowrt.graph.ops.elementwise import bitwise, comparison, division
from flowrt.graph.ops.surface.operators import overload_operators
from tests.graph.evaluation import value_of


def names() -> list[str]:
    return [op.name for op in get_default_graph().get_operations()]


# --- operators


def test_operators_have_tensorflows_names() -> None:
    with Graph():
        x: Any = placeholder("float32", [2], name="x")
        _ = x + 1, 2 - x, x * 3, x / 2, x // 2, x % 2, x**2, -x, abs(x), x < 1, 1 + x
        expected = "x add/y add sub/x sub mul/y mul truediv/y truediv floordiv/y floordiv mod/y mod pow/y pow"
        assert names() == [*expected.split(), "Neg", "Abs", "Less/y", "Less", "add_1/x", "add_1"]


@given(x=st.integers(-9, 9).filter(bool), y=st.integers(-9, 9).filter(bool))
def test_integer_operators_agree_with_python(x: int, y: int) -> None:
    with Graph():
        t: Any = constant(x)
        for function in (
            lambda p, q: p + q,
            lambda p, q: p - q,
            lambda p, q: p * q,
            lambda p, q: p // q,
            lambda p, q: p % q,
            lambda p, q: p / q,
            lambda p, q: p & q,
            lambda p, q: p | q,
            lambda p, q: p ^ q,
            lambda p, q: p < q,
            lambda p, q: p <= q,
            lambda p, q: p > q,
            lambda p, q: p >= q,
        ):
            assert value_of(function(t, y)) == function(x, y)
            assert value_of(function(y, t)) == function(y, x)
        assert (value_of(-t), value_of(abs(t)), value_of(~t)) == (-x, abs(x), ~x)


def test_operators_on_truth_values_are_logic() -> None:
    with Graph():
        x: Any = constant([True, False])
        assert value_of(x & True).tolist() == [True, False]
        assert value_of(x | True).tolist() == [True, True]
        assert value_of(True ^ x).tolist() == [False, True]
        assert value_of(~x).tolist() == [False, True]


def test_matmul_is_an_operator_on_both_sides() -> None:
    with Graph():
        x: Any = constant(np.arange(6.0).reshape(2, 3))
        y = np.ones((3, 2))
        assert value_of(x @ y).tolist() == [[3, 3], [12, 12]]
        assert value_of(y @ x).shape == (3, 3)


def test_equality_of_tensors_is_identity() -> None:
    with Graph():
        x, y = constant(1.0), constant(1.0)
        assert x != y
        assert {x: "x"}[x] == "x"


def test_an_array_on_the_left_leaves_the_operation_to_the_tensor() -> None:
    with Graph():
        x: Any = placeholder("float32", [2])
        assert isinstance(np.ones(2, np.float32) * x, Tensor)
        assert isinstance(np.float32(2) + x, Tensor)


def test_a_foreign_type_may_take_over_but_numbers_that_do_not_fit_are_refused() -> None:
    class Foreign:
        def __radd__(self, other: Any) -> str:
            return "foreign"

    with Graph():
        x: Any = placeholder("float32", [2])
        assert x + Foreign() == "foreign"
        for wrong in (1j, None, constant(1), "text"):
            with pytest.raises(DTypeError):
                _ = x + wrong


def test_classes_that_become_tensors_can_have_the_operators_too() -> None:
    class Holder:
        dtype = dtypes.float32

        def __flowrt_tensor__(self) -> Tensor:
            return constant([3.0, 4.0])

    overload_operators(Holder)
    with Graph():
        holder: Any = Holder()
        assert value_of(holder * 2).tolist() == [6, 8]
        assert value_of(1 - holder).tolist() == [-2, -3]
        assert value_of(-holder).tolist() == [-3, -4]
        assert value_of(holder[1]) == 4


# --- division


@pytest.mark.parametrize(
    ("dtype", "quotient"),
    [("int8", "float32"), ("uint16", "float32"), ("int32", "float64"), ("float16", "float16")],
)
def test_true_division_of_integers_is_floating(dtype: str, quotient: str) -> None:
    with Graph():
        x: Any = constant(7, dtype)
        assert (x / 2).dtype.name == quotient
        assert value_of(x / 2) == 3.5
        assert division.divide(x, 2).dtype.name == quotient


def test_python_2s_division_floors_integers() -> None:
    with Graph():
        assert value_of(division.div(-7, 2)) == -4
        assert value_of(division.div(-7.0, 2.0)) == -3.5


@pytest.mark.parametrize(
    "op", [division.floor_div, division.floormod, division.truncatediv, division.truncatemod, division.div_op]
)
def test_dividing_an_integer_by_zero_is_an_error_of_the_operation(op: Callable[..., Tensor]) -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match=r"'q'.*integer division by zero"):
        value_of(op([1, 2], [1, 0], name="q"))


def test_quotients_are_rounded_each_in_its_way() -> None:
    with Graph():
        x, y = [-7, -7, 7, 7], [2, -2, 2, -2]
        assert value_of(division.floordiv(x, y)).tolist() == [-4, 3, 3, -4]
        assert value_of(division.truncatediv(x, y)).tolist() == [-3, 3, 3, -3]
        assert value_of(division.floormod(x, y)).tolist() == [1, -1, 1, -1]
        assert value_of(division.truncatemod(x, y)).tolist() == [-1, -1, 1, 1]
        assert value_of(division.div_op(x, y)).tolist() == [-3, 3, 3, -3]
        least = np.array([-128], np.int8)
        assert value_of(division.truncatediv(least, np.array([3], np.int8))).tolist() == [-42]


def test_float_quotients_are_floored_as_quotients() -> None:
    """1 / 0.1 is 10 in float64, though 0.1 is a little more than a tenth: TensorFlow floors the former."""
    with Graph():
        assert value_of(division.floordiv(np.float64(1), np.float64(0.1))) == 10
        assert value_of(division.floordiv(1.0, 0.0)) == math.inf


def test_zero_factors_win_over_what_is_not_a_number() -> None:
    with Graph():
        zeros, odd = [0.0, 0.0, 2.0], [0.0, math.nan, 4.0]
        assert value_of(division.xdivy(zeros, odd)).tolist() == [0, 0, 0.5]
        assert value_of(division.xlogy(zeros, odd)).tolist() == [0, 0, pytest.approx(2 * math.log(4))]
        assert value_of(division.xlog1py(zeros, odd)).tolist() == [0, 0, pytest.approx(2 * math.log(5))]
        assert value_of(division.div_no_nan(odd, zeros)).tolist() == [0, 0, 2]
        assert value_of(division.mul_no_nan(odd, zeros)).tolist() == [0, 0, 8]


def test_the_gradient_of_xlogy_at_zero_is_zero() -> None:
    with Graph():
        x, y = constant(0.0), constant(0.0)
        assert [value_of(g) for g in gradients(division.xlogy(x, y), [x, y])] == [0, 0]


# --- sums, products, powers, extremes


def test_integers_wrap_around_and_keep_their_dtype() -> None:
    with Graph():
        total = value_of(a.add(np.int8(100), np.int8(100)))
        assert total == -56
        assert np.asarray(total).dtype == np.int8


def test_strings_are_joined() -> None:
    with Graph():
        assert value_of(a.add(constant(["a", "b"]), "c")).tolist() == [b"ac", b"bc"]


@pytest.mark.parametrize(("dtype", "x"), [("float16", 300.0), ("float32", 2e19), ("float64", 1e154)])
def test_an_inverse_square_is_exact_where_the_square_overflows(dtype: str, x: float) -> None:
    kind = dtypes.as_dtype(dtype).np
    expected = float(np.longdouble(x) ** -2)
    smallest = float(np.finfo(kind).smallest_subnormal)
    with Graph():
        found = float(value_of(a.power(constant(np.array(x, kind)), np.array(-2, kind))))
    assert found == pytest.approx(expected, rel=0.01, abs=2 * smallest)
    assert found > 0


def test_a_negative_power_of_an_integer_is_an_error() -> None:
    message = r"Pow 'Pow' \(.*\.py:\d+\): expected powers of at least 0 for integers; got -2"
    with Graph(), pytest.raises(InvalidArgumentError, match=message):
        value_of(a.pow([2, 3], [1, -2]))


def test_the_gradient_of_a_power_is_finite_where_the_base_is_zero() -> None:
    with Graph():
        x, y = constant([0.0, 0.0, 2.0]), constant([2.0, 1.0, 3.0])
        dx, dy = gradients(a.pow(x, y), [x, y])
        np.testing.assert_allclose(value_of(dx), [0, 1, 12])
        np.testing.assert_allclose(value_of(dy), [0, 0, 8 * math.log(2)], rtol=1e-6)


def test_complex_gradients_are_conjugated() -> None:
    """d|z|**2 = 2 Re(conj(z) dz): the gradient of z * conj(z) by both its parts is 2 z."""
    with Graph():
        z = constant(np.array(3 + 4j))
        w = constant(np.array(1 - 2j))
        dz, dw = gradients(a.multiply(z, w), [z, w], grad_ys=[constant(np.array(1 + 0j))])
        assert (value_of(dz), value_of(dw)) == (1 + 2j, 3 - 4j)


def test_ties_of_maximum_give_the_gradient_to_the_first() -> None:
    with Graph():
        x, y = constant([1.0, 2.0, 3.0]), constant([2.0, 2.0, 2.0])
        for function, expected in ((a.maximum, [0, 1, 1]), (a.minimum, [1, 1, 0])):
            dx, dy = gradients(function(x, y), [x, y])
            assert value_of(dx).tolist() == expected
            assert value_of(dy).tolist() == [1 - e for e in expected]


def test_not_a_number_wins_in_extremes() -> None:
    with Graph():
        assert np.isnan(value_of(a.maximum([math.nan, 1.0], [1.0, math.nan]))).all()


def test_add_n_takes_slices_and_refuses_other_shapes() -> None:
    with Graph():
        sparse = IndexedSlices(constant([[1.0, 1.0]]), constant([1]), constant([2, 2]))
        assert value_of(a.add_n([constant(np.ones((2, 2), np.float32)), sparse])).tolist() == [[1, 1], [2, 2]]
        x = constant([1.0])
        assert a.add_n([x]) is x
        for wrong in ([], x, [x, constant([1.0, 2.0])]):
            with pytest.raises(InvalidArgumentError, match="expected"):
                a.add_n(wrong)
        assert value_of(a.accumulate_n([x, x, x], shape=[1])).tolist() == [3]
        with pytest.raises(InvalidArgumentError):
            a.accumulate_n([x, x], shape=[2])


def test_add_n_may_write_over_any_of_its_inputs() -> None:
    for position in range(3):
        inputs = [np.full(2, 10.0**i) for i in range(3)]
        assert a.add_n_op.kernel(np, tuple(inputs), out=inputs[position]).tolist() == [111, 111]


def test_scalar_mul_keeps_slices_and_refuses_vectors() -> None:
    with Graph():
        sparse = IndexedSlices(constant([[1.0, 2.0]]), constant([1]), constant([2, 2]))
        scaled = a.scalar_mul(3, sparse)
        assert value_of(scaled.values).tolist() == [[3, 6]]
        with pytest.raises(InvalidArgumentError, match="scalar"):
            a.scalar_mul([1.0, 2.0], constant([1.0, 2.0]))


# --- clipping


def test_clip_by_value_passes_the_gradient_only_inside() -> None:
    with Graph():
        x = constant([-2.0, 0.5, 3.0])
        clipped = a.clip_by_value(x, -1.0, 1.0)
        assert clipped.op.name == "clip_by_value"
        assert value_of(clipped).tolist() == [-1, 0.5, 1]
        assert value_of(gradients(clipped, x)[0]).tolist() == [0, 1, 0]


def test_clip_by_value_refuses_bounds_that_widen() -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match="compatible"):
        a.clip_by_value(constant([1.0]), [0.0, 0.0], 1.0)


def test_no_dtype_is_not_that_of_numpy() -> None:
    with Graph(), pytest.raises(DTypeError, match="got None"):
        cast(constant([1.0]), None)


@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "int64", "float16", "bfloat16"])
def test_saturate_cast_stops_at_the_ends_of_the_range(target: str) -> None:
    dtype = dtypes.as_dtype(target)
    with Graph():
        low, middle, high = value_of(
            a.saturate_cast(np.array([-1e30, 2.0, 1e30], np.float32), dtype)
        ).tolist()
        assert middle == 2
        if dtype.is_integer:
            assert low == dtype.min
            assert dtype.max * (1 - 2**-23) <= high <= dtype.max  # float32 has no larger value within
        elif target == "float16":
            assert (low, high) == (-65504, 65504)


@pytest.mark.parametrize("target", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_saturate_cast_of_infinities(source: str, target: str) -> None:
    dtype = dtypes.as_dtype(target)
    with Graph():
        ends = constant(np.array([-np.inf, np.inf]).astype(dtypes.as_dtype(source).np))
        low, high = value_of(a.saturate_cast(ends, dtype)).tolist()
        assert low == dtype.min
        assert dtype.max * 0.99 <= high <= dtype.max


# --- comparison and choice


def test_comparisons_broadcast_and_give_bool() -> None:
    with Graph():
        assert value_of(comparison.less([[1], [3]], [2, 3])).tolist() == [[True, True], [False, False]]
        assert value_of(comparison.equal(["a", "b"], "a")).tolist() == [True, False]
        assert value_of(comparison.not_equal([math.nan], [math.nan])).tolist() == [True]
        assert value_of(comparison.approximate_equal([1.0, 1.0], [1.05, 2.0], tolerance=0.1)).tolist() == [
            True,
            False,
        ]
        assert value_of(comparison.logical_xor([True, True], [True, False])).tolist() == [False, True]
        with pytest.raises(DTypeError):
            comparison.less(1j, 2j)


def test_where_takes_a_vector_over_rows_and_where_v2_broadcasts_it() -> None:
    with Graph():
        x, y = np.ones((2, 2)), np.zeros((2, 2))
        condition = [True, False]
        assert value_of(comparison.where(condition, x, y)).tolist() == [[1, 1], [0, 0]]
        assert value_of(comparison.where_v2(condition, x, y)).tolist() == [[1, 0], [1, 0]]
        assert value_of(comparison.where(True, x, y)).tolist() == x.tolist()
        assert value_of(comparison.where([False, True])).tolist() == [[1]]
        with pytest.raises(InvalidArgumentError, match="both x and y"):
            comparison.where(condition, x)
        with pytest.raises(InvalidArgumentError):
            comparison.where([True, False, True], x, y)


def test_the_gradient_of_where_goes_where_the_value_came_from() -> None:
    with Graph():
        x, y = constant(5.0), constant([1.0, 2.0])
        dx, dy = gradients(comparison.where_v2([True, False], x, y), [x, y])
        assert value_of(dx) == 1
        assert value_of(dy).tolist() == [0, 1]


def test_bits() -> None:
    with Graph():
        assert value_of(bitwise.left_shift([1, 3], 2)).tolist() == [4, 12]
        assert value_of(bitwise.right_shift(-8, 1)) == -4
        assert value_of(bitwise.invert(np.array([0, 255], np.uint8))).tolist() == [255, 0]


# --- shapes and errors


def test_shapes_that_do_not_broadcast_are_refused_with_the_users_line() -> None:
    where_and_what = r"Mul 'mul' .*test_ops_arithmetic.py:\d+\).*\[2\] and \[3\]"
    with Graph():
        x: Any = constant([1.0, 2.0])
        with pytest.raises(InvalidArgumentError, match=where_and_what):
            _ = x * constant([1.0, 2.0, 3.0])


@pytest.mark.parametrize("dtype", [d.name for d in sorted(dtypes.NUMERIC, key=str)])
def test_sums_of_every_numeric_dtype_keep_it(dtype: str) -> None:
    with Graph():
        x: Any = constant([1, 2], dtype)
        for result in (x + x, x - x, x * x):
            assert result.dtype.name == dtype
            assert np.asarray(value_of(result)).dtype == dtypes.as_dtype(dtype).np
