"""Results in float16 are rounded as NumPy rounds, below its normal numbers too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.ops.base.kernel_output import as_in_float16, delivered


def bits(array: Any) -> np.ndarray:
    """The bits of float16, one pattern for all NaNs."""
    found: np.ndarray = np.where(np.isnan(array), 0x7E00, array.view(np.uint16))
    return found


def hard_cases() -> np.ndarray:
    """All numbers of float16, the middles between neighbours, what is right beside those, and random bits."""
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(numbers[np.isfinite(numbers)])
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    some = np.random.default_rng(0).integers(0, 2**32, 2**20, np.uint32).view(np.float32)
    return np.concatenate([numbers, middles, *beside, some])


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_every_result_is_numpy_s() -> None:
    x = hard_cases()
    expected = bits(x.astype(np.float16))
    np.testing.assert_array_equal(bits(as_in_float16(x).astype(np.float16)), expected)
    np.testing.assert_array_equal(bits(delivered(np, x, np.dtype(np.float16), None)), expected)
    with tf.Graph().as_default(), tf.Session() as session:
        np.testing.assert_array_equal(bits(session.run(tf.cast(tf.constant(x), tf.float16))), expected)


def test_small_numbers_raise_no_flag() -> None:
    x = np.float32([1e-5, -3e-6, 2e-9, 1.0])
    with np.errstate(under="raise"):
        with pytest.raises(FloatingPointError):
            x.astype(np.float16)
        as_in_float16(x).astype(np.float16)
