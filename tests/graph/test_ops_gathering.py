"""Gather, scatter, masks, embeddings: NumPy's results, TensorFlow's API, errors that name the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
import flowrt.graph.ops.surface.all
from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.gather_scatter import (
    batch_gather,
    gather,
    gather_nd,
    scatter_nd,
    tensor_scatter_nd_add,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_update,
)
from flowrt.graph.ops.array.selection import (
    boolean_mask,
    dynamic_partition,
    dynamic_stitch,
    embedding_lookup,
    repeat,
    sparse_to_dense,
)
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.identities import static_value
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.comparison import where
from tests.graph.evaluation import value_of, values_of

X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
MASK = np.array([[True, False, True, True], [False] * 4, [True] * 4])


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as graph:
        yield graph


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gather rows": lambda x: gather(x, [[1, 0], [1, 1]]),
    "gather one": lambda x: gather(x, 2),
    "gather columns": lambda x: gather(x, [3, 3, 0], axis=1),
    "gather at the end": lambda x: gather(x, [[1], [1]], axis=-1),
    "gather in batches": lambda x: gather(x, [[0, 1], [2, 2], [1, 0]], batch_dims=1, axis=2),
    "gather_nd": lambda x: gather_nd(x, [[0, 1], [2, 3], [0, 1]]),
    "gather_nd in batches": lambda x: gather_nd(x, [[[1]], [[0]], [[1]]], batch_dims=1),
    "scatter_update": lambda x: tensor_scatter_nd_update(x, [[2, 1], [0, 0]], X[0, :2]),
    "scatter_sub": lambda x: tensor_scatter_nd_sub(x, [[2, 1], [2, 1]], X[0, :2]),
    "boolean_mask": lambda x: boolean_mask(x, [True, False, True]),
    "boolean_mask of two dimensions": lambda x: boolean_mask(x, MASK),
    "boolean_mask along an axis": lambda x: boolean_mask(x, MASK[0], axis=1),
    "repeat": lambda x: repeat(x, [1, 2, 0], axis=0),
    "dynamic_partition": lambda x: dynamic_partition(x, [1, 0, 1], 2)[1],
    "embedding_lookup": lambda x: embedding_lookup(x, [[2, 0], [1, 1]], max_norm=1.5),
}
NEEDS_RANK = {
    "boolean_mask along an axis",
    "gather columns",
    "gather at the end",
    "gather in batches",
    "repeat",
    "embedding_lookup",
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dims", [[None, None, None], None])
def test_unknown_shapes_give_the_values_and_gradients_of_known_ones(name: str, dims: Any) -> None:
    function = FUNCTIONS[name]
    known, unknown = constant(X), placeholder(dtypes.float32, dims)
    if dims is None and name in NEEDS_RANK:
        with pytest.raises((InvalidArgumentError, UnimplementedError), match="known rank"):
            gradients(function(unknown), unknown)
        return
    expected, found = function(known), function(unknown)
    wanted = value_of(expected)
    assert expected.shape.is_compatible_with(wanted.shape)
    assert found.shape.is_compatible_with(wanted.shape)
    weights = constant(np.random.default_rng(1).standard_normal(wanted.shape).astype(np.float32))
    slope, slope_of_known = gradients(found, unknown, weights)[0], gradients(expected, known, weights)[0]
    np.testing.assert_array_equal(value_of(found, {unknown: X}), wanted)
    np.testing.assert_allclose(value_of(slope, {unknown: X}), value_of(slope_of_known), rtol=1e-5, atol=1e-6)


# --- gather


@given(st.integers(-3, 2), st.lists(st.integers(0, 2), max_size=4), st.booleans())
def test_gather_is_numpys_take(axis: int, places: list[int], square: bool) -> None:
    indices = np.array(places * 2 if square else places, np.int32).reshape((2, -1) if square else (-1,))
    with Graph():
        taken = gather(constant(X), constant(indices), axis=axis)
        expected = np.take(X, indices, axis)
        assert taken.shape.as_list() == list(expected.shape)
        np.testing.assert_array_equal(value_of(taken), expected)


@given(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9))
def test_batch_dimensions_go_in_step(batch: int, between: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = (2, 3)[:batch] + (2, 2)[:between] + (4, 2)
    axis = batch + between
    params = rng.standard_normal(dims)
    indices = rng.integers(0, 4, (2, 3)[:batch] + (3,))
    with Graph():
        found = gather(constant(params), constant(indices), axis=axis, batch_dims=batch)
        expected = np.empty(dims[:axis] + (3, 2))
        for entry in np.ndindex(dims[:batch]):
            expected[entry] = np.take(params[entry], indices[entry], axis - batch)
        assert found.shape.as_list() == list(expected.shape)
        np.testing.assert_array_equal(value_of(found), expected)


def test_the_gradient_of_a_gather_of_rows_is_sparse() -> None:
    table = constant(X)
    gradient = gradients(gather(table, [[1, 0], [1, 1]]), table)[0]
    assert isinstance(gradient, IndexedSlices)
    assert value_of(gradient.indices).tolist() == [1, 0, 1, 1]
    assert value_of(gradient.values).shape == (4, 4, 5)
    np.testing.assert_array_equal(value_of(gradient)[:, 0, 0], [1, 3, 0])


@pytest.mark.parametrize("ids", [[0, 2], [[0, 2], [1, 1]], 1])
@pytest.mark.parametrize("table", [(3, 0), (3, 0, 2), (3, 2)])
def test_the_gradient_for_a_table_without_columns_has_none(table: tuple[int, ...], ids: Any) -> None:
    params = tf.placeholder(tf.float32, table)
    (gradient,) = tf.gradients(tf.gather(params, ids), params)
    with tf.Session() as session:
        found = session.run(tf.convert_to_tensor(gradient), {params: np.ones(table)})
    counts = np.bincount(np.ravel(ids), minlength=3).reshape(3, *[1] * (len(table) - 1))
    np.testing.assert_array_equal(found, np.broadcast_to(counts, table))


def test_gather_along_another_axis_has_a_dense_gradient() -> None:
    table = constant(X)
    assert isinstance(gradients(gather(table, [1, 0, 1], axis=1), table)[0], Tensor)


def test_gather_takes_strings_and_a_scalar_index() -> None:
    assert value_of(gather(constant(["a", "b"]), 1)).item() == b"b"
    assert value_of(gather(constant(["a", "b"]), [1, 0])).tolist() == [b"b", b"a"]


def test_gather_of_a_variable_reads_only_the_rows() -> None:
    class Table:
        def sparse_read(self, indices: Any, name: str | None = None) -> tuple[Any, str | None]:
            return indices, name

    assert gather(Table(), [1, 2], name="rows") == ([1, 2], "rows")  # type: ignore[comparison-overlap]


def test_shape_arithmetic_goes_through_gather() -> None:
    dims = shape(placeholder(dtypes.float32, [None, 3, 4]))
    assert static_value(gather(dims, [2, 0])) == (4, None)
    assert static_value(gather(dims, 1)) == 3


def test_batch_gather_takes_all_but_the_last_dimension_as_batch() -> None:
    found = batch_gather(constant(X), [[0, 1], [2, 2], [1, 0]])
    np.testing.assert_array_equal(value_of(found), np.stack([X[0, [0, 1]], X[1, [2, 2]], X[2, [1, 0]]]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda i: gather(constant(X), i), r"indices\[1\]: expected an index in \[0, 3\); got -1"),
        (lambda i: gather(constant(X), i, axis=1), r"indices\[1\]: expected an index in \[0, 4\); got -1"),
        (lambda i: gather(constant(X), getitem(i, 1)), r"indices: expected an index in \[0, 3\); got -1"),
        (lambda i: gather_nd(constant(X), i), r"indices\[1\]: expected an index in \[0, 4\); got -1"),
        (lambda i: scatter_nd(i, X[0, 0], [3, 3, 5]), r"indices\[1\]: expected an index in \[0, 3\); got -1"),
        (
            lambda i: dynamic_partition([1, 2], i, 3),
            r"partitions\[1\]: expected an index in \[0, 3\); got -1",
        ),
        (
            lambda i: sparse_to_dense(i, [9], 1),
            r"sparse_indices\[1, 0\]: expected an index in \[0, 9\); got -1",
        ),
    ],
)
def test_an_index_out_of_range_is_named(build: Callable[[Any], Any], message: str) -> None:
    indices = placeholder(dtypes.int32, [2])
    result = build(indices)
    with pytest.raises(InvalidArgumentError, match=message):
        value_of(result[0] if isinstance(result, list) else result, {indices: [2, -1]})


# --- coordinates


def test_scatter_nd_adds_up_what_falls_on_one_place() -> None:
    assert value_of(scatter_nd([[1], [1], [3]], [1, 2, 4], [4])).tolist() == [0, 3, 0, 4]
    many = scatter_nd(np.zeros((3000, 1), np.int32), constant(np.ones(3000, np.float16)), [1])
    assert value_of(many).tolist() == [3000]  # in float16 alone the sum would stop at 2048


def test_scatters_into_a_tensor_leave_it_alone() -> None:
    base = constant([1, 2, 3])
    assert value_of(tensor_scatter_nd_update(base, [[0], [2]], [9, 8])).tolist() == [9, 2, 8]
    assert value_of(tensor_scatter_nd_add(base, [[0], [0]], [9, 8])).tolist() == [18, 2, 3]
    assert value_of(tensor_scatter_nd_sub(base, [[0], [0]], [9, 8])).tolist() == [-16, 2, 3]
    assert value_of(base).tolist() == [1, 2, 3]


def test_the_gradient_of_an_update_is_zero_where_it_was_written_over() -> None:
    base, new = constant([1.0, 2.0, 3.0]), constant([9.0])
    slopes = gradients(tensor_scatter_nd_update(base, [[1]], new), [base, new], constant([5.0, 6.0, 7.0]))
    assert [v.tolist() for v in values_of(slopes)] == [[5.0, 0.0, 7.0], [6.0]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: gather_nd(constant(X), [[0, 0, 0, 0]]), "at most 3 coordinates per row; got 4"),
        (lambda: gather_nd(constant(X), 1), "got a scalar"),
        (lambda: scatter_nd([[0]], [1, 2], [3]), r"updates: expected shape \[1\]; got \[2\]"),
        (lambda: tensor_scatter_nd_add([1, 2], [[0]], [[1]]), r"updates: expected shape \[1\]; got \[1, 1\]"),
        (lambda: gather(constant(1), 0), "at least one dimension; got a scalar"),
        (lambda: gather(constant(X), [[0]], axis=0, batch_dims=1), "not before batch_dims 1; got 0"),
        (lambda: gather(constant(X), [[0], [1]], batch_dims=1), "expected two compatible shapes"),
        (lambda: boolean_mask(constant(X), True), "rank, at least 1"),
        (lambda: boolean_mask(constant(X), [True, False]), r"from axis 0 on; got .* a mask of shape \[2\]"),
        (lambda: boolean_mask(constant(X), placeholder(dtypes.bool_)), "mask of known rank"),
        (lambda: embedding_lookup([], [1]), "at least one table"),
        (lambda: embedding_lookup([X, X], [1], partition_strategy="no"), "'mod' or 'div'"),
        (lambda: dynamic_partition([1, 2, 3], [1, 0], 2), r"expected a prefix of \[3\]; got \[2\]"),
    ],
)
def test_wrong_use_is_refused_when_the_graph_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()


# --- masks, partitions, sparse values


def test_where_lists_coordinates_row_by_row() -> None:
    found = where([[True, False], [True, True]])
    assert (found.dtype, found.shape.as_list()) == (dtypes.int64, [None, 2])
    assert value_of(found).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert value_of(where([0.0, 3.0])).tolist() == [[1]]


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_boolean_mask_is_numpys(bits: list[bool]) -> None:
    mask = np.array(bits).reshape(3, 4)
    with Graph():
        np.testing.assert_array_equal(value_of(boolean_mask(constant(X), mask)), X[mask])
        np.testing.assert_array_equal(value_of(boolean_mask(constant(X), mask[0], axis=1)), X[:, mask[0]])


@given(st.lists(st.integers(0, 3), min_size=3, max_size=3), st.integers(-3, 2))
def test_repeat_is_numpys(counts: list[int], axis: int) -> None:
    x = X[:, :3, :3]
    with Graph():
        fed = placeholder(dtypes.int32, [None])
        np.testing.assert_array_equal(
            value_of(repeat(constant(x), fed, axis), {fed: counts}), np.repeat(x, counts, axis)
        )
        known = repeat(constant(x), counts, axis)
        assert known.shape.as_list() == list(value_of(known).shape)
        np.testing.assert_array_equal(value_of(known), np.repeat(x, counts, axis))
        np.testing.assert_array_equal(value_of(repeat(constant(x), 2)), np.repeat(x, 2))


@pytest.mark.parametrize("counts", [[1, -1, 2], -1, [1, 2], [[1, 2, 3]]], ids=str)
def test_repeats_that_are_negative_or_of_another_number_are_an_error(counts: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="repeat: expected one number of at least 0, or 3; got"):
        repeat([1, 2, 3], counts)


@given(st.lists(st.integers(0, 2), max_size=6))
def test_dynamic_stitch_undoes_dynamic_partition(homes: list[int]) -> None:
    rows = np.random.default_rng(0).standard_normal((len(homes), 2))
    with Graph():
        parts = dynamic_partition(constant(rows), constant(homes, dtypes.int32, [len(homes)]), 3)
        places = dynamic_partition(
            np.arange(len(homes), dtype=np.int32), constant(homes, dtypes.int32, [len(homes)]), 3
        )
        for home, part in enumerate(values_of(parts)):
            np.testing.assert_array_equal(part, rows[[h == home for h in homes]])
        np.testing.assert_array_equal(value_of(dynamic_stitch(places, parts)), rows)


def test_the_last_of_equal_indices_stays_in_a_stitch() -> None:
    stitched = dynamic_stitch([[0, 3], [1, 0]], [[1, 2], [3, 4]])
    assert stitched.shape.as_list() == [4]
    assert value_of(stitched).tolist() == [4, 3, 0, 2]


def test_sparse_to_dense_wants_ascending_indices_unless_told_otherwise() -> None:
    assert value_of(sparse_to_dense([1, 3], [4], 5, 9)).tolist() == [9, 5, 9, 5]
    assert value_of(sparse_to_dense([[0, 1], [1, 0]], [2, 2], [5, 6])).tolist() == [[0, 5], [6, 0]]
    assert value_of(sparse_to_dense([1], [2], ["x"])).tolist() == [b"", b"x"]
    for indices in ([3, 1], [1, 1]):
        with pytest.raises(InvalidArgumentError, match="ascending order"):
            value_of(sparse_to_dense(indices, [4], 5))
    assert value_of(sparse_to_dense([3, 1], [4], [5, 6], validate_indices=False)).tolist() == [0, 6, 0, 5]


# --- embeddings


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("rows", [4, 5, 6, 7])
def test_a_table_in_parts_looks_like_a_whole_one(strategy: str, rows: int) -> None:
    table = np.random.default_rng(0).standard_normal((rows, 2))
    numbers = (
        [np.arange(rows)[i::3] for i in range(3)] if strategy == "mod" else np.array_split(np.arange(rows), 3)
    )
    ids = np.random.default_rng(1).integers(0, rows, (3, 4))
    parts = [constant(table[n]) for n in numbers]
    found = embedding_lookup(parts, ids, partition_strategy=strategy)
    np.testing.assert_array_equal(value_of(found), table[ids])
    for part, slope in zip(numbers, gradients(found, parts), strict=True):
        np.testing.assert_array_equal(value_of(slope)[:, 0], [np.sum(ids == n) for n in part])


def test_rows_of_large_norm_are_scaled_down() -> None:
    table = constant([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    found = embedding_lookup(table, [0, 1, 2], max_norm=1.0)
    np.testing.assert_allclose(value_of(found), [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=1e-6)
    assert np.isfinite(value_of(gradients(found, table)[0])).all()


def test_the_second_derivative_goes_through_a_sparse_gradient() -> None:
    table = constant([[1.0, 2.0], [3.0, 4.0]])
    rows = gather(table, [1, 1])
    first = gradients(multiply(rows, multiply(rows, rows)), table)[0]
    assert isinstance(first, IndexedSlices)
    second = gradients(first.__flowrt_tensor__(), table)[0]
    np.testing.assert_allclose(value_of(second), [[0, 0], [2 * 6 * 3, 2 * 6 * 4]])
