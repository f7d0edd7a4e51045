"""Normalization: values against their definitions, running statistics, second order, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import FLOATING, DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.nn.batch_norm import fused_batch_norm
from flowrt.graph.ops.nn.moments import (
    batch_normalization,
    l2_normalize,
    moments,
    normalize_moments,
    sufficient_statistics,
    weighted_moments,
    zero_fraction,
)
from flowrt.graph.ops.nn.normalization import layer_norm, lrn
from tests.graph.evaluation import value_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3, 5, 2)) * 3 + 10
SCALE, OFFSET = np.array([0.5, 2.0]), np.array([1.0, -1.0])
MEAN, VARIANCE = np.array([9.0, 11.0]), np.array([4.0, 0.25])


def normalized(x: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    return (x - mean) / np.sqrt(variance + epsilon) * SCALE + OFFSET


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_batch_norm_in_training_uses_and_returns_the_statistics_of_the_batch(layout: str) -> None:
    mean, variance = X.mean((0, 1, 2)), X.var((0, 1, 2))
    with Graph():
        x = constant(np.moveaxis(X, -1, 1) if layout == "NCHW" else X)
        y, batch_mean, batch_variance = map(value_of, fused_batch_norm(x, SCALE, OFFSET, data_format=layout))
        y = np.moveaxis(y, 1, -1) if layout == "NCHW" else y
        np.testing.assert_allclose(y, normalized(X, mean, variance, 1e-3))
        np.testing.assert_allclose(batch_mean, mean)
        np.testing.assert_allclose(batch_variance, variance * 60 / 59)  # unbiased, for the running average


def test_batch_norm_mixes_the_statistics_into_a_running_average() -> None:
    with Graph():
        _, mean, variance = fused_batch_norm(
            constant(X), SCALE, OFFSET, MEAN, VARIANCE, exponential_avg_factor=0.25
        )
        np.testing.assert_allclose(value_of(mean), 0.75 * MEAN + 0.25 * X.mean((0, 1, 2)))
        np.testing.assert_allclose(value_of(variance), 0.75 * VARIANCE + 0.25 * X.var((0, 1, 2)) * 60 / 59)


def test_batch_norm_in_inference_uses_the_given_statistics() -> None:
    with Graph():
        x = constant(X)
        y, mean, variance = fused_batch_norm(x, SCALE, OFFSET, MEAN, VARIANCE, epsilon=0.1, is_training=False)
        np.testing.assert_allclose(value_of(y), normalized(X, MEAN, VARIANCE, 0.1))
        np.testing.assert_array_equal(value_of(mean), MEAN)
        np.testing.assert_array_equal(value_of(variance), VARIANCE)
        np.testing.assert_allclose(value_of(gradients(y, x)[0])[0, 0, 0], SCALE / np.sqrt(VARIANCE + 0.1))


@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_16_bit_batches_have_float32_statistics(dtype: DType) -> None:
    with Graph():
        x = constant(X.astype(dtype.np))
        y, mean, _ = fused_batch_norm(x, SCALE, OFFSET)
        assert value_of(y).dtype == value_of(gradients(y, x)[0]).dtype == dtype.np
        assert mean.dtype.name == ("float64" if dtype.name == "float64" else "float32")


def test_the_gradients_of_batch_norm_of_first_and_second_order_are_those_of_its_parts() -> None:
    weight = RNG.standard_normal(X.shape)
    with Graph():
        x, scale, offset = constant(X), constant(SCALE), constant(OFFSET)
        mean, variance = moments(x, [0, 1, 2])
        parts = batch_normalization(x, mean, variance, offset, scale, 0.001)
        whole = fused_batch_norm(x, scale, offset)[0]
        np.testing.assert_allclose(value_of(whole), value_of(parts), atol=1e-12)
        found = [gradients(multiply(y, constant(weight)), [x, scale, offset]) for y in (parts, whole)]
        for expected, got in zip(*found, strict=True):
            np.testing.assert_allclose(value_of(got), value_of(expected), atol=1e-9)
        second = [gradients(multiply(g[0], constant(weight)), [x, scale]) for g in found]
        for expected, got in zip(*second, strict=True):
            np.testing.assert_allclose(value_of(got), value_of(expected), atol=1e-9)


def test_batch_norm_of_one_element_a_channel_gives_the_offset() -> None:
    with Graph():
        y, _, variance = fused_batch_norm(constant(np.ones((1, 1, 1, 2))), SCALE, OFFSET)
        np.testing.assert_array_equal(value_of(y).ravel(), OFFSET)
        np.testing.assert_array_equal(value_of(variance), [0, 0])


def test_batch_norm_without_the_statistics_it_needs_is_an_error() -> None:
    with Graph():
        with pytest.raises(InvalidArgumentError, match="expected mean and variance"):
            fused_batch_norm(constant(X), SCALE, OFFSET, is_training=False)
        with pytest.raises(InvalidArgumentError, match="expected mean and variance"):
            fused_batch_norm(constant(X), SCALE, OFFSET, exponential_avg_factor=0.5)
        with pytest.raises(InvalidArgumentError, match="expected two compatible shapes"):
            fused_batch_norm(constant(X), [1.0, 1, 1], [0.0, 0, 0])


# --- layer and response normalization


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (6,)])
def test_layer_norm_normalizes_the_last_axis(shape: tuple[int, ...]) -> None:
    x, scale, offset = (RNG.standard_normal(s) for s in (shape, 6, 6))
    with Graph():
        y = layer_norm(constant(x), constant(scale), constant(offset), epsilon=0.1)
        deviation = np.sqrt(x.var(-1, keepdims=True) + 0.1)
        np.testing.assert_allclose(value_of(y), (x - x.mean(-1, keepdims=True)) / deviation * scale + offset)


def test_layer_norm_refuses_a_scale_that_does_not_fit() -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match="expected two compatible shapes"):
        layer_norm(constant(np.zeros((2, 3))), constant(np.zeros(2)), constant(np.zeros(3)))


@pytest.mark.parametrize("radius", [0, 1, 2, 9])
def test_lrn_divides_by_the_squares_of_the_channels_around(radius: int) -> None:
    x = RNG.standard_normal((2, 3, 1, 5))
    around = np.stack([(x[..., max(0, c - radius) : c + radius + 1] ** 2).sum(-1) for c in range(5)], -1)
    with Graph():
        y = lrn(constant(x), radius, bias=2.0, alpha=0.5, beta=0.75)
        np.testing.assert_allclose(value_of(y), x / (2 + 0.5 * around) ** 0.75)


# --- moments


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [[0], [0, 2], [-1], [0, 1, 2, 3]])
def test_moments_are_mean_and_variance(axes: list[int], keep: bool) -> None:
    with Graph():
        mean, variance = moments(constant(X), axes, keep_dims=keep)
        np.testing.assert_allclose(value_of(mean), X.mean(tuple(axes), keepdims=keep))
        np.testing.assert_allclose(value_of(variance), X.var(tuple(axes), keepdims=keep))


def test_moments_of_16_bits_are_summed_in_float32() -> None:
    with Graph():
        mean, variance = moments(constant(np.full(4096, 300.0, np.float16)), [0])
        assert value_of(mean).dtype == np.float16
        assert (float(value_of(mean)), float(value_of(variance))) == (300, 0)


def test_the_second_derivative_of_a_variance_is_right() -> None:
    with Graph():
        x = constant(np.array([1.0, 2, 4]))
        (first,) = gradients(moments(x, [0])[1], x)
        (second,) = gradients(first, x, [constant(np.eye(3)[0])])
        np.testing.assert_allclose(value_of(second), 2 / 3 * (np.eye(3)[0] - 1 / 3), atol=1e-12)


def test_weighted_moments_of_whole_weights_are_moments_of_repeated_elements() -> None:
    x, counts = np.array([1.0, 5, 2]), np.array([1, 3, 2])
    with Graph():
        mean, variance = weighted_moments(constant(x), [0], constant(counts))
        repeated = np.repeat(x, counts)
        np.testing.assert_allclose([value_of(mean), value_of(variance)], [repeated.mean(), repeated.var()])


@pytest.mark.parametrize("shift", [None, 9.5])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (None, 3, None, 2)])
def test_sufficient_statistics_normalize_to_moments(shift: float | None, shape: Any) -> None:
    with Graph():
        x = placeholder("float64", shape)
        count, total, squares, moved = sufficient_statistics(x, [0, 2], shift)
        assert (moved is None) == (shift is None)
        assert float(value_of(count, {x: X})) == 20
        mean, variance = normalize_moments(count, total, squares, moved)
        np.testing.assert_allclose(value_of(mean, {x: X}), X.mean((0, 2)))
        np.testing.assert_allclose(value_of(variance, {x: X}), X.var((0, 2)))


def test_batch_normalization_does_without_scale_and_offset() -> None:
    with Graph():
        y = batch_normalization(constant(X), MEAN, VARIANCE, None, None, 0.1)
        np.testing.assert_allclose(value_of(y), (X - MEAN) / np.sqrt(VARIANCE + 0.1))


def test_l2_normalize_has_unit_norm_and_survives_zeros() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    with Graph():
        np.testing.assert_allclose(value_of(l2_normalize(constant(x), 1)), [[0.6, 0.8], [0, 0]])
        np.testing.assert_allclose(value_of(l2_normalize(constant(x), dim=[0, 1])), x / 5)
        np.testing.assert_allclose(value_of(l2_normalize(constant(x))), x / 5)


def test_zero_fraction_counts_zeros() -> None:
    with Graph():
        fraction = value_of(zero_fraction(constant([[0, 1], [0, 0]])))
        assert fraction == 0.75
        assert np.asarray(fraction).dtype == np.float32
        assert np.isnan(value_of(zero_fraction(constant(np.zeros((0, 2))))))
