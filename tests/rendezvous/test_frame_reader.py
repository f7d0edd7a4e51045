"""Frames are read once, by whoever is there; what ends the stream is the reader thread's to raise."""

from __future__ import annotations

import signal
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel import frame_reader
from flowrt.rendezvous.channel.byte_stream import PlainStream
from flowrt.rendezvous.channel.channel import Lead
from flowrt.rendezvous.channel.frame_reader import FrameReader
from flowrt.rendezvous.channel.framing import SLAB, Frame, FrameDecoder, Kind, Slab, encode
from tests.contracts.check_transport import open_files

SOON_S = 60.0


class Reading:
    """A reader of one end of a socket, with its thread; the other end is ``far``."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.stream = PlainStream(near)
        self.frames: list[tuple[bytes, int]] = []
        """Headers, and the threads in which they were handled."""
        self.handle: Callable[[Frame], bool] = lambda frame: frame.header != b"last"
        self.raised: list[BaseException | None] = []
        self.reader = FrameReader(self.stream, FrameDecoder(), 1 << 20, self._handled)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def send(self, header: bytes) -> None:
        self.far.sendall(b"".join(encode(Kind.DATA, header)))

    def wait(self, count: int) -> None:
        end = time.monotonic() + SOON_S
        while len(self.frames) < count and time.monotonic() < end:
            time.sleep(0.001)
        assert len(self.frames) == count

    def lead(self) -> Lead:
        """The turn, for the calling thread."""
        assert self.reader.lead() is None, "the reader thread is in a read"
        self.send(b"give way")
        end = time.monotonic() + SOON_S
        while (lead := self.reader.lead()) is None:
            assert time.monotonic() < end
            time.sleep(0.001)
        return lead

    def _handled(self, frame: Frame) -> bool:
        self.frames.append((frame.header, threading.get_ident()))
        return self.handle(frame)

    def _run(self) -> None:
        try:
            self.reader.run()
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            self.raised.append(error)
        else:
            self.raised.append(None)

    def end(self) -> BaseException | None:
        """What `FrameReader.run` raised, once it has ended."""
        self.thread.join(SOON_S)
        return self.raised[0]


@pytest.fixture
def reading() -> Iterator[Reading]:
    reading = Reading()
    yield reading
    reading.far.close()
    reading.thread.join(SOON_S)
    reading.stream.close()


def wait_for_frame(reading: Reading, lead: Lead) -> None:
    """As a leader."""
    count, end = len(reading.frames), time.monotonic() + SOON_S
    while len(reading.frames) == count and not reading.raised and time.monotonic() < end:
        lead.wait(0.1)


def test_a_leader_reads_in_its_own_thread(reading: Reading) -> None:
    lead = reading.lead()
    for number in range(20):
        threading.Timer(0.02, reading.send, (b"%d" % number,)).start()
        wait_for_frame(reading, lead)
    lead.release()
    assert [header for header, _ in reading.frames[1:]] == [b"%d" % number for number in range(20)]
    own = [thread == threading.get_ident() for _, thread in reading.frames[1:]]
    assert any(own), "nearly all; on a busy machine a frame may come before the thread sleeps"


def test_the_descriptors_of_a_stream_that_was_led_are_closed_at_its_end(reading: Reading) -> None:
    """By nobody's garbage collection: the connection may be held for long."""
    before = open_files()
    reading.lead().release()
    assert open_files() > before
    reading.send(b"last")
    assert reading.end() is None
    assert open_files() <= before
    assert reading.reader.lead() is None
    assert open_files() <= before


def test_without_a_leader_the_reader_thread_reads(reading: Reading) -> None:
    reading.lead().release()
    for number in range(10):
        reading.send(b"%d" % number)
        reading.wait(number + 2)
    assert {thread for _, thread in reading.frames} == {reading.thread.ident}


def test_a_leader_leaves_nothing_unread() -> None:
    """More than one read, and bytes with descriptors, behind which a read of a Unix socket ends."""
    near, far = socket.socketpair()
    far.setblocking(False)
    rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [far.fileno()])
    handled: list[bytes] = []
    stream = PlainStream(near)
    reader = FrameReader(stream, FrameDecoder(), 1 << 20, lambda frame: not handled.append(frame.header))
    sent = [b"%d" % number * 20 for number in range(frame_reader.READ_BYTES // 60)]
    encoded = b"".join(piece for header in sent for piece in encode(Kind.DATA, header))
    for number, at in enumerate(range(0, len(encoded), 10_000)):
        far.sendmsg([encoded[at : at + 10_000]], [rights] if number % 4 == 3 else [])
    assert reader._read_as_leader()
    assert handled == sent
    far.close()
    stream.close()


def test_an_error_in_a_leaders_thread_is_raised_in_the_readers(reading: Reading) -> None:
    lead = reading.lead()

    def refuse(frame: Frame) -> bool:
        raise ValueError("not a frame of mine")

    reading.handle = refuse
    threading.Timer(0.05, reading.send, (b"wrong",)).start()
    wait_for_frame(reading, lead)
    assert isinstance(reading.end(), ValueError)
    lead.wait(0.01)  # it may be told of the loss only now
    lead.release()


def test_the_last_frame_ends_the_reader_thread(reading: Reading) -> None:
    lead = reading.lead()
    threading.Timer(0.05, reading.send, (b"last",)).start()
    wait_for_frame(reading, lead)
    assert reading.end() is None
    lead.release()


def test_the_end_of_the_stream_while_a_thread_leads(reading: Reading) -> None:
    lead = reading.lead()
    threading.Timer(0.05, reading.far.close).start()
    wait_for_frame(reading, lead)
    assert isinstance(reading.end(), UnavailableError)
    began = time.thread_time()
    lead.wait(0.2)
    assert time.thread_time() - began < 0.1, "a leader of what has ended sleeps"
    lead.release()


def test_a_signal_while_a_frame_is_read_loses_the_stream(reading: Reading) -> None:
    """Nobody knows how far that got."""
    lead = reading.lead()

    def interrupt(frame: Frame) -> bool:
        raise KeyboardInterrupt

    reading.handle = interrupt
    threading.Timer(0.05, reading.send, (b"x",)).start()
    with pytest.raises(KeyboardInterrupt):
        wait_for_frame(reading, lead)
    lead.release()
    error = reading.end()
    assert isinstance(error, UnavailableError)
    assert "interrupted" in str(error)


def test_a_signal_between_waking_and_reading_leaves_the_frame_to_the_reader(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead: Any = reading.lead()
    front = lead._front

    class Interrupted:
        def poll(self, timeout_s: float | None, most: int) -> list[tuple[int, int]]:
            assert front.poll(timeout_s, most)
            signal.raise_signal(signal.SIGINT)
            return []

    monkeypatch.setattr(lead, "_front", Interrupted())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        threading.Timer(0.1, reading.send, (b"x",)).start()
        with pytest.raises(KeyboardInterrupt):
            lead.wait(SOON_S)
    finally:
        signal.signal(signal.SIGINT, before)
    lead.release()
    reading.wait(2)
    assert reading.frames[1] == (b"x", reading.thread.ident)


def test_arrays_of_a_slab_are_aligned_copies_of_their_own() -> None:
    slab = Slab()
    given = [bytes([i]) * size for i, size in enumerate((0, 1, 64, 65, SLAB, 0, 7, SLAB - 64, 0, 64, 0))]
    arrays = [slab.cut(memoryview(data)) for data in given]
    assert [array.tobytes() for array in arrays] == given
    assert all(array.ctypes.data % 64 == 0 and array.flags.writeable for array in arrays if array.nbytes)
