"""Reads of a byte stream: a peer that is due is looked for before the reader sleeps; nothing else differs."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.rendezvous.channel import byte_stream
from flowrt.rendezvous.channel.byte_stream import PlainStream
from flowrt.rendezvous.channel.lifeline import DIED, reason_of
from tests.contracts.check_transport import SOON_S

Ends = tuple[PlainStream, socket.socket]


def connected(family: socket.AddressFamily) -> Ends:
    """A stream and the far end of its socket."""
    if family == socket.AF_UNIX:
        ours, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            far = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
    far.settimeout(SOON_S)
    return PlainStream(ours), far


@pytest.fixture(params=[socket.AF_UNIX, socket.AF_INET], ids=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    stream, far = connected(request.param)
    yield stream, far
    far.close()
    stream.close()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0.0, 5e-5, 3e-4]), st.booleans()), max_size=20)
)
def test_the_same_bytes_come_whether_due_or_not(pieces: list[tuple[int, float, bool]]) -> None:
    stream, far = connected(socket.AF_UNIX)

    written = [os.urandom(size) for size, _, _ in pieces]

    def write() -> None:
        for (_, pause_s, _), piece in zip(pieces, written, strict=True):
            time.sleep(pause_s)
            far.sendall(piece)
        far.close()

    writer = threading.Thread(target=write)
    writer.start()
    room, read = bytearray(64), b""
    is_due = itertools.cycle([due for _, _, due in pieces] or [True])
    while count := stream.read(room, is_due=next(is_due)):
        read += room[:count]
    writer.join(SOON_S)
    stream.close()
    assert read == b"".join(written)


def test_a_peer_that_is_due_is_looked_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if it was quick the last time, and then without a read that sleeps."""
    monkeypatch.setattr(byte_stream, "SPIN_S", SOON_S)
    monkeypatch.setattr(byte_stream, "GLANCE_S", SOON_S)
    stream, far = ends
    waits: list[bool] = []
    receive = PlainStream._read

    def observed(self: PlainStream, room: bytearray, *, wait: bool) -> int | None:
        waits.append(wait)
        return receive(self, room, wait=wait)

    monkeypatch.setattr(PlainStream, "_read", observed)
    for is_due in (True, False, True):
        far.send(b"x")
        assert stream.read(bytearray(8), is_due=is_due) == 1
    assert waits == [True, True, False]


def test_a_reader_whose_peer_is_silent_sleeps(ends: Ends) -> None:
    stream, far = ends
    used: list[float] = []

    def read() -> None:
        began = time.thread_time()
        stream.read(bytearray(8), is_due=True)
        used.append(time.thread_time() - began)

    far.send(b"x")
    stream.read(bytearray(8))  # quick: the next may be looked for
    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.5)
    far.send(b"x")
    reader.join(SOON_S)
    assert used[0] < 0.25, "seconds of a processor, while half a second passed"


def test_the_end_is_read_while_looking(ends: Ends) -> None:
    stream, far = ends
    for _ in range(2):
        far.send(b"x")
        stream.read(bytearray(8), is_due=True)
    far.close()
    assert stream.read(bytearray(8), is_due=True) == 0


def test_descriptors_come_while_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "SPIN_S", SOON_S)
    stream, far = connected(socket.AF_UNIX)
    with open(os.devnull, "rb") as null:
        for _ in range(2):
            socket.send_fds(far, [b"x"], [null.fileno()])
            assert stream.read(bytearray(8), is_due=True) == 1
    assert len(stream.descriptors) == 2
    far.close()
    stream.close()


def test_a_peer_that_died_with_bytes_that_it_had_not_read_has_died_as_any_other(ends: Ends) -> None:
    """The system resets its connections then, where it ends others."""
    stream, far = ends
    stream.write([b"never read"], [], wait=True)
    far.close()
    with pytest.raises(ConnectionResetError) as reset:
        stream.read(bytearray(8))
    assert reason_of(reset.value) == DIED
