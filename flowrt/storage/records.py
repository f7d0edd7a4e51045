"""TFRecord files: byte strings with lengths and checksums. One record is

    length   uint64, little endian
    crc      uint32, masked CRC-32C of the length's 8 bytes
    payload  ``length`` bytes
    crc      uint32, masked CRC-32C of the payload

A reader yields complete records only and names the byte at which a file is damaged. Compressed, the whole
file is one GZIP or ZLIB stream of records.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import IO, Any, Protocol

from flowrt.errors import DataLossError, InvalidArgumentError
from flowrt.storage.checksums import loaded_crc32c, mask, masked_crc32c
from flowrt.storage.durable_files import typed_os_errors

_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_BUFFER = 1 << 18
COMPRESSIONS = ("", "GZIP", "ZLIB")


class Readable(Protocol):
    """A file or a stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def encode_record(payload: bytes) -> bytes:
    """One record around ``payload``."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), payload, _CRC.pack(masked_crc32c(payload))))


def decode_records(
    file: Readable, name: str, size: int | None = None, reaches: Callable[[int], bool] = lambda end: False
) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, payload) of every record that begins in the first ``size`` bytes of ``file`` (None:
    before its end), from its start. ``reaches(end)``: whether the file has since grown to ``end`` bytes.

    Raises `DataLossError` at a record that is damaged or incomplete, after all records before it; the error
    calls the file ``name``. Memory is bounded by the file's size, also for an invalid length field.
    """
    read, crc32c, offset = file.read, loaded_crc32c(), 0
    while size is None or offset < size:
        end = offset + _HEAD.size
        head = read(_HEAD.size) if size is None or end <= size or reaches(end) else b""
        if not head and size is None:
            return
        if len(head) < _HEAD.size:
            raise _incomplete(head, _HEAD.size, name, offset, size, offset)
        length, crc = _HEAD.unpack(head)
        if mask(crc32c(head[:8])) != crc:
            raise _damaged(head[:8], crc, name, offset, "length")
        end += length + _CRC.size
        body = read(length + _CRC.size) if size is None or end <= size or reaches(end) else b""
        if len(body) < length + _CRC.size:
            raise _incomplete(body, length + _CRC.size, name, offset, size, offset + _HEAD.size)
        payload = body[:length]
        (crc,) = _CRC.unpack_from(body, length)
        if mask(crc32c(payload)) != crc:
            raise _damaged(payload, crc, name, offset, "payload")
        yield offset, payload
        offset = end


def _incomplete(
    data: bytes, wanted: int, name: str, record: int, size: int | None, start: int
) -> DataLossError:
    got = len(data) if size is None else max(0, size - start)
    return DataLossError(
        f"{name}: incomplete record at byte {record}: expected {wanted} bytes; got {min(wanted, got)}. "
        "Its writer is still running or was killed; all earlier records are intact."
    )


def _damaged(data: bytes, expected: int, name: str, record: int, part: str) -> DataLossError:
    return DataLossError(
        f"{name}: damaged record at byte {record}: "
        f"expected {part} checksum {expected:#010x}; got {masked_crc32c(data):#010x}"
    )


def read_records(path: str, compression: str = "") -> Iterator[bytes]:
    """The payloads of the file at ``path``. ``compression`` is ``""``, ``"GZIP"`` or ``"ZLIB"``.

    Raises `NotFoundError` if there is no such file, and `DataLossError` as `decode_records`, and for a
    damaged stream.
    """
    check_compression(compression)
    with typed_os_errors(path), open(path, "rb", buffering=_BUFFER) as file:
        size = None if compression else os.fstat(file.fileno()).st_size
        try:
            with closing(_decompressed(file, compression)) as stream:
                for _, payload in decode_records(stream, path, size):
                    yield payload
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataLossError(f"{path}: expected a {compression} stream: {error}") from None


def check_compression(compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise InvalidArgumentError(f"compression: expected '', 'GZIP' or 'ZLIB'; got {compression!r}")


def _decompressed(file: IO[bytes], compression: str) -> Any:
    if compression == "GZIP":
        return gzip.GzipFile(fileobj=file)
    return io.BufferedReader(_Inflated(file), _BUFFER) if compression else file


class _Inflated(io.RawIOBase):
    """The bytes of a ZLIB stream."""

    def __init__(self, file: Readable) -> None:
        self._file, self._inflate = file, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(_BUFFER)
            data = self._inflate.decompress(packed, len(buffer))
            if not packed and not data and not self._inflate.eof:
                raise EOFError("it ends early")
        buffer[: len(data)] = data
        return len(data)


class RecordFile:
    """A TFRecord file that is written: replaces what is at ``path``. Not locked.

    Raises `NotFoundError` where there is no such directory, and the like.
    """

    def __init__(self, path: str, compression: str = "", level: int = -1) -> None:
        check_compression(compression)
        self._path = path
        wbits = {"": 0, "GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}[compression]
        self._deflate = zlib.compressobj(level, wbits=wbits) if compression else None
        with typed_os_errors(path):
            self._file = open(path, "wb", buffering=_BUFFER)  # noqa: SIM115 (`close` closes it)

    def write(self, record: bytes) -> None:
        data = encode_record(record)
        with typed_os_errors(self._path):
            self._file.write(self._deflate.compress(data) if self._deflate else data)

    def flush(self) -> None:
        """Hand all records to the operating system; a compressed stream's last ones stay until `close`."""
        with typed_os_errors(self._path):
            self._file.flush()

    def close(self) -> None:
        """Write what is left. A second call does nothing."""
        if not self._file.closed:
            with typed_os_errors(self._path):
                if self._deflate:
                    self._file.write(self._deflate.flush())
                self._file.close()
