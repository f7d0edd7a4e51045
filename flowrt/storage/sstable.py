"""Tables of keys and values, sorted by key, as LevelDB and TensorFlow write them.

    data blocks    entries: each key without what it shares with the one before
    meta block     empty here
    index block    a key from the last of each data block on, and where that block is
    footer         where the last two are: 48 bytes

A block ends in the places of the entries that have their whole keys ("restarts"), and their number. Behind
each block are one byte, how it is compressed, and a masked CRC-32C of both. (LevelDB's doc/table_format.md.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flowrt.errors import DataLossError
from flowrt.storage.checksums import masked_crc32c
from flowrt.storage.snappy import decompress
from flowrt.storage.varints import decode_varint, encode_varint

BLOCK_BYTES = 4096
RESTART_EVERY = 16
FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57
MAX_KEY_RATIO = 100
"""Bytes of all keys for one of the file: a few bytes can stand for a key as long as the one before."""

_CRC, _U32 = struct.Struct("<I"), struct.Struct("<I")
_TRAILER_BYTES = 5
_NONE, _SNAPPY = 0, 1


class _Handle(NamedTuple):
    """The place of a block, without its trailer."""

    offset: int
    size: int

    def encode(self) -> bytes:
        return encode_varint(self.offset) + encode_varint(self.size)


def read_table(data: bytes, where: str) -> dict[bytes, bytes]:
    """All values by key, in order, of the table ``data``, called ``where``. Raises `DataLossError`."""
    found: dict[bytes, bytes] = {}
    budget, last = MAX_KEY_RATIO * len(data) + BLOCK_BYTES, b""
    try:
        for _, handle in _entries(_block(data, _index_handle(data))):
            for key, value in _entries(_block(data, _handle(handle, 0)[0])):
                if found and key <= last:
                    raise ValueError(f"key {key!r:.80} follows {last!r:.80}")
                budget -= len(key)
                if budget < 0:
                    raise ValueError(f"its keys are more than {MAX_KEY_RATIO} times as long as the file")
                found[key] = value
                last = key
    except (ValueError, struct.error) as error:
        raise DataLossError(f"{where}: expected a table (SSTable); {error}") from error
    return found


def write_table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table with ``items``, pairs of key and value with ascending keys.

    >>> read_table(write_table([(b"a", b"1"), (b"b", b"2")]), "example")
    {b'a': b'1', b'b': b'2'}
    """
    out, index, block = bytearray(), _Block(), _Block()
    for key, value in items:
        block.add(key, value)
        if block.size >= BLOCK_BYTES:
            index.add(key, _append(out, block).encode())
            block = _Block()
    if block.size:
        index.add(block.last, _append(out, block).encode())
    handles = _append(out, _Block()).encode() + _append(out, index).encode()
    out += handles.ljust(FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", MAGIC)
    return bytes(out)


# --- reading


def _index_handle(data: bytes) -> _Handle:
    if len(data) < FOOTER_BYTES or data[-8:] != struct.pack("<Q", MAGIC):
        raise ValueError(f"{len(data)} bytes do not end in the footer of one")
    footer = data[-FOOTER_BYTES:-8]
    _, at = _handle(footer, 0)
    return _handle(footer, at)[0]


def _handle(data: bytes, at: int) -> tuple[_Handle, int]:
    offset, at = decode_varint(data, at)
    size, at = decode_varint(data, at)
    return _Handle(offset, size), at


def _block(data: bytes, handle: _Handle) -> bytes:
    """The content of a block, checked and decompressed."""
    end = handle.offset + handle.size
    if end + _TRAILER_BYTES > len(data):
        raise ValueError(f"a block has bytes {handle.offset} to {end}; the file has {len(data)}")
    content, kind = data[handle.offset : end], data[end]
    expected, actual = _CRC.unpack_from(data, end + 1)[0], masked_crc32c(data[handle.offset : end + 1])
    if expected != actual:
        raise ValueError(
            f"the block at byte {handle.offset} is damaged: its checksum is {actual:#010x}, "
            f"not {expected:#010x}"
        )
    if kind not in (_NONE, _SNAPPY):
        raise ValueError(f"the block at byte {handle.offset} is compressed in an unknown way, {kind}")
    return decompress(content) if kind == _SNAPPY else content


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = _U32.unpack_from(block, len(block) - 4) if len(block) >= 4 else (0,)
    end = len(block) - 4 - 4 * restarts
    if not restarts or end < 0:
        raise ValueError(f"a block of {len(block)} bytes has {restarts} restarts")
    at, key = 0, b""
    while at < end:
        shared, at = decode_varint(block, at)
        own, at = decode_varint(block, at)
        size, at = decode_varint(block, at)
        if shared > len(key) or at + own + size > end:
            raise ValueError("an entry is longer than its block, or than the key before it")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


# --- writing


class _Block:
    """A block that grows."""

    def __init__(self) -> None:
        self._content, self._restarts, self._count = bytearray(), [0], 0
        self.last = b""

    @property
    def size(self) -> int:
        return len(self._content)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._count == RESTART_EVERY:
            self._restarts.append(self.size)
            self._count = 0
        elif self.size:
            shared = _shared(self.last, key)
        sizes = map(encode_varint, (shared, len(key) - shared, len(value)))
        self._content += b"".join((*sizes, key[shared:], value))
        self._count += 1
        self.last = key

    def encode(self) -> bytes:
        restarts = struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))
        return bytes(self._content) + restarts


def _append(out: bytearray, block: _Block) -> _Handle:
    content = block.encode()
    handle, stored = _Handle(len(out), len(content)), content + bytes([_NONE])
    out += stored + _CRC.pack(masked_crc32c(stored))
    return handle


def _shared(one: bytes, other: bytes) -> int:
    """The number of bytes with which both begin."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
