"""`StreamConnection`: gRPC itself carries the frames, which works wherever two tasks can speak at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel import Bytes, Connection, Receiver
from flowrt.rendezvous.frame_stream import FrameStream
from flowrt.rendezvous.framing import Kind
from flowrt.rendezvous.lifeline import CLOSE_S, Lifeline, join


@final
class StreamConnection(Connection):
    """A connection over a stream whose handshake is done."""

    kind = "grpc"

    def __init__(self, stream: FrameStream) -> None:
        self.peer = stream.peer
        self._stream = stream
        self._life = Lifeline(f"connection to {self.peer} (grpc)")
        self._reader: threading.Thread | None = None

    def send(
        self, header: bytes, payload: Sequence[Bytes] = (), sent: Callable[[], None] | None = None
    ) -> None:
        self._life.check()
        self._stream.send(Kind.DATA, header, payload, sent)

    def start(self, receiver: Receiver) -> None:
        self._life.start()
        self._reader = threading.Thread(
            target=self._read, args=(receiver,), name=f"read {self.peer}", daemon=True
        )
        self._reader.start()

    def close(self) -> None:
        if self._life.close():
            self._stream.close()
        join(self._reader, CLOSE_S)

    def abort(self) -> None:
        self._life.close()
        self._stream.cancel()
        join(self._reader, CLOSE_S)

    def _read(self, receiver: Receiver) -> None:
        # It finishes the stream when it ends: to a peer that closes, there is no more to come from here.
        with self._life.reading(self, receiver, self._stream.finish):
            while (frame := self._stream.receive()) is not None:
                if frame.kind != Kind.DATA:
                    raise UnavailableError(f"expected a kind of frame that grpc has; got {frame.kind}")
                if self._life.wants_frames:
                    receiver.on_frame(self, frame.header, frame.payload)
