"""Weights that a converter has stored as integers, as ``quantize_weights`` of TensorFlow 1 does."""

from __future__ import annotations

from typing import Any

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal, where
from flowrt.graph.ops.elementwise.math import round
from flowrt.tf1.composed_ops.composition import composed


@composed(
    "Dequantize",
    "input: T, min_range: float32, max_range: float32 -> output: dtype",
    "mode: string = 'MIN_COMBINED', narrow_range: bool = False, axis: int = -1, dtype: type = float32",
)
def dequantize(
    x: Tensor, low: Tensor, high: Tensor, mode: str, narrow_range: bool, axis: int, dtype: Any
) -> Tensor:
    """The numbers between ``low`` and ``high``, both scalars or vectors along ``axis``, that integers stand
    for.
    """
    least, most = x.dtype.min, x.dtype.max
    values = cast(x, "float32")
    if axis != -1:
        rank = x.shape.rank
        if rank is None:
            raise UnimplementedError(f"expected an input of known rank with axis {axis}")
        low, high = (reshape(bound, [-1, *[1] * (rank - 1 - axis)]) for bound in (low, high))
    step = (high - low) / float(most - least)
    if mode == "SCALED":
        step = high / float(most)
        if least < 0:
            step = maximum(step, low / float(least + narrow_range))
        found = values * step
    elif mode == "MIN_FIRST":
        begin = where(equal(low, high), low, round(low / step) * step)  # so that zero is a step
        found = begin + (values - float(least)) * step
    else:
        found = low + (values - float(least)) * step
    return cast(found, dtype)
