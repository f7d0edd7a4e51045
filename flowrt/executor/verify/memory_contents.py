"""Contents of memory: the value in each byte, and its uses since it was put there.

A value is what a node wrote once; moves put the same value elsewhere. A register counts as one byte at an
address below zero, and its value may be a view of others. See `flowrt.executor.verify.verify_program`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

from flowrt.device.memory_ranges import Range, bounds, start_of
from flowrt.executor.program.instruction import Place, Register
from flowrt.executor.verify.stream_clocks import Moment
from flowrt.graph.node import Node


@final
class Write:
    """A write by ``node`` of ``what``; compared by identity. Without a node, it precedes the program."""

    __slots__ = ("node", "what")

    def __init__(self, node: Node | None, what: str) -> None:
        self.node, self.what = node, what

    def __str__(self) -> str:
        is_known = self.node is not None and self.node.source is not None
        return f"{self.what} ({self.node.source})" if is_known and self.node else self.what


@final
class InitialValues:
    """Values from before the program, which moves may put elsewhere, by where they were."""

    def __init__(self) -> None:
        self._writes: dict[Range, Write] = {}

    def at(self, where: Range) -> Write:
        return self._writes.setdefault(where, Write(None, f"what was at {where[0]:#x} before the program"))


class Use(NamedTuple):
    """A write or read of some bytes."""

    moment: Moment
    node: Node


class View(NamedTuple):
    """Bytes of which a register's value is a view, and the value that must be there; None as in a `Piece`."""

    where: Range
    write: Write | None


class Piece(NamedTuple):
    """Bytes with one value: of ``write``, or, if that is None, from before the program. ``uses`` are the
    write and all reads since.
    """

    start: int
    stop: int
    write: Write | None
    uses: list[Use]
    views: tuple[View, ...] = ()

    def split(self, cuts: Sequence[int]) -> list[Piece]:
        """The pieces between the addresses ``cuts``, which are inside."""
        ends = pairwise([self.start, *cuts, self.stop])
        return [self._replace(start=start, stop=stop, uses=self.uses[:]) for start, stop in ends]


@final
class Memory:
    """The value in each byte."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[Piece] = []

    def copy(self) -> Memory:
        copied = Memory()
        copied._starts = self._starts[:]
        copied._pieces = [piece._replace(uses=piece.uses[:]) for piece in self._pieces]
        return copied

    def join(self, other: Memory, unknown: Write) -> None:
        """Have what may be there after either of two paths: ``unknown`` where they differ."""
        for piece in other._pieces:
            for own in self.at((piece.start, piece.stop)):
                write = own.write if own.write is piece.write else unknown
                uses = {use.moment: use for use in [*own.uses, *piece.uses]}
                views = tuple(dict.fromkeys([*own.views, *piece.views]))
                joint = Piece(own.start, own.stop, write, list(uses.values()), views)
                self._replace(bisect_left(self._starts, own.start), 1, [joint])

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
        self._replace(first, last - first, found)
        return [piece for piece in found if start <= piece.start < stop]

    def write(self, where: Range, write: Write, use: Use, views: tuple[View, ...] = ()) -> None:
        length, first = len(self.at(where)), bisect_left(self._starts, where[0])
        self._replace(first, length, [Piece(*where, write, [use], views)])

    def _replace(self, first: int, length: int, pieces: Sequence[Piece]) -> None:
        end = first + length
        self._pieces[first:end], self._starts[first:end] = pieces, [piece.start for piece in pieces]


# --- addresses


def are_same_array(a: Any, b: Any) -> bool:
    """Whether two arrays have each element at one address."""
    return (start_of(a), a.shape, a.strides, a.dtype) == (start_of(b), b.shape, b.strides, b.dtype)


def register(registers: list[Any], slot: int) -> Range:
    """The address of a register."""
    start = slot - (id(registers) << 32)
    return start, start + 1


def address_of(place: Place) -> Range | None:
    """The addresses of an array or a register; None for an empty array."""
    if isinstance(place, Register):
        return register(*place)
    return bounds(place) if place.size else None


def is_register(where: Range) -> bool:
    return where[0] < 0
