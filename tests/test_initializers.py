"""Initializers: distributions by their moments and limits, structures exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import initializers
from flowrt.errors import DTypeError, InvalidArgumentError
from tests.graph.evaluation import value_of


def test_zeros_ones_and_constants() -> None:
    assert value_of(initializers.Zeros()([2, 3])).tolist() == [[0.0] * 3] * 2
    assert value_of(initializers.Ones()([2], tf.int32)).tolist() == [1, 1]
    assert value_of(initializers.Zeros(tf.bool)([2])).tolist() == [False, False]
    assert value_of(initializers.Constant(2.5)([2, 2])).tolist() == [[2.5, 2.5]] * 2
    assert value_of(initializers.Constant([1, 2, 3])([2, 2])).tolist() == [[1, 2], [3, 3]]
    assert value_of(initializers.Constant([[1, 2], [3, 4]])([4], tf.int64)).tolist() == [1, 2, 3, 4]
    assert value_of(initializers.Constant(7)([0, 2])).shape == (0, 2)


def test_a_constant_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected a value for shape \[2\]; got shape \[3\]"):
        initializers.Constant([1, 2, 3])([2])
    with pytest.raises(InvalidArgumentError, match="expected a value for shape"):
        initializers.Constant([1, 2], verify_shape=True)([1, 2])


FANS = {(): (1, 1), (7,): (7, 7), (30, 40): (30, 40), (3, 5, 20, 40): (300, 600)}


@pytest.mark.parametrize("shape", FANS)
def test_fans_are_inputs_and_outputs_times_taps(shape: tuple[int, ...]) -> None:
    assert initializers.fans(shape) == FANS[shape]


SHAPE = (3, 3, 40, 120)  # fans 360 and 1080
UNIFORM: dict[str, tuple[Any, float]] = {  # and the limit
    "glorot_uniform": (initializers.GlorotUniform(seed=1), math.sqrt(6 / 1440)),
    "he_uniform": (initializers.he_uniform(seed=1), math.sqrt(6 / 360)),
    "lecun_uniform": (initializers.lecun_uniform(seed=1), math.sqrt(3 / 360)),
    "fan_out": (initializers.VarianceScaling(2.0, "fan_out", "uniform", seed=1), math.sqrt(6 / 1080)),
    "unit_scaling": (initializers.UniformUnitScaling(2.0, seed=1), 2 * math.sqrt(3 / 360)),
    "plain": (initializers.RandomUniform(-0.5, 0.5, seed=1), 0.5),
}
NORMAL: dict[str, tuple[Any, float, bool]] = {  # the standard deviation, and whether it is cut off
    "glorot_normal": (initializers.GlorotNormal(seed=1), math.sqrt(2 / 1440), True),
    "he_normal": (initializers.he_normal(seed=1), math.sqrt(2 / 360), True),
    "lecun_normal": (initializers.lecun_normal(seed=1), math.sqrt(1 / 360), True),
    "untruncated": (
        initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal", seed=1), math.sqrt(1 / 360), False
    ),
    "plain": (initializers.RandomNormal(stddev=0.25, seed=1), 0.25, False),
    "truncated": (
        initializers.TruncatedNormal(stddev=0.25 / initializers.TRUNCATED_STDDEV, seed=1), 0.25, True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_initializers_fill_their_interval(name: str) -> None:
    initializer, limit = UNIFORM[name]
    drawn = value_of(initializer(SHAPE))
    assert drawn.shape == SHAPE
    assert drawn.dtype == np.float32
    assert 0.99 * limit < np.abs(drawn).max() <= limit * (1 + 1e-6)
    assert drawn.std() == pytest.approx(limit / math.sqrt(3), rel=0.02)
    assert abs(drawn.mean()) < 0.02 * limit


@pytest.mark.parametrize("name", NORMAL)
def test_normal_initializers_have_their_deviation(name: str) -> None:
    initializer, deviation, truncated = NORMAL[name]
    drawn = value_of(initializer(SHAPE, tf.float64))
    assert drawn.dtype == np.float64
    assert drawn.std() == pytest.approx(deviation, rel=0.02)
    cut = 2 * deviation / initializers.TRUNCATED_STDDEV
    assert (np.abs(drawn).max() <= cut) == truncated


def test_a_seed_repeats_the_draw_and_others_differ() -> None:
    first, again = (value_of(initializers.RandomNormal(seed=5)([4])) for _ in range(2))
    other = value_of(initializers.RandomNormal(seed=6)([4]))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (2, 3, 4), (2, 2, 9)])
def test_orthogonal_weights_have_orthonormal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = value_of(initializers.Orthogonal(gain=2.0)(shape, tf.float64)).reshape(-1, shape[-1])
    small = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_orthogonal_matrices_are_drawn_from_both_orientations() -> None:
    drawn = {float(value_of(initializers.Orthogonal(seed=seed)([1, 1]))[0, 0]) for seed in range(20)}
    assert drawn == {-1.0, 1.0}


def test_identity_is_gain_on_the_diagonal() -> None:
    assert value_of(initializers.Identity(3.0)([2, 3])).tolist() == [[3, 0, 0], [0, 3, 0]]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least two dimensions"):
        initializers.Orthogonal()([3])
    with pytest.raises(InvalidArgumentError, match="expected a shape of two dimensions"):
        initializers.Identity()([3])
    with pytest.raises(InvalidArgumentError, match="without unknown dimensions"):
        initializers.Zeros()([None, 3])
    with pytest.raises(DTypeError, match=r"GlorotUniform: expected a dtype of .*; got int32"):
        initializers.GlorotUniform()([3], tf.int32)
    with pytest.raises(InvalidArgumentError, match="expected mode"):
        initializers.VarianceScaling(mode="in")
    with pytest.raises(InvalidArgumentError, match="expected distribution"):
        initializers.VarianceScaling(distribution="cauchy")
    with pytest.raises(InvalidArgumentError, match="positive scale"):
        initializers.VarianceScaling(scale=0)


def test_an_initializer_prints_its_settings() -> None:
    assert repr(initializers.RandomNormal(1.0, 2.0)) == (
        "RandomNormal(dtype=flowrt.float32, mean=1.0, stddev=2.0, seed=None)"
    )
