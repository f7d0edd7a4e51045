"""Slicing, ``tensor[...]`` and padding: NumPy's results, TensorFlow's names, partly known shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import float32, int32, int64
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.slicing import getitem, strided_slice
from flowrt.graph.ops.array.slicing import slice as slice_
from flowrt.graph.ops.base.identities import static_value
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from tests.graph.evaluation import value_of

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as graph:
        yield graph


# --- tensor[key]

bounds = st.none() | st.integers(-6, 6)
ranges = st.builds(slice, bounds, bounds, st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))
entries = ranges | st.integers(-3, 2) | st.none()


@st.composite
def keys(draw: Any) -> tuple[Any, ...]:
    """Keys that fit a tensor of shape [3, 4, 5]."""
    chosen = draw(st.lists(entries, max_size=4))
    while sum(entry is not None for entry in chosen) > 3:
        chosen.pop()
    if draw(st.booleans()):
        chosen.insert(draw(st.integers(0, len(chosen))), ...)
    return tuple(chosen)


@given(keys())
def test_a_key_means_what_it_means_in_numpy(key: tuple[Any, ...]) -> None:
    with Graph():
        part = getitem(constant(X), key)
        assert part.shape.as_list() == list(X[key].shape)
        np.testing.assert_array_equal(value_of(part), X[key])


@given(keys())
def test_a_key_on_unknown_dimensions_gives_a_shape_that_fits(key: tuple[Any, ...]) -> None:
    with Graph():
        x = placeholder(float32, [None, 4, None])
        part = getitem(x, key)
        value = value_of(part, {x: X})
        assert part.shape.is_compatible_with(value.shape)
        np.testing.assert_array_equal(value, X[key])


@given(keys())
def test_the_gradient_of_a_key_puts_the_incoming_one_back(key: tuple[Any, ...]) -> None:
    with Graph():
        x = constant(X)
        part = getitem(x, key)
        weights = np.random.default_rng(0).standard_normal(X[key].shape).astype(np.float32)
        expected = np.zeros_like(X)
        expected[key] = weights
        np.testing.assert_array_equal(value_of(gradients(part, x, constant(weights))[0]), expected)


def test_tensors_of_both_index_types_may_stand_among_the_indices() -> None:
    i, j = placeholder(int32, []), placeholder(int64, [])
    part = getitem(constant(X), (i, slice(j, None, 2), slice(None, i)))
    assert part.shape.as_list() == [None, None]
    np.testing.assert_array_equal(value_of(part, {i: 2, j: 1}), X[2, 1::2, :2])
    assert part.op.inputs[1].dtype is int64


def test_large_indices_are_int64() -> None:
    part = getitem(constant(X), slice(0, 2**40))
    assert part.op.inputs[1].dtype is int64
    assert part.shape.as_list() == [3, 4, 5]


def test_names_are_tensorflows(graph: Graph) -> None:
    part = getitem(placeholder(float32, [3]), 1)
    assert part.name == "strided_slice:0"
    assert [t.op.name for t in part.op.inputs[1:]] == [
        "strided_slice/stack",
        "strided_slice/stack_1",
        "strided_slice/stack_2",
    ]


def test_strings_are_sliced_too() -> None:
    words = constant(["a", "b", "c"])
    assert value_of(getitem(words, slice(None, None, -1))).tolist() == [b"c", b"b", b"a"]
    assert value_of(getitem(words, -1)).item() == b"c"


def test_a_slice_with_constant_parameters_is_a_view() -> None:
    kernel = getitem(constant(X), (slice(1, None), ..., 0)).op.op_def.kernel
    masks = dict(begin_mask=0, end_mask=1, ellipsis_mask=2, new_axis_mask=0, shrink_axis_mask=4)
    assert np.shares_memory(kernel(np, X, (1, 0, 0), (0, 0, 1), (1, 1, 1), **masks), X)
    one = dict(masks, end_mask=0, ellipsis_mask=0, shrink_axis_mask=7)
    assert np.shares_memory(kernel(np, X, (1, 2, 3), (2, 3, 4), (1, 1, 1), **one), X)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (3, InvalidArgumentError, r"index 3 is out of bounds for dimension 0: expected \[-3, 3\)"),
        ((0, 0, 0, 0), InvalidArgumentError, "at most 3 indices"),
        (slice(None, None, 0), InvalidArgumentError, "not 0"),
        ((..., ...), InvalidArgumentError, "one ellipsis"),
        (1.5, DTypeError, "got 1.5"),
        ([0, 1], DTypeError, r"gather\(\)"),
        (np.array([True, False, True]), DTypeError, r"boolean_mask\(\)"),
        (True, DTypeError, r"boolean_mask\(\)"),
        ("a", DTypeError, "got 'a'"),
    ],
)
def test_a_wrong_key_is_refused_when_the_graph_is_built(key: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        getitem(constant(X), key)


def test_a_mask_or_vector_tensor_as_key_names_the_function_to_use() -> None:
    with pytest.raises(DTypeError, match=r"boolean_mask\(\)"):
        getitem(constant(X), constant([True, False, True]))
    with pytest.raises(DTypeError, match=r"gather\(\)"):
        getitem(constant(X), constant([0, 1]))


def test_an_index_out_of_bounds_at_run_time_names_the_operation() -> None:
    i = placeholder(int32, [])
    with pytest.raises(InvalidArgumentError, match=r"strided_slice.*index 7 is out of bounds"):
        value_of(getitem(constant(X), i), {i: 7})


# --- strided_slice and slice


def test_masks_have_tensorflows_precedence() -> None:
    x = constant(X)
    masks = dict(ellipsis_mask=2, new_axis_mask=3, shrink_axis_mask=7)
    part = strided_slice(x, [0, 1, 4], [2, 3, 5], [1, 1, 1], **masks)
    assert part.shape.as_list() == [1, 3, 4]  # ellipsis goes over new axis, and that over shrink axis
    np.testing.assert_array_equal(value_of(part), X[None, ..., 4])


def test_strides_are_ones_by_default() -> None:
    part = strided_slice(constant(X), [0, 1], [2, 3])
    assert part.shape.as_list() == [2, 2, 5]
    np.testing.assert_array_equal(value_of(part), X[0:2, 1:3])


def test_a_single_index_needs_a_positive_stride() -> None:
    with pytest.raises(InvalidArgumentError, match=r"strides\[0\]: expected a positive stride"):
        strided_slice(constant(X), [1], [0], [-1], shrink_axis_mask=1)


def test_slices_cannot_be_assigned_to() -> None:
    with pytest.raises(InvalidArgumentError, match="no var"):
        strided_slice(constant(X), [0], [1], var=object())


def test_slice_takes_minus_one_as_the_rest() -> None:
    np.testing.assert_array_equal(value_of(slice_(constant(X), [1, 0, 2], [-1, 2, 1])), X[1:, :2, 2:3])


def test_slice_with_unknown_begin_has_the_known_sizes() -> None:
    begin = placeholder(int32, [3])
    part = slice_(constant(X), begin, [2, -1, 3])
    assert part.shape.as_list() == [2, None, 3]
    np.testing.assert_array_equal(value_of(part, {begin: [1, 2, 0]}), X[1:, 2:, :3])
    assert slice_(placeholder(float32), begin, begin).shape.as_list() == [None, None, None]


@pytest.mark.parametrize(
    ("begin", "size", "message"),
    [
        ([4, 0, 0], [0, 1, 1], r"begin\[0\]: expected a position in \[0, 3\]; got 4"),
        ([0, 1, 0], [1, 4, 1], r"size\[1\]: expected -1 or a size up to 3; got 4"),
        ([0, 0], [1, 1], "one begin and size for each of 3 dimensions"),
        ([-1, 0, 0], [1, 1, 1], r"begin\[0\]"),
    ],
)
def test_a_block_that_leaves_the_tensor_is_refused(begin: Any, size: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        slice_(constant(X), begin, size)
    fed = placeholder(int32, [None])
    with pytest.raises(InvalidArgumentError, match=message):
        value_of(slice_(constant(X), fed, size), {fed: begin})


def test_shape_arithmetic_goes_through_slices() -> None:
    x = placeholder(float32, [None, 3, 4])
    dims = shape(x)
    assert static_value(getitem(dims, slice(1, None))) == (3, 4)
    assert static_value(getitem(dims, -1)) == 4
    assert static_value(getitem(dims, 0)) is None
    assert static_value(slice_(dims, [0], [2])) == (None, 3)
    assert reshape(x, [-1, getitem(dims, 1)]).shape.as_list() == [None, 3]
    assert static_value(getitem(constant(np.zeros((0, 2), np.int32)), (..., 0))) == ()


# --- pad


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=2),
    st.sampled_from(["CONSTANT", "reflect", "SYMMETRIC"]),
)
def test_padding_is_numpys(paddings: Any, mode: str) -> None:
    x = X[:, :, 0]
    with Graph():
        padded = pad(constant(x), paddings, mode)
        expected = np.pad(x, paddings, mode=mode.lower())  # type: ignore[call-overload]
        assert padded.shape.as_list() == list(expected.shape)
        np.testing.assert_array_equal(value_of(padded), expected)


@pytest.mark.parametrize("mode", ["CONSTANT", "REFLECT", "SYMMETRIC"])
def test_the_gradient_of_padding_sums_what_was_copied(mode: str) -> None:
    paddings = [[2, 1], [0, 3]]
    x, known = placeholder(float32, [None, None]), constant(X[:, :, 0])
    weights = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32)
    for source in (x, known):
        gradient = gradients(pad(source, paddings, mode), source, constant(weights))[0]
        expected = np.zeros((3, 4), np.float32)
        for i, row in enumerate(np.pad(np.arange(12).reshape(3, 4), paddings, mode=mode.lower())):  # type: ignore[call-overload]
            for j, origin in enumerate(row):
                inside = mode != "CONSTANT" or (2 <= i < 5 and j < 4)
                expected.reshape(-1)[origin] += weights[i, j] * inside
        np.testing.assert_allclose(value_of(gradient, {x: X[:, :, 0]}), expected, rtol=1e-5, atol=1e-6)


def test_other_constants_make_a_pad_v2_and_get_a_gradient() -> None:
    zero, other = (
        pad(constant(X[0]), [[1, 0], [0, 2]]),
        pad(constant(X[0]), [[1, 0], [0, 2]], constant_values=7),
    )
    assert (zero.op.type, other.op.type) == ("Pad", "PadV2")
    assert value_of(other)[0].tolist() == [7.0] * 7
    margin = constant(2.0)
    assert value_of(gradients(pad(constant(X[0]), [[1, 0], [0, 2]], constant_values=margin), margin)[0]) == 15


def test_strings_are_padded_with_empty_ones() -> None:
    assert value_of(pad(constant(["a"]), [[1, 1]])).tolist() == [b"", b"a", b""]


def test_unknown_paddings_leave_unknown_dimensions() -> None:
    paddings = placeholder(int32, [2, 2])
    padded = pad(constant(X[0]), paddings)
    assert padded.shape.as_list() == [None, None]
    assert value_of(padded, {paddings: [[1, 0], [0, 1]]}).shape == (5, 6)
    assert pad(placeholder(float32), [[1, 1]]).shape.as_list() == [None]


@pytest.mark.parametrize(
    ("paddings", "mode", "message"),
    [
        ([[1, 1]], "CONSTANT", "one pair for each of 2 dimensions"),
        ([[1, -1], [0, 0]], "CONSTANT", "at least 0"),
        ([[1, 1, 1], [0, 0, 0]], "CONSTANT", r"shape \[rank, 2\]"),
        ([[3, 0], [0, 0]], "REFLECT", r"paddings\[0\]: expected at most 2"),
        ([[4, 0], [0, 0]], "SYMMETRIC", r"paddings\[0\]: expected at most 3"),
        ([[0, 0], [0, 0]], "EDGE", "expected mode CONSTANT, REFLECT or SYMMETRIC"),
    ],
)
def test_wrong_paddings_are_refused(paddings: Any, mode: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        pad(constant(X[:, :, 0]), paddings, mode)
