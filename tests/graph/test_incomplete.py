"""The incomplete gamma and beta functions against 30 digits; `tests/twins` has TensorFlow's values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.elementwise.incomplete import betainc, igamma, igammac
from tests.graph.evaluation import value_of

CORNERS = np.array(
    [(0.01, 1e-3), (0.01, 1.5), (0.5, 40), (1, 1), (3, 80), (19.9, 19.8), (20, 19), (20, 21), (40, 2),
     (300, 700), (1e3, 990), (1e5, 1.001e5), (1e5, 0.99e5)]
)  # fmt: skip
"""Arguments on each side of where the method changes, and in both tails."""


def test_incomplete_gamma_functions_in_both_tails() -> None:
    a, x = CORNERS.T
    with mpmath.workdps(30):
        pairs = [(mpmath.mpf(float(first)), mpmath.mpf(float(second))) for first, second in CORNERS]
        below = np.array([float(mpmath.gammainc(p, 0, at, regularized=True)) for p, at in pairs])
        above = np.array([float(mpmath.gammainc(p, at, regularized=True)) for p, at in pairs])
    with Graph():
        found_below, found_above = value_of(igamma(a, x)), value_of(igammac(a, x))
    np.testing.assert_allclose(found_below, below, rtol=5e-13)
    is_tail = x >= np.maximum(a, 1)
    np.testing.assert_allclose(found_above[is_tail], above[is_tail], rtol=5e-13)
    np.testing.assert_allclose(found_above, above, rtol=0, atol=5e-13)


def test_the_incomplete_gamma_function_by_its_shape() -> None:
    """By differences of values at 60 digits."""
    a, x = CORNERS[:-4].T
    with mpmath.workdps(60):
        exact = [
            float(
                mpmath.diff(
                    lambda p, at=at: mpmath.gammainc(p, 0, at, regularized=True), first, h=mpmath.mpf("1e-15")
                )
            )
            for first, at in zip(map(mpmath.mpf, a.tolist()), map(mpmath.mpf, x.tolist()), strict=True)
        ]
    with Graph():
        shape = constant(a)
        (found,) = gradients(igamma(shape, x), shape)
        np.testing.assert_allclose(value_of(found), exact, rtol=1e-11)
        with pytest.raises(UnimplementedError, match="no second derivative by a"):
            gradients(found, shape)


def chance(least: int, draws: int, of_64: int) -> float:
    """That of ``least`` hits or more, each with a chance of ``of_64`` / 64: in whole numbers, to be quick."""
    ways = (math.comb(draws, k) * of_64**k * (64 - of_64) ** (draws - k) for k in range(least, draws + 1))
    return sum(ways) / 64**draws


def test_incomplete_beta_functions_against_sums() -> None:
    """For whole numbers a, b the share below x is the chance of at least a hits among a + b - 1."""
    a, b = np.array([1, 3, 17, 400]), np.array([[2], [30], [600]])
    shares = [1, 26, 62]
    exact = [
        [[chance(m, m + n - 1, share) for m in a.tolist()] for n in b.ravel().tolist()] for share in shares
    ]
    x = np.array(shares).reshape(3, 1, 1) / 64
    with Graph():
        found = value_of(betainc(a.astype(float), b.astype(float), x))
    np.testing.assert_allclose(found, exact, rtol=2e-12)
