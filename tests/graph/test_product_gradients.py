"""Derivatives of products where elements are zero, against sums of products written out."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.graph.ops.array.scans import recurrence

ELEMENTS = st.lists(st.sampled_from([0.0, 0.0, -1.5, -0.5, 0.25, 1.0, 2.0]), min_size=1, max_size=6)


def factors_of(k: int, n: int, exclusive: bool, reverse: bool) -> list[int]:
    """The positions whose product is element ``k`` of a cumprod of ``n``."""
    return [i for i in range(n) if (i > k if reverse else i < k) or (i == k and not exclusive)]


def without(x: Any, factors: list[int], *left_out: int) -> float:
    """The derivative of the product of x[factors] by the elements ``left_out``, all different."""
    if any(i not in factors for i in left_out):
        return 0.0
    return float(np.prod([x[i] for i in factors if i not in left_out]))


def gradient(x: Any, groups: list[list[int]], weights: Any) -> Any:
    rows = range(len(x))
    return np.array([sum(w * without(x, g, j) for g, w in zip(groups, weights, strict=True)) for j in rows])


def hessian(x: Any, groups: list[list[int]], weights: Any) -> Any:
    rows = range(len(x))
    return np.array(
        [
            [
                0.0 if i == j else sum(w * without(x, g, i, j) for g, w in zip(groups, weights, strict=True))
                for j in rows
            ]
            for i in rows
        ]
    )


def check(values: list[float], result: Any, groups: list[list[int]]) -> None:
    """``result(x)`` is a tensor of the products of ``groups`` of the elements of ``x``."""
    x, n = np.array(values), len(values)
    weights, direction = np.linspace(0.5, 2, len(groups)), np.linspace(-1, 1, n)
    with tf.Graph():
        fed = tf.placeholder(tf.float64, [n])
        total = tf.reduce_sum(result(fed) * weights)
        (first,) = tf.gradients(total, fed)
        (second,) = tf.gradients(tf.reduce_sum(first * direction), fed)
        (forward,) = tf.forward_gradients([first], [fed], [tf.constant(direction)])
        with tf.Session() as session:
            got = session.run([first, second, forward], {fed: x})
    exact = hessian(x, groups, weights) @ direction
    for found, expected in zip(got, (gradient(x, groups, weights), exact, exact), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("exclusive", "reverse"), [*product([False, True], repeat=2)])
@settings(max_examples=settings.default.max_examples // 2)
@given(values=ELEMENTS)
def test_cumprod(exclusive: bool, reverse: bool, values: list[float]) -> None:
    groups = [factors_of(k, len(values), exclusive, reverse) for k in range(len(values))]
    check(values, lambda x: tf.cumprod(x, exclusive=exclusive, reverse=reverse), groups)


@given(values=ELEMENTS)
def test_reduce_prod(values: list[float]) -> None:
    check(values, lambda x: tf.reshape(tf.reduce_prod(x), [1]), [list(range(len(values)))])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [600, 601])
def test_a_long_recurrence_is_the_same_by_blocks(length: int, reverse: bool) -> None:
    rng = np.random.default_rng(length)
    a, b = rng.uniform(-1.1, 1.1, (2, length, 3))
    expected, state = np.zeros((length, 3)), np.zeros(3)
    for t in reversed(range(length)) if reverse else range(length):
        expected[t], state = state, a[t] * state + b[t]
    with tf.Graph(), tf.Session() as session:
        got = session.run(recurrence(a, b, 0, reverse=reverse))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_factors_that_would_overflow_in_a_block_meet_only_a_state_of_zero() -> None:
    x = np.full(400, 1e10)
    x[0] = 0.0
    with tf.Graph():
        fed = tf.placeholder(tf.float64, [400])
        (first,) = tf.gradients(tf.cumprod(fed)[0], fed)
        with tf.Session() as session:
            got = session.run(first, {fed: x})
    np.testing.assert_array_equal(got, np.eye(1, 400)[0])
