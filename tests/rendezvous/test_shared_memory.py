"""Segments between a sender and a receiver, both here: what lies where, and when it may be used anew."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flowrt.errors import DataLossError, InvalidArgumentError
from flowrt.rendezvous.channel.channel import Bytes
from flowrt.rendezvous.channel.framing import Frame, FrameDecoder, Kind, encode
from flowrt.rendezvous.local_links import shared_memory
from flowrt.rendezvous.local_links.shared_frames import LARGE, MAX_WAITING, SharedFrames
from flowrt.rendezvous.local_links.shared_memory import SHARED, SegmentMap, SegmentPool


def mapped() -> int:
    """Segments that this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:flowrt")


class End:
    """One end of a connection without the socket: frames go over by hand."""

    def __init__(self) -> None:
        self.pokes = 0
        self.frames = SharedFrames(self.poke)

    def poke(self) -> None:
        self.pokes += 1

    def send(self, other: End, header: bytes, payload: list[Bytes]) -> list[Bytes]:
        outgoing = self.frames.encode(header, payload, None)
        descriptors = deque(map(os.dup, outgoing.descriptors))
        frames = FrameDecoder().feed(b"".join(map(bytes, outgoing.buffers)))
        outgoing.end()
        (frame,) = frames
        if frame.kind == Kind.DATA:
            return frame.payload
        came_header, came = other.frames.decode(frame, descriptors)
        assert came_header == header
        assert not descriptors
        return came

    def control(self, other: End) -> list[Frame]:
        """What this end has to tell by itself goes over."""
        outgoing = self.frames.control()
        frames = [] if outgoing is None else FrameDecoder().feed(b"".join(map(bytes, outgoing.buffers)))
        for frame in frames:
            other.frames.handle(frame)
        return frames


def filled(nbytes: int, value: int) -> Bytes:
    return np.full(nbytes, value, np.uint8)


class SharedMemoryMachine(RuleBasedStateMachine):
    """Arrays are sent and die in any order: each keeps its bytes while it lives, and all is given back."""

    arrays = Bundle("arrays")
    sizes = st.lists(st.sampled_from((0, 100, SHARED, SHARED + 1, 5 * SHARED)), max_size=4)

    def __init__(self) -> None:
        super().__init__()
        self.sender, self.receiver = End(), End()
        self.value = 0

    @rule(
        target=arrays, sizes=st.lists(st.sampled_from((0, 100, SHARED, SHARED + 1, 5 * SHARED)), max_size=4)
    )
    def send(self, sizes: list[int]) -> list[tuple[Bytes, int]]:
        self.value = (self.value + 1) % 256
        came = self.sender.send(self.receiver, b"header", [filled(size, self.value) for size in sizes])
        assert [array.nbytes for array in came] == sizes
        return [(array[:], self.value) for array in came]

    @rule(array=arrays)
    def look(self, array: list[tuple[Bytes, int]]) -> None:
        assert all((bytes_ == value).all() for bytes_, value in array)

    @rule(array=consumes(arrays))
    def die(self, array: list[tuple[Bytes, int]]) -> None:
        self.look(array)
        array.clear()

    @rule()
    def release(self) -> None:
        self.receiver.control(self.sender)
        self.sender.control(self.receiver)

    @invariant()
    def a_segment_is_free_or_used(self) -> None:
        pool = self.sender.frames._pool
        assert len(set(pool._free)) == len(pool._free)
        assert pool._used.isdisjoint(pool._free)
        assert pool._used | set(pool._free) == set(pool._mappings)

    def teardown(self) -> None:
        self.sender.frames.close()
        self.receiver.frames.close()


TestSharedMemoryMachine = SharedMemoryMachine.TestCase
TestSharedMemoryMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_a_segment_is_used_anew_when_its_array_is_dead() -> None:
    sender, receiver = End(), End()
    before = mapped()
    for value in range(20):
        (came,) = sender.send(receiver, b"", [filled(SHARED, value)])
        assert (came == value).all()
        view = came[10:].view(np.int16)
        del came
        assert receiver.control(sender) == []
        del view
        assert [frame.kind for frame in receiver.control(sender)] == [Kind.RELEASE]
    assert mapped() == before + 2  # one, at both ends
    sender.frames.close()
    receiver.frames.close()
    assert mapped() == before


def test_few_small_segments_wait_for_the_next_frame() -> None:
    sender, receiver = End(), End()
    came = sender.send(receiver, b"", [filled(SHARED, i) for i in range(2 * MAX_WAITING)])
    for count in range(1, 2 * MAX_WAITING + 1):
        came.pop()
        assert receiver.pokes == max(0, count - MAX_WAITING + 1)
    (frame,) = receiver.control(sender)
    assert len(frame.header) == 8 * 2 * MAX_WAITING


def test_a_large_segment_does_not_wait() -> None:
    sender, receiver = End(), End()
    came = sender.send(receiver, b"", [filled(LARGE + 1, 1), filled(LARGE, 2)])
    came.pop()
    assert receiver.pokes == 0
    came.pop()
    assert receiver.pokes == 1


def test_free_segments_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_FREE", 3 * SHARED)
    sender, receiver = End(), End()
    before = mapped()
    came = sender.send(receiver, b"", [filled(SHARED, i) for i in range(8)])
    assert mapped() == before + 16
    came.clear()
    receiver.control(sender)
    assert [frame.kind for frame in sender.control(receiver)] == [Kind.RETIRE]
    assert mapped() == before + 6


def test_an_array_outlives_the_connection() -> None:
    sender, receiver = End(), End()
    (came,) = sender.send(receiver, b"", [filled(SHARED, 7)])
    sender.frames.close()
    receiver.frames.close()
    assert (came == 7).all()


def test_many_new_segments_in_one_frame() -> None:
    """More than descriptors can travel at once: the rest stays in the frame."""
    sender, receiver = End(), End()
    came = sender.send(receiver, b"", [filled(SHARED, i % 256) for i in range(100)])
    assert all((array == i % 256).all() for i, array in enumerate(came))


def test_without_memory_for_segments_the_arrays_stay_in_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENFILE, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    sender, receiver = End(), End()
    (came,) = sender.send(receiver, b"", [filled(SHARED, 7)])
    assert (came == 7).all()
    assert receiver.frames.control() is None


def test_a_wrong_array_takes_no_segment() -> None:
    sender = End()
    with pytest.raises(InvalidArgumentError, match="uint8"):
        sender.frames.encode(b"", [filled(SHARED, 1), np.zeros(SHARED)], None)
    assert not sender.frames._pool._used


# --- a peer that lies


def test_a_segment_that_could_be_cut_short_is_refused() -> None:
    """Reading it after the sender truncated it would kill the process."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SHARED)
    with pytest.raises(DataLossError, match="sealed"):
        SegmentMap(lambda segment, capacity: None).add(1, descriptor, SHARED)
    with pytest.raises(OSError, match="Bad file"):
        fcntl.fcntl(descriptor, fcntl.F_GETFD)  # it was closed all the same


def test_a_segment_smaller_than_said_is_refused() -> None:
    place = SegmentPool().place(filled(SHARED, 1))
    assert place.descriptor is not None
    with pytest.raises(DataLossError):
        SegmentMap(lambda segment, capacity: None).add(1, place.descriptor, 2 * SHARED)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.SHARED, b"", []),
        Frame(Kind.SHARED, b"\1\0\0\0" + bytes(10), []),
        Frame(Kind.SHARED, b"\1\0\0\0" + bytes(25), []),  # inline, and there is none
        Frame(Kind.SHARED, b"\1\0\0\0\5" + bytes(24), []),  # a segment that was never passed
        Frame(Kind.SHARED, b"\1\0\0\0\5" + bytes(23) + b"\1", []),  # new, without its descriptor
    ],
)
def test_a_table_that_is_none_is_refused(frame: Frame) -> None:
    with pytest.raises(DataLossError):
        End().frames.decode(frame, deque())


@pytest.mark.parametrize("header", [b"123", bytes(8)])
def test_a_release_of_what_was_not_lent_is_refused(header: bytes) -> None:
    with pytest.raises(DataLossError):
        End().frames.handle(Frame(Kind.RELEASE, header, []))


def test_a_frame_of_the_socket_is_the_frame_of_the_table() -> None:
    """`encode` of a SHARED frame is an ordinary frame, so all of test_framing holds for it."""
    outgoing = End().frames.encode(b"header", [filled(SHARED, 1)], None)
    (frame,) = FrameDecoder().feed(b"".join(map(bytes, outgoing.buffers)))
    assert b"".join(map(bytes, encode(*frame[:3]))) == b"".join(map(bytes, outgoing.buffers))
    outgoing.end()
