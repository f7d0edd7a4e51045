"""Shards: safetensors files, written from the memory of arrays and read in part, checked block by block.

A file is 8 bytes with the size of the header, the header, a JSON object, and the arrays' bytes. It is written
here, as the library would copy all arrays first; the library checks each header that is read.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, final

import numpy as np
import safetensors
from zlib_ng.zlib_ng import crc32

from flowrt.dtypes import DType, as_dtype, string
from flowrt.errors import DataLossError, InternalError
from flowrt.storage.durable_files import sync_file, syncing_early
from flowrt.storage.file_kinds import HEAD_BYTES, described
from flowrt.train.checkpoints.checkpoint_format import PieceEntry, ShardEntry, piece_key
from flowrt.train.checkpoints.pieces import count
from flowrt.train.checkpoints.stored_arrays import Array, check_tensor, stored_form, to_stored

BLOCK_BYTES = 1 << 20  # has one checksum; larger ones leave the CPU's cache
_BLOCKS_AT_ONCE = 8
"""Number of blocks after which the disk begins to write."""
_HEADER_SIZE = 8
_ALIGNMENT = 8  # of the first array's bytes: arrays are sorted by the size of their elements


# Writing


@final
@dataclass(frozen=True)
class HeldPiece:
    """A piece that this process has: ``nbytes`` bytes in a shard. ``reading`` is a context with them, as an
    array in C order.
    """

    tensor: str
    dtype: DType
    tensor_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    nbytes: int
    reading: Callable[[], AbstractContextManager[Array]]

    @classmethod
    def of_array(cls, name: str, array: Array) -> HeldPiece:
        """The whole of an array. Raises `InvalidArgumentError` or `DTypeError` if it cannot be stored."""
        check_tensor(name, array)
        stored, shape = to_stored(name, array), tuple(array.shape)
        offset = (0,) * len(shape)
        return cls(
            name, as_dtype(array.dtype), shape, offset, shape, stored.nbytes, lambda: nullcontext(stored)
        )

    @property
    def key(self) -> str:
        return piece_key(self.tensor, self.entry(0), self.tensor_shape)

    @property
    def num_elements(self) -> int:
        return count(self.shape)

    def entry(self, shard: int) -> PieceEntry:
        return PieceEntry(self.offset, self.shape, shard)


def write_shard(path: str, pieces: Sequence[HeldPiece]) -> ShardEntry:
    """Write a new file with ``pieces``, in which no array is copied, and wait until the disk has it.

    Raises `OSError`, and what reading a piece raises.
    """
    pieces = sorted(pieces, key=lambda piece: 0 if piece.dtype is string else -piece.dtype.real_dtype.size)
    with open(path, "xb") as file, syncing_early(file) as sync_early:
        blocks = _Blocks(file, sync_early)
        blocks.write(_header(pieces))
        for piece in pieces:
            with piece.reading() as array:
                data = array.reshape(-1).view(np.uint8)
                if data.nbytes != piece.nbytes:
                    raise InternalError(
                        f"{path}: {piece.key}: expected {piece.nbytes} bytes; got {data.nbytes}"
                    )
                blocks.write(data.data)
        entry = blocks.entry()
        sync_file(file)
    return entry


def _header(pieces: Sequence[HeldPiece]) -> bytes:
    listed: dict[str, Any] = {}
    at = 0
    for piece in pieces:
        code, shape = stored_form(piece.dtype, piece.shape, piece.nbytes)
        listed[piece.key] = {"dtype": code, "shape": shape, "data_offsets": [at, at + piece.nbytes]}
        at += piece.nbytes
    text = json.dumps(listed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_HEADER_SIZE, "little") + text


class _Blocks:
    """Writes to a file, and finds the checksum of each block."""

    def __init__(self, file: IO[bytes], sync_early: Callable[[], None]) -> None:
        self._file, self._sync_early, self._nbytes = file, sync_early, 0
        self._done: list[str] = []
        self._crc = 0
        """The CRC-32 of the block that is not full yet."""

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view.nbytes:
            part = view[: BLOCK_BYTES - self._nbytes % BLOCK_BYTES]
            self._crc = crc32(part, self._crc)
            self._file.write(part)
            self._nbytes += part.nbytes
            view = view[part.nbytes :]
            if self._nbytes % BLOCK_BYTES == 0:
                self._end_block()

    def _end_block(self) -> None:
        self._done.append(f"{self._crc:08x}")
        self._crc = 0
        if len(self._done) % _BLOCKS_AT_ONCE == 0:
            self._sync_early()

    def entry(self) -> ShardEntry:
        if self._nbytes % BLOCK_BYTES:
            self._end_block()
        return ShardEntry(self._nbytes, BLOCK_BYTES, tuple(self._done))


# Reading


class StoredBytes(NamedTuple):
    """An array in a file: its dtype, as safetensors calls it, its shape, and where its bytes are."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


@final
class ShardFile:
    """An open safetensors file, of which parts are read. With an ``entry`` of a manifest all that is read is
    checked against it, when it is first needed. ``where`` stands for the path in errors of opening it.

    Raises `OSError`, and `DataLossError` for another size, a wrong checksum, and a malformed header. The file
    stays open, even if it is removed meanwhile, as long as the object or its bytes are in use.
    """

    def __init__(self, path: str, entry: ShardEntry | None = None, where: str | None = None) -> None:
        self.path, self._entry = path, entry
        where = where or path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if entry is not None and size != entry.nbytes:
                raise DataLossError(f"{where}: expected {entry.nbytes} bytes; got {size}")
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._data = np.frombuffer(mapped, np.uint8)
        self._checked: set[int] = set()
        self._arrays = self._read_header(where)

    @property
    def names(self) -> list[str]:
        """The names of its arrays."""
        return list(self._arrays)

    def find(self, key: str) -> StoredBytes | None:
        """The array ``key``, or None."""
        return self._arrays.get(key)

    def check(self, begin: int, end: int, where: str) -> None:
        """Raise `DataLossError`, naming ``where``, if one of these bytes is damaged."""
        if self._entry is None:
            return
        size = self._entry.block_bytes
        for number in range(begin // size, -(-end // size)):
            if number not in self._checked:
                self._check_block(number * size, self._entry.crc32[number], where)
                self._checked.add(number)

    def bytes(self, begin: int, end: int) -> Array:
        """These bytes, without a copy: [end - begin], uint8."""
        return self._data[begin:end]

    def _check_block(self, begin: int, expected: str, where: str) -> None:
        assert self._entry is not None
        end = min(begin + self._entry.block_bytes, self._entry.nbytes)
        crc = 0
        for at in range(begin, end, BLOCK_BYTES):
            crc = crc32(self._data[at : min(at + BLOCK_BYTES, end)].data, crc)
        if (found := f"{crc:08x}") != expected:
            raise DataLossError(
                f"{where}: expected CRC-32 {expected} of bytes {begin:,} to {end:,}; got {found}"
            )

    def _read_header(self, where: str) -> dict[str, StoredBytes]:
        self.check(0, min(_HEADER_SIZE, len(self._data)), where)
        end = _HEADER_SIZE + int.from_bytes(self._data[:_HEADER_SIZE].tobytes(), "little")
        self.check(0, min(end, len(self._data)), where)
        with (
            _safetensors_errors(where, self._data[:HEAD_BYTES].tobytes()),
            safetensors.safe_open(self.path, framework="np"),
        ):
            pass  # the library has checked that the arrays' bytes are there, and follow each other
        listed = json.loads(self._data[_HEADER_SIZE:end].tobytes())
        listed.pop("__metadata__", None)
        return {
            key: StoredBytes(a["dtype"], tuple(a["shape"]), *(end + at for at in a["data_offsets"]))
            for key, a in listed.items()
        }


@contextmanager
def _safetensors_errors(where: str, head: bytes) -> Iterator[None]:
    """Turn the library's errors about a file that begins with ``head`` into `DataLossError`."""
    try:
        yield
    except safetensors.SafetensorError as error:
        raise DataLossError(f"{where}: expected a safetensors file; got {error}{described(head)}") from error
