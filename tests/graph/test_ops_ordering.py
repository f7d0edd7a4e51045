"""Sorting, distinct elements, counting and segment reductions against NumPy, with TensorFlow's order of
ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.array.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from flowrt.graph.ops.array.sorting import (
    argsort,
    searchsorted,
    setdiff1d,
    sort,
    top_k,
    unique,
    unique_with_counts,
)
from flowrt.graph.ops.array.statistics import bincount, confusion_matrix, histogram_fixed_width
from tests.graph.evaluation import value_of, values_of

X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as graph:
        yield graph


# --- order


@given(st.lists(st.integers(-3, 3), max_size=8), st.sampled_from(["ASCENDING", "DESCENDING"]))
def test_equal_elements_keep_their_order(numbers: list[int], direction: str) -> None:
    sign = 1 if direction == "ASCENDING" else -1
    values = np.array(numbers, np.int32)
    with Graph():
        order = argsort(constant(values), direction=direction)
        np.testing.assert_array_equal(value_of(order), np.argsort(sign * values, kind="stable"))
        np.testing.assert_array_equal(
            value_of(sort(constant(values), direction=direction)), sign * np.sort(sign * values)
        )


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_sort_works_along_any_axis_and_has_a_gradient(axis: int) -> None:
    x = constant(X)
    ordered = sort(x, axis=axis)
    np.testing.assert_array_equal(value_of(ordered), np.sort(X, axis))
    weights = np.random.default_rng(1).standard_normal(X.shape).astype(np.float32)
    expected = np.zeros_like(X)
    np.put_along_axis(expected, np.argsort(X, axis), weights, axis)
    np.testing.assert_array_equal(value_of(gradients(ordered, x, constant(weights))[0]), expected)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint64])
def test_the_extremes_of_integers_sort_right(dtype: dtypes.DType) -> None:
    values = np.array([5, dtype.max, dtype.min, 0], dtype.np)
    assert value_of(sort(constant(values))).tolist() == sorted(values.tolist())
    assert value_of(top_k(constant(values), 1).values).tolist() == [dtype.max]


def test_top_k_gives_the_lower_index_first_among_equals() -> None:
    values, indices = top_k([1, 5, 5, 2], k=3)
    assert [v.tolist() for v in values_of([values, indices])] == [[5, 5, 2], [1, 2, 3]]
    assert top_k(constant(X), 2).indices.shape.as_list() == [3, 4, 2]


@pytest.mark.parametrize("kind", ["floats", "ties", "some NaN", "almost all NaN", "integers"])
def test_top_k_of_long_rows_is_that_of_sorted_ones(kind: str) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 2000)).astype(np.float32) * 3
    if kind == "ties":
        rows = np.round(rows)
    elif kind == "some NaN":
        rows[:, ::3] = np.nan
    elif kind == "almost all NaN":
        rows[:, 2:] = np.nan
    elif kind == "integers":
        rows = (rows * 50).astype(np.int16)
    values, indices = (value_of(t) for t in top_k(constant(rows), 40))
    descending = rows.astype(np.float64) * -1
    expected = np.argsort(descending, axis=1, kind="stable")[:, :40]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(rows, expected, 1))


def test_the_gradient_of_top_k_works_on_unknown_shapes() -> None:
    x = placeholder(dtypes.float32)
    values, _ = top_k(x, 2)
    slope = value_of(gradients(values, x)[0], {x: X})
    np.testing.assert_array_equal(slope, np.sort(X)[..., -2:-1] <= X)


def test_top_k_refuses_a_k_above_the_dimension() -> None:
    with pytest.raises(InvalidArgumentError, match=r"k: expected a number in \[0, 2\]"):
        top_k([1.0, 2.0], 3)
    k = placeholder(dtypes.int32, [])
    with pytest.raises(InvalidArgumentError, match=r"k: expected a number in \[0, 2\]"):
        value_of(top_k([1.0, 2.0], k).values, {k: 3})
    with pytest.raises(InvalidArgumentError, match="direction"):
        sort([1], direction="UP")


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys_row_by_row(side: Any) -> None:
    rows, wanted = np.sort(X), X[..., :2]
    found = value_of(searchsorted(constant(rows), constant(wanted), side=side))
    for entry in np.ndindex(3, 4):
        np.testing.assert_array_equal(found[entry], np.searchsorted(rows[entry], wanted[entry], side=side))


def test_searchsorted_takes_rows_without_values_or_limits() -> None:
    values, limits = placeholder(dtypes.float32, [None]), placeholder(dtypes.float32, [None])
    flat = searchsorted(limits, values, side="right")
    assert value_of(flat, {limits: [1.0, 2.0], values: []}).shape == (0,)
    assert value_of(flat, {limits: [], values: [3.0, 4.0]}).tolist() == [0, 0]
    assert value_of(searchsorted(np.zeros([2, 0, 3]), np.zeros([2, 0, 4]))).shape == (2, 0, 4)
    assert value_of(searchsorted(np.zeros([2, 3]), np.zeros([2, 0]))).shape == (2, 0)


@given(st.lists(st.integers(0, 4), max_size=8))
def test_unique_keeps_the_order_of_first_occurrence(numbers: list[int]) -> None:
    with Graph():
        y, idx, count = values_of(list(unique_with_counts(constant(numbers, dtypes.int32, [len(numbers)]))))
        assert y.tolist() == list(dict.fromkeys(numbers))
        assert y[idx].tolist() == numbers
        assert count.tolist() == [numbers.count(v) for v in y]


def test_unique_takes_strings_and_only_vectors() -> None:
    y, idx = unique(["b", "a", "b"], out_idx=dtypes.int64)
    assert (value_of(y).tolist(), value_of(idx).tolist(), idx.dtype) == (
        [b"b", b"a"],
        [0, 1, 0],
        dtypes.int64,
    )
    with pytest.raises(InvalidArgumentError, match="expected a vector"):
        unique([[1]])


def test_setdiff1d_keeps_repetitions() -> None:
    out, idx = setdiff1d([1, 2, 3, 3, 4], [2, 4])
    assert [v.tolist() for v in values_of([out, idx])] == [[1, 3, 3], [0, 2, 3]]


# --- counts


def test_bincount_counts_or_adds_up_weights() -> None:
    assert value_of(bincount([1, 1, 3])).tolist() == [0, 2, 0, 1]
    assert bincount([1, 1, 3]).shape.as_list() == [4]
    assert value_of(bincount([1, 1, 3], weights=[0.5, 1.0, 2.0])).tolist() == [0.0, 1.5, 0.0, 2.0]
    assert value_of(bincount([1, 1, 3], minlength=6)).tolist() == [0, 2, 0, 1, 0, 0]
    assert value_of(bincount([1, 1, 3], maxlength=2)).tolist() == [0, 2]
    numbers = placeholder(dtypes.int32)
    assert value_of(bincount(numbers, dtype=dtypes.float32), {numbers: [[2, 0]]}).tolist() == [1.0, 0.0, 1.0]
    assert value_of(bincount(numbers), {numbers: np.zeros((0, 2))}).tolist() == []
    with pytest.raises(InvalidArgumentError, match="at least 0; got -1"):
        value_of(bincount(numbers), {numbers: [-1]})


def test_a_histogram_counts_outsiders_in_its_ends() -> None:
    values = [-1.0, 0.0, 1.5, 2.0, 5.0, 15.0]
    assert value_of(histogram_fixed_width(values, [0.0, 5.0], 5)).tolist() == [2, 1, 1, 0, 2]
    with pytest.raises(InvalidArgumentError, match="low < high"):
        value_of(histogram_fixed_width(values, [5.0, 5.0]))


def test_a_confusion_matrix_has_labels_as_rows() -> None:
    assert value_of(confusion_matrix([0, 1, 2], [0, 2, 2])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    weighted = confusion_matrix([0, 1], [1, 1], num_classes=3, dtype=dtypes.float32, weights=[0.5, 2.0])
    assert value_of(weighted).tolist() == [[0, 0.5, 0], [0, 2.0, 0], [0, 0, 0]]
    with pytest.raises(InvalidArgumentError, match=r"\[0, 2\); got 2"):
        value_of(confusion_matrix([2], [0], num_classes=2))


# --- segments

FOLDS = {"Sum": (np.add, 0), "Prod": (np.multiply, 1), "Max": (np.maximum, None), "Min": (np.minimum, None)}


@pytest.mark.parametrize("name", FOLDS)
@given(ids=st.lists(st.integers(-1, 3), max_size=6))
def test_a_segment_folds_the_rows_with_its_id(name: str, ids: list[int]) -> None:
    ufunc, empty = FOLDS[name]
    rows = np.random.default_rng(0).integers(-3, 4, (len(ids), 2)).astype(np.int32)
    with Graph():
        given_ids = constant(ids, dtypes.int32, [len(ids)])
        found = value_of(op_def("UnsortedSegment" + name)(constant(rows), given_ids, 4))
        for segment in range(4):
            own = rows[[i == segment for i in ids]]
            if len(own):
                np.testing.assert_array_equal(found[segment], ufunc.reduce(own, axis=0))
            elif empty is not None:
                assert found[segment].tolist() == [empty, empty]
        ascending = sorted(i for i in ids if i >= 0)
        given_ids = constant(ascending, dtypes.int64, [len(ascending)])
        found = value_of(op_def("Segment" + name)(constant(rows[: len(ascending)]), given_ids))
        assert len(found) == (ascending[-1] + 1 if ascending else 0)
        for segment in range(len(found)):
            own = rows[: len(ascending)][[i == segment for i in ascending]]
            expected = ufunc.reduce(own, axis=0) if len(own) else [empty or 0] * 2
            np.testing.assert_array_equal(found[segment], expected)


def test_means_and_their_kin() -> None:
    rows = [[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]]
    assert value_of(segment_mean(rows, [0, 0, 2])).tolist() == [[2, 4], [0, 0], [5, 5]]
    assert value_of(segment_mean([1, 2], [0, 0])).tolist() == [1]
    assert value_of(segment_mean([-1, -2, -7], [0, 0, 1])).tolist() == [-1, -7]  # cut towards zero
    assert value_of(segment_mean(np.full(300, -3, np.int8), np.zeros(300, np.int32))).tolist() == [-3]
    assert value_of(unsorted_segment_mean(rows, [1, 1, -1], 3)).tolist() == [[0, 0], [2, 4], [0, 0]]
    expected = np.array([[4, 8], [5, 5]]) / np.sqrt([[2], [1]])
    np.testing.assert_allclose(value_of(unsorted_segment_sqrt_n(rows, [0, 0, 1], 2)), expected, rtol=1e-6)


def test_ids_may_have_several_dimensions() -> None:
    summed = unsorted_segment_sum(constant(X), [[0, 1, 1, 0]] * 3, 2)
    assert summed.shape.as_list() == [2, 5]
    np.testing.assert_allclose(value_of(summed)[0], X[:, [0, 3]].sum((0, 1)), rtol=1e-5)


def test_sixteen_bit_floats_are_folded_in_float32() -> None:
    ones = constant(np.ones(3000, np.float16))
    assert value_of(segment_sum(ones, np.zeros(3000, np.int32))).tolist() == [3000]
    assert value_of(unsorted_segment_sum(ones, np.zeros(3000, np.int32), 1)).dtype == np.float16


def test_ties_share_the_gradient_of_a_segments_extreme() -> None:
    x = constant([1.0, 1.0, 2.0])
    assert value_of(gradients(segment_max(x, [0, 0, 2]), x)[0]).tolist() == [0.5, 0.5, 1.0]
    assert value_of(gradients(segment_min(x, [0, 0, 0]), x)[0]).tolist() == [0.5, 0.5, 0.0]
    assert value_of(gradients(unsorted_segment_max(x, [0, -1, 0], 2), x)[0]).tolist() == [0.0, 0.0, 1.0]


def test_the_gradient_of_a_product_is_right_beside_zeros() -> None:
    x = constant([0.0, 3.0, 0.0, 0.0, 5.0])
    assert value_of(gradients(segment_prod(x, [0, 0, 1, 1, 2]), x)[0]).tolist() == [3.0, 0.0, 0.0, 0.0, 1.0]
    assert value_of(gradients(unsorted_segment_prod(x, [1, 1, 0, 0, -1], 2), x)[0]).tolist() == [
        3,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("dims", [[None, None, None], None])
def test_segments_of_unknown_shape_have_gradients(dims: Any) -> None:
    x, ids = placeholder(dtypes.float32, dims), placeholder(dtypes.int32, None if dims is None else [None])
    feeds = {x: X, ids: [1, -1, 1]}
    for fold in (unsorted_segment_sum, unsorted_segment_max, unsorted_segment_prod):
        assert value_of(gradients(fold(x, ids, 2), x)[0], feeds)[1].tolist() == np.zeros((4, 5)).tolist()
    feeds[ids] = [0, 0, 2]
    np.testing.assert_array_equal(
        value_of(gradients(segment_mean(x, ids), x)[0], feeds)[:, 0, 0], [0.5, 0.5, 1]
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda ids: segment_sum([1, 2, 3], ids), "ids of at least 0 in ascending order; got"),
        (
            lambda ids: unsorted_segment_sum([1, 2, 3], ids, 2),
            r"segment_ids\[0\]: expected an index in \[0, 2\); got 5",
        ),
        (lambda ids: unsorted_segment_sum([1, 2], ids, 9), r"a prefix of \[2\]; got \[3\]"),
        (lambda ids: segment_sum([1, 2], ids), "expected 2, one per row; got 3"),
    ],
)
def test_wrong_ids_are_refused_at_run_time(build: Callable[[Any], Any], message: str) -> None:
    ids = placeholder(dtypes.int32)
    with pytest.raises(InvalidArgumentError, match=message):
        value_of(build(ids), {ids: [5, 2, 0]})
