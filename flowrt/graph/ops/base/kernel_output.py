"""Writing a kernel's result to a given buffer, or to a new array.

Every kernel with a result shape known before it runs takes ``out``. Results that its library cannot write
there (LAPACK, most of NumPy's generators) are copied: for [4, 4] an inverse and its consumer take 6.6 us
instead of 8.0, since readers of the step's memory are bound once and readers of new memory in every step;
from [128, 128] on the times are equal.

Three kinds of kernels have no ``out``. Views need no memory. Kernels that return an array produced elsewhere
(a queue, a table, a file, another task, Python) would copy it. Kernels that determine the length of the
result only while running (``Where``, ``Unique``, segments) allocate it: new memory costs at most 7 % of their
time for 1,000 elements and under 1 % from 100,000 on, while a buffer for the longest result would be twice
the size they fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)

SMALLEST_NORMAL = np.float32(2.0**-14)
"""The smallest normal number of float16."""


def accumulator(x: Any) -> Any:
    """The dtype to add x's elements in: float32 for 16-bit floats, so that totals grow, otherwise its own."""
    return np.dtype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype


def delivered(xp: Any, result: Any, dtype: Any, out: Any) -> Any:
    """``result``, an array, as one of ``dtype``: in ``out``, unless that is None."""
    if dtype is _FLOAT16 and result.dtype is _FLOAT32 and xp is np:
        result = as_in_float16(result)
    if out is None:
        return result if result.dtype == dtype else result.astype(dtype)
    if result is not out:
        xp.copyto(out, result, casting="unsafe")
    return out


def as_in_float16(x: Any) -> Any:
    """``x``, of float32, with what is below float16's normal numbers rounded to its subnormal ones.

    NumPy's conversion raises the processor's underflow flag for each element that it rounds there: 80 ns
    each, where others take 2, and small gradients are many. These are exact.
    """
    is_small = np.abs(x) < SMALLEST_NORMAL
    if not is_small.any():
        return x
    spacing = np.float32(0.75)  # where float32's numbers are as far apart as these, 2**-24
    rounded = x + spacing - spacing
    return np.where(is_small, np.copysign(rounded, x), x)


def copied(xp: Any, view: Any, out: Any) -> Any:
    """``view`` in memory of its own: in ``out``, unless that is None."""
    return xp.array(view) if out is None else delivered(xp, view, view.dtype, out)


def copies(views: Iterable[Any], out: Sequence[Any] | None) -> list[Any]:
    """Copies of views, in ``out`` if it is given."""
    if out is None:
        return [view.copy() for view in views]
    for place, view in zip(out, views, strict=True):
        place[...] = view
    return list(out)


def all_delivered(xp: Any, results: Iterable[Any], dtype: Any, out: Sequence[Any] | None) -> list[Any]:
    """`delivered` for each of several results."""
    results = list(results)
    places = [None] * len(results) if out is None else out
    return [delivered(xp, result, dtype, place) for result, place in zip(results, places, strict=True)]
