"""Convolutions against their definition, written as loops over windows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import FLOATING, DType, bfloat16, float16
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.nn import windows
from flowrt.graph.ops.nn.conv_functions import (
    atrous_conv2d,
    conv1d,
    conv2d,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    convolution,
    depthwise_conv2d,
    separable_conv2d,
)
from tests.graph.evaluation import value_of


def padded_for(x: Any, taps: Any, strides: Any, rates: Any, padding: str) -> tuple[Any, list[int]]:
    """x (channels last) with TensorFlow's padding, and the number of windows along each axis."""
    amounts, outputs = [(0, 0)], []
    for length, tap, stride, rate in zip(x.shape[1:-1], taps, strides, rates, strict=True):
        extent = (tap - 1) * rate + 1
        if padding == "VALID":
            outputs.append((length - extent) // stride + 1)
            amounts.append((0, 0))
        else:
            outputs.append(-(-length // stride))
            total = max(0, (outputs[-1] - 1) * stride + extent - length)
            amounts.append((total // 2, total - total // 2))
    return np.pad(x, [*amounts, (0, 0)]), outputs


def convolved(x: Any, f: Any, strides: Any, padding: str, rates: Any = (1, 1)) -> Any:
    """The definition: every window times the filter of its group."""
    spatial = f.ndim - 2
    padded, outputs = padded_for(x, f.shape[:-2], strides, rates, padding)
    groups = x.shape[-1] // f.shape[-2]
    y = np.zeros((x.shape[0], *outputs, f.shape[-1]))
    for position in product(*map(range, outputs)):
        where = tuple(
            slice(p * s, p * s + (k - 1) * r + 1, r)
            for p, s, k, r in zip(position, strides, f.shape[:-2], rates, strict=True)
        )
        window = padded[(slice(None), *where)]
        for g in range(groups):
            c = slice(g * f.shape[-2], (g + 1) * f.shape[-2])
            o = slice(g * f.shape[-1] // groups, (g + 1) * f.shape[-1] // groups)
            y[(slice(None), *position, o)] = np.tensordot(window[..., c], f[..., o], spatial + 1)
    return y


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    taps=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rates=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.sampled_from(["SAME", "VALID"]),
    groups=st.integers(1, 2),
    layout=st.sampled_from(["NHWC", "NCHW"]),
)
def test_conv2d_and_its_gradients_are_what_the_definition_says(
    size: Any, taps: Any, strides: Any, rates: Any, padding: str, groups: int, layout: str
) -> None:
    if padding == "VALID" and any((k - 1) * r + 1 > n for n, k, r in zip(size, taps, rates, strict=True)):
        return
    x, f = drawn(2, *size, 2 * groups), drawn(*taps, 2, 3 * groups, seed=1)
    expected = convolved(x, f, strides, padding, rates)
    weight = drawn(*expected.shape, seed=2)
    first = layout == "NCHW"
    steps, gaps = ((1, 1, *v) if first else (1, *v, 1) for v in (strides, rates))
    with Graph():
        images, filters = constant(np.moveaxis(x, -1, 1) if first else x), constant(f)
        y = conv2d(images, filters, steps, padding, data_format=layout, dilations=gaps)
        dx, df = gradients(y, [images, filters], [constant(np.moveaxis(weight, -1, 1) if first else weight)])
        got = value_of(y)
        assert y.shape.as_list() == list(got.shape)
        np.testing.assert_allclose(np.moveaxis(got, 1, -1) if first else got, expected, atol=1e-12)
        # <weight, conv(v, f)> = <dx, v> and <weight, conv(x, u)> = <df, u> for every v and u
        v, u = drawn(*x.shape, seed=3), drawn(*f.shape, seed=4)
        by_x = np.sum(value_of(dx) * (np.moveaxis(v, -1, 1) if first else v))
        np.testing.assert_allclose(by_x, np.sum(weight * convolved(v, f, strides, padding, rates)), atol=1e-9)
        by_f = np.sum(value_of(df) * u)
        np.testing.assert_allclose(by_f, np.sum(weight * convolved(x, u, strides, padding, rates)), atol=1e-9)


@pytest.mark.parametrize("workspace", [1, 2000, 20000])
def test_the_size_of_the_blocks_does_not_change_the_result(
    workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, f = drawn(3, 7, 6, 2), drawn(3, 2, 2, 4, seed=1)
    weight = drawn(3, 4, 3, 4, seed=2)

    def results() -> list[Any]:
        with Graph():
            images, filters = constant(x), constant(f)
            y = conv2d(images, filters, 2, "SAME")
            return [value_of(t) for t in (y, *gradients(y, [images, filters], [constant(weight)]))]

    whole = results()
    monkeypatch.setattr(windows, "WORKSPACE", workspace)
    for blocked, expected in zip(results(), whole, strict=True):
        np.testing.assert_allclose(blocked, expected, atol=1e-12)


def test_explicit_padding_is_that_of_padding_by_hand() -> None:
    x, f = drawn(1, 4, 5, 2), drawn(3, 3, 2, 2, seed=1)
    with Graph():
        y = conv2d(constant(x), constant(f), 1, [[0, 0], [2, 1], [0, 3], [0, 0]])
        by_hand = convolved(np.pad(x, [(0, 0), (2, 1), (0, 3), (0, 0)]), f, (1, 1), "VALID")
        np.testing.assert_allclose(value_of(y), by_hand, atol=1e-12)


@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_every_floating_dtype_is_kept_and_16_bits_are_summed_in_float32(dtype: DType) -> None:
    x, f = np.ones((1, 40, 40, 4)), np.full((40, 40, 4, 1), 1 / 64)
    with Graph():
        y = value_of(conv2d(constant(x.astype(dtype.np)), constant(f.astype(dtype.np)), 1, "VALID"))
    assert y.dtype == dtype.np
    assert float(y.ravel()[0]) == 100  # bfloat16 sums would stop at 4, float16's at 32


def test_conv2d_transpose_undoes_the_shape_and_is_the_gradient() -> None:
    y, f = drawn(2, 3, 4, 5), drawn(3, 3, 2, 5, seed=1)
    with Graph():
        for padding, shape in [
            ("SAME", (2, 6, 8, 2)),
            ("SAME", (2, 5, 7, 2)),
            ("VALID", (2, 7, 9, 2)),
            ("VALID", (2, 8, 10, 2)),
        ]:
            x = conv2d_transpose(constant(y), constant(f), shape, 2, padding)
            assert x.shape.as_list() == list(shape)
            v = drawn(*shape, seed=2)
            np.testing.assert_allclose(
                np.sum(value_of(x) * v), np.sum(y * convolved(v, f, (2, 2), padding)), atol=1e-10
            )
        assert x.op.name.startswith("conv2d_transpose")


def test_conv2d_transpose_takes_its_shape_from_a_tensor() -> None:
    y, f = drawn(2, 3, 4, 5), drawn(3, 3, 2, 5, seed=1)
    with Graph():
        shape = placeholder("int32", [4])
        x = conv2d_transpose(constant(y), constant(f), shape, 2)
        assert x.shape.as_list() == [None] * 4
        assert value_of(x, {shape: [2, 5, 8, 2]}).shape == (2, 5, 8, 2)
        with pytest.raises(InvalidArgumentError, match=r"out_backprop: expected shape \[2, 2, 4, 5\]"):
            value_of(x, {shape: [2, 4, 8, 2]})


def test_one_and_three_dimensions_follow_the_same_definition() -> None:
    with Graph():
        x, f = drawn(2, 7, 3), drawn(3, 3, 4, seed=1)
        np.testing.assert_allclose(
            value_of(conv1d(constant(x), constant(f), 2, "SAME")),
            convolved(x, f, (2,), "SAME", (1,)),
            atol=1e-12,
        )
        first = conv1d(constant(np.moveaxis(x, -1, 1)), constant(f), 2, "SAME", data_format="NCW")
        np.testing.assert_allclose(
            np.moveaxis(value_of(first), 1, -1), convolved(x, f, (2,), "SAME", (1,)), atol=1e-12
        )
        x, f = drawn(1, 4, 5, 3, 2), drawn(2, 3, 2, 2, 3, seed=1)
        y = conv3d(constant(x), constant(f), [1, 2, 1, 1, 1], "SAME")
        np.testing.assert_allclose(value_of(y), convolved(x, f, (2, 1, 1), "SAME", (1, 1, 1)), atol=1e-12)
        back = conv3d_transpose(y, constant(f), x.shape, [1, 2, 1, 1, 1])
        assert value_of(back).shape == x.shape


def test_convolution_chooses_by_rank_and_atrous_spreads_the_filter() -> None:
    with Graph():
        x, f = drawn(1, 8, 7, 2), drawn(3, 2, 2, 3, seed=1)
        spread = convolved(x, f, (1, 1), "SAME", (2, 2))
        np.testing.assert_allclose(
            value_of(atrous_conv2d(constant(x), constant(f), 2, "SAME")), spread, atol=1e-12
        )
        y = convolution(constant(x), constant(f), "SAME", dilation_rate=[2, 2])
        np.testing.assert_allclose(value_of(y), spread, atol=1e-12)
        assert convolution(constant(x[0]), constant(f[0]), "VALID").shape.as_list() == [8, 6, 3]
        with pytest.raises(InvalidArgumentError, match="rank 3, 4 or 5"):
            convolution(constant(x[0, 0]), constant(f[0, 0]), "VALID")


def test_depthwise_is_a_convolution_with_one_group_a_channel() -> None:
    x, f = drawn(2, 5, 6, 3), drawn(3, 2, 3, 2, seed=1)
    grouped = f.reshape(3, 2, 1, 6)
    with Graph():
        for strides, padding in [((1, 1), "SAME"), ((2, 2), "VALID")]:
            y = depthwise_conv2d(constant(x), constant(f), [1, *strides, 1], padding)
            np.testing.assert_allclose(value_of(y), convolved(x, grouped, strides, padding), atol=1e-12)
        mixing = drawn(1, 1, 6, 4, seed=2)
        z = separable_conv2d(constant(x), constant(f), constant(mixing), [1, 1, 1, 1], "SAME")
        expected = convolved(x, grouped, (1, 1), "SAME") @ mixing[0, 0]
        np.testing.assert_allclose(value_of(z), expected, atol=1e-12)
        assert z.op.name == "separable_conv2d"


def test_depthwise_gradients_do_not_depend_on_the_blocks_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    with Graph():
        x, f = constant(drawn(3, 5, 6, 2)), constant(drawn(3, 2, 2, 3, seed=1))
        y = depthwise_conv2d(x, f, [1, 2, 2, 1], "SAME")
        found = gradients(y, [x, f], [constant(drawn(3, 3, 3, 6, seed=2))])
        at_once = [value_of(g) for g in found]
        monkeypatch.setattr(windows, "WORKSPACE", 1)
        for one_by_one, expected in zip(map(value_of, found), at_once, strict=True):
            np.testing.assert_allclose(one_by_one, expected, atol=1e-12)


def test_gradients_by_name_are_those_of_gradients() -> None:
    x, f = constant_pair = drawn(1, 5, 5, 2), drawn(3, 3, 2, 2, seed=1)
    dy = drawn(1, 5, 5, 2, seed=2)
    with Graph():
        images, filters = map(constant, constant_pair)
        dx, df = gradients(conv2d(images, filters, 1, "SAME"), [images, filters], [constant(dy)])
        by_name = conv2d_backprop_input(x.shape, filters, constant(dy), [1, 1, 1, 1], "SAME")
        np.testing.assert_array_equal(value_of(by_name), value_of(dx))
        by_name = conv2d_backprop_filter(images, f.shape, constant(dy), [1, 1, 1, 1], "SAME")
        np.testing.assert_array_equal(value_of(by_name), value_of(df))


def test_shapes_are_inferred_as_far_as_they_are_known() -> None:
    with Graph():
        f = constant(np.zeros((3, 3, 3, 8), np.float32))
        assert conv2d(placeholder("float32", [None, None, 9, 3]), f, 2, "SAME").shape.as_list() == [
            None,
            None,
            5,
            8,
        ]
        assert conv2d(placeholder("float32"), f, 2, "VALID").shape.as_list() == [None, None, None, 8]


def test_an_empty_batch_gives_an_empty_output_and_zero_gradients() -> None:
    with Graph():
        x, f = placeholder("float32", [None, None, 4, 2]), constant(np.ones((3, 3, 2, 5), np.float32))
        y = conv2d(x, f, 1, "VALID")
        dx, df = gradients(y, [x, f])
        feed = {x: np.ones((0, 4, 4, 2), np.float32)}
        assert value_of(y, feed).shape == (0, 2, 2, 5)
        assert value_of(dx, feed).shape == (0, 4, 4, 2)
        assert not value_of(df, feed).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(strides=1, padding="same"), "padding: expected one of SAME, VALID, EXPLICIT; got 'same'"),
        (dict(strides=0, padding="SAME"), "strides: expected 4 numbers of at least 1"),
        (dict(strides=[1, 1, 1], padding="SAME"), "strides: expected 1, 2 or 4 numbers"),
        (dict(strides=[2, 1, 1, 1], padding="SAME"), "1 and no padding along batch and channels"),
        (dict(padding="SAME"), "expected strides; got none"),
        (dict(strides=1, padding=[[0, 0], [-1, 0], [0, 0], [0, 0]]), "explicit_paddings"),
        (dict(strides=1, padding="VALID"), r"window of at most 2 elements.*got 4"),
    ],
)
def test_wrong_attributes_say_what_was_expected(arguments: dict[str, Any], message: str) -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match=message):
        conv2d(constant(np.zeros((1, 5, 2, 3))), constant(np.zeros((4, 4, 3, 1))), **arguments)


def test_channels_that_do_not_fit_the_filter_are_an_error_when_built_and_when_run() -> None:
    with Graph():
        f = constant(np.zeros((1, 1, 3, 4), np.float32))
        with pytest.raises(InvalidArgumentError, match="5 channels"):
            conv2d(constant(np.zeros((1, 2, 2, 5), np.float32)), f, 1, "SAME")
        x = placeholder("float32")
        with pytest.raises(InvalidArgumentError, match="5 channels"):
            value_of(conv2d(x, f, 1, "SAME"), {x: np.zeros((1, 2, 2, 5))})


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_gradients_of_16_bit_convolutions_have_16_bits(dtype: DType) -> None:
    with Graph():
        x = constant(drawn(1, 4, 4, 2).astype(dtype.np))
        f = constant(drawn(3, 3, 2, 2).astype(dtype.np))
        for gradient in gradients(conv2d(x, f, 2, "SAME"), [x, f]):
            assert value_of(gradient).dtype == dtype.np
