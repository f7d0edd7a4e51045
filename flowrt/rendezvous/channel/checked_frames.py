"""`CheckedFrames`: frames with checksums of their arrays, which come again if they arrive damaged.

    this end                                   the other
    CHECKED 0, CHECKED 1, CHECKED 2  ------->  1 does not have its checksum: 1 and 2 are dropped
                                     <-------  RESEND 1
    REWIND 1, CHECKED 1, CHECKED 2   ------->
                                     <-------  ACKNOWLEDGE 3: this end may forget them

Go-back-N, since damage is rare (Bertsekas and Gallager, "Data Networks", 1992): the order is kept, and the
receiver stores nothing. What has no array is covered by the checksum of its head. A damaged head ends the
connection: nothing after it can be trusted.

TCP's checksum has 16 bits, and is checked before the last copies: between one packet in 16 million and one in
10 billion is taken although it is damaged (Stone and Partridge, "When the CRC and TCP Checksum Disagree",
SIGCOMM 2000).
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import DataLossError
from flowrt.rendezvous.channel.channel import Bytes, Sent
from flowrt.rendezvous.channel.framing import JOINED, NO_REST, Buffer, Frame, Kind, encode, encode_checked
from flowrt.rendezvous.channel.rare_log import RareLog

LOGGER = logging.getLogger(__name__)

MAX_RESENDS = 3
"""Times that one frame is requested again. Then the network damages what it carries, and waiting is vain."""
MAX_UNACKNOWLEDGED = 64
"""Frames after which the receiver acknowledges them; or after `JOINED` bytes."""

CHECKED_KINDS = (Kind.CHECKED, Kind.ACKNOWLEDGE, Kind.RESEND, Kind.REWIND)
"""Kinds of frames that `CheckedFrames.take` handles."""

_NUMBER = struct.Struct("<Q")

Encoded: TypeAlias = tuple[list[Buffer], Iterator[Buffer]]
Put: TypeAlias = Callable[[list[Buffer], Iterator[Buffer]], None]


class _Kept(NamedTuple):
    """A frame that may have to be sent again."""

    encode: Callable[[], Encoded]
    sent: Sent


class RepeatedDamageError(DataLossError):
    """A frame was damaged every time: another connection would not mend it."""


@final
class CheckedFrames:
    """Both directions of one connection. ``put(buffers, rest)`` writes or queues a frame; ``where`` names the
    connection in messages. Any thread may call `send`; the reader calls `take`.
    """

    def __init__(self, where: str, put: Put) -> None:
        self._where, self._put = where, put
        self._lock = threading.Lock()  # frames are kept in the order in which they are put
        self._kept: deque[_Kept] = deque()
        self._acknowledged = 0
        self._has_ended = False
        self._taken = self._told = 0
        self._bytes = 0  # of the frames that were taken since the last acknowledgement
        self._is_waiting = False
        """Whether frames are dropped until the other end goes back."""
        self._resends = 0
        self._damage = RareLog(LOGGER)

    def send(self, header: bytes, payload: Sequence[Bytes], sent: Sent) -> None:
        """See `Connection.send`. Small arrays are copied, larger ones kept until acknowledged."""
        frame = encode_checked(header, payload)
        is_copied = frame[1] is NO_REST
        again = partial(_same, frame[0]) if is_copied else partial(encode_checked, header, payload)
        with self._lock:
            is_late = self._has_ended
            if not is_late:
                self._kept.append(_Kept(again, None if is_copied else sent))
                self._put(*frame)
        if (is_copied or is_late) and sent is not None:
            sent()

    def take(self, frame: Frame) -> bool:
        """Handle a frame; returns whether it is one for the owner of the connection.

        Raises `RepeatedDamageError` for one that was damaged once more after `MAX_RESENDS` requests, and
        `DataLossError` for control frames that do not fit.
        """
        match frame.kind:
            case Kind.CHECKED:
                return self._take_data(frame)
            case Kind.ACKNOWLEDGE:
                self._forget(_number(frame))
            case Kind.RESEND:
                self._go_back(_number(frame))
            case Kind.REWIND:
                if not self._is_waiting or _number(frame) != self._taken:
                    raise self._wrong(f"a frame that goes back to {self._taken}", _number(frame))
                self._is_waiting = False
        return False

    def check_end(self) -> None:
        """The other end says goodbye. Raises `DataLossError` if a damaged frame has not come again."""
        if self._is_waiting:
            raise DataLossError(f"{self._where}: frame {self._taken} was damaged, and its sender has closed")

    def end(self) -> None:
        """The connection has ended: nothing is kept any more."""
        with self._lock:
            self._has_ended = True
            kept, self._kept = self._kept, deque()
        _call_sent(kept)

    # --- in

    def _take_data(self, frame: Frame) -> bool:
        if self._is_waiting:
            return False
        if not frame.is_intact:
            self._ask_again(frame)
            return False
        self._taken += 1
        self._resends = 0
        self._bytes += len(frame.header) + sum(array.nbytes for array in frame.payload)
        if self._bytes > JOINED or self._taken - self._told >= MAX_UNACKNOWLEDGED:
            self._told, self._bytes = self._taken, 0
            self._say(Kind.ACKNOWLEDGE, self._taken)
        return True

    def _ask_again(self, frame: Frame) -> None:
        nbytes = sum(array.nbytes for array in frame.payload)
        what = f"frame {self._taken}, {len(frame.payload)} arrays of {nbytes} bytes"
        if self._resends == MAX_RESENDS:
            raise RepeatedDamageError(
                f"{self._where}: expected the checksum of {what}, to match; it did not in "
                f"{1 + MAX_RESENDS} attempts. The network, or the memory of a host, damages data"
            )
        self._resends += 1
        self._damage.warn("%s: %s, was damaged on its way; requested again", self._where, what)
        self._is_waiting = True
        self._say(Kind.RESEND, self._taken)

    def _say(self, kind: Kind, number: int) -> None:
        self._put(encode(kind, _NUMBER.pack(number)), NO_REST)

    # --- out

    def _forget(self, number: int) -> None:
        with self._lock:
            count = number - self._acknowledged
            if not 0 <= count <= len(self._kept):
                raise self._wrong(f"{self._acknowledged} to {self._acknowledged + len(self._kept)}", number)
            self._acknowledged = number
            forgotten = [self._kept.popleft() for _ in range(count)]
        _call_sent(forgotten)

    def _go_back(self, number: int) -> None:
        self._forget(number)
        with self._lock:
            self._say(Kind.REWIND, number)
            for kept in self._kept:
                self._put(*kept.encode())

    def _wrong(self, expected: str, got: int) -> DataLossError:
        return DataLossError(f"{self._where}: expected {expected}; got frame {got}")


def _number(frame: Frame) -> int:
    if len(frame.header) != _NUMBER.size or frame.payload:
        raise DataLossError(f"frame: expected the number of a frame; got {len(frame.header)} bytes")
    return int(_NUMBER.unpack(frame.header)[0])


def _same(buffers: list[Buffer]) -> Encoded:
    return list(buffers), NO_REST


def _call_sent(kept: Sequence[_Kept] | deque[_Kept]) -> None:
    for frame in kept:
        if frame.sent is not None:
            frame.sent()
