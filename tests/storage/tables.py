"""Tables with right checksums around any content."""

from __future__ import annotations

import struct

from flowrt.storage.checksums import masked_crc32c
from flowrt.storage.sstable import FOOTER_BYTES, MAGIC
from flowrt.storage.varints import encode_varint


def table_of(block: bytes, kind: int = 0) -> bytes:
    """A table of one data block with this content as stored."""

    def stored(content: bytes, kind: int) -> bytes:
        whole = content + bytes([kind])
        return whole + struct.pack("<I", masked_crc32c(whole))

    def entry(key: bytes, value: bytes) -> bytes:
        return bytes([0, len(key), len(value)]) + key + value + struct.pack("<II", 0, 1)

    data = stored(block, kind)
    index = entry(b"z", encode_varint(0) + encode_varint(len(block)))
    handles = encode_varint(0) * 2 + encode_varint(len(data)) + encode_varint(len(index))
    return data + stored(index, 0) + handles.ljust(FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", MAGIC)
