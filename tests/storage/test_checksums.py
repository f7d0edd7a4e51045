"""CRC-32C, and its mask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.storage.checksums import crc32c, masked_crc32c


def bitwise_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the next three: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_of_known_data(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_that_of_the_bitwise_algorithm_in_one_go_or_two(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(memoryview(first))) == bitwise_crc32c(first + second)


def test_the_mask_rotates_and_adds() -> None:
    assert masked_crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
