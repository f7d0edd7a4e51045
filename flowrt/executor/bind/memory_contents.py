"""Contents of memory: the node that wrote each byte last. See `flowrt.executor.bind.verify_program`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias, final

from flowrt.graph.node import Node


@final
class Write:
    """The node that wrote some bytes; None for values from before the program."""

    __slots__ = ("node", "users", "what")

    def __init__(self, node: Node | None, what: str) -> None:
        self.node, self.what = node, what
        self.users: list[str] = [] if node is None else [node.name]
        """The nodes that write and read the bytes."""


Range: TypeAlias = tuple[int, int]
"""Addresses from the first up to the second."""

Content: TypeAlias = Sequence[tuple[int, int, Write]]
"""Ranges, in order, each with what wrote it."""


@final
class Memory:
    """The last write to each byte."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int, Write]] = []
        self.adopted: list[tuple[Range, Write]] = []
        """Bytes that were read without having been written: those from before the program."""

    def content(self, where: Range) -> Content:
        """The pieces of ``where`` that have been written."""
        start, stop = where
        return [
            (max(begin, start), min(end, stop), write)
            for begin, end, write in self._pieces[self._slice(where)]
        ]

    def write(self, where: Range, write: Write) -> None:
        start, stop = where
        here = self._slice(where)
        left = [(b, start, w) for b, _, w in self._pieces[here] if b < start]
        right = [(stop, e, w) for _, e, w in self._pieces[here] if e > stop]
        pieces = [*left, (start, stop, write), *right]
        self._pieces[here], self._starts[here] = pieces, [piece[0] for piece in pieces]

    def adopt(self, where: Range, what: str) -> Content:
        """The content of ``where``; bytes that nothing has written are from before the program."""
        end = where[0]
        for begin, stop in [*[piece[:2] for piece in self.content(where)], (where[1], where[1])]:
            if end < begin:
                self.adopted.append(((end, begin), Write(None, what)))
                self.write(*self.adopted[-1])
            end = stop
        return self.content(where)

    def _slice(self, where: Range) -> slice:
        """The pieces that overlap ``where``."""
        start, stop = where
        first = bisect_right(self._starts, start)
        if first and self._pieces[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self._pieces) and self._pieces[last][0] < stop:
            last += 1
        return slice(first, last)
