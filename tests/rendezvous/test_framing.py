"""Frames as bytes: in whatever pieces they come, whole or an error, and nothing is allocated for a lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.device.workspace import new_bytes
from flowrt.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, OpError
from flowrt.rendezvous.channel.framing import (
    HEAD_BYTES,
    JOINED,
    MAGIC,
    MAX_ARRAY,
    MAX_ARRAYS,
    MAX_HEADER,
    VERSION,
    Buffer,
    Bytes,
    Frame,
    FrameDecoder,
    Kind,
    encode,
    encode_checked,
    pack_messages,
)

arrays = st.one_of(
    st.binary(max_size=200), st.integers(0, 3 * JOINED // 2).map(lambda size: bytes([size % 251]) * size)
).map(lambda data: np.frombuffer(data, np.uint8))
frames = st.builds(Frame, st.sampled_from(Kind), st.binary(max_size=100), st.lists(arrays, max_size=4))
cuts = st.lists(st.integers(1, JOINED), min_size=1, max_size=8)


def as_bytes(frames: Iterable[Frame]) -> bytes:
    return b"".join(bytes(piece) for frame in frames for piece in pieces_of(frame))


def pieces_of(frame: Frame) -> Iterable[Buffer]:
    if frame.kind != Kind.CHECKED:
        return encode(frame.kind, frame.header, frame.payload)
    ready, rest = encode_checked(frame.header, frame.payload)
    return (*ready, *rest)


def assert_same(came: list[Frame], expected: list[Frame]) -> None:
    assert [(frame.kind, frame.header, frame.is_intact) for frame in came] == [
        (frame.kind, frame.header, True) for frame in expected
    ]
    for frame, other in zip(came, expected, strict=True):
        assert len(frame.payload) == len(other.payload)
        assert all(map(np.array_equal, frame.payload, other.payload))


def feed(decoder: FrameDecoder, data: bytes, sizes: list[int]) -> list[Frame]:
    """In pieces of ``sizes``, again and again."""
    came: list[Frame] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        came += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return came


def fill(decoder: FrameDecoder, data: bytes, sizes: list[int]) -> list[Frame]:
    """As `feed`, by reading to the decoder's room."""
    came: list[Frame] = []
    at = turn = 0
    while at < len(data):
        size = min(sizes[turn % len(sizes)], len(decoder.room), len(data) - at)
        decoder.room[:size] = data[at : at + size]
        came += decoder.written(size)
        at, turn = at + size, turn + 1
    return came


@pytest.mark.parametrize("read", [feed, fill])
@given(st.lists(frames, max_size=4), cuts)
def test_frames_come_out_as_they_went_in(
    read: Callable[[FrameDecoder, bytes, list[int]], list[Frame]], expected: list[Frame], sizes: list[int]
) -> None:
    decoder = FrameDecoder()
    assert_same(read(decoder, as_bytes(expected), sizes), expected)
    assert decoder.is_between_frames


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_a_stream_that_is_cut_gives_whole_frames_only(expected: list[Frame], data: st.DataObject) -> None:
    ends = np.cumsum([len(as_bytes([frame])) for frame in expected]).tolist()
    cut = data.draw(st.integers(0, ends[-1]))
    decoder = FrameDecoder()
    came = decoder.feed(as_bytes(expected)[:cut])
    assert_same(came, expected[: sum(end <= cut for end in ends)])
    assert decoder.is_between_frames == (cut in (0, *ends))


@given(frames, st.data())
def test_one_changed_byte_of_the_head_is_noticed(frame: Frame, data: st.DataObject) -> None:
    stream = bytearray(as_bytes([frame]))
    head = HEAD_BYTES + 8 * len(frame.payload) + len(frame.header)
    at = data.draw(st.integers(0, head - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((DataLossError, FailedPreconditionError)):  # nobody waits for a length that grew
        FrameDecoder().feed(bytes(stream))


@given(st.binary(max_size=300), cuts)
def test_random_bytes_raise_typed_errors_only(data: bytes, sizes: list[int]) -> None:
    for start in (b"", MAGIC, struct.pack("<4sB", MAGIC, VERSION)):
        with suppress(OpError):
            assert not feed(FrameDecoder(), start + data, sizes)


def head(arrays: int = 0, header_bytes: int = 0, version: int = VERSION, rest: bytes = b"") -> bytes:
    fields = struct.pack("<4sBBHII", MAGIC, version, Kind.DATA, arrays, header_bytes, zlib.crc32(rest))
    return fields + struct.pack("<I", zlib.crc32(fields)) + rest


def refuse_to_allocate(nbytes: int) -> Bytes:
    raise AssertionError(f"asked for {nbytes} bytes")


@pytest.mark.parametrize(
    ("stream", "error", "words"),
    [
        (head(header_bytes=MAX_HEADER + 1), DataLossError, f"at most {MAX_HEADER} bytes"),
        (head(1, rest=struct.pack("<Q", MAX_ARRAY + 1)), DataLossError, f"at most {MAX_ARRAY} bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", DataLossError, "the prefix"),
        (head(version=VERSION + 1), FailedPreconditionError, f"version {VERSION}; got {VERSION + 1}"),
        (head(1, rest=bytes(8))[:-1] + b"\1", DataLossError, "checksum"),
    ],
)
def test_what_is_refused_before_anything_is_allocated(
    stream: bytes, error: type[OpError], words: str
) -> None:
    with pytest.raises(error, match=words):
        FrameDecoder(refuse_to_allocate).feed(stream)


def test_no_memory_is_a_typed_error() -> None:
    def fail(nbytes: int) -> Bytes:
        raise MemoryError

    with pytest.raises(OpError, match="memory for an array of 5 bytes"):
        FrameDecoder(fail).feed(head(1, rest=struct.pack("<Q", 5)))


def test_lengths_beyond_32_bits() -> None:
    asked: list[int] = []

    def remember(nbytes: int) -> Bytes:
        asked.append(nbytes)
        return np.empty(1, np.uint8)

    large = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (3 << 30,), (0,))
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        encode(Kind.DATA, b"", [large])
    FrameDecoder(remember).feed(head(1, rest=struct.pack("<Q", 3 << 30)))
    assert asked == [3 << 30]


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(InvalidArgumentError, match="header of at most"):
        encode(Kind.DATA, bytes(MAX_HEADER + 1))
    with pytest.raises(InvalidArgumentError, match="arrays"):
        encode(Kind.DATA, b"", [np.zeros(0, np.uint8)] * (MAX_ARRAYS + 1))


@pytest.mark.parametrize("read", [feed, fill])
@given(arrays, st.data())
def test_one_changed_bit_of_a_checked_payload_is_noticed(
    read: Callable[[FrameDecoder, bytes, list[int]], list[Frame]], array: Bytes, data: st.DataObject
) -> None:
    """The frame comes, and the next one too: nothing is out of step."""
    frame, after = Frame(Kind.CHECKED, b"header", [array, array]), Frame(Kind.CHECKED, b"after", [array])
    damaged = bytearray(as_bytes([frame, after]))
    begin, end = HEAD_BYTES + 2 * 8 + len(b"header"), len(as_bytes([frame]))
    bit = data.draw(st.integers(8 * begin, 8 * end - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    came = read(FrameDecoder(), bytes(damaged), data.draw(cuts))
    assert [(each.header, each.is_intact) for each in came] == [(b"header", False), (b"after", True)]


def test_small_frames_are_one_piece_and_large_arrays_are_not_copied() -> None:
    small, large = np.zeros(JOINED, np.uint8), np.zeros(JOINED + 1, np.uint8)
    assert len(encode(Kind.DATA, b"x", [small])) == 1
    _, piece = encode(Kind.DATA, b"x", [large])
    assert np.shares_memory(np.asarray(piece), large)


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 64))
def test_messages_are_full_but_the_last(pieces: list[bytes], limit: int) -> None:
    messages = list(pack_messages(pieces, limit))
    assert b"".join(messages) == b"".join(pieces)
    assert all(len(message) == limit for message in messages[:-1])
    assert all(0 < len(message) <= limit for message in messages)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1 << 20])
def test_allocated_bytes_are_aligned(nbytes: int) -> None:
    array = new_bytes(nbytes)
    assert array.nbytes == nbytes
    assert not nbytes or array.ctypes.data % 64 == 0
