"""`FrameWriter`: frames from any thread to one byte stream, in order, without waiting for the peer.

A sending thread that finds no writer writes itself, as much as the kernel accepts, behind a control frame of
the connection if there is one: that saves 30 us for a thread switch. The rest, and frames queued meanwhile,
are written by the writer's own thread, all with one call.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from flowrt.rendezvous.channel.byte_stream import ByteStream
from flowrt.rendezvous.channel.framing import NO_REST, Buffer


@dataclass(slots=True)
class Outgoing:
    """A frame being sent: its pieces, descriptors to pass with it, and a callback for when it is written.
    ``rest``: pieces that are requested when those before them are written.
    """

    buffers: list[Buffer]
    sent: Callable[[], None] | None = None
    descriptors: Sequence[int] = ()
    rest: Iterator[Buffer] = NO_REST

    def take_pieces(self) -> list[Buffer]:
        """The next one of ``rest``; empty at the end."""
        return list(itertools.islice(self.rest, 1))

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()

    def end(self) -> None:
        """Finish: it is written, or never will be."""
        if self.descriptors:
            self.close_descriptors()
        if self.sent is not None:
            self.sent()


@final
class FrameWriter:
    """``more()`` returns a control frame of the connection, or None; `poke` reports that there may be one.
    ``lose`` is called with the first error.
    """

    def __init__(
        self,
        stream: ByteStream,
        name: str,
        more: Callable[[], Outgoing | None],
        lose: Callable[[OSError], None],
    ) -> None:
        self._stream = stream
        self._more = more
        self._lose = lose
        self._lock = threading.Lock()
        self._in_stream = threading.Lock()  # held by a caller that writes itself
        self._queue: deque[Outgoing] = deque()
        self._is_writing = False  # the thread that sets it writes, or has passed that on
        self._is_closing = self._has_failed = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Queue of the writer thread: True passes the writing to it, False asks it to check."""
        self._thread = threading.Thread(target=self._run, name=f"write {name}", daemon=True)
        self._thread.start()

    def put(self, frame: Outgoing) -> None:
        """Write or queue ``frame``. Any thread."""
        with self._lock:
            is_over = self._is_closing or self._has_failed
            is_queued = self._is_writing and not is_over
            if is_queued:
                self._queue.append(frame)
            elif not is_over:
                self._is_writing = True
                if (more := self._more()) is not None:
                    frame.buffers = [*more.buffers, *frame.buffers]
        if is_over:
            frame.end()
        elif not is_queued:
            self._write_now(frame)

    def poke(self) -> None:
        """Request a call of ``more()`` soon. May be called by a finalizer, in any state of its thread."""
        self._wake.put(False)

    def close(self, last: Outgoing, timeout_s: float) -> None:
        """Write queued frames and ``last``, for at most ``timeout_s``; later frames are dropped."""
        with self._lock:
            self._is_closing = True
            self._queue.append(last)
            is_idle, self._is_writing = not self._is_writing, True
        if is_idle:
            self._wake.put(True)
        self._join(timeout_s)

    def abandon(self, timeout_s: float) -> None:
        """Drop queued frames and end the thread. The stream has ended, and is not used afterwards."""
        self._fail()
        self._stream.end()
        self._join(timeout_s)
        with self._in_stream:  # a later caller finds that it has failed
            pass

    # --- choice of the writing thread

    def _write_now(self, frame: Outgoing) -> None:
        if frame.rest is not NO_REST:
            frame.buffers += frame.take_pieces()
        try:
            with self._in_stream:
                if self._has_failed:  # it may be closed by now
                    raise ConnectionResetError("closed by this task")
                count = self._stream.write(frame.buffers, frame.descriptors, wait=False)
        except OSError as error:
            self._lose(error)
            self._fail()
            frame.end()
            return
        if count:
            frame.buffers = _drop(frame.buffers, count)
            if not frame.buffers and frame.rest is not NO_REST:
                frame.buffers = frame.take_pieces()
        if not frame.buffers:
            frame.end()
            self._pass_on(None)
            return
        if count:
            frame.close_descriptors()
        self._pass_on(frame)

    def _pass_on(self, rest: Outgoing | None) -> None:
        """Pass the writing to the thread, if there is more to write."""
        with self._lock:
            if rest is not None:
                self._queue.appendleft(rest)
            elif (more := self._more()) is not None:
                self._queue.append(more)
            self._is_writing = bool(self._queue)
            if not self._queue:
                return
        self._wake.put(True)

    # --- the thread

    def _run(self) -> None:
        while not self._has_failed and (self._is_writing or not self._is_closing):
            if self._wake.get() or self._begin():
                self._write_queued()
        self._fail()

    def _begin(self) -> bool:
        with self._lock:
            was_writing, self._is_writing = self._is_writing, True
            return not was_writing

    def _write_queued(self) -> None:
        while batch := self._take():
            try:
                self._write(batch)
            except OSError as error:
                self._lose(error)
                self._fail()
            finally:
                for frame in batch:
                    frame.end()

    def _take(self) -> list[Outgoing]:
        """Frames to write at once; empty if there are none and another thread may write.

        One with descriptors is the last: they then arrive no later than its bytes. So is one with
        pieces that are not made yet.
        """
        batch: list[Outgoing] = []
        with self._lock:
            if (more := self._more()) is not None:
                self._queue.append(more)
            while self._queue and not (batch and (batch[-1].descriptors or batch[-1].rest is not NO_REST)):
                batch.append(self._queue.popleft())
            self._is_writing = bool(batch)
        return batch

    def _write(self, batch: list[Outgoing]) -> None:
        buffers = [buffer for frame in batch for buffer in frame.buffers]
        descriptors = batch[-1].descriptors
        while buffers or (buffers := batch[-1].take_pieces()):
            if count := self._stream.write(buffers, descriptors, wait=True):
                descriptors, buffers = (), _drop(buffers, count)

    def _fail(self) -> None:
        with self._lock:
            self._has_failed = True
            dropped = list(self._queue)
            self._queue.clear()
        self._wake.put(False)
        for frame in dropped:
            frame.end()

    def _join(self, timeout_s: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _drop(buffers: list[Buffer], count: int) -> list[Buffer]:
    """``buffers`` without the first ``count`` bytes."""
    if len(buffers) == 1 and len(buffers[0]) == count:  # nearly always
        return []
    for at, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[at + 1 :]]
        count -= len(buffer)
    return []
