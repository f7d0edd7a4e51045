"""Losses: values against their definitions, extreme logits, second order, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import FLOATING, DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.nn.losses import (
    in_top_k,
    l2_loss,
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from tests.graph.evaluation import value_of

RNG = np.random.default_rng(0)


def log_softmax(x: Any, axis: int = -1) -> Any:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize(
    "function", [softmax_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2]
)
def test_the_dense_cross_entropy_is_its_definition_along_any_axis(function: Any, axis: int) -> None:
    x = RNG.standard_normal((2, 3, 4)) * 100
    p = np.exp(log_softmax(RNG.standard_normal((2, 3, 4)), axis))
    with Graph():
        logits, labels = constant(x), constant(p)
        loss = function(labels=labels, logits=logits, axis=axis)
        np.testing.assert_allclose(value_of(loss), -(p * log_softmax(x, axis)).sum(axis))
        assert loss.shape.as_list() == list(np.delete([2, 3, 4], axis))
        dlogits, dlabels = gradients(loss, [logits, labels])
        np.testing.assert_allclose(value_of(dlogits), np.exp(log_softmax(x, axis)) - p, atol=1e-12)
        if function is softmax_cross_entropy_with_logits:
            assert dlabels is None
        else:
            np.testing.assert_allclose(value_of(dlabels), -log_softmax(x, axis))


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (5,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_sparse_cross_entropy_is_the_dense_one_of_one_hot_labels(
    shape: tuple[int, ...], dtype: Any
) -> None:
    x, classes = RNG.standard_normal(shape), RNG.integers(0, 5, shape[:-1]).astype(dtype)
    with Graph():
        logits = constant(x)
        sparse = sparse_softmax_cross_entropy_with_logits(labels=constant(classes), logits=logits)
        dense = softmax_cross_entropy_with_logits_v2(constant(np.eye(5)[classes]), logits)
        assert sparse.shape.as_list() == list(shape[:-1])
        np.testing.assert_allclose(value_of(sparse), value_of(dense))
        np.testing.assert_allclose(
            value_of(gradients(sparse, logits)[0]), value_of(gradients(dense, logits)[0]), atol=1e-12
        )


def test_shapes_that_are_known_at_run_time_only_work_too() -> None:
    x, classes = RNG.standard_normal((2, 3, 5)), np.array([[0, 1, 4], [2, 2, 3]], np.int32)
    with Graph():
        logits, labels = placeholder("float64", [None, None, None]), placeholder("int32", [None, None])
        feed = {logits: x, labels: classes}
        sparse = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        expected = -np.take_along_axis(log_softmax(x), classes[..., None], -1)[..., 0]
        np.testing.assert_allclose(value_of(sparse, feed), expected)
        one_hot = placeholder("float64")
        dense = softmax_cross_entropy_with_logits_v2(one_hot, placeholder_like := placeholder("float64"))
        np.testing.assert_allclose(
            value_of(dense, {one_hot: np.eye(5)[classes], placeholder_like: x}), expected
        )


@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_cross_entropies_keep_the_dtype_of_the_logits(dtype: DType) -> None:
    with Graph():
        logits = constant(np.array([[1, 2, 3]], dtype.np))
        sparse = sparse_softmax_cross_entropy_with_logits(labels=[2], logits=logits)
        dense = softmax_cross_entropy_with_logits_v2(constant(np.array([[0, 0, 1]], dtype.np)), logits)
        for loss in (sparse, dense):
            assert value_of(loss).dtype == value_of(gradients(loss, logits)[0]).dtype == dtype.np
            np.testing.assert_allclose(value_of(loss).astype(float), 0.4076, rtol=5e-3)


def test_the_second_derivative_of_a_cross_entropy_is_the_covariance_of_the_softmax() -> None:
    x = RNG.standard_normal(4)
    p = np.exp(log_softmax(x))
    with Graph():
        logits = constant(x[None])
        for loss in (
            sparse_softmax_cross_entropy_with_logits(labels=[1], logits=logits),
            softmax_cross_entropy_with_logits_v2(constant(np.eye(4)[1:2]), logits),
        ):
            (first,) = gradients(loss, logits)
            rows = [
                value_of(gradients(first, logits, [constant(np.eye(4)[i : i + 1])])[0])[0] for i in range(4)
            ]
            np.testing.assert_allclose(rows, np.diag(p) - np.outer(p, p), atol=1e-12)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_an_error_that_names_it(label: int) -> None:
    with Graph():
        labels = placeholder("int32", [None])
        loss = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=constant(np.zeros((2, 3))))
        with pytest.raises(
            InvalidArgumentError, match=rf"labels\[1\]: expected a class number in \[0, 3\); got {label}"
        ):
            value_of(loss, {labels: [0, label]})


def test_wrong_calls_say_what_was_expected() -> None:
    x, y = np.zeros((2, 3)), np.zeros(2, np.int32)
    with Graph():
        with pytest.raises(InvalidArgumentError, match="named arguments"):
            softmax_cross_entropy_with_logits(constant(x), constant(x))
        with pytest.raises(InvalidArgumentError, match="no labels"):
            sparse_softmax_cross_entropy_with_logits(logits=constant(x))
        with pytest.raises(InvalidArgumentError, match="one dimension less than logits"):
            sparse_softmax_cross_entropy_with_logits(labels=constant(x), logits=constant(x))
        with pytest.raises(InvalidArgumentError, match="expected two compatible shapes"):
            sparse_softmax_cross_entropy_with_logits(
                labels=constant(np.zeros(4, np.int32)), logits=constant(x)
            )
        with pytest.raises(InvalidArgumentError, match="labels and logits of the same shape"):
            sigmoid_cross_entropy_with_logits(labels=constant(y * 1.0), logits=constant(x))
        with pytest.raises(InvalidArgumentError, match="broadcast together"):
            softmax_cross_entropy_with_logits_v2(constant(np.zeros((2, 4))), constant(x))


def test_the_sigmoid_cross_entropy_is_exact_far_out_and_at_zero() -> None:
    x, z = np.array([-800.0, -30, 0, 0, 30, 800]), np.array([0.0, 0, 0, 1, 1, 0.5])
    with Graph():
        logits = constant(x)
        loss = sigmoid_cross_entropy_with_logits(labels=constant(z), logits=logits)
        expected = [0, math.exp(-30), math.log(2), math.log(2), math.exp(-30), 400]
        np.testing.assert_allclose(value_of(loss), expected, rtol=1e-12)
        sigmoid = 1 / (1 + np.exp(-np.clip(x, -700, 700)))
        np.testing.assert_allclose(value_of(gradients(loss, logits)[0]), sigmoid - z, atol=1e-12)


def test_the_weighted_cross_entropy_weighs_the_positive_part() -> None:
    x, z = RNG.standard_normal(6) * 3, RNG.uniform(0, 1, 6)
    sigmoid = 1 / (1 + np.exp(-x))
    with Graph():
        loss = weighted_cross_entropy_with_logits(labels=constant(z), logits=constant(x), pos_weight=2.5)
        expected = -2.5 * z * np.log(sigmoid) - (1 - z) * np.log(1 - sigmoid)
        np.testing.assert_allclose(value_of(loss), expected)
        old = weighted_cross_entropy_with_logits(targets=constant(z), logits=constant(x), pos_weight=2.5)
        np.testing.assert_array_equal(value_of(old), value_of(loss))


def test_the_full_poisson_loss_is_the_negative_log_likelihood() -> None:
    rate, counts = np.array([0.5, 2.0, 30.0]), np.array([0.0, 1.0, 40.0])
    with Graph():
        loss = value_of(log_poisson_loss(constant(counts), constant(np.log(rate)), compute_full_loss=True))
        exact = [r - k * math.log(r) + math.lgamma(k + 1) for r, k in zip(rate, counts, strict=True)]
        np.testing.assert_allclose(loss, exact, atol=0.003)  # Stirling's error is 1 / (12 k)
        part = log_poisson_loss(constant(counts), constant(np.log(rate)))
        np.testing.assert_allclose(value_of(part), rate - counts * np.log(rate))


@pytest.mark.parametrize("dtype", sorted(FLOATING, key=lambda d: d.name))
def test_l2_loss_is_half_the_sum_of_squares(dtype: DType) -> None:
    with Graph():
        t = constant(np.full((600,), 0.5, dtype.np))
        loss = value_of(l2_loss(t))
        assert np.asarray(loss).dtype == dtype.np
        assert float(loss) == 75  # a bfloat16 running sum would stop at 32
        np.testing.assert_array_equal(value_of(gradients(l2_loss(t), t)[0]), np.full(600, 0.5, dtype.np))


def test_in_top_k_counts_ties_in_and_refuses_what_it_cannot_say() -> None:
    rows = [[3, 2, 1, 0], [1, 1, 1, 0], [1, 2, 3, 4], [np.nan, 0, 0, 1], [np.inf, 0, 0, 1], [1, 2, 3, 4]]
    targets = [1, 2, 0, 3, 3, 4]
    with Graph():
        found = value_of(in_top_k(constant(np.array(rows, np.float32)), targets, 2))
        np.testing.assert_array_equal(found, [True, True, False, False, False, False])
        k = placeholder("int32", [])
        some = in_top_k(constant(np.array(rows[:3], np.float32)), targets[:3], k)
        np.testing.assert_array_equal(value_of(some, {k: 4}), [True, True, True])
