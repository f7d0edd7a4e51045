"""Frames on their way out, to a socket and to a stream of messages: order, merging, and who is told when."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from flowrt.errors import UnavailableError
from flowrt.rendezvous.byte_stream import MAX_PIECES, PlainStream
from flowrt.rendezvous.frame_stream import MESSAGE_BYTES, FrameStream
from flowrt.rendezvous.frame_writer import FrameWriter, Outgoing
from flowrt.rendezvous.framing import FrameDecoder, Kind, allocate_aligned
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
    wire.more.append(Outgoing([b"and more"]))
    wire.writer.put(Outgoing([b"frame"]))  # whoever writes takes it along, without a poke
    assert wire.read(13) == b"frameand more"


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


@pytest.fixture
def stream() -> FrameStream:
    return FrameStream("a peer", allocate_aligned)


def test_frames_that_wait_share_a_message(stream: FrameStream) -> None:
    for i in range(100):
        stream.send(Kind.DATA, b"%d" % i)
    stream.finish()
    (message,) = stream.messages()
    assert [frame.header for frame in FrameDecoder().feed(message)] == [b"%d" % i for i in range(100)]


def test_large_frames_are_cut(stream: FrameStream) -> None:
    array = random_bytes(2 * MESSAGE_BYTES + 5)
    stream.send(Kind.DATA, b"x", [array])
    stream.finish()
    messages = list(stream.messages())
    assert [len(message) // MESSAGE_BYTES for message in messages] == [1, 1, 0]


def test_sent_is_told_when_the_message_was_taken(stream: FrameStream) -> None:
    told: list[str] = []
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("first"))
    stream.send(Kind.DATA, b"x", [random_bytes(2 * MESSAGE_BYTES)], lambda: told.append("second"))
    stream.finish()
    messages = stream.messages()
    next(messages), next(messages)
    assert not told
    assert len(list(messages)) == 1
    assert told == ["first", "second"]


def test_the_end_of_the_stream_tells_all(stream: FrameStream) -> None:
    told: list[str] = []
    stream.on_end(lambda: told.append("end"))
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("queued"))
    stream.end()
    stream.end()
    stream.send(Kind.DATA, b"x", [random_bytes(10)], lambda: told.append("late"))
    stream.on_end(lambda: told.append("late end"))
    assert told == ["queued", "end", "late", "late end"]


def test_a_deadline_ends_the_stream(stream: FrameStream) -> None:
    cancelled = threading.Event()

    def messages() -> Iterator[bytes]:
        assert cancelled.wait(SOON_S)
        raise UnavailableError("cancelled")
        yield b""

    stream.attach(messages(), cancelled.set)
    with pytest.raises(UnavailableError, match=r"a peer: expected an answer within 0.01 s"):
        with stream.deadline(0.01):
            stream.receive()
