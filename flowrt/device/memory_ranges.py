"""Ranges of memory: the addresses that arrays are between, and whether they overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, TypeAlias, final

import numpy as np

Range: TypeAlias = tuple[int, int]
"""Addresses from the first up to the second."""


def start_of(array: Any) -> int:
    """The address of the first element of ``array``, of the host or a GPU."""
    interface = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    address: int = interface["data"][0]
    return address


def bounds(array: Any) -> Range:
    """The address of the first byte of ``array``, of the host or a GPU, and of the first byte after it."""
    start = start_of(array)
    if array.flags.c_contiguous:  # a quarter of the time
        return start, start + array.nbytes
    reach = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
    below, above = sum([r for r in reach if r < 0]), sum([r for r in reach if r > 0])
    return start + below, start + above + array.dtype.itemsize


def overlap(a: Range, b: Range) -> bool:
    """Whether some byte is in both."""
    return a[0] < b[1] and b[0] < a[1]


def contains(outer: Range, inner: Range) -> bool:
    """Whether all bytes of ``inner`` are in ``outer``."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@final
class Ranges:
    """The union of ranges of memory, in order."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for each in ranges:
            self.add(each)

    def add(self, new: Range) -> None:
        """Include ``new``, as one with those that it overlaps or touches; nothing if it is empty."""
        if new[0] == new[1]:
            return
        first, last = bisect_left(self._ends, new[0]), bisect_right(self._starts, new[1])
        self._starts[first:last] = [min([new[0], *self._starts[first:last]])]
        self._ends[first:last] = [max([new[1], *self._ends[first:last]])]

    def overlaps(self, other: Range) -> bool:
        """Whether some byte of ``other`` is in one of them."""
        before = bisect_left(self._starts, other[1])
        return before > 0 and self._ends[before - 1] > other[0]
