"""The incomplete gamma and beta functions against 30 digits; `tests/twins` has TensorFlow's values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.dtypes import float64
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.elementwise.incomplete import betainc, igamma, igammac, random_gamma_grad
from flowrt.graph.ops.random.sampling import random_gamma
from tests.graph.evaluation import value_of, values_of

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
        with pytest.raises(UnimplementedError, match="IgammaGradA has no derivative"):
            gradients(found, shape)


def test_values_of_gamma_by_its_shape_where_densities_underflow() -> None:
    """Values of 40 digits. TensorFlow 2.21 has 0.145 for the last, and 0 for the one before."""
    shape, drawn = np.array([1e-3, 0.5, 2.0, 3e3, 832200.0]), np.array([1e-200, 1e-9, 0.0, 14e3, 832190.0])
    exact = [4.599414466669988e-195, 4.151951165041854e-08, 0.0, 1.9606674022439072, 0.9999941920760129]
    with Graph():
        np.testing.assert_allclose(value_of(random_gamma_grad(shape, drawn)), exact, rtol=1e-11)


def test_values_of_gamma_move_with_its_shape_to_the_same_share() -> None:
    shape = np.array([0.1, 0.9, 1.1, 7.0, 19.0, 21.0, 300.0, 1e4])
    with Graph():
        given, rate = constant(shape), constant(np.full(8, 2.0))
        drawn = random_gamma([3], given, rate, float64, seed=1)
        value, moved, scaled = values_of([drawn, *gradients(drawn[1], [given, rate])])
        step, x = 1e-6 * shape, 2 * value[1]
        before, after, farther = values_of(
            [igamma(shape - step, x - 2 * step * moved), igamma(shape + step, x + 2 * step * moved),
             igamma(shape + step, x - 2 * step * moved)]
        )  # fmt: skip
    np.testing.assert_allclose(scaled, -value[1] / 2)
    np.testing.assert_array_less(abs(after - before), 1e-4 * abs(farther - before))


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
