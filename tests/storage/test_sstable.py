"""Tables: what is written is read, damage is found, and a hostile file takes no more memory than it may."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import DataLossError
from flowrt.storage.snappy import decompress
from flowrt.storage.sstable import FOOTER_BYTES, read_table, write_table
from flowrt.storage.varints import decode_varint, encode_varint
from tests.storage.tables import table_of

ITEMS = {b"": b"head", **{f"layer_{i}/kernel".encode(): bytes(i % 50) for i in range(700)}}


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3))
def test_integers_of_variable_length(value: int, behind: bytes) -> None:
    code = encode_varint(value)
    assert decode_varint(code + behind, 0) == (value, len(code))
    with pytest.raises(ValueError, match="does not end"):
        decode_varint(code[:-1], 0)


@given(st.dictionaries(st.binary(max_size=20), st.binary(max_size=300), max_size=60))
def test_what_is_written_is_read(items: dict[bytes, bytes]) -> None:
    assert list(read_table(write_table(sorted(items.items())), "t").items()) == sorted(items.items())


def test_several_blocks_with_restarts() -> None:
    data = write_table(sorted(ITEMS.items()))
    assert len(data) > 3 * 4096
    assert read_table(data, "t") == ITEMS


def test_each_changed_bit_of_what_is_read_is_found() -> None:
    """All but those of the metadata block, which holds nothing, and of padding."""
    data, found, unread = write_table([(b"a", b"1"), (b"ab", b"2")]), 0, 0
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                unread += read_table(bytes(damaged), "t") == {b"a": b"1", b"ab": b"2"}
            except DataLossError:
                found += 1
    assert found + unread == 8 * len(data)
    assert found > 8 * (len(data) - FOOTER_BYTES - 20)


def test_cut_anywhere() -> None:
    data = write_table(sorted(ITEMS.items()))
    for size in range(0, len(data), 97):
        with pytest.raises(DataLossError, match="t: expected a table"):
            read_table(data[:size], "t")


def test_a_compressed_block() -> None:
    block = b"\0\1\5aaaaaa" + struct.pack("<II", 0, 1)
    compressed = b"\x11" + b"\x0c\0\1\5a" + b"\x05\x01" + b"\x1c" + struct.pack("<II", 0, 1)
    assert decompress(compressed) == block
    assert read_table(table_of(compressed, 1), "t") == {b"a": b"aaaaa"}
    with pytest.raises(DataLossError, match="compressed in an unknown way, 7"):
        read_table(table_of(block, 7), "t")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xff\xff\xff\x0f\x00a", "cannot have 4294967295"),
        (b"\x05\x00a\x01\x05", "from 5 bytes back; there are 1"),
        (b"\x05\x00a\x01\x00", "from 0 bytes back"),
        (b"\x05\xf0\x10ab", "expected 17 bytes"),
        (b"\x05\x00a", "expected 5 bytes; got 1"),
        (b"\x80", "does not end"),
    ],
)
def test_compressed_data_that_is_none(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(data)


COPIES = st.tuples(st.integers(1, 64), st.integers(1, 1 << 17), st.sampled_from([1, 2, 4]))


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=200), COPIES), max_size=12))
def test_literals_and_copies(elements: list[bytes | tuple[int, int, int]]) -> None:
    out, code = bytearray(), bytearray()
    for element in elements:
        if isinstance(element, bytes):
            size = len(element) - 1
            code += bytes(
                [size << 2] if size < 60 else [60 << 2, size] if size < 256 else [61 << 2, size & 255, 1]
            )
            code += element
            out += element
        elif out:
            length, distance, width = element
            distance = 1 + distance % len(out)
            if width == 1:
                length, distance = 4 + length % 8, min(distance, 2047)
                code += bytes([distance >> 8 << 5 | length - 4 << 2 | 1, distance & 255])
            else:
                code += bytes([length - 1 << 2 | (2 if width == 2 else 3)]) + distance.to_bytes(
                    width, "little"
                )
            for _ in range(length):
                out.append(out[-distance])
    whole = encode_varint(len(out)) + code
    assert decompress(whole) == out
    if out:
        with pytest.raises(ValueError, match=r"."):
            decompress(whole[:-1])


def test_keys_that_do_not_ascend_or_would_fill_the_memory() -> None:
    restarts = struct.pack("<II", 0, 1)
    with pytest.raises(DataLossError, match="key b'a' follows b'b'"):
        read_table(table_of(b"\0\1\0b\0\1\0a" + restarts), "t")
    long = encode_varint(0) + encode_varint(50_000) + b"\0" + b"k" * 50_000
    again = b"".join(encode_varint(50_000 + i) + b"\1\0k" for i in range(20_000))
    with pytest.raises(DataLossError, match="more than 100 times as long as the file"):
        read_table(table_of(long + again + restarts), "t")
    with pytest.raises(DataLossError, match="longer than its block"):
        read_table(table_of(b"\0\7\0b" + restarts), "t")
    with pytest.raises(DataLossError, match="has 9 restarts"):
        read_table(table_of(b"\0\1\0b" + struct.pack("<II", 0, 9)), "t")
