"""`ResponseCache`: what one end of a connection was asked, so that what comes twice is done once and has one
answer.

    begin(number)            None: it is new, do it. RUNNING: its answer will come. SETTLED: the asker has it.
                             DROPPED: it was answered and is not kept. Else the answer, to be sent again
    answer(number, frame)    it is kept until
    settle(numbers)          the asker says, with its next message, that the answers have come

At most once by the number of a call, and the next call as the acknowledgement: Birrell and Nelson,
"Implementing Remote Procedure Calls" (1984). Pure: no thread, clock or connection.

Rule of this file: memory is bounded. Of what is over there are `MAX_NUMBERS` numbers and `MAX_BYTES` bytes of
answers; the oldest go.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, final

from flowrt.distribute.messages import Frame

MAX_NUMBERS = 4096
"""Of what is over, 110 bytes each. What is repeated is repeated within seconds."""

MAX_BYTES = 1 << 20
"""Of all answers that are kept."""

MAX_KEPT = 64 << 10
"""Bytes of one: a copy of so many takes 5 us. A larger tensor is sent out of the memory that it was made in,
which the next step takes.
"""


class State(enum.Enum):
    """Of a request that is no news."""

    RUNNING = enum.auto()
    SETTLED = enum.auto()
    DROPPED = enum.auto()


Known: TypeAlias = State | Frame


class _Kept(NamedTuple):
    """``size``: this answer's share of the frame's bytes."""

    frame: Frame
    size: int


@final
class ResponseCache:
    def __init__(self) -> None:
        self._running: set[int] = set()
        self._kept: dict[int, _Kept] = {}
        self._bytes = 0
        self._over: OrderedDict[int, State] = OrderedDict()

    def begin(self, number: int) -> Known | None:
        """A request has come. What is known of it, if it is not the first time; else it runs."""
        if number in self._running:
            return State.RUNNING
        if (kept := self._kept.get(number)) is not None:
            return kept.frame
        known = self._over.get(number)
        if known is None:
            self._running.add(number)
        return known

    def answer(self, number: int, frame: Frame, num_shared: int = 1) -> bool:
        """A request is answered by ``frame``, as are ``num_shared`` in all. Whether that is kept; if not, the
        request runs until `sent`.
        """
        size = _size(frame)
        if number not in self._running or size > MAX_KEPT:
            return False
        self._running.remove(number)
        if frame.payload:
            frame = Frame(frame.header, [part.copy() for part in frame.payload])
        kept = self._kept[number] = _Kept(frame, size // num_shared)
        self._bytes += kept.size
        while self._bytes > MAX_BYTES:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest).size
            self._end(oldest, State.DROPPED)
        return True

    def sent(self, number: int) -> None:
        """The bytes of an answer that is not kept have left."""
        if number in self._running:
            self._running.remove(number)
            self._end(number, State.DROPPED)

    def settle(self, numbers: Iterable[int]) -> None:
        """The asker has the answers of these."""
        for number in numbers:
            kept = self._kept.pop(number, None)
            if kept is not None:
                self._bytes -= kept.size
            if kept is not None or number in self._over:
                self._over[number] = State.SETTLED
        self._forget()

    def check(self) -> None:
        """Raise `AssertionError` unless its books are in order."""
        assert self._bytes == sum(kept.size for kept in self._kept.values()) <= MAX_BYTES
        assert len(self._over) <= MAX_NUMBERS
        assert not self._running & (self._kept.keys() | self._over.keys())
        assert not self._kept.keys() & self._over.keys()

    def _end(self, number: int, state: State) -> None:
        self._over[number] = state
        self._forget()

    def _forget(self) -> None:
        while len(self._over) > MAX_NUMBERS:
            self._over.popitem(last=False)


def _size(frame: Frame) -> int:
    size = len(frame.header)
    return size + sum([part.nbytes for part in frame.payload]) if frame.payload else size
