"""A kernel's result where it is wanted: in the memory that the kernel was given, or in its own.

Every kernel that computes a result whose shape is known before it runs takes ``out``. What its library cannot
write there (LAPACK, most of NumPy's generators) is copied: for [4, 4] an inverse and what is made of it take
6.6 us instead of 8.0, since who reads the step's memory is bound once and who reads new memory in every step;
from [128, 128] on the times are equal.

Three kinds of kernels take none. Views need no memory. Those that give out what somebody else made (a queue,
another task, Python) would copy it. Those that find out only as they run how long the result is (``Where``,
``Unique``, segments) bring their own: new memory is at most 7 % of their time for 1,000 elements and under
1 % from 100,000 on, where room for the longest would be twice what they fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def delivered(xp: Any, result: Any, dtype: Any, out: Any) -> Any:
    """``result``, an array, as one of ``dtype``: in ``out``, unless that is None."""
    if out is None:
        return result if result.dtype == dtype else result.astype(dtype)
    if result is not out:
        xp.copyto(out, result, casting="unsafe")
    return out


def all_delivered(xp: Any, results: Iterable[Any], dtype: Any, out: Sequence[Any] | None) -> list[Any]:
    """`delivered` for each of several results."""
    results = list(results)
    places = [None] * len(results) if out is None else out
    return [delivered(xp, result, dtype, place) for result, place in zip(results, places, strict=True)]
