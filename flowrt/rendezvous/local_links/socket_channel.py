"""`SocketConnection`: frames over a separate socket, agreed on over the gRPC stream.

The stream stays open as a heartbeat: its pings detect a dead host or network, which a silent socket would
not. The loss of either is the loss of the connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.byte_stream import ByteStream
from flowrt.rendezvous.channel.channel import Bytes, Connection, Receiver, Sent
from flowrt.rendezvous.channel.checked_frames import CHECKED_KINDS, CheckedFrames
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.frame_writer import FrameWriter, Outgoing
from flowrt.rendezvous.channel.framing import (
    MAX_ARRAY,
    PIECE,
    Allocate,
    Buffer,
    Frame,
    FrameDecoder,
    Kind,
    encode,
)
from flowrt.rendezvous.channel.lifeline import CLOSE_S, DIED, Lifeline, join
from flowrt.rendezvous.local_links.shared_frames import SharedFrames

READ_BYTES = 64 << 10
"""Size of one read, many small frames; a larger rest of an array is read directly to its memory."""


@final
class SocketConnection(Connection):
    """Kind "unix", with shared memory, or "tcp"; ``is_checked``: arrays have checksums, at both ends."""

    def __init__(
        self, kind: str, sock: ByteStream, stream: FrameStream, allocate: Allocate, is_checked: bool
    ) -> None:
        self.kind = kind
        self.peer = stream.peer
        self._socket = sock
        self._stream = stream
        self._decoder = FrameDecoder(allocate)
        where = f"connection to {self.peer} ({kind})"
        self._life = Lifeline(where)
        self._checked = CheckedFrames(where, self._put) if is_checked else None
        self._shared = SharedFrames(self._poke) if kind == "unix" else None
        control = _no_control if self._shared is None else self._shared.control
        self._writer = FrameWriter(sock, self.peer, control, lambda error: self._life.lose(str(error), error))
        self._read_bytes = PIECE if is_checked else MAX_ARRAY
        self._reader: threading.Thread | None = None
        self._has_answered = False
        """Whether the reader has written itself since it last read."""
        stream.on_end(sock.end_reading)

    def send(self, header: bytes, payload: Sequence[Bytes] = (), sent: Sent = None) -> None:
        self._life.check()
        if threading.current_thread() is self._reader:
            self._has_answered = True
        if self._checked is not None:
            self._checked.send(header, payload, sent)
            return
        if self._shared is None or not payload:
            frame = Outgoing(encode(Kind.DATA, header, payload), sent)
        else:
            frame = self._shared.encode(header, payload, sent)
        self._writer.put(frame)

    def start(self, receiver: Receiver) -> None:
        self._life.start()
        self._start_reader(receiver)

    def close(self) -> None:
        end = time.monotonic() + CLOSE_S
        if self._life.close():
            self._writer.close(Outgoing(encode(Kind.GOODBYE, b"")), CLOSE_S)
            self._socket.end_writing()
            if self._life.claim_reading():
                # A TCP socket closed with unread data also drops data that the peer has not read.
                self._start_reader(None)
        if self._reader is threading.current_thread():
            self._socket.limit_reads(CLOSE_S)  # it still waits for the peer's end
        join(self._reader, end - time.monotonic())
        self._socket.end()
        join(self._reader, CLOSE_S)

    def abort(self) -> None:
        if self._life.close() and self._life.claim_reading():
            self._release()
        self._socket.end()
        join(self._reader, CLOSE_S)

    # --- the reader thread

    def _start_reader(self, receiver: Receiver | None) -> None:
        self._reader = threading.Thread(
            target=self._read, args=(receiver,), name=f"read {self.peer}", daemon=True
        )
        self._reader.start()

    def _read(self, receiver: Receiver | None) -> None:
        with self._life.reading(self, receiver, self._release):
            for frame in self._frames():
                self._handle(frame, receiver)

    def _frames(self) -> Iterator[Frame]:
        """Frames until the peer's goodbye."""
        buffer = memoryview(bytearray(READ_BYTES))
        while True:
            room = self._decoder.room
            is_due, self._has_answered = self._has_answered, False
            if len(room) >= READ_BYTES:
                count = self._socket.read(room[: self._read_bytes])
                frames = self._decoder.written(count) if count else []
            else:
                count = self._socket.read(buffer, is_due=is_due)
                frames = self._decoder.feed(buffer[:count])
            if not count:
                raise UnavailableError(self._why_it_ended())
            for frame in frames:
                if frame.kind == Kind.GOODBYE:
                    if self._checked is not None:
                        self._checked.check_end()
                    return
                yield frame

    def _handle(self, frame: Frame, receiver: Receiver | None) -> None:
        match frame.kind:
            case Kind.DATA:
                header, payload = frame.header, frame.payload
            case Kind.SHARED if self._shared is not None:
                header, payload = self._shared.decode(frame, self._socket.descriptors)
            case Kind.RELEASE | Kind.RETIRE if self._shared is not None:
                self._shared.handle(frame)
                return
            case kind if self._checked is not None and kind in CHECKED_KINDS:
                taken = self._checked.take(frame)
                if taken is None:
                    return
                header, payload = taken.header, taken.payload
            case _:
                raise UnavailableError(f"expected a kind of frame that {self.kind} has; got {frame.kind}")
        if receiver is not None and self._life.wants_frames:
            receiver.on_frame(self, header, payload)

    def _why_it_ended(self) -> str:
        if self._decoder.is_between_frames:
            return DIED
        return "closed in the middle of a frame: the process or its network died"

    def _release(self) -> None:
        """Nothing is read or written any more."""
        self._writer.abandon(CLOSE_S)
        self._stream.cancel()
        self._socket.close()
        if self._shared is not None:
            self._shared.close()
        if self._checked is not None:
            self._checked.end()

    def _put(self, buffers: list[Buffer], rest: Iterator[Buffer]) -> None:
        self._writer.put(Outgoing(buffers, rest=rest))

    def _poke(self) -> None:
        self._writer.poke()


def _no_control() -> None:
    """No control frames: without shared memory there are none."""
