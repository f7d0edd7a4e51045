"""Reductions of the arrays of several ranks, on the host. Pure.

The order is that of the ranks, from the first on, regardless of which rank computes it, so the results of
ranks are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import DTypeError, InvalidArgumentError

REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
"""Function that reduces two elements. A mean is a sum, divided at the end."""


def check_reduction(reduction: str, dtype: np.dtype[Any]) -> None:
    """Raises `InvalidArgumentError` for one that is not there, `DTypeError` for a dtype that has no such."""
    if reduction not in REDUCTIONS:
        raise InvalidArgumentError(f"reduction: expected {', '.join(REDUCTIONS)}; got {reduction!r}")
    if dtype.kind in "OSUb" or (dtype.kind == "c" and reduction in ("min", "max")):
        raise DTypeError(f"reduction {reduction}: expected a dtype that it supports; got {dtype}")


def join(arrays: Sequence[Any], out: Any, reduction: str) -> None:
    """Reduce ``arrays``, those of the ranks [n] in order, into ``out`` [n], which may be the first or the
    second of them, but no later one.
    """
    function = REDUCTIONS[reduction]
    if len(arrays) == 1:
        np.copyto(out, arrays[0])
        return
    function(arrays[0], arrays[1], out=out)
    for array in arrays[2:]:
        function(out, array, out=out)
    finish(reduction, out, len(arrays))


def finish(reduction: str, joined: Any, size: int) -> None:
    """Complete the reduction ``joined`` of ``size`` ranks in place. A mean of integers is rounded down."""
    if reduction == "mean":
        divide = np.floor_divide if joined.dtype.kind in "iu" else np.divide
        divide(joined, joined.dtype.type(size), out=joined)
