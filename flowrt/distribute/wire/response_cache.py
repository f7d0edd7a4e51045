"""`ResponseCache`: requests received by one end of a connection, so that duplicates are executed once, with
one answer.

    begin(number)            None: it is new, run it. RUNNING: its answer is pending. SETTLED: acknowledged.
                             DROPPED: it was answered and is not kept. Else the answer, to be resent
    answer(numbers, frame)   it is kept until
    settle(numbers)          the answers are acknowledged, with the client's next message

At-most-once execution by call numbers, with the next call as the acknowledgement: Birrell and Nelson,
"Implementing Remote Procedure Calls" (1984). Pure: no thread, clock or connection.

Rule of this file: memory is bounded. Completed requests are limited to `MAX_NUMBERS` numbers and `MAX_BYTES`
bytes of answers; the oldest are dropped.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeAlias, final

from flowrt.distribute.wire.messages import Frame

MAX_NUMBERS = 4096
"""Maximum number of completed requests, 110 bytes each. Duplicates arrive within seconds."""

MAX_BYTES = 1 << 20
"""Maximum total size of kept answers."""

MAX_KEPT = 64 << 10
"""Maximum size of a kept answer in bytes: copying it takes 5 us. A larger tensor is sent directly from its
memory, which the next step reuses. Such a request stays active until its bytes are sent, in order, so a
client that resends it has the answer before it is reported as not kept; only if a frame was lost does its
step fail.
"""


class State(enum.Enum):
    """State of a duplicate request."""

    RUNNING = enum.auto()
    SETTLED = enum.auto()
    DROPPED = enum.auto()


Known: TypeAlias = State | Frame


class _Kept:
    """A frame of ``size`` bytes that answers requests; ``num_left`` of them may still be resent."""

    __slots__ = ("frame", "num_left", "size")

    def __init__(self, frame: Frame, size: int, num_left: int) -> None:
        self.frame, self.size, self.num_left = frame, size, num_left


@final
class ResponseCache:
    def __init__(self) -> None:
        self._running: set[int] = set()
        self._kept: dict[int, _Kept] = {}
        self._bytes = 0
        self._over: OrderedDict[int, State] = OrderedDict()

    def begin(self, number: int) -> Known | None:
        """Handle a request. Returns its record if it is a duplicate; else it becomes active."""
        if number in self._running:
            return State.RUNNING
        if (kept := self._kept.get(number)) is not None:
            return kept.frame
        known = self._over.get(number)
        if known is None:
            self._running.add(number)
        return known

    def answer(self, numbers: Sequence[int], frame: Frame) -> bool:
        """The requests ``numbers`` are answered by ``frame``. Whether that is kept; if not, they run until
        they are `sent`.
        """
        size = _size(frame)
        running = [number for number in numbers if number in self._running]
        if not running or size > MAX_KEPT:
            return False
        if frame.payload:
            frame = Frame(frame.header, [part.copy() for part in frame.payload])
        kept = _Kept(frame, size, len(running))
        for number in running:
            self._running.remove(number)
            self._kept[number] = kept
        self._bytes += size
        while self._bytes > MAX_BYTES:
            oldest = next(iter(self._kept))
            self._release(oldest)
            self._end(oldest, State.DROPPED)
        return True

    def _release(self, number: int) -> bool:
        """Drop the answer; its frame is freed with its last request. False if there is none."""
        kept = self._kept.pop(number, None)
        if kept is None:
            return False
        kept.num_left -= 1
        if not kept.num_left:
            self._bytes -= kept.size
        return True

    def sent(self, number: int) -> None:
        """The bytes of an answer that is not kept have left."""
        if number in self._running:
            self._running.remove(number)
            self._end(number, State.DROPPED)

    def settle(self, numbers: Iterable[int]) -> None:
        """The asker has the answers of these."""
        for number in numbers:
            if self._release(number) or number in self._over:
                self._over[number] = State.SETTLED
        self._forget()

    def check(self) -> None:
        """Raise `AssertionError` unless its books are in order."""
        frames = {id(kept): kept for kept in self._kept.values()}.values()
        assert self._bytes == sum(kept.size for kept in frames) <= MAX_BYTES
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
