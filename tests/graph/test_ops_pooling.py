"""Pooling against its definition, written as loops over windows."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.device.workspace import Workspace
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.nn.pooling import (
    avg_pool,
    avg_pool1d,
    avg_pool3d,
    max_pool,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    pool,
)
from tests.graph.evaluation import value_of


def windows(length: int, taps: int, stride: int, padding: str) -> list[list[int]]:
    """The indices that each window covers along one axis."""
    count = -(-length // stride) if padding == "SAME" else (length - taps) // stride + 1
    before = max(0, (count - 1) * stride + taps - length) // 2 if padding == "SAME" else 0
    starts = [i * stride - before for i in range(count)]
    return [[i for i in range(start, start + taps) if 0 <= i < length] for start in starts]


def pooled(x: Any, taps: Any, strides: Any, padding: str, kind: str, dy: Any) -> tuple[Any, Any]:
    """The definition, and the gradient: to the first maximum, or to all in equal parts."""
    rows, columns = (windows(*axis, padding) for axis in zip(x.shape[1:3], taps, strides, strict=True))
    y = np.zeros((x.shape[0], len(rows), len(columns), x.shape[3]))
    dx = np.zeros(x.shape)
    for n, i, j, c in product(*map(range, y.shape)):
        window = list(product(rows[i], columns[j]))
        values = [x[n, a, b, c] for a, b in window]
        if kind == "MAX":
            y[n, i, j, c] = max(values)
            a, b = window[int(np.argmax(values))]
            dx[n, a, b, c] += dy(y.shape)[n, i, j, c]
        else:
            y[n, i, j, c] = sum(values) / len(values)
            for a, b in window:
                dx[n, a, b, c] += dy(y.shape)[n, i, j, c] / len(values)
    return y, dx


def upstream(shape: Any) -> Any:
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    taps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.sampled_from(["SAME", "VALID"]),
    kind=st.sampled_from(["MAX", "AVG"]),
    layout=st.sampled_from(["NHWC", "NCHW"]),
    seed=st.integers(0, 99),
)
def test_pooling_and_its_gradient_are_what_the_definition_says(
    size: Any, taps: Any, strides: Any, padding: str, kind: str, layout: str, seed: int
) -> None:
    if padding == "VALID" and any(k > n for n, k in zip(size, taps, strict=True)):
        return
    x = np.random.default_rng(seed).integers(-2, 3, (2, *size, 2)).astype(np.float64)  # with many ties
    expected, gradient = pooled(x, taps, strides, padding, kind, upstream)
    first = layout == "NCHW"

    def laid_out(array: Any) -> Any:
        return np.moveaxis(array, -1, 1) if first else array

    with Graph():
        images = constant(laid_out(x))
        y = (max_pool if kind == "MAX" else avg_pool)(images, taps, strides, padding, data_format=layout)
        (dx,) = gradients(y, images, [constant(laid_out(upstream(expected.shape)))])
        assert y.shape.as_list() == list(laid_out(expected).shape)
        atol = 1e-12 if kind == "AVG" else 0  # the order of additions is part of a maximum's definition
        np.testing.assert_allclose(value_of(y), laid_out(expected), rtol=atol, atol=atol)
        np.testing.assert_allclose(value_of(dx), laid_out(gradient), rtol=atol, atol=atol)


def test_padding_is_never_the_maximum_and_never_counts_in_a_mean() -> None:
    x = np.full((1, 3, 3, 1), -5.0)
    with Graph():
        np.testing.assert_array_equal(
            value_of(max_pool(constant(x), 2, 2, "SAME")), np.full((1, 2, 2, 1), -5.0)
        )
        np.testing.assert_array_equal(
            value_of(avg_pool(constant(x), 2, 2, "SAME")), np.full((1, 2, 2, 1), -5.0)
        )
        whole = np.full((1, 3, 3, 1), -5, np.int32)
        np.testing.assert_array_equal(value_of(max_pool(constant(whole), 2, 2, "SAME")), whole[:, :2, :2])
        padded = value_of(max_pool(constant(x), 2, 2, [[0, 0], [1, 0], [1, 0], [0, 0]]))
        np.testing.assert_array_equal(padded, np.full((1, 2, 2, 1), -5.0))


def test_the_gradient_of_a_tie_goes_to_the_first() -> None:
    with Graph():
        x = constant(np.ones((1, 2, 2, 1)))
        (dx,) = gradients(max_pool(x, 2, 2, "VALID"), x)
        np.testing.assert_array_equal(value_of(dx)[0, :, :, 0], [[1, 0], [0, 0]])


def max_pool_gradient(x: Any, dy: Any, taps: int, stride: int, padding: str) -> Any:
    attrs = dict(ksize=(1, taps, taps, 1), strides=(1, stride, stride, 1), padding=padding)
    y = op_def("MaxPool").kernel(np, x, **attrs)
    return op_def("MaxPoolGrad").kernel(np, x, y, dy, **attrs)


def test_padding_has_no_gradient_though_it_is_equal_to_the_maximum() -> None:
    for lowest in (-np.inf, np.iinfo(np.int32).min):
        x = np.full((1, 2, 2, 1), lowest, np.float32 if lowest == -np.inf else np.int32)
        dx = max_pool_gradient(x, np.ones_like(x), 3, 1, "SAME")  # the padding comes first
        np.testing.assert_array_equal(dx[0, :, :, 0], [[4, 0], [0, 0]])


def test_an_infinite_gradient_leaves_other_elements_alone() -> None:
    x = np.arange(9.0).reshape(1, 3, 3, 1)
    dx = max_pool_gradient(x, np.full((1, 2, 2, 1), np.inf), 2, 1, "VALID")
    np.testing.assert_array_equal(dx[0, :, :, 0], [[0, 0, 0], [0, np.inf, np.inf], [0, np.inf, np.inf]])


def test_a_nan_is_the_maximum_and_has_no_gradient() -> None:
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    x[0, 0, 1] = np.nan
    attrs = dict(ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID")
    y = op_def("MaxPool").kernel(np, x, **attrs)
    np.testing.assert_array_equal(y[0, :, :, 0], [[np.nan, 7], [13, 15]])
    dx = max_pool_gradient(x, np.ones_like(y), 2, 2, "VALID")
    np.testing.assert_array_equal(np.argwhere(dx[0, :, :, 0]), [[1, 3], [3, 1], [3, 3]])


class Counting:
    """NumPy that counts what it is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        self.count += 1
        return getattr(np, name)


@pytest.mark.parametrize("kind", ["MaxPoolGrad", "MaxPoolGradGrad"])
@pytest.mark.parametrize("taps", [2, 5, 13])
def test_a_gradient_takes_a_few_passes_a_tap_whatever_the_image(kind: str, taps: int) -> None:
    attrs: dict[str, Any] = dict(ksize=(1, taps, taps, 1), strides=(1, 1, 1, 1), padding="SAME")
    counts = []
    for side in (taps, 13, 40):
        x = np.random.default_rng(0).standard_normal((1, side, side, 1))
        numpy = Counting()
        op_def(kind).kernel(numpy, x, op_def("MaxPool").kernel(np, x, **attrs), x, **attrs)
        counts.append(numpy.count)
    assert len(set(counts)) == 1
    assert counts[0] <= 4 * taps**2 + 20


@pytest.mark.parametrize("kind", ["MaxPool", "MaxPoolGrad", "MaxPoolGradGrad", "AvgPool", "AvgPoolGrad"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_kernels_work_in_their_workspace(kind: str, dtype: Any) -> None:
    """When it has grown to what they need nothing is allocated but NumPy's buffers of 64 KiB."""
    x = np.random.default_rng(0).standard_normal((16, 63, 63, 16)).astype(dtype)
    attrs: dict[str, Any] = dict(ksize=(1, 3, 3, 1), strides=(1, 2, 2, 1), padding="SAME")
    y = op_def("MaxPool").kernel(np, x, **attrs)
    inputs = {
        "MaxPool": (x,),
        "MaxPoolGrad": (x, y, y),
        "MaxPoolGradGrad": (x, y, x),
        "AvgPool": (x,),
        "AvgPoolGrad": (x.shape, y),
    }[kind]
    expected = op_def(kind).kernel(np, *inputs, **attrs)
    out, workspace = np.empty_like(expected), Workspace()
    for _ in range(2):
        op_def(kind).kernel(np, *inputs, out=out, workspace=workspace, **attrs)
    tracemalloc.start()
    try:
        op_def(kind).kernel(np, *inputs, out=out, workspace=workspace, **attrs)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(out, expected)
    assert most < y.nbytes / 4


def test_one_and_three_dimensions_follow_two() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 4, 3))
    flat = x[:, :, 0]
    with Graph():
        for one, two in [(max_pool1d, max_pool), (avg_pool1d, avg_pool)]:
            expected = value_of(two(constant(flat[:, :, None]), [1, 3, 1, 1], [1, 2, 1, 1], "SAME"))[:, :, 0]
            np.testing.assert_array_equal(value_of(one(constant(flat), 3, 2, "SAME")), expected)
            first = one(constant(np.moveaxis(flat, -1, 1)), 3, 2, "SAME", data_format="NCW")
            np.testing.assert_array_equal(np.moveaxis(value_of(first), 1, -1), expected)
        for three, two in [(max_pool3d, max_pool), (avg_pool3d, avg_pool)]:
            expected = value_of(two(constant(x), 2, 2, "SAME"))[:, None]
            np.testing.assert_allclose(
                value_of(three(constant(x[:, None]), [1, 1, 2, 2, 1], [1, 1, 2, 2, 1], "SAME")), expected
            )


def test_pool_chooses_by_type_and_number_of_dimensions() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 4, 3))
    with Graph():
        np.testing.assert_array_equal(
            value_of(pool(constant(x), [2, 3], "MAX", "SAME", strides=[2, 1])),
            value_of(max_pool2d(constant(x), [2, 3], [2, 1], "SAME")),
        )
        assert pool(constant(x[0]), [2], "AVG", "VALID").shape.as_list() == [5, 3, 3]
        with pytest.raises(UnimplementedError, match="dilations of 1"):
            pool(constant(x), [2, 2], "MAX", "SAME", dilations=[2, 2])
        with pytest.raises(InvalidArgumentError, match="expected MAX or AVG"):
            pool(constant(x), [2, 2], "MIN", "SAME")


def test_names_are_tensorflows() -> None:
    with Graph():
        x = placeholder("float32", [None, 28, 28, 1])
        assert max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME").op.name == "MaxPool"
        assert avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME").op.name == "AvgPool"
        assert max_pool(value=x, ksize=2, strides=2, padding="VALID", name="p").shape.as_list() == [
            None,
            14,
            14,
            1,
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(ksize=0, strides=1, padding="SAME"), "ksize: expected 4 numbers of at least 1"),
        (dict(ksize=[1, 2], strides=[1, 1, 1], padding="SAME"), "strides: expected 1, 2 or 4 numbers"),
        (dict(ksize=2, strides=2, padding="FULL"), "padding: expected one of"),
        (dict(ksize=5, strides=1, padding="VALID"), "window of at most 3 elements"),
    ],
)
def test_wrong_attributes_say_what_was_expected(arguments: dict[str, Any], message: str) -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match=message):
        max_pool(constant(np.zeros((1, 3, 3, 1))), **arguments)
