"""`MessageConnection`: frames over a link of messages, agreed on over the gRPC stream.

The stream stays open as a heartbeat: MPI does not report a dead rank. When it ends, so does the connection.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.channel import Connection, Payload, Receiver, Sent
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Kind, encode
from flowrt.rendezvous.channel.lifeline import CLOSE_S, CLOSED, Lifeline, join
from flowrt.rendezvous.messages.message_link import MessageLink


@final
class MessageConnection(Connection):
    """Frames are read in the thread of `Progress`, and passed to the receiver in the connection's own thread:
    a slow receiver does not delay others.
    """

    def __init__(self, kind: str, link: MessageLink, stream: FrameStream) -> None:
        self.kind, self.peer = kind, stream.peer
        self._link = link
        self._stream = stream
        self._life = Lifeline(f"connection to {self.peer} ({kind})")
        self._reader: threading.Thread | None = None
        stream.on_end(link.end)

    def send(self, header: bytes, payload: Sequence[Payload] = (), sent: Sent = None) -> None:
        self._life.check()
        buffers = encode(Kind.DATA, header, payload)
        if not self._link.send(buffers, sent):
            error = self._link.error
            self._life.lose(str(error or CLOSED), error)
            self._life.check()

    def start(self, receiver: Receiver) -> None:
        self._life.start()
        reader = threading.Thread(target=self._read, args=(receiver,), name=f"read {self.peer}", daemon=True)
        reader.start()
        self._reader = reader  # not before: another thread that closes joins it
        self._link.start()

    def close(self) -> None:
        if self._life.close():
            self._link.end(encode(Kind.GOODBYE, b""))
            self._link.wait_until_over(CLOSE_S)
        self._stream.cancel()
        join(self._reader, CLOSE_S)

    def abort(self) -> None:
        self._life.close()
        self._link.end()
        self._stream.cancel()
        join(self._reader, CLOSE_S)

    def _read(self, receiver: Receiver) -> None:
        with self._life.reading(self, receiver, self._release):
            while (frame := self._link.receive()) is not None:
                if frame.kind != Kind.DATA:
                    raise UnavailableError(f"expected a kind of frame that {self.kind} has; got {frame.kind}")
                if self._life.wants_frames:
                    receiver.on_frame(self, frame.header, frame.payload)
            if self._link.error is not None:
                raise self._link.error

    def _release(self) -> None:
        self._link.end()
        if self._life.wants_frames:  # else `close` cancels the stream, when all that was queued is through
            self._stream.cancel()
