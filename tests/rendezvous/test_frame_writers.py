"""Frames on their way out, to a socket and to a stream of messages: order, merging, and who is told when."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from flowrt.device.workspace import new_bytes
from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.byte_stream import MAX_PIECES, PlainStream
from flowrt.rendezvous.channel.frame_stream import MESSAGE_BYTES, FrameStream
from flowrt.rendezvous.channel.frame_writer import FrameWriter, Outgoing
from flowrt.rendezvous.channel.framing import Frame, FrameDecoder, Kind, encode
from tests.contracts.check_transport import SOON_S, random_bytes, wait_until


class Wire:
    """A writer, the socket that it writes to, and what it asks for and tells."""

    def __init__(self) -> None:
        ours, self.far = socket.socketpair()
        self.far.settimeout(SOON_S)
        self.stream = PlainStream(ours)
        self.more: list[Outgoing] = []
        self.errors: list[OSError] = []
        self.writer = FrameWriter(self.stream, "test", self._take_more, self.errors.append)

    def _take_more(self) -> Outgoing | None:
        return self.more.pop(0) if self.more else None

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (piece := self.far.recv(count - len(data))):
            data += piece
        return data

    def close(self) -> None:
        self.far.close()
        self.writer.abandon(SOON_S)
        self.stream.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


def test_who_comes_while_the_writer_is_abandoned_is_told(wire: Wire) -> None:
    """It has the turn to write, and takes its pieces, when the stream ends."""
    ended = threading.Event()

    def pieces() -> Iterator[bytes]:
        wire.writer.abandon(SOON_S)
        yield b"late"

    frame = Outgoing([memoryview(b"first")], ended.set, rest=pieces())
    writing = threading.Thread(target=wire.writer.put, args=(frame,), daemon=True)
    writing.start()
    writing.join(SOON_S)
    assert not writing.is_alive()
    assert ended.is_set()


def fill_socket(wire: Wire) -> bytes:
    """After this the writer's thread waits for the far end."""
    data = bytes(4 << 20)
    wire.writer.put(Outgoing([memoryview(data)]))
    return data


def test_an_idle_writer_writes_in_the_callers_thread(wire: Wire) -> None:
    told_in: list[int] = []
    wire.writer.put(Outgoing([b"one"], lambda: told_in.append(threading.get_ident())))
    assert told_in == [threading.get_ident()]
    assert wire.read(3) == b"one"


def test_what_does_not_fit_waits_in_order(wire: Wire) -> None:
    told: list[int] = []
    first = fill_socket(wire)
    for i in range(300):
        wire.writer.put(Outgoing([f"{i};".encode()], lambda i=i: told.append(i)))
    assert not told
    expected = first + "".join(f"{i};" for i in range(300)).encode()
    assert wire.read(len(expected)) == expected
    wait_until(lambda: len(told) == 300, "all are told")
    assert told == list(range(300))


def test_what_is_queued_goes_by_one_write(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = wire.stream.write

    def count(buffers: list[bytes], descriptors: list[int], *, wait: bool) -> int:
        writes.append(write(buffers, descriptors, wait=wait))
        return writes[-1]

    monkeypatch.setattr(wire.stream, "write", count)
    first = fill_socket(wire)
    for _ in range(100):
        wire.writer.put(Outgoing([b"small"]))
    wire.read(len(first) + 500)
    wait_until(lambda: sum(writes) == len(first) + 500, "all is written")
    assert len(writes) <= 3  # what fits of the first, the rest of it, and the hundred


def test_a_poke_sends_what_the_connection_has_to_say(wire: Wire) -> None:
    wire.more.append(Outgoing([b"more"]))
    wire.writer.poke()
    assert wire.read(4) == b"more"


def test_a_frame_takes_along_what_the_connection_has_to_say(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one write, in the caller's thread."""
    writes: list[int] = []
    write = wire.stream.write

    def count(buffers: list[bytes], descriptors: list[int], *, wait: bool) -> int:
        writes.append(threading.get_ident())
        return write(buffers, descriptors, wait=wait)

    monkeypatch.setattr(wire.stream, "write", count)
    wire.more.append(Outgoing([b"more, and a "]))
    wire.writer.put(Outgoing([b"frame"]))
    assert wire.read(17) == b"more, and a frame"
    assert writes == [threading.get_ident()]


def test_descriptors_arrive_once_and_no_later_than_their_frame(wire: Wire) -> None:
    first = fill_socket(wire)
    pieces = 2 * MAX_PIECES  # so that each frame takes two writes
    for i in range(20):
        descriptor = os.memfd_create(f"test{i}")
        os.write(descriptor, str(i).encode())
        wire.writer.put(Outgoing([b"x"] * pieces, None, [descriptor]))
    far = PlainStream(wire.far)
    room, count = bytearray(1 << 16), 0
    while count < len(first) + 20 * pieces:
        count += far.read(room)
        assert len(far.descriptors) >= (count - len(first)) // pieces
    assert len(far.descriptors) == 20
    for i in range(20):
        descriptor = far.descriptors.popleft()
        assert os.pread(descriptor, 10, 0) == str(i).encode()
        os.close(descriptor)


def test_close_writes_all_and_then_drops(wire: Wire) -> None:
    first = fill_socket(wire)
    wire.writer.put(Outgoing([b"queued"]))
    closing = threading.Thread(target=wire.writer.close, args=(Outgoing([b"last"]), SOON_S))
    closing.start()
    assert wire.read(len(first) + 10)[-10:] == b"queuedlast"
    closing.join(SOON_S)
    told: list[int] = []
    wire.writer.put(Outgoing([b"late"], lambda: told.append(1)))
    assert told == [1]


def test_a_far_end_that_is_gone_is_told_once_and_all_are_ended(wire: Wire) -> None:
    told: list[int] = []
    fill_socket(wire)
    wire.writer.put(Outgoing([b"queued"], lambda: told.append(1)))
    wire.far.close()
    wait_until(lambda: told, "the queued frame is ended")
    wire.writer.put(Outgoing([b"late"], lambda: told.append(2)))
    assert told == [1, 2]
    assert len(wire.errors) == 1


def test_many_threads_keep_frames_whole(wire: Wire) -> None:
    def put(number: int) -> None:
        for _ in range(200):
            wire.writer.put(Outgoing([b"<", b"%d" % number, b">"]))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    data = wire.read(4 * 200 * 3)
    assert sorted(data.split(b"<")[1:]) == sorted(200 * [b"%d>" % i for i in range(4)])
    for thread in threads:
        thread.join(SOON_S)


# --- a stream of messages


class Line:
    """Carries nothing: a test says what is written and what comes."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.reads = 0
        self.is_finished = False
        self.cancelled = threading.Event()

    def write(self, message: bytes) -> None:
        self.messages.append(message)

    def finish(self) -> None:
        self.is_finished = True

    def read(self) -> None:
        self.reads += 1

    def cancel(self) -> None:
        self.cancelled.set()

    def join(self, timeout_s: float) -> None:
        assert self.cancelled.wait(timeout_s)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def stream(line: Line) -> FrameStream:
    stream = FrameStream("a peer", new_bytes)
    stream.attach(line)
    return stream


def headers(message: bytes) -> list[bytes]:
    return [frame.header for frame in FrameDecoder().feed(message)]


def test_a_frame_that_finds_nobody_writing_is_written_at_once(line: Line, stream: FrameStream) -> None:
    stream.send(Kind.DATA, b"first")
    assert headers(line.messages[0]) == [b"first"]


def test_frames_that_wait_share_a_message(line: Line, stream: FrameStream) -> None:
    for i in range(100):
        stream.send(Kind.DATA, b"%d" % i)
    assert len(line.messages) == 1
    stream.written()
    stream.written()
    assert [headers(message) for message in line.messages] == [[b"0"], [b"%d" % i for i in range(1, 100)]]


def test_each_frame_of_a_handshake_is_a_message(line: Line, stream: FrameStream) -> None:
    """Who reads it takes one, and leaves what follows to the connection that it is about."""
    for kind in (Kind.DATA, Kind.HANDSHAKE, Kind.DATA, Kind.DATA):
        stream.send(kind, b"x")
    for _ in range(3):
        stream.written()
    assert [len(headers(message)) for message in line.messages] == [1, 1, 2]


def test_large_frames_are_cut(line: Line, stream: FrameStream) -> None:
    stream.send(Kind.DATA, b"x", [random_bytes(2 * MESSAGE_BYTES + 5)])
    for _ in range(3):
        stream.written()
    assert [len(message) // MESSAGE_BYTES for message in line.messages] == [1, 1, 0]


def test_sent_is_told_when_the_message_was_taken(stream: FrameStream) -> None:
    told: list[str] = []
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("first"))
    stream.send(Kind.DATA, b"x", [random_bytes(2 * MESSAGE_BYTES)], lambda: told.append("second"))
    assert not told
    stream.written()
    assert told == ["first"]
    for _ in range(3):
        stream.written()
    assert told == ["first", "second"]


def test_a_direction_is_finished_behind_what_is_queued(line: Line, stream: FrameStream) -> None:
    stream.send(Kind.DATA, b"first")
    stream.send(Kind.DATA, b"second")
    stream.finish()
    stream.finish()
    stream.written()
    assert not line.is_finished
    stream.written()
    assert line.is_finished
    stream.send(Kind.DATA, b"late")
    assert len(line.messages) == 2


def test_the_end_of_the_stream_tells_all(stream: FrameStream) -> None:
    told: list[str] = []
    stream.on_end(lambda: told.append("end"))
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("written"))
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("queued"))
    stream.end()
    stream.end()
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("late"))
    stream.on_end(lambda: told.append("late end"))
    assert told == ["written", "queued", "end", "late", "late end"]


def test_many_threads_keep_the_order_of_each(line: Line, stream: FrameStream) -> None:
    def send(name: int) -> None:
        for i in range(300):
            stream.send(Kind.DATA, b"%d %d" % (name, i))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    taken = 0
    end = time.monotonic() + SOON_S
    while any(thread.is_alive() for thread in threads) or taken < len(line.messages):
        assert time.monotonic() < end
        if taken < len(line.messages):
            taken += 1
            stream.written()
    came = [header.split() for message in line.messages for header in headers(message)]
    for name in range(3):
        assert [int(i) for who, i in came if int(who) == name] == list(range(300))


def test_frames_come_when_they_are_asked_for_and_then_by_themselves(line: Line, stream: FrameStream) -> None:
    came: list[object] = []
    stream.received(encode(Kind.HANDSHAKE, b"hello")[0])
    frame = stream.receive()
    assert frame is not None
    assert frame.header == b"hello"
    stream.start(lambda frame: came.append(frame.header), came.append)
    assert line.reads == 2
    stream.received(b"".join(encode(Kind.DATA, b"%d" % i)[0] for i in range(3)))
    assert line.reads == 3
    stream.end_reading(None)
    stream.end_reading(UnavailableError("late"))
    assert came == [b"0", b"1", b"2", None]


def test_an_error_of_who_reads_is_the_end(line: Line, stream: FrameStream) -> None:
    came: list[object] = []

    def fail(frame: Frame) -> None:
        raise RuntimeError("of the receiver")

    stream.start(fail, came.append)
    for _ in range(2):
        stream.received(encode(Kind.DATA, b"x")[0])
    (error,) = came
    assert isinstance(error, RuntimeError)


def test_an_end_before_the_start_is_told_then(stream: FrameStream) -> None:
    error = UnavailableError("it died")
    stream.end_reading(error)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="it died"):
            stream.receive()
    told: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    stream.start(lambda frame: None, told.put)
    assert told.get(timeout=SOON_S) is error


def test_a_deadline_ends_the_stream(line: Line, stream: FrameStream) -> None:
    def end() -> None:
        assert line.cancelled.wait(SOON_S)
        stream.end_reading(UnavailableError("cancelled"))

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(UnavailableError, match=r"a peer: expected an answer within 0.01 s"):
        with stream.deadline(0.01):
            stream.receive()
