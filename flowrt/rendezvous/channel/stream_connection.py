"""`StreamConnection`: gRPC itself carries the frames, which works wherever two tasks can speak at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.channel import Connection, Payload, Receiver, Sent
from flowrt.rendezvous.channel.checked_frames import CHECKED_KINDS, CheckedFrames
from flowrt.rendezvous.channel.frame_probes import MAX_SILENT, PROBES
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Frame, Kind
from flowrt.rendezvous.channel.lifeline import CLOSED, DIED, Lifeline


@final
class StreamConnection(Connection):
    """A connection over a stream after its handshake; frames are read by the stream's own thread.
    ``is_checked``: arrays have checksums, at both ends.
    """

    kind = "grpc"

    def __init__(self, stream: FrameStream, is_checked: bool) -> None:
        self.peer = stream.peer
        self._stream = stream
        where = f"connection to {self.peer} (grpc)"
        self._life = Lifeline(where)
        self._checked: CheckedFrames | None = None
        self._silent = 0  # calls of `probe` since something moved
        if is_checked:
            self._checked = CheckedFrames(where, stream.send_pieces)
            PROBES.add(self)
            stream.on_end(self._end_checked)
        self._receiver: Receiver

    def send(self, header: bytes, payload: Sequence[Payload] = (), sent: Sent = None) -> None:
        self._life.check()
        if self._checked is not None:
            self._checked.send(header, payload, sent)
        else:
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

    def probe(self) -> None:
        """See `flowrt.rendezvous.channel.frame_probes.Probed`."""
        assert self._checked is not None
        is_silent = self._checked.probe() and self._stream.was_quiet()
        self._silent = self._silent + 1 if is_silent else 0
        if self._silent == MAX_SILENT:
            self._life.lose("what was sent has not arrived: the network damages data, or lost it")
            self._stream.cancel()

    def _on_frame(self, frame: Frame) -> None:
        taken = frame if frame.kind == Kind.DATA else None
        if frame.kind == Kind.GOODBYE:
            if self._checked is not None:
                self._checked.check_end()
            self._life.lose(CLOSED)
            return
        if self._checked is not None and frame.kind in CHECKED_KINDS:
            taken = self._checked.take(frame)
        elif taken is None:
            raise UnavailableError(f"expected a kind of frame that grpc has; got {frame.kind}")
        if taken is not None and self._life.wants_frames:
            self._receiver.on_frame(self, taken.header, taken.payload)

    def _end_checked(self) -> None:
        assert self._checked is not None
        PROBES.remove(self)
        self._checked.end()

    def _on_end(self, error: Exception | None) -> None:
        # A listener cannot tell from gRPC whether the stream was finished or its other end died: that takes a
        # goodbye, which finishes the stream: a closing peer gets no more from here.
        self._life.end(self, self._receiver, self._stream.finish, error or UnavailableError(DIED))
