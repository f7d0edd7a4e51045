"""CRC-32C (Castagnoli), the checksum of TFRecord files: table-driven, vectorised over blocks.

A CRC without its inversions is linear over GF(2). So the CRC of a block of 256 bytes is the XOR of one table
entry per byte, where the table of position i holds the CRC of a byte followed by 255 - i zero bytes: NumPy
looks up many blocks at once. A running CRC enters a block by being XORed into its first four bytes, so the
tables of positions 0 to 3 carry it past the block. Measured on one core: 250 MB/s from 10 kB on (0.39 ms for
100 kB), 13 us for 100 bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

POLYNOMIAL = 0x82F63B78  # bit-reversed
BLOCK = 256  # bytes; 512 is 15 % faster at 100 kB and half as fast at 1 kB
SPAN = 256  # blocks per lookup: the index array of 64 kB of data takes 512 kB and fits in the cache
MASK_DELTA = 0xA282EAD8


class _Tables(NamedTuple):
    byte: list[int]  # one step of the ordinary byte-wise algorithm
    carry: list[list[int]]  # the four bytes of a running CRC, from least to most significant, past a block
    flat: Any  # uint32 [BLOCK * 256]
    offset: Any  # intp [BLOCK]: where a position's table begins in flat


@cache
def _tables() -> _Tables:
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(byte & 1, (byte >> 1) ^ np.uint32(POLYNOMIAL), byte >> 1)
    rows = [byte]
    while len(rows) < BLOCK:
        rows.append(byte[rows[-1] & 0xFF] ^ (rows[-1] >> 8))  # one more zero byte appended
    rows.reverse()
    carry = [row.tolist() for row in rows[:4]]
    return _Tables(byte.tolist(), carry, np.concatenate(rows), np.arange(BLOCK) * 256)


def crc32c(data: bytes) -> int:
    """The CRC-32C of ``data``, 0 <= crc < 2**32."""
    byte, (carry0, carry1, carry2, carry3), flat, offset = _tables()
    crc, head = 0xFFFFFFFF, len(data) % BLOCK
    for value in data[:head]:
        crc = byte[(crc ^ value) & 0xFF] ^ (crc >> 8)
    blocks = np.frombuffer(data, np.uint8)[head:].reshape(-1, BLOCK)
    for start in range(0, len(blocks), SPAN):
        parts = np.bitwise_xor.reduce(flat.take(blocks[start : start + SPAN] + offset), axis=1)
        for part in parts.tolist():
            low = carry0[crc & 0xFF] ^ carry1[crc >> 8 & 0xFF]
            crc = low ^ carry2[crc >> 16 & 0xFF] ^ carry3[crc >> 24] ^ part
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC as TFRecord stores it: rotated and shifted, as a CRC of data that holds its own CRC is weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF
