"""Reductions, running totals and positions of extremes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array import reductions as r
from flowrt.graph.ops.array import scans, statistics
from flowrt.graph.ops.elementwise.arithmetic import multiply
from tests.graph.evaluation import value_of

X = np.arange(24.0).reshape(2, 3, 4) - 7

axes = st.none() | st.integers(-3, 2) | st.lists(st.integers(0, 2), unique=True, max_size=3)


@given(axis=axes, keep=st.booleans(), hidden=st.sets(st.integers(0, 2)), fed_axis=st.booleans())
def test_reductions_agree_with_numpy_whatever_is_known(
    axis: Any, keep: bool, hidden: set[int], fed_axis: bool
) -> None:
    numpy_axis = tuple(axis) if isinstance(axis, list) else axis
    with Graph():
        x = placeholder("float64", [None if i in hidden else d for i, d in enumerate(X.shape)])
        feeds: dict[Any, Any] = {x: X}
        given_axis = axis
        if fed_axis and axis is not None:
            given_axis = placeholder("int32", np.shape(axis))
            feeds[given_axis] = axis
        for function, expected in ((r.reduce_sum, np.sum), (r.reduce_max, np.max), (r.reduce_mean, np.mean)):
            result = function(x, given_axis, keepdims=keep)
            np.testing.assert_allclose(value_of(result, feeds), expected(X, axis=numpy_axis, keepdims=keep))
            (dx,) = gradients(result, x)
            assert value_of(dx, feeds).shape == X.shape


def test_reductions_of_unknown_rank_to_a_scalar_say_so() -> None:
    with Graph():
        x = placeholder("float32")
        total = r.reduce_sum(x)
        assert total.shape.as_list() == []
        assert value_of(total, {x: np.ones((2, 3))}) == 6
        (dx,) = gradients(r.reduce_mean(x), x)
        np.testing.assert_allclose(value_of(dx, {x: np.ones((2, 4))}), np.full((2, 4), 0.125))


def test_deprecated_spellings_are_taken() -> None:
    with Graph():
        assert r.reduce_sum(X, reduction_indices=[0], keep_dims=True).shape.as_list() == [1, 3, 4]
        assert statistics.argmax(X, dimension=1).shape.as_list() == [2, 4]
        with pytest.raises(InvalidArgumentError, match="both"):
            r.reduce_sum(X, axis=0, reduction_indices=[0])


def test_default_names_are_tensorflows() -> None:
    with Graph():
        made = [
            r.reduce_sum(X),
            r.reduce_mean(X),
            r.reduce_max(X),
            r.reduce_all([True]),
            statistics.argmax([1]),
        ]
        assert [t.op.name for t in made] == ["Sum", "Mean", "Max", "All", "ArgMax"]


def test_axes_out_of_range_or_named_twice_are_refused() -> None:
    with Graph():
        for axis in (3, -4, [0, 0], [0, -3]):
            with pytest.raises(InvalidArgumentError, match="axis"):
                r.reduce_sum(X, axis)
        fed = placeholder("int32", [1])
        with pytest.raises(InvalidArgumentError):
            value_of(r.reduce_sum(X, fed), {fed: [5]})


def test_empty_axes_give_neutral_elements() -> None:
    with Graph():
        empty = np.zeros((0, 2), np.float32)
        assert value_of(r.reduce_sum(empty, 0)).tolist() == [0, 0]
        assert value_of(r.reduce_prod(empty, 0)).tolist() == [1, 1]
        assert value_of(r.reduce_max(empty, 0)).tolist() == [-math.inf] * 2
        assert value_of(r.reduce_min(empty, 0)).tolist() == [math.inf] * 2
        assert value_of(r.reduce_max(empty.astype(np.int8), 0)).tolist() == [-128] * 2
        assert np.isnan(value_of(r.reduce_mean(empty, 0))).all()
        assert value_of(r.reduce_all(empty.astype(bool), 0)).tolist() == [True, True]
        assert value_of(r.reduce_any(empty.astype(bool), 0)).tolist() == [False, False]


@pytest.mark.parametrize("reduce", [r.reduce_sum, r.reduce_mean, r.reduce_prod, r.reduce_max, r.reduce_min])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_along_no_axes_every_element_stays(reduce: Any, dtype: Any) -> None:
    value = np.array([[-0.0, 1], [math.inf, math.nan]], dtype)
    with Graph():
        found = value_of(reduce(value, []))
    np.testing.assert_array_equal(found, value)
    assert np.signbit(found[0, 0])
    assert found.dtype == dtype


def test_integer_means_are_cut_towards_zero() -> None:
    with Graph():
        assert value_of(r.reduce_mean([-3, 2, -4])) == -1
        assert value_of(r.reduce_mean(np.zeros(0, np.int32))) == 0


def test_integer_sums_keep_their_dtype() -> None:
    with Graph():
        total = value_of(r.reduce_sum(np.array([100, 100], np.int8)))
        assert np.asarray(total).dtype == np.int8
        assert total == -56


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_summed_in_float32(dtype: str) -> None:
    """In their own dtype 1 is lost beside 2048 (float16) or 256 (bfloat16)."""
    with Graph():
        ones = np.ones((1000, 2)).astype(dtypes.as_dtype(dtype).np)
        assert value_of(r.reduce_mean(ones, 0)).tolist() == [1, 1]
        assert float(value_of(r.reduce_sum(ones, 0))[0]) == pytest.approx(1000, rel=2**-8)
        assert float(value_of(scans.cumsum(ones, 0))[-1, 0]) == pytest.approx(1000, rel=2**-8)


def test_ties_share_the_gradient_of_an_extreme() -> None:
    with Graph():
        x = constant([[3.0, 1.0, 3.0], [0.0, 5.0, 2.0]])
        (dx,) = gradients(r.reduce_max(x, 1), x)
        assert value_of(dx).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
        (dx,) = gradients(r.reduce_min(x), x)
        assert value_of(dx).tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("axis", [None, 0, 1, [0, 2], [2, 0, 1]])
def test_the_gradient_of_a_product_is_right_at_zeros(axis: Any) -> None:
    values = np.array([[[2.0, 0.0], [3.0, 4.0]], [[0.0, 0.0], [5.0, 6.0]]])
    with Graph():
        x = constant(values)
        (dx,) = gradients(r.reduce_prod(x, axis), x)
        expected = np.zeros_like(values)
        numpy_axis = tuple(axis) if isinstance(axis, list) else axis
        for index in np.ndindex(values.shape):
            with_one, with_zero = values.copy(), values.copy()
            with_one[index], with_zero[index] = 1, 0
            expected[index] = np.sum(np.prod(with_one, numpy_axis) - np.prod(with_zero, numpy_axis))
        np.testing.assert_allclose(value_of(dx), expected)


def test_the_gradient_of_a_product_over_fed_axes_says_what_it_needs() -> None:
    with Graph():
        x = placeholder("float32")
        with pytest.raises(UnimplementedError, match="rank"):
            gradients(r.reduce_prod(x, [0, 1]), x)


# --- composed


def test_logsumexp_does_not_overflow_and_knows_infinities() -> None:
    with Graph():
        x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, -np.inf], [np.inf, 0.0]])
        expected = [1000 + math.log(2), -1000 + math.log(2), -math.inf, math.inf]
        assert value_of(r_logsumexp := statistics.reduce_logsumexp(x, 1)).tolist() == expected
        assert r_logsumexp.shape.as_list() == [4]
        assert statistics.reduce_logsumexp(x, 1, keepdims=True).shape.as_list() == [4, 1]
        y = constant([1.0, 2.0])
        (dy,) = gradients(statistics.reduce_logsumexp(y), y)
        np.testing.assert_allclose(value_of(dy), np.exp([1, 2]) / np.exp([1, 2]).sum(), rtol=1e-6)


def test_variance_and_standard_deviation_agree_with_numpy() -> None:
    with Graph():
        np.testing.assert_allclose(value_of(statistics.reduce_variance(X, [0, 2])), X.var((0, 2)))
        np.testing.assert_allclose(
            value_of(statistics.reduce_std(X, 1, keepdims=True)), X.std(1, keepdims=True)
        )
        z = X[0] + 1j * X[1]
        np.testing.assert_allclose(value_of(statistics.reduce_variance(z, 0)), z.var(0))
        np.testing.assert_allclose(
            value_of(statistics.reduce_euclidean_norm(X, 1)), np.linalg.norm(X, axis=1)
        )


def test_count_nonzero_counts_also_strings_and_truth() -> None:
    with Graph():
        assert value_of(statistics.count_nonzero([[0, 1], [2, 3]], axis=0)).tolist() == [1, 2]
        assert value_of(statistics.count_nonzero(["", "a", "b"])) == 2
        assert value_of(statistics.count_nonzero(input=[True, False], dtype="int32")) == 1


def test_positions_of_extremes_are_the_first_of_equals() -> None:
    with Graph():
        assert value_of(statistics.argmax([[1, 3, 3], [2, 2, 0]], 1)).tolist() == [1, 0]
        assert value_of(statistics.argmin([[1, 3, 1], [2, 2, 2]], -1)).tolist() == [0, 0]
        assert statistics.argmax([1.0, 2.0]).dtype is dtypes.int64
        assert np.asarray(value_of(statistics.argmax([1.0, 2.0], output_type="int32"))).dtype == np.int32
        with pytest.raises(InvalidArgumentError, match="expected elements"):
            statistics.argmax(np.zeros((2, 0)), 1)
        with pytest.raises(InvalidArgumentError, match="axis"):
            statistics.argmax([1.0], 1)


# --- running totals


@given(axis=st.integers(-2, 1), exclusive=st.booleans(), reverse=st.booleans(), rows=st.integers(0, 5))
def test_running_totals_agree_with_numpy(axis: int, exclusive: bool, reverse: bool, rows: int) -> None:
    x = np.random.default_rng(rows).uniform(0.5, 2, (rows, 3))

    def expected(accumulate: Any, start: float) -> Any:
        source = np.flip(x, axis) if reverse else x
        totals = accumulate(source, axis=axis)
        if exclusive and totals.shape[axis]:
            totals = np.roll(totals, 1, axis)
            first = [slice(None)] * 2
            first[axis] = slice(0, 1)
            totals[tuple(first)] = start
        return np.flip(totals, axis) if reverse else totals

    with Graph():
        options = (axis, exclusive, reverse)
        np.testing.assert_allclose(value_of(scans.cumsum(x, *options)), expected(np.cumsum, 0))
        np.testing.assert_allclose(value_of(scans.cumprod(x, *options)), expected(np.cumprod, 1))
        logs = value_of(scans.cumulative_logsumexp(x, *options))
        np.testing.assert_allclose(logs, expected(np.logaddexp.accumulate, -np.inf))


def test_the_gradient_of_exclusive_logsumexp_is_finite_beside_the_empty_sum() -> None:
    with Graph():
        x = constant(np.array([1.0, 2.0, 3.0]))
        total = multiply(scans.cumulative_logsumexp(x, exclusive=True), np.array([0.0, 1.0, -1.0]))
        (dx,) = gradients(total, x)
        weights = np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum()
        np.testing.assert_allclose(value_of(dx), [1 - weights[0], -weights[1], 0], atol=1e-12)
