"""Joining, splitting, tiling, reversing, ranges and one-hot: NumPy's results, TensorFlow's API, partly
known shapes.
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
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.concat_and_split import concat, split, stack, unstack
from flowrt.graph.ops.array.ranges import linspace, one_hot, sequence_mask
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.array.tile_and_reverse import (
    depth_to_space,
    meshgrid,
    reverse,
    reverse_sequence,
    roll,
    space_to_depth,
    tile,
)
from flowrt.graph.ops.base.identities import static_value
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from tests.graph.evaluation import value_of, values_of

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as graph:
        yield graph


# --- the same with all dimensions known, none known, and not even the rank

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "concat": lambda x: concat([x, x], -1),
    "split": lambda x: concat(split(x, 2, axis=2)[::-1], 0),
    "split by sizes": lambda x: split(x, [1, -1], axis=1)[1],
    "stack": lambda x: stack([x, x], axis=-2),
    "unstack": lambda x: unstack(x, num=3, axis=1)[2],
    "tile": lambda x: tile(x, [2, 1, 3]),
    "reverse": lambda x: reverse(x, [0, -1]),
    "reverse_sequence": lambda x: reverse_sequence(x, [2, 0], seq_axis=1, batch_axis=0),
    "roll": lambda x: roll(x, [1, -5], [0, 2]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dims", [[None, None, None], None])
def test_unknown_shapes_give_the_values_and_gradients_of_known_ones(name: str, dims: Any) -> None:
    function = FUNCTIONS[name]
    known, unknown = constant(X), placeholder(dtypes.float32, dims)
    expected, found = function(known), function(unknown)
    assert expected.shape.is_fully_defined()
    assert found.shape.is_compatible_with(expected.shape)
    weights = constant(np.random.default_rng(0).standard_normal(expected.shape.as_list()).astype(np.float32))
    slopes = [gradients(y, x, weights)[0] for y, x in ((expected, known), (found, unknown))]
    wanted, wanted_slope = values_of([expected, slopes[0]])
    value, slope = values_of([found, slopes[1]], {unknown: X})
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_allclose(slope, wanted_slope, rtol=1e-6)


# --- concat, split, stack, unstack


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(-3, 2))
def test_split_undoes_concat(sizes: list[int], axis: int) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal([size if a == axis % 3 else 2 for a in range(3)]) for size in sizes]
    with Graph():
        joined = concat([constant(p) for p in parts], axis)
        np.testing.assert_array_equal(value_of(joined), np.concatenate(parts, axis))
        for part, again in zip(parts, values_of(split(joined, sizes, axis)), strict=True):
            np.testing.assert_array_equal(again, part)


@given(st.integers(1, 3), st.integers(-3, 2))
def test_unstack_undoes_stack(count: int, axis: int) -> None:
    parts = [np.random.default_rng(i).standard_normal((2, 3)) for i in range(count)]
    with Graph():
        stacked = stack([constant(p) for p in parts], axis)
        np.testing.assert_array_equal(value_of(stacked), np.stack(parts, axis))
        for part, again in zip(parts, values_of(unstack(stacked, axis=axis)), strict=True):
            np.testing.assert_array_equal(again, part)


def test_one_value_is_returned_as_it_is() -> None:
    assert concat([constant([1])], 0).op.type == "Identity"
    assert concat(constant([1]), 0).op.type == "Identity"


def test_a_stack_of_plain_numbers_is_a_constant() -> None:
    packed = stack([1, 2.5])
    assert (packed.op.type, packed.name, packed.dtype) == ("Const", "stack:0", dtypes.float32)
    assert stack([constant(1), 2]).op.type == "Pack"


def test_strings_are_joined_and_split() -> None:
    words = concat([constant(["a", "b"]), constant(["c"])], 0)
    assert [v.tolist() for v in values_of(split(words, [2, 1]))] == [[b"a", b"b"], [b"c"]]
    assert value_of(stack([constant("a"), constant("b")])).tolist() == [b"a", b"b"]
    assert value_of(unstack(words)[2]).item() == b"c"


def test_fetched_parts_of_a_split_are_the_callers() -> None:
    fed = np.arange(1 << 16, dtype=np.float32)  # large enough to be read where it is
    x = placeholder(dtypes.float32, fed.shape)
    with Session() as session:
        parts = session.run(split(x, 2), {x: fed})
    for part in parts:
        assert not np.shares_memory(part, fed)


def test_shape_arithmetic_goes_through_concat_and_stack() -> None:
    dims = shape(placeholder(dtypes.float32, [None, 3]))
    assert static_value(concat([dims, [7]], 0)) == (None, 3, 7)
    assert static_value(stack([getitem(dims, 1), 5])) == (3, 5)
    assert static_value(stack([dims, [8, 9]], axis=1)) == ((None, 8), (3, 9))
    flat = placeholder(dtypes.float32, [None])
    assert reshape(flat, concat([dims, [2]], 0)).shape.as_list() == [None, 3, 2]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: concat([constant(1), constant(2)], 0), r"got a scalar. Use stack\(\)"),
        (lambda: concat([constant([1]), constant([2])], 5), r"expected an axis in \[-1, 1\); got 5"),
        (
            lambda: concat([constant([[1]]), constant([2])], 0),
            r"equal shapes except along axis 0; got \[1, 1\], \[1\]; inputs",
        ),
        (
            lambda: concat([constant([[1]]), constant([2])], -1),
            r"equal shapes except along axis 1; got \[1, 1\], \[1\]; inputs",
        ),
        (lambda: concat([constant([1]), constant([2.0])], 0), "expected dtype int32"),
        (lambda: concat([], 0), "at least one value"),
        (lambda: split(constant([1, 2, 3]), 2), "divides into 2 equal parts; got 3"),
        (lambda: split(constant([1, 2, 3]), [1, 1]), "sizes that add up to 3"),
        (lambda: split(constant([1, 2, 3]), [-1, -1]), "one may be -1"),
        (lambda: split(constant([1, 2, 3]), constant(2)), "vector of sizes"),
        (lambda: split(constant([1, 2]), placeholder(dtypes.int32, [None])), "expected num"),
        (lambda: unstack(placeholder(dtypes.float32, [None])), "expected num"),
        (lambda: unstack(constant([1, 2]), num=3), "dimension of 3 to unstack; got 2"),
        (
            lambda: stack([constant([1]), constant([1, 2])]),
            r"values of the same shape; got \[1\], \[2\]; inputs",
        ),
        (lambda: tile(constant([1]), [1, 1]), "one for each of 1 dimensions; got 2"),
        (lambda: tile(constant([1]), [-1]), "at least 0"),
        (lambda: reverse(constant([1]), [0, -1]), "each axis once"),
        (lambda: reverse_sequence(constant([[1]]), [1], seq_axis=0), "two different axes"),
        (lambda: space_to_depth(constant(np.zeros((1, 3, 4, 1))), 2), "divides into 2"),
        (lambda: meshgrid([1], [2], indexing="no"), "'xy' or 'ij'"),
        (lambda: range_(5, 0), "start: expected at most limit"),
        (lambda: range_(0, 5, 0), "not 0"),
        (lambda: linspace(0.0, 1.0, -1), "at least 0"),
        (lambda: one_hot([1], -1), "depth: expected at least 0"),
    ],
)
def test_wrong_use_is_refused_when_the_graph_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()


def test_wrong_sizes_are_refused_at_run_time() -> None:
    x = placeholder(dtypes.float32)
    for build, message in (
        (lambda: split(x, 2)[0], "2 equal parts; got 3"),
        (lambda: split(x, [2, 2])[0], "add up to 3"),
        (lambda: unstack(x, num=2)[0], "dimension of 2 to unstack; got 3"),
        (lambda: tile(x, [1, 1]), "one for each of 1 dimensions"),
        (lambda: reverse_sequence(stack([x]), [4], seq_axis=1), r"lengths in \[0, 3\]"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            value_of(build(), {x: [1, 2, 3]})


# --- tile, reverse, roll, space and depth, meshgrid


def test_tile_reverse_and_roll_are_numpys() -> None:
    np.testing.assert_array_equal(value_of(tile(constant(X), [2, 1, 3])), np.tile(X, (2, 1, 3)))
    np.testing.assert_array_equal(value_of(reverse(constant(X), [-1, 0])), X[::-1, :, ::-1])
    np.testing.assert_array_equal(value_of(roll(constant(X), [1, 1, -6], [0, 0, 2])), np.roll(X, -6, 2))


def test_the_shape_of_a_tile_with_unknown_multiples_keeps_the_rank() -> None:
    multiples = placeholder(dtypes.int32, [3])
    assert tile(constant(X), multiples).shape.as_list() == [None, None, None]
    assert tile(placeholder(dtypes.float32, [None, 0]), [2, 3]).shape.as_list() == [None, 0]


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_depth_to_space_undoes_space_to_depth(data_format: str) -> None:
    images = np.random.default_rng(0).standard_normal((2, 4, 6, 8))
    deep = space_to_depth(constant(images), 2, data_format=data_format)
    assert deep.shape.as_list() == ([2, 2, 3, 32] if data_format == "NHWC" else [2, 16, 3, 4])
    np.testing.assert_array_equal(value_of(depth_to_space(deep, 2, data_format=data_format)), images)


def test_space_to_depth_puts_a_block_row_by_row_into_the_depth() -> None:
    assert value_of(space_to_depth(constant([[[[1], [2]], [[3], [4]]]]), 2)).tolist() == [[[[1, 2, 3, 4]]]]


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid_is_numpys(indexing: Any, count: int) -> None:
    vectors = [np.arange(n + 2) for n in range(count)]
    grids = meshgrid(*vectors, indexing=indexing)
    for found, expected in zip(values_of(grids), np.meshgrid(*vectors, indexing=indexing), strict=True):
        np.testing.assert_array_equal(found, expected)


# --- range, linspace, one_hot, sequence_mask


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(1, 7))
def test_a_range_of_ints_is_pythons(start: int, limit: int, step: int) -> None:
    step = step if limit >= start else -step
    with Graph():
        numbers = range_(start, limit, step)
        assert static_value(numbers) == tuple(range(start, limit, step))
        assert value_of(numbers).tolist() == list(range(start, limit, step))


def test_the_dtype_of_a_range_is_the_widest_of_its_arguments() -> None:
    assert range_(3).dtype is dtypes.int32
    assert range_(0, constant(3, dtypes.int64)).dtype is dtypes.int64
    assert range_(0, 3, 0.5).dtype is dtypes.float32
    assert range_(np.float64(3)).dtype is dtypes.float64
    assert range_(3, dtype=dtypes.float64).dtype is dtypes.float64
    with pytest.raises(DTypeError, match="float16, int32"):
        range_(0, constant(1, dtypes.float16))


def test_a_range_of_floats_does_not_collect_rounding_errors() -> None:
    np.testing.assert_array_equal(
        value_of(range_(0.0, 1.0, 0.1)), (np.arange(10) * np.float32(0.1)).astype(np.float32)
    )


def test_linspace_ends_exactly_at_stop_and_broadcasts_along_an_axis() -> None:
    assert value_of(linspace(0.0, 0.3, 4))[-1] == np.float32(0.3)
    assert value_of(linspace(2.0, 5.0, 1)).tolist() == [2.0]
    assert linspace(0, 10, 5).dtype is dtypes.float64
    grid = linspace(constant([0.0, 1.0]), constant([1.0, 3.0]), 3, axis=-1)
    assert value_of(grid).tolist() == [[0.0, 0.5, 1.0], [1.0, 2.0, 3.0]]


def test_one_hot_puts_the_depth_where_axis_says() -> None:
    ids = constant([[0, 2], [-1, 5]])
    for axis, moved in ((-1, -1), (0, 0), (1, 1)):
        hot = one_hot(ids, 3, axis=axis)
        expected = np.moveaxis(np.array([[[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]]), -1, moved)
        np.testing.assert_array_equal(value_of(hot), expected)
        assert hot.shape.as_list() == list(expected.shape)


def test_the_dtype_of_one_hot_is_its_values() -> None:
    assert one_hot([1], 2).dtype is dtypes.float32
    assert one_hot([1], 2, on_value=5).dtype is dtypes.int32
    assert value_of(one_hot([1], 2, on_value="yes", off_value="no")).tolist() == [[b"no", b"yes"]]
    assert value_of(one_hot([1], 2, dtype=dtypes.bool_)).tolist() == [[False, True]]
    with pytest.raises(DTypeError, match="off_value of dtype int32; got float32"):
        one_hot([1], 2, on_value=5, off_value=0.5)


def test_sequence_mask_is_as_wide_as_the_longest() -> None:
    mask = sequence_mask([1, 3, 0])
    assert mask.shape.as_list() == [3, 3]
    assert value_of(mask).tolist() == [[True, False, False], [True] * 3, [False] * 3]
    lengths = placeholder(dtypes.int64, [None])
    assert value_of(sequence_mask(lengths, dtype=dtypes.float32), {lengths: [2]}).tolist() == [[1.0, 1.0]]
    assert value_of(sequence_mask(lengths, 3), {lengths: [5]}).tolist() == [[True] * 3]


def test_bfloat16_goes_through_every_arrangement() -> None:
    x = constant(X.astype(dtypes.bfloat16.np))
    for name, function in FUNCTIONS.items():
        assert value_of(function(x)).dtype == dtypes.bfloat16.np, name
