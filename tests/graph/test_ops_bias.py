"""The gradient of the bias: sums over rows that are added up several as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrt.graph.op_def import registered_ops
from flowrt.graph.ops.nn import bias


def gradient(value: Any, data_format: str) -> Any:
    return registered_ops()["BiasAddGrad"].kernel(np, value, data_format=data_format)


@pytest.mark.parametrize(
    "shape", [(64, 28, 28, 32), (33, 7, 11, 20), (40000, 1), (3, 20000), (4, 4096, 3), (2048, 17)]
)
@pytest.mark.parametrize("way", ["plain", "turned", "sliced"])
def test_each_channels_sum(shape: tuple[int, ...], way: str) -> None:
    rng = np.random.default_rng(0)
    value = rng.standard_normal(shape[::-1] if way == "turned" else shape).astype(np.float32)
    value = {"plain": value, "turned": value.T, "sliced": value[::2]}[way]
    expected = value.astype(np.float64).sum(tuple(range(value.ndim - 1)))
    assert np.allclose(gradient(value, "NHWC"), expected, atol=2e-3)


def test_channels_first() -> None:
    value = np.random.default_rng(0).standard_normal((16, 32, 20, 20)).astype(np.float32)
    expected = value.astype(np.float64).sum((0, 2, 3))
    assert np.allclose(gradient(value, "NCHW"), expected, atol=2e-3)


def test_large_values_are_folded_and_small_ones_are_not() -> None:
    assert bias._rows_together(np.empty((64, 28, 28, 32), np.float32)) == 64
    assert bias._rows_together(np.empty((33, 7, 11, 20), np.float32)) == 1  # an odd number of rows
    assert bias._rows_together(np.empty((128, 10), np.float32)) == 1
    assert bias._rows_together(np.empty((0, 10), np.float32)) == 1
