"""`MessageLink`: frames over a path of messages.

A frame is some messages of at most `PIECE_BYTES`: its head, with the arrays if they are small; else each
array in pieces, which are received in place.

    OPEN --end()--> ENDING --> OVER

 1. A send that has begun cannot be cancelled. An end finishes by sending an empty message.
 2. An end that is finishing still receives and discards messages until the other's empty message, so that
    none are left on the way. A dead peer sends none: `QUIET_S` without progress also end it.
 3. Bytes are not reported as sent before their transfer is done, or the link is over: else a peer that has
    not yet seen the end could read modified bytes as a frame.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.framing import Allocate, Buffer, Frame, FrameDecoder, Kind
from flowrt.rendezvous.channel.lifeline import DIED
from flowrt.rendezvous.channel.poller import Progress
from flowrt.rendezvous.messages.message_path import Arrival, MessagePath, Transfer

PIECE_BYTES = 4 << 20
"""MPI counts to 2 GiB; a piece is sent long before `QUIET_S`, and larger ones are no faster."""
MAX_AHEAD = 64 << 20
"""Bytes of frames that wait for the receiver; above, messages wait on the way and at their sender."""
QUIET_S = 1.0
"""Seconds; a live peer discards its messages within milliseconds."""
NOTHING_MORE = b""
"""An end's last message."""


class _Sending(NamedTuple):
    transfers: Sequence[Transfer]
    sent: Callable[[], None] | None


class _Receiving(NamedTuple):
    transfer: Transfer
    nbytes: int
    piece: bytearray | None
    """None if the bytes go to the decoder's own memory."""


_progress = Progress()
_abandoned: deque[Transfer] = deque()
"""Sends that a dead peer never received. Their memory may still be read, so it is kept until they end."""


@final
class MessageLink:
    """Frames over ``path``, which it closes at the end. Any thread may call anything, but `receive` is one
    thread's at a time, and `poll` is for `Progress`.
    """

    def __init__(self, path: MessagePath, allocate: Allocate) -> None:
        self._path = path
        self._decoder = FrameDecoder(allocate)
        self._lock = threading.Lock()  # keeps the order of messages
        self._sending: deque[_Sending] = deque()
        self._receiving: _Receiving | None = None
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._arrived = self._taken = 0  # bytes; each is one thread's to write
        self._is_started = self._is_ending = self._has_last = False
        self._moved_at = 0.0
        self._over = threading.Event()
        self.is_over = False
        self.error: Exception | None = UnavailableError(DIED)
        """Reason of the end; None: closed by the peer."""
        _progress.add(self)

    def start(self) -> None:
        """Start receiving frames."""
        self._is_started = True
        _progress.poke()

    def receive(self) -> Frame | None:
        """The next frame, None at the end. Blocks."""
        frame = self._frames.get()
        if frame is None:
            self._frames.put(None)  # for the next call
            return None
        self._taken += _nbytes(frame)
        return frame

    def send(self, buffers: Iterable[Buffer], sent: Callable[[], None] | None) -> bool:
        """Begin to send a frame. False, and ``sent`` is not called, if the link has ended."""
        with self._lock:
            if self._is_ending:
                return False
            transfers: list[Transfer] = []
            try:
                self._begin_sending(_pieces(buffers), transfers)
                is_on_its_way = not all(transfer.is_done() for transfer in transfers)
            except OSError as error:
                self.error = error
                _abandoned.extend(transfers)
                self._end(())
                return False
            if is_on_its_way:
                self._sending.append(_Sending(transfers, sent))
        if is_on_its_way:
            _progress.poke()
        elif sent is not None:
            sent()
        return True

    def end(self, last: Iterable[Buffer] = ()) -> None:
        """Send the frame ``last``, then nothing more; nothing more is received. Idempotent."""
        with self._lock:
            if not self._is_ending:
                self._end(last)

    def _end(self, last: Iterable[Buffer]) -> None:
        """Begin to finish; the lock is held."""
        self._is_ending, self._moved_at = True, time.monotonic()
        transfers: list[Transfer] = []
        with suppress(OSError):  # the peer will notice, or is the reason
            self._begin_sending((*_pieces(last), NOTHING_MORE), transfers)
        self._sending.append(_Sending(transfers, None))
        self._frames.put(None)
        _progress.poke()

    def wait_until_over(self, timeout_s: float) -> None:
        self._over.wait(timeout_s)

    def _begin_sending(self, messages: Iterable[Buffer], transfers: list[Transfer]) -> None:
        """Append begun sends to ``transfers``, even if it raises `OSError`."""
        transfers.extend(self._path.send(message) for message in messages)

    # --- the thread of `Progress`

    def poll(self) -> bool:
        try:
            return self._poll()
        except Exception as error:  # noqa: BLE001 (raised for the receiver)
            self.error = error
            self.end()
            self._has_last, self._moved_at = True, -math.inf  # it is of no use any more
            return True

    def _poll(self) -> bool:
        if self._is_ending and (self._is_through() or time.monotonic() - self._moved_at > QUIET_S):
            self._finish()
            return True
        moved = self._poll_sending()
        moved |= self._poll_receiving()
        if moved:
            self._moved_at = time.monotonic()
        return moved

    def _is_through(self) -> bool:
        return self._has_last and not self._sending

    def _poll_sending(self) -> bool:
        moved = False
        while self._sending and all(transfer.is_done() for transfer in self._sending[0].transfers):
            sent = self._sending.popleft().sent
            moved = True
            if sent is not None:
                sent()
        return moved

    def _poll_receiving(self) -> bool:
        if (receiving := self._receiving) is not None:
            if not receiving.transfer.is_done():
                return False
            self._receiving = None
            self._take(receiving)
            return True
        if self._has_last or not (self._is_ending or self._has_room()):
            return False
        arrival = self._path.probe()
        if arrival is not None:
            self._receiving = self._begin_receiving(arrival)
        return arrival is not None

    def _has_room(self) -> bool:
        return self._is_started and self._arrived - self._taken <= MAX_AHEAD

    def _begin_receiving(self, arrival: Arrival) -> _Receiving:
        nbytes, room = arrival.nbytes, self._decoder.room
        if not self._is_ending and 0 < nbytes <= len(room):
            return _Receiving(arrival.receive(room[:nbytes]), nbytes, None)
        piece = bytearray(nbytes)
        return _Receiving(arrival.receive(piece), nbytes, piece)

    def _take(self, receiving: _Receiving) -> None:
        if not receiving.nbytes:
            self._has_last = True
            self.end()
        if self._is_ending:
            return
        piece, decoder = receiving.piece, self._decoder
        for frame in decoder.written(receiving.nbytes) if piece is None else decoder.feed(piece):
            if frame.kind == Kind.GOODBYE:
                self.error = None
                self.end()
            else:
                self._arrived += _nbytes(frame)
                self._frames.put(frame)

    def _finish(self) -> None:
        """Nothing is on its way any more, or it stays there for ever."""
        for transfer in [_abandoned.popleft() for _ in range(len(_abandoned))]:
            if _is_busy(transfer):
                _abandoned.append(transfer)
        if self._receiving is not None:
            _abandoned.append(self._receiving.transfer)
            self._receiving = None
        while self._sending:
            transfers, sent = self._sending.popleft()
            _abandoned.extend(transfers)
            if sent is not None:
                sent()
        self._path.close()
        self.is_over = True
        self._over.set()


def _pieces(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    for buffer in buffers:
        for start in range(0, len(buffer), PIECE_BYTES):
            yield memoryview(buffer)[start : start + PIECE_BYTES]


def _is_busy(transfer: Transfer) -> bool:
    try:
        return not transfer.is_done()
    except OSError:
        return False


def _nbytes(frame: Frame) -> int:
    return sum(array.nbytes for array in frame.payload)
