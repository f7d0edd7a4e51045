"""Windows: weights that taper the ends of a frame, so that its spectrum does not show the cuts."""

from __future__ import annotations

import math

from flowrt.dtypes import DTypeLike, as_dtype, float32, int32
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal, where_v2
from flowrt.graph.ops.elementwise.math import cos
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.variables.graph_scopes import name_scope

__all__ = ["hamming_window", "hann_window"]


def hann_window(
    window_length: NumericLike, periodic: bool = True, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """Hann's window, [window_length]: a cosine raised to reach from 0 to 1.

    A ``periodic`` window of even length continues without a seam, as transforms take it; otherwise it is
    symmetric. Raises `DTypeError` unless ``dtype`` is one of floats.

    Example:
        >>> tf.signal.hann_window(4).eval()
        array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    with name_scope(name, "hann_window"):
        return _raised_cosine(window_length, periodic, dtype, 0.5)


def hamming_window(
    window_length: NumericLike, periodic: bool = True, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """Hamming's window, [window_length]: like `hann_window`, but from 0.08 to 1."""
    with name_scope(name, "hamming_window"):
        return _raised_cosine(window_length, periodic, dtype, 0.54)


def _raised_cosine(length: NumericLike, periodic: bool, dtype: DTypeLike, mean: float) -> Tensor:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise misuse(f"window: expected a dtype of floats; got {kind.name}", DTypeError)
    count = convert_to_tensor(length, int32)
    seam = 1 - count % 2 if periodic else 0
    steps = cast(maximum(count + seam - 1, 1), kind)
    turns = 2 * math.pi * cast(range(count), kind) / steps
    return where_v2(equal(count, 1), cast(1.0, kind), mean - (1 - mean) * cos(turns))
