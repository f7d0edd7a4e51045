"""Integers in 7 bits a byte, low bits first; all bytes but the last have the eighth bit set."""

from __future__ import annotations

MAX_BYTES = 10  # of 64 bits


def encode_varint(value: int) -> bytes:
    """``value``, at least 0."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The integer at ``data[at]``, and the place behind it. Raises `ValueError` if it does not end."""
    value = 0
    for i, byte in enumerate(data[at : at + MAX_BYTES]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError(f"expected an integer of variable length at byte {at}; it does not end")
