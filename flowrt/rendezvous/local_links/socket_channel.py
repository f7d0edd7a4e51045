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
from flowrt.rendezvous.channel.channel import Connection, Lead, Payload, Receiver, Sent
from flowrt.rendezvous.channel.checked_frames import CHECKED_KINDS, CheckedFrames
from flowrt.rendezvous.channel.frame_reader import FrameReader
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
    Repeated,
    encode,
)
from flowrt.rendezvous.channel.lifeline import CLOSE_S, Lifeline, join, reason_of
from flowrt.rendezvous.local_links.shared_frames import SharedFrames
from flowrt.rendezvous.local_links.shared_memory import SHARED


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
        where = f"connection to {self.peer} ({kind})"
        self._life = Lifeline(where)
        self._checked = CheckedFrames(where, self._put) if is_checked else None
        self._shared = SharedFrames(self._poke) if kind == "unix" else None
        control = _no_control if self._shared is None else self._shared.control
        lose = lambda error: self._life.lose(reason_of(error), error)  # noqa: E731
        self._writer = FrameWriter(sock, self.peer, control, lose)
        read_bytes = PIECE if is_checked else MAX_ARRAY
        self._frames = FrameReader(sock, FrameDecoder(allocate), read_bytes, self._handle)
        self._receiver: Receiver | None = None
        self._reader: threading.Thread | None = None
        stream.on_end(sock.end_reading)

    def send(self, header: bytes, payload: Sequence[Payload] = (), sent: Sent = None) -> None:
        self._life.check()
        self._frames.note_send()
        if self._checked is not None:
            self._checked.send(header, payload, sent)
            return
        if type(header) is Repeated and payload[0].nbytes < SHARED:
            frame = Outgoing([header.frame(payload[0])], sent)
        elif self._shared is None or not payload:
            frame = Outgoing(encode(Kind.DATA, header, payload), sent)
        else:
            frame = self._shared.encode(header, payload, sent)
        self._writer.put(frame)

    def start(self, receiver: Receiver) -> None:
        self._life.start()
        self._start_reader(receiver)

    def lead(self) -> Lead | None:
        return self._frames.lead()

    def close(self) -> None:
        end = time.monotonic() + CLOSE_S
        if self._life.close():
            self._writer.close(Outgoing(encode(Kind.GOODBYE, b"")), CLOSE_S)
            self._socket.end_writing()
            if self._life.claim_reading():
                # A TCP socket closed with unread data also drops data that the peer has not read.
                self._start_reader(None)
        if self._frames.is_read_here():
            self._frames.limit(CLOSE_S)  # it still waits for the peer's end
        self._join(end - time.monotonic())
        self._socket.end()
        self._join(CLOSE_S)

    def abort(self) -> None:
        if self._life.close() and self._life.claim_reading():
            self._release()
        self._socket.end()
        self._join(CLOSE_S)

    def _join(self, timeout_s: float) -> None:
        """Wait for the reader thread, unless it waits for this one."""
        if not self._frames.is_read_here():
            join(self._reader, timeout_s)

    # --- the reader thread, or one that leads

    def _start_reader(self, receiver: Receiver | None) -> None:
        self._receiver = receiver
        reader = threading.Thread(target=self._read, name=f"read {self.peer}", daemon=True)
        reader.start()
        self._reader = reader  # not before: another thread that closes, too, joins it

    def _read(self) -> None:
        with self._life.reading(self, self._receiver, self._release):
            self._frames.run()
        self._receiver = None  # it may hold arrays, which hold this connection

    def _handle(self, frame: Frame) -> bool:
        """Whether more may follow."""
        receiver = self._receiver
        match frame.kind:
            case Kind.DATA:
                header, payload = frame.header, frame.payload
            case Kind.SHARED if self._shared is not None:
                header, payload = self._shared.decode(frame, self._socket.descriptors)
            case Kind.RELEASE | Kind.RETIRE if self._shared is not None:
                self._shared.handle(frame)
                return True
            case Kind.GOODBYE:
                if self._checked is not None:
                    self._checked.check_end()
                return False
            case kind if self._checked is not None and kind in CHECKED_KINDS:
                taken = self._checked.take(frame)
                if taken is None:
                    return True
                header, payload = taken.header, taken.payload
            case _:
                raise UnavailableError(f"expected a kind of frame that {self.kind} has; got {frame.kind}")
        if receiver is not None and self._life.wants_frames:
            receiver.on_frame(self, header, payload)
        return True

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
