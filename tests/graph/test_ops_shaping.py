"""Identity, cast, shape arithmetic, reshape and its kin, transpose, fill and broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.base.filling import (
    broadcast_dynamic_shape,
    broadcast_static_shape,
    broadcast_to,
    fill,
    ones,
    ones_like,
    unbroadcast,
    zeros,
    zeros_like,
)
from flowrt.graph.ops.base.identities import (
    cast,
    ensure_shape,
    identity,
    identity_n,
    prevent_gradient,
    stop_gradient,
    to_int32,
)
from flowrt.graph.ops.base.shape_manipulation import (
    expand_dims,
    invert_permutation,
    matrix_transpose,
    rank,
    reshape,
    shape,
    shape_n,
    size,
    squeeze,
    transpose,
)
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from tests.graph.evaluation import value_of


def op_types() -> list[str]:
    return [op.type for op in get_default_graph().get_operations()]


# --- identity and cast


def test_cast_cuts_floats_towards_zero_and_drops_imaginary_parts() -> None:
    with Graph():
        assert value_of(cast([1.9, -1.9], "int32")).tolist() == [1, -1]
        assert value_of(cast(np.array([2 + 3j]), "float32")).tolist() == [2.0]
        assert value_of(cast([0.5, 0.0, -2.0], "bool")).tolist() == [True, False, True]
        assert value_of(to_int32(True)) == 1
        assert value_of(cast([1.0], "bfloat16")).dtype == dtypes.bfloat16.np


def test_cast_to_the_dtype_it_has_adds_no_operation() -> None:
    with Graph():
        x = constant(1.0)
        assert cast(x, dtypes.float32) is x


def test_cast_has_a_gradient_between_inexact_dtypes_only() -> None:
    with Graph():
        x = constant(2.0)
        (dx,) = gradients(multiply(cast(x, "float64"), 3.0), x)
        assert value_of(dx) == 3
        assert dx.dtype is dtypes.float32
        assert gradients(cast(cast(x, "int32"), "float32"), x) == [None]


def test_stop_gradient_counts_as_a_constant() -> None:
    with Graph():
        x = constant(3.0)
        (dx,) = gradients(multiply(x, stop_gradient(x)), x)
        assert value_of(dx) == 3


def test_prevent_gradient_says_why_no_gradient_passes() -> None:
    with Graph():
        x = constant(3.0)
        with pytest.raises(UnimplementedError, match="because of this"):
            gradients(prevent_gradient(x, message="because of this"), x)


def test_identity_n_passes_the_gradient_of_each_output() -> None:
    with Graph():
        a, b = constant(2.0), constant(5.0)
        first, second = identity_n([a, b])
        da, db = gradients(multiply(first, second), [a, b])
        assert (value_of(da), value_of(db)) == (5, 2)


def test_ensure_shape_refines_the_shape_and_checks_it_when_run() -> None:
    with Graph():
        x = placeholder("float32", [None, None])
        y = ensure_shape(x, [None, 3])
        assert y.shape.as_list() == [None, 3]
        assert value_of(y, {x: np.zeros((2, 3))}).shape == (2, 3)
        with pytest.raises(InvalidArgumentError, match=r"expected shape \[\?, 3\]; got \[2, 4\]"):
            value_of(y, {x: np.zeros((2, 4))})


# --- shape, size, rank


def test_static_shapes_become_constants() -> None:
    with Graph():
        x = constant(np.zeros((2, 3)))
        assert [t.op.type for t in (shape(x), size(x), rank(x))] == ["Const"] * 3
        assert value_of(shape(x)).tolist() == [2, 3]
        assert (value_of(size(x)), value_of(rank(x))) == (6, 2)
        assert shape(x, out_type="int64").dtype is dtypes.int64


def test_unknown_shapes_are_read_when_run() -> None:
    with Graph():
        x = placeholder("float32")
        feeds = {x: np.zeros((4, 1, 2))}
        assert value_of(shape(x), feeds).tolist() == [4, 1, 2]
        assert (value_of(size(x), feeds), value_of(rank(x), feeds)) == (8, 3)
        both = shape_n([x, constant([1.0])])
        assert [value_of(s, feeds).tolist() for s in both] == [[4, 1, 2], [1]]


def test_shape_arithmetic_gives_static_shapes() -> None:
    with Graph():
        x = placeholder("float32", [None, 3, 4])
        rows = shape(x)[0]
        assert reshape(x, [rows, 12]).shape.as_list() == [None, 12]
        assert reshape(x, [-1, shape(x)[1] * 4]).shape.as_list() == [None, 12]
        assert zeros([rows, shape(x)[2] - 1]).shape.as_list() == [None, 3]


# --- reshape and its kin


def test_reshape_infers_minus_one() -> None:
    with Graph():
        x = placeholder("float32", [4, 6])
        assert reshape(x, [-1, 3]).shape.as_list() == [8, 3]
        assert reshape(x, [2, 3, -1]).shape.as_list() == [2, 3, 4]
        assert reshape(placeholder("float32", [None, 6]), [-1, 3]).shape.as_list() == [None, 3]
        assert reshape(placeholder("float32", [1, 1]), []).shape.as_list() == []
        assert reshape(x, [-1, x.shape[1]]).shape.as_list() == [4, 6]


@pytest.mark.parametrize("target", [[5, 5], [-1, 5], [-1, -1], [0, -1], [-2, 12]])
def test_reshape_refuses_shapes_that_do_not_fit(target: list[int]) -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match="expected"):
        reshape(placeholder("float32", [4, 6]), target)


def test_reshape_refuses_a_scalar_shape() -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match="expected a vector"):
        reshape(placeholder("float32", [4, 6]), -1)


def test_expand_dims_and_squeeze_are_inverse_at_every_axis() -> None:
    with Graph():
        x = constant(np.arange(6.0).reshape(2, 3))
        for axis in range(-3, 3):
            wide = expand_dims(x, axis)
            assert wide.shape.as_list()[axis] == 1
            assert value_of(squeeze(wide, axis)).tolist() == value_of(x).tolist()
        with pytest.raises(InvalidArgumentError, match=r"\[-3, 3\)"):
            expand_dims(x, 3)


def test_squeeze_drops_all_ones_or_only_the_named() -> None:
    with Graph():
        x = placeholder("float32", [1, 2, 1])
        assert squeeze(x).shape.as_list() == [2]
        assert squeeze(x, [0]).shape.as_list() == [2, 1]
        assert squeeze(x, squeeze_dims=[-1]).shape.as_list() == [1, 2]
        with pytest.raises(InvalidArgumentError, match="dimension 1"):
            squeeze(x, 1)


def test_an_argument_is_not_given_in_both_spellings() -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match="both"):
        expand_dims(constant([1.0]), 0, dim=0)


# --- transpose


def test_transpose_reverses_by_default_also_at_unknown_rank() -> None:
    with Graph():
        array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
        known, unknown = constant(array), placeholder("float32")
        assert transpose(known).shape.as_list() == [4, 3, 2]
        np.testing.assert_array_equal(value_of(transpose(known)), array.T)
        np.testing.assert_array_equal(value_of(transpose(unknown), {unknown: array}), array.T)


def test_transpose_conjugates_when_asked() -> None:
    with Graph():
        x = np.array([[1 + 2j, 3j]])
        np.testing.assert_array_equal(value_of(transpose(x, conjugate=True)), x.conj().T)
        np.testing.assert_array_equal(value_of(matrix_transpose(x, conjugate=True)), x.conj().T)


def test_matrix_transpose_swaps_the_last_two() -> None:
    with Graph():
        array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
        unknown = placeholder("float32")
        np.testing.assert_array_equal(value_of(matrix_transpose(array)), array.swapaxes(1, 2))
        np.testing.assert_array_equal(
            value_of(matrix_transpose(unknown), {unknown: array}), array.swapaxes(1, 2)
        )
        with pytest.raises(InvalidArgumentError, match="matrix"):
            matrix_transpose([1.0])


def test_transpose_refuses_what_is_no_permutation() -> None:
    with Graph():
        x = placeholder("float32", [2, 3])
        for perm in ([0], [0, 0], [0, 2]):
            with pytest.raises(InvalidArgumentError, match="expected"):
                transpose(x, perm)


def test_the_gradient_of_transpose_by_a_fed_permutation_inverts_it() -> None:
    with Graph():
        x, perm = placeholder("float32", [2, 3, 4]), placeholder("int32", [3])
        weights = np.arange(24.0, dtype=np.float32).reshape(4, 2, 3)
        (dx,) = gradients(multiply(transpose(x, perm), weights), x)
        feeds = {x: np.zeros((2, 3, 4)), perm: [2, 0, 1]}
        np.testing.assert_array_equal(value_of(dx, feeds), weights.transpose(1, 2, 0))


def test_invert_permutation_refuses_repeated_and_foreign_indices() -> None:
    with Graph():
        assert value_of(invert_permutation([2, 0, 1])).tolist() == [1, 2, 0]
        for wrong in ([0, 0], [0, 2], [-1, 0]):
            with pytest.raises(InvalidArgumentError, match="permutation"):
                value_of(invert_permutation(wrong))


# --- fill, zeros, ones


def test_zeros_are_a_constant_when_small_and_a_fill_when_large() -> None:
    with Graph():
        assert zeros([2, 3]).op.type == "Const"
        assert zeros([100, 100]).op.type == "Fill"
        assert value_of(zeros([100, 100], "int8")).sum() == 0
        assert value_of(ones([2], "bool")).tolist() == [True, True]
        assert value_of(zeros([2], "string")).tolist() == [b"", b""]
        assert value_of(zeros([])).shape == ()


def test_zeros_like_follows_a_shape_that_is_fed() -> None:
    with Graph():
        x = placeholder("int32", [None])
        feeds = {x: [1, 2, 3]}
        assert value_of(zeros_like(x), feeds).tolist() == [0, 0, 0]
        result = value_of(ones_like(x, "float64"), feeds)
        assert result.tolist() == [1, 1, 1]
        assert result.dtype == np.float64


def test_fill_repeats_one_value_and_sums_its_gradient() -> None:
    with Graph():
        value = constant(2.5)
        filled = fill([2, 3], value)
        assert value_of(filled).tolist() == [[2.5] * 3] * 2
        assert value_of(gradients(filled, value)[0]) == 6
        with pytest.raises(InvalidArgumentError, match="scalar"):
            fill([2], [1.0])


# --- broadcast


def test_broadcast_to_refuses_shapes_that_would_shrink() -> None:
    with Graph():
        x = placeholder("float32", [3, 1])
        assert broadcast_to(x, [2, 3, 4]).shape.as_list() == [2, 3, 4]
        for target in ([3], [2, 1], [4, 1]):
            with pytest.raises(InvalidArgumentError, match="broadcasts to"):
                broadcast_to(x, target)


def test_broadcasts_of_shapes_agree_with_numpy() -> None:
    with Graph():
        assert broadcast_static_shape([None, 1], [3]).as_list() == [None, 3]
        assert value_of(broadcast_dynamic_shape([2, 1, 3], [4, 1])).tolist() == [2, 4, 3]
        with pytest.raises(InvalidArgumentError, match="broadcast"):
            broadcast_static_shape([2], [3])


dims = st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3)


@given(
    wide=dims, ones_at=st.sets(st.integers(0, 2)), drop=st.integers(0, 3), hidden=st.sets(st.integers(0, 2))
)
def test_unbroadcast_sums_to_the_shape_whatever_is_known(
    wide: list[int], ones_at: set[int], drop: int, hidden: set[int]
) -> None:
    """Against NumPy's broadcasting turned round, with any dimensions unknown while the graph is built."""
    narrow = [1 if i in ones_at else d for i, d in enumerate(wide)][min(drop, len(wide)) :]
    gradient = np.arange(np.prod(wide), dtype=np.float64).reshape(wide)
    axes = tuple(range(len(wide) - len(narrow)))
    kept = tuple(i for i in range(len(axes), len(wide)) if narrow[i - len(axes)] == 1)
    expected = gradient.sum(axis=axes + kept).reshape(narrow)
    with Graph():
        dy = placeholder("float64", [None if i in hidden else d for i, d in enumerate(wide)])
        x = placeholder("float64", [None if i in hidden else d for i, d in enumerate(narrow)])
        result = unbroadcast(dy, x)
        np.testing.assert_array_equal(value_of(result, {dy: gradient, x: np.zeros(narrow)}), expected)


def test_the_gradient_of_adding_a_bias_needs_no_shapes_at_run_time() -> None:
    with Graph():
        x, bias = placeholder("float32", [None, 3]), placeholder("float32", [3])
        dx, db = gradients(add_v2(x, bias), [x, bias])
        assert "BroadcastGradientArgs" not in op_types()
        feeds: dict[Any, Any] = {x: np.zeros((4, 3)), bias: np.zeros(3)}
        assert value_of(dx, feeds).shape == (4, 3)
        assert value_of(db, feeds).tolist() == [4, 4, 4]


def test_a_tensor_of_the_wrong_dtype_is_refused_with_the_users_line() -> None:
    with (
        Graph(),
        pytest.raises(DTypeError, match=r"Reshape 'Reshape' .*test_ops_shaping.py:\d+.*expected one of"),
    ):
        reshape(constant([1.0]), constant([1.0]))
    with Graph():
        assert value_of(identity("text")).item() == b"text"
