"""`StreamConnection`: gRPC itself carries the frames, which works wherever two tasks can speak at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.channel import Bytes, Connection, Receiver, Sent
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Frame, Kind
from flowrt.rendezvous.channel.lifeline import CLOSED, DIED, Lifeline


@final
class StreamConnection(Connection):
    """A connection over a stream after its handshake; frames are read by the stream's own thread."""

    kind = "grpc"

    def __init__(self, stream: FrameStream) -> None:
        self.peer = stream.peer
        self._stream = stream
        self._life = Lifeline(f"connection to {self.peer} (grpc)")
        self._receiver: Receiver

    def send(self, header: bytes, payload: Sequence[Bytes] = (), sent: Sent = None) -> None:
        self._life.check()
        self._stream.send(Kind.DATA, header, payload, sent)

    def start(self, receiver: Receiver) -> None:
        self._life.start()
        self._receiver = receiver
        self._stream.start(self._on_frame, self._on_end)

    def close(self) -> None:
        if self._life.close():
            self._stream.send(Kind.GOODBYE, b"")
            self._stream.close()

    def abort(self) -> None:
        self._life.close()
        self._stream.cancel()

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.GOODBYE:
            self._life.lose(CLOSED)
        elif frame.kind != Kind.DATA:
            raise UnavailableError(f"expected a kind of frame that grpc has; got {frame.kind}")
        elif self._life.wants_frames:
            self._receiver.on_frame(self, frame.header, frame.payload)

    def _on_end(self, error: Exception | None) -> None:
        # A listener cannot tell from gRPC whether the stream was finished or its other end died: that takes a
        # goodbye, which finishes the stream: a closing peer gets no more from here.
        self._life.end(self, self._receiver, self._stream.finish, error or UnavailableError(DIED))
