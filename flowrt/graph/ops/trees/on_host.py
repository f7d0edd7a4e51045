"""Kernels on the host of operations on any device: inputs from there, results to there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.ops.base.kernel_output import delivered


def on_host(xp: Any, *inputs: Any) -> list[Any]:
    """The inputs as arrays of the host."""
    return [np.asarray(x if xp is np else xp.asnumpy(x)) for x in inputs]


def to_device(xp: Any, results: Sequence[Any], out: Sequence[Any] | None) -> list[Any]:
    """The results on the device, in ``out`` if it is given."""
    places = [None] * len(results) if out is None else out
    return [
        delivered(xp, xp.asarray(result), result.dtype, place)
        for result, place in zip(results, places, strict=True)
    ]
