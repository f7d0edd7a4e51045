"""`FrameStream`: frames over a stream of messages.

    send --> queue --> the first thread that finds no writer: Carrier.write(message)
                       the carrier's thread, when that is written: `written` --> frames queued meanwhile
    Carrier.read() --> `received`, on the carrier's thread --> on_frame

On an idle stream, a frame is written by the thread that sends it, and handled by the thread that reads it: a
hand-over to another thread takes 30 us at either end. It is independent of the connection above and gRPC
below.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias, final

from flowrt.errors import FailedPreconditionError, UnavailableError
from flowrt.rendezvous.channel import framing
from flowrt.rendezvous.channel.channel import Payload
from flowrt.rendezvous.channel.lifeline import CLOSE_S

MESSAGE_BYTES = 1 << 20
"""Message size that stays in the cache while gRPC copies it three times at either end."""

OnFrame: TypeAlias = Callable[[framing.Frame], object]
OnEnd: TypeAlias = Callable[[Exception | None], object]


class Carrier(Protocol):
    """Carries messages, in order. Nothing here waits for the peer; all may be called in any thread."""

    def write(self, message: bytes) -> None:
        """Begin to write; `FrameStream.written` reports when the next write may begin."""

    def finish(self) -> None:
        """End this direction, after the messages written so far."""

    def read(self) -> None:
        """Ask for one message: `FrameStream.received` is called with it, unless the stream ends."""

    def cancel(self) -> None:
        """End both directions immediately."""

    def join(self, timeout_s: float) -> None:
        """Wait for its thread to end, unless it is this one."""


class _Outgoing(NamedTuple):
    buffers: list[framing.Buffer]
    rest: Iterator[framing.Buffer]
    has_sent: bool
    is_last: bool
    """Whether the next frame goes in another message."""


@final
class FrameStream:
    """One end of a stream. Any thread may call anything, but `receive` is one thread's at a time."""

    def __init__(self, peer: str, allocate: framing.Allocate) -> None:
        self.peer = peer
        self.certificate_names: tuple[str, ...] = ()
        self._decoder = framing.FrameDecoder(allocate)
        self._carrier: Carrier
        self._lock = threading.Lock()
        self._queue: deque[_Outgoing] = deque()
        self._is_writing = True  # the thread that sets it writes, and until `attach` none does
        self._is_finishing = False
        self._messages: Iterator[bytes] | None = None  # those of a batch that is being written
        self._told = 0  # how many of `_unsent` are of that batch
        self._unsent: deque[Callable[[], None]] = deque()
        self._moved = self._known_moved = 0  # messages that were written or came
        self._inbox: queue.SimpleQueue[framing.Frame | Exception | None] = queue.SimpleQueue()
        self._reader: tuple[OnFrame, OnEnd] | None = None
        self._last: tuple[Exception | None] | None = None  # why reading has ended
        self._on_end: deque[Callable[[], None]] = deque()
        self._ended = threading.Event()

    def send(
        self,
        kind: int,
        header: bytes,
        payload: Sequence[Payload] = (),
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Write or queue a frame. ``sent`` is called once, when it is written or the stream has ended."""
        # The reader of a handshake takes one frame, and so one message, at a time.
        buffers, is_last = framing.encode(kind, header, payload), kind == framing.Kind.HANDSHAKE
        self._put(_Outgoing(buffers, framing.NO_REST, sent is not None, is_last), sent)

    def send_pieces(self, buffers: list[framing.Buffer], rest: Iterator[framing.Buffer]) -> None:
        """Write or queue an encoded frame."""
        self._put(_Outgoing(buffers, rest, False, False), None)

    def _put(self, frame: _Outgoing, sent: Callable[[], None] | None) -> None:
        with self._lock:
            was_writing, self._is_writing = self._is_writing, True
            message = None if was_writing or sent is not None else _as_message(frame)
            if message is None:
                self._queue.append(frame)
                if sent is not None:
                    self._unsent.append(sent)
        if message is not None:
            self._carrier.write(message)
        elif not was_writing:
            self._write_next()
        elif self._ended.is_set():
            _call_all(self._unsent)

    def receive(self) -> framing.Frame | None:
        """The next frame, before `start`; None when the peer finished. Blocks.

        Raises the carrier's error if the stream ends otherwise, and the errors of `FrameDecoder`.
        """
        self._carrier.read()
        came = self._inbox.get()
        if isinstance(came, Exception):
            self._inbox.put(came)  # for the next caller
            raise came
        return came

    def start(self, on_frame: OnFrame, on_end: OnEnd) -> None:
        """Call ``on_frame`` with every frame from now on, in the carrier's thread, and at the end ``on_end``
        with the error that `receive` would raise. An exception in ``on_frame`` also ends the stream.
        """
        with self._lock:
            self._reader, last = (on_frame, on_end), self._last
        if last is None:
            self._carrier.read()
        else:
            threading.Thread(target=on_end, args=last, name=f"end {self.peer}", daemon=True).start()

    def finish(self) -> None:
        """Write queued frames, then end this direction."""
        with self._lock:
            self._is_finishing = True
            was_writing, self._is_writing = self._is_writing, True
        if not was_writing:
            self._write_next()

    def close(self) -> None:
        """`finish`, and end the stream when the peer has finished too, or after `CLOSE_S`. Waits for that,
        except in the carrier's thread.
        """
        self.finish()
        timer = _timer(CLOSE_S, self.cancel)
        self.on_end(timer.cancel)
        self._carrier.join(2 * CLOSE_S)

    def cancel(self) -> None:
        """End the stream immediately. Waits as `close` does."""
        self._carrier.cancel()
        self._carrier.join(CLOSE_S)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the stream ends, or now if it has."""
        self._on_end.append(callback)
        if self._ended.is_set():
            _call_all(self._on_end)

    @contextmanager
    def deadline(self, timeout_s: float) -> Iterator[None]:
        """Raise `UnavailableError` if it takes longer than ``timeout_s`` seconds, which ends the stream."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self.cancel()

        timer = _timer(timeout_s, end)
        try:
            yield
        except UnavailableError:
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise UnavailableError(
                f"connection to {self.peer}: expected an answer within {timeout_s:g} s; got none"
            )

    def was_quiet(self) -> bool:
        """Whether nothing was written, and nothing came, since the last call. One thread's."""
        known, self._known_moved = self._known_moved, self._moved
        return known == self._known_moved

    # --- for the carrier, which calls from one thread

    def attach(self, carrier: Carrier) -> None:
        """Set the carrier of the messages. To be called first, in any thread."""
        self._carrier = carrier
        self._write_next()

    def written(self) -> None:
        """The message is written."""
        self._moved += 1
        with self._lock:
            if self._messages is None and not self._queue and not self._is_finishing:
                self._is_writing = False
                return
        self._write_next()

    def received(self, message: bytes) -> None:
        """Handle a requested message."""
        self._moved += 1
        if self._last is not None:
            return
        try:
            if self._reader is not None:
                self._carrier.read()  # it arrives while these are handled
            self._hand_out(self._decoder.feed(message))
        except Exception as error:  # noqa: BLE001 (raised for the reader)
            self.end_reading(error)

    def end_reading(self, error: Exception | None) -> None:
        """Handle the end of the peer's messages: it finished, or failed with ``error``. Idempotent."""
        with self._lock:
            if self._last is not None:
                return
            self._last, reader = (error,), self._reader
        if reader is None:
            self._inbox.put(error)
        else:
            reader[1](error)

    def end(self) -> None:
        """Handle the end of the stream, for whatever reason."""
        with self._lock:
            self._is_writing = True  # for ever
            self._queue.clear()
        self._messages = None  # the arrays of a frame that was half written
        self._ended.set()
        _call_all(self._unsent)
        _call_all(self._on_end)

    # ---

    def _hand_out(self, frames: list[framing.Frame]) -> None:
        if self._reader is not None:
            for frame in frames:
                self._reader[0](frame)
        elif not frames:
            self._carrier.read()  # the rest of the frame
        elif len(frames) > 1:
            raise FailedPreconditionError("expected one frame of a handshake at a time; got several")
        else:
            self._inbox.put(frames[0])

    def _write_next(self) -> None:
        """Begin to write the next message, or give up writing; called by the current writer."""
        messages = self._messages
        message = None if messages is None else next(messages, None)
        if message is None:
            self._messages = None
            _call_all(self._unsent, self._told)
            batch = self._take_queued()
            self._told = sum(frame.has_sent for frame in batch)
            if not batch:
                return
            messages = framing.pack_messages(
                (piece for frame in batch for piece in itertools.chain(frame.buffers, frame.rest)),
                MESSAGE_BYTES,
            )
            self._messages, message = messages, next(messages)
        self._carrier.write(message)

    def _take_queued(self) -> list[_Outgoing]:
        """Queued frames; empty if another thread may write, or this direction ends."""
        batch: list[_Outgoing] = []
        with self._lock:
            while self._queue and not (batch and batch[-1].is_last):
                batch.append(self._queue.popleft())
            self._is_writing = bool(batch) or self._is_finishing or self._ended.is_set()
            ends = self._is_finishing and not batch and not self._ended.is_set()
        if ends:
            self._carrier.finish()
        return batch


def _as_message(frame: _Outgoing) -> bytes | None:
    """A frame that already is one message, as nearly all are: packing it takes 8 us."""
    whole, is_whole = frame.buffers[0], len(frame.buffers) == 1 and frame.rest is framing.NO_REST
    return whole if is_whole and isinstance(whole, bytes) and len(whole) <= MESSAGE_BYTES else None


def _timer(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def _call_all(calls: deque[Callable[[], None]], limit: int | None = None) -> None:
    """Call the first ``limit``, each once even if other threads do the same."""
    while limit != 0:
        try:
            call = calls.popleft()
        except IndexError:
            return
        call()
        limit = limit and limit - 1
