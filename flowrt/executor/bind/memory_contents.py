"""Contents of memory: the last write to each byte, and the uses since then.

A register counts as one byte at an address below zero. See `flowrt.executor.bind.verify_program`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.executor.bind.stream_clocks import Moment
from flowrt.graph.node import Node

Range: TypeAlias = tuple[int, int]
"""Addresses from the first up to the second."""


@final
class Write:
    """A write by ``node`` of ``what``; compared by identity."""

    __slots__ = ("node", "what")

    def __init__(self, node: Node, what: str) -> None:
        self.node, self.what = node, what

    def __str__(self) -> str:
        return self.what if self.node.source is None else f"{self.what} ({self.node.source})"


class Use(NamedTuple):
    """A write or read of some bytes."""

    moment: Moment
    node: Node


class Piece(NamedTuple):
    """Bytes with one content: of ``write``, or, if that is None, from before the program. ``uses`` are the
    write and all reads since.
    """

    start: int
    stop: int
    write: Write | None
    uses: list[Use]

    def split(self, cuts: Sequence[int]) -> list[Piece]:
        """The pieces between the addresses ``cuts``, which are inside."""
        ends = pairwise([self.start, *cuts, self.stop])
        return [Piece(start, stop, self.write, self.uses[:]) for start, stop in ends]


@final
class Memory:
    """The last write to each byte."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[Piece] = []

    def at(self, where: Range) -> Sequence[Piece]:
        """The pieces that together are exactly the bytes of ``where``."""
        start, stop = where
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, stop)
        end, found = start, list[Piece]()
        for piece in self._pieces[first:last]:
            if end < piece.start:
                found.append(Piece(end, piece.start, None, []))
            cuts = [at for at in where if piece.start < at < piece.stop]
            found += piece.split(cuts) if cuts else [piece]
            end = max(end, piece.stop)
        if end < stop:
            found.append(Piece(end, stop, None, []))
        self._replace(first, last, found)
        return [piece for piece in found if start <= piece.start < stop]

    def write(self, where: Range, write: Write, use: Use) -> None:
        length, first = len(self.at(where)), bisect_left(self._starts, where[0])
        self._replace(first, first + length, [Piece(*where, write, [use])])

    def _replace(self, first: int, last: int, pieces: Sequence[Piece]) -> None:
        self._pieces[first:last], self._starts[first:last] = pieces, [piece.start for piece in pieces]


# --- addresses


def bounds(array: Any) -> Range:
    """The address of the first byte of ``array``, of any device, and of the first byte after it."""
    reach = [stride * (length - 1) for stride, length in zip(array.strides, array.shape, strict=True)]
    start = _address(array)
    below, above = sum([r for r in reach if r < 0]), sum([r for r in reach if r > 0])
    return start + below, start + above + array.dtype.itemsize


def _address(array: Any) -> int:
    interface = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    address: int = interface["data"][0]
    return address


def are_same_array(a: Any, b: Any) -> bool:
    """Whether two arrays have each element at one address."""
    return (_address(a), a.shape, a.strides, a.dtype) == (_address(b), b.shape, b.strides, b.dtype)


def register(registers: list[Any], slot: int) -> Range:
    """The place of a register."""
    start = slot - (id(registers) << 32)
    return start, start + 1


def is_register(where: Range) -> bool:
    return where[0] < 0


def overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def contains(outer: Range, inner: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
