"""`CheckedFrames`: frames with numbers and checksums, which come again if they arrive damaged, or do not.

    this end                                   the other
    CHECKED 0, CHECKED 1, CHECKED 2  ------->  1 does not have its checksum, or did not come: 2 is dropped
                                     <-------  RESEND 1
    CHECKED 1, CHECKED 2             ------->
    PROBE 3 (nothing is heard)       ------->  RESEND, if one of the 3 has not come
                                     <-------  ACKNOWLEDGE 3: this end may forget them

Go-back-N, since damage is rare (Bertsekas and Gallager, "Data Networks", 1992): the order is kept, and the
receiver stores nothing. What has no array is covered by the checksum of its head. A damaged head ends the
connection: nothing after it can be trusted.

TCP's checksum has 16 bits, and is checked before the last copies: between one packet in 16 million and one in
10 billion is taken although it is damaged (Stone and Partridge, "When the CRC and TCP Checksum Disagree",
SIGCOMM 2000). gRPC drops messages for streams that it does not know: where the damage is in the number of the
stream, a whole frame is missing, and nothing else shows it.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import DataLossError
from flowrt.rendezvous.channel.channel import Payload, Sent
from flowrt.rendezvous.channel.framing import JOINED, NO_REST, Buffer, Frame, Kind, encode, encode_checked
from flowrt.rendezvous.channel.rare_log import RareLog

LOGGER = logging.getLogger(__name__)

MAX_RESENDS = 3
"""Times that one frame is requested again. Then the network damages what it carries, and waiting is vain."""
MAX_UNACKNOWLEDGED = 64
"""Frames after which the receiver acknowledges them; or after `JOINED` bytes."""

CHECKED_KINDS = (Kind.CHECKED, Kind.ACKNOWLEDGE, Kind.RESEND, Kind.PROBE)
"""Kinds of frames that `CheckedFrames.take` handles."""

_NUMBER = struct.Struct("<Q")

Encoded: TypeAlias = tuple[list[Buffer], Iterator[Buffer]]
Put: TypeAlias = Callable[[list[Buffer], Iterator[Buffer]], None]


class _Kept(NamedTuple):
    """A frame that may have to be sent again: its bytes, or what they are made of."""

    buffers: list[Buffer] | None
    header: bytes
    payload: Sequence[Payload]
    sent: Sent

    def encode(self) -> Encoded:
        if self.buffers is None:
            return encode_checked(self.header, self.payload)
        return list(self.buffers), NO_REST


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
        self._is_probing = False  # no answer to a probe has come
        self._last_probed = -1  # what was acknowledged when it was last asked whether to probe
        self._taken = self._told = 0
        self._bytes = 0  # of the frames that were taken since the last acknowledgement
        self._is_waiting = False
        """Whether frames are dropped until the other end goes back."""
        self._seen = 0  # the last number that came, while waiting
        self._resends = 0
        self._damage = RareLog(LOGGER)

    def send(self, header: bytes, payload: Sequence[Payload], sent: Sent) -> None:
        """See `Connection.send`. Small arrays are copied, larger ones kept until acknowledged."""
        with self._lock:
            is_late = self._has_ended
            if not is_late:
                numbered = _NUMBER.pack(self._acknowledged + len(self._kept)) + header
                buffers, rest = encode_checked(numbered, payload)
                is_copied = rest is NO_REST
                kept = _Kept(buffers, b"", (), None) if is_copied else _Kept(None, numbered, payload, sent)
                self._kept.append(kept)
                self._put(list(buffers), rest)
        if (is_late or is_copied) and sent is not None:
            sent()

    def take(self, frame: Frame) -> Frame | None:
        """Handle a frame; returns it as it was sent if it is one for the owner of the connection.

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
            case Kind.PROBE:
                self._answer(_number(frame))
        return None

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

    def probe(self) -> bool:
        """Ask the other end what has come, if it has acknowledged nothing between two calls; returns whether
        it has not answered yet. To be called now and then where whole frames may be lost.
        """
        with self._lock:
            is_quiet, self._last_probed = self._last_probed == self._acknowledged, self._acknowledged
            if is_quiet and self._kept and not self._is_probing and not self._has_ended:
                self._is_probing = True
                self._say(Kind.PROBE, self._acknowledged + len(self._kept))
            return self._is_probing

    # --- in

    def _take_data(self, frame: Frame) -> Frame | None:
        number = _number(frame)
        if number == self._taken and frame.is_intact:
            return self._taken_whole(frame)
        if number < self._taken:  # it was sent again although it had come
            return None
        # Later ones are on their way when one is requested again; then numbers go back to that one.
        has_gone_back, self._seen = number <= self._seen, number
        if not self._is_waiting or number == self._taken or has_gone_back:
            self._ask_again(_damage_of(frame) if number == self._taken else f"{number} came")
        return None

    def _taken_whole(self, frame: Frame) -> Frame:
        self._is_waiting = False
        self._taken += 1
        self._resends = 0
        self._bytes += len(frame.header)
        for array in frame.payload:
            self._bytes += array.nbytes
        if self._bytes > JOINED or self._taken - self._told >= MAX_UNACKNOWLEDGED:
            self._acknowledge()
        return Frame(frame.kind, frame.header[_NUMBER.size :], frame.payload)

    def _acknowledge(self) -> None:
        self._told, self._bytes = self._taken, 0
        self._say(Kind.ACKNOWLEDGE, self._taken)

    def _answer(self, sent: int) -> None:
        """The other end has sent that many."""
        if sent < self._taken:
            raise self._wrong(f"at least {self._taken} to be sent", sent)
        if sent == self._taken:
            self._acknowledge()
        else:
            self._seen = sent - 1
            self._ask_again("it did not come")

    def _ask_again(self, why: str) -> None:
        what = f"frame {self._taken}"
        if self._resends == MAX_RESENDS:
            raise RepeatedDamageError(
                f"{self._where}: expected {what}, with its checksum; {why}, the last of {1 + MAX_RESENDS} "
                "attempts. The network, or the memory of a host, damages data"
            )
        self._resends += 1
        self._damage.warn("%s: expected %s; %s; requested again", self._where, what, why)
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
            self._acknowledged, self._is_probing = number, False
            forgotten = [self._kept.popleft() for _ in range(count)]
        _call_sent(forgotten)

    def _go_back(self, number: int) -> None:
        self._forget(number)
        with self._lock:
            for kept in self._kept:
                self._put(*kept.encode())

    def _wrong(self, expected: str, got: int) -> DataLossError:
        return DataLossError(f"{self._where}: expected {expected}; got frame {got}")


def _number(frame: Frame) -> int:
    """The number in a frame; a control frame has nothing else."""
    is_data = frame.kind == Kind.CHECKED
    is_whole = len(frame.header) >= _NUMBER.size if is_data else len(frame.header) == _NUMBER.size
    if not is_whole or (frame.payload and not is_data):
        raise DataLossError(f"frame: expected the number of a frame; got {len(frame.header)} bytes")
    return int(_NUMBER.unpack_from(frame.header)[0])


def _damage_of(frame: Frame) -> str:
    nbytes = sum(array.nbytes for array in frame.payload)
    return f"{len(frame.payload)} arrays of {nbytes} bytes came damaged"


def _call_sent(kept: Sequence[_Kept] | deque[_Kept]) -> None:
    for frame in kept:
        if frame.sent is not None:
            frame.sent()
