"""`TensorBundle`: a checkpoint of TensorFlow, version 2, and how one is written.

    PREFIX.index                  a table: a BundleHeaderProto, and a BundleEntryProto for each tensor
    PREFIX.data-00000-of-00002    bytes of tensors, little-endian; of strings their lengths as varints, a CRC
                                  of the lengths, then all their bytes

A partitioned variable has an entry without bytes, which lists the slices, and an entry for each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Any, NamedTuple, cast, final

import numpy as np

from flowrt import protos
from flowrt.dtypes import BY_NUMBER, DType, as_dtype, string
from flowrt.errors import DataLossError, UnimplementedError
from flowrt.storage.checksums import crc32c, mask
from flowrt.storage.sstable import read_table, write_table
from flowrt.storage.tensor_slices import (
    Array,
    Part,
    Piece,
    check_cover,
    count,
    shape_of,
    slice_key,
    slices_of,
)
from flowrt.storage.varints import decode_varint, encode_varint

_PRODUCER = 1
_CRC = struct.Struct("<I")


def index_path(prefix: str) -> str:
    return f"{prefix}.index"


def data_path(prefix: str, shard: int, shards: int) -> str:
    """The file with the bytes of ``shard``."""
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


class Entry(NamedTuple):
    """A tensor, or a slice of one, and where its bytes are; ``dtype`` is None if flowrt has none such."""

    name: str
    dtype: DType | None
    dtype_number: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int
    crc: int


@final
class TensorBundle:
    """The tensors of the checkpoint ``prefix``. Only the index is read at first; bytes are mapped, and held
    against their checksum when they are first needed. Not thread-safe.

    Raises `OSError`, `DataLossError`, and `UnimplementedError` for numbers with the high byte first.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix, self._index = prefix, index_path(prefix)
        with open(self._index, "rb") as file:
            self._table = read_table(file.read(), self._index)
        header = self._parse(protos.checkpoint_pb2.BundleHeaderProto, b"")
        if header.num_shards < 1:
            raise DataLossError(f"{self._index}: expected the number of files; got {header.num_shards}")
        if header.endianness != header.LITTLE:
            raise UnimplementedError(f"{self._index}: expected little-endian numbers; they are big-endian")
        self._shards, self._files = header.num_shards, dict[int, Array]()
        self._checked = set[Entry]()
        names = [key for key in self._table if key and not key.startswith(b"\0")]  # those are slices
        self.entries = {name: self._entry(key, name) for key in names for name in [self._name(key)]}
        """The tensors, whole, by name."""

    def pieces(self, name: str) -> list[Piece]:
        """The pieces of the tensor ``name``. Raises `DataLossError` unless they make the whole."""
        entry, where = self.entries[name], f"{self._index}: tensor {name!r}"
        slices = self._parse(protos.checkpoint_pb2.BundleEntryProto, name.encode()).slices
        if not slices:
            return [self._piece(tuple(slice(0, size) for size in entry.shape), entry)]
        found = []
        for message in slices:
            place = slices_of(message, entry.shape, where)
            part = self._entry(slice_key(name, message), name)
            if part.shape != tuple(s.stop - s.start for s in place) or part.dtype != entry.dtype:
                raise DataLossError(f"{where}: expected its slice {place}; got one of {list(part.shape)}")
            found.append(self._piece(place, part))
        check_cover(found, entry.shape, where)
        return found

    def _piece(self, place: tuple[slice, ...], entry: Entry) -> Piece:
        return Piece(place, data_path(self.prefix, entry.shard, self._shards), partial(self._array, entry))

    def _array(self, entry: Entry) -> Array:
        """The elements: read-only, in the memory of the file, or new ones of strings."""
        where = f"{data_path(self.prefix, entry.shard, self._shards)}: tensor {entry.name!r}"
        if entry.dtype is None:
            raise UnimplementedError(
                f"{where}: flowrt has no dtype of TensorFlow's number {entry.dtype_number}"
            )
        file, end = self._file(entry.shard), entry.offset + entry.nbytes
        if end > file.size:
            raise DataLossError(f"{where}: expected bytes {entry.offset} to {end}; the file has {file.size}")
        content = file[entry.offset : end]
        if entry.dtype is string:
            return _strings(content, entry, where)
        if entry not in self._checked:
            _check_crc(crc32c(_buffer(content)), entry, where)
            self._checked.add(entry)
        return content.view(entry.dtype.np).reshape(entry.shape)

    def _file(self, shard: int) -> Array:
        if shard not in self._files:
            path = data_path(self.prefix, shard, self._shards)
            empty = os.path.getsize(path) == 0  # cannot be mapped
            self._files[shard] = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
        return self._files[shard]

    @property
    def shards(self) -> int:
        """The number of files of bytes."""
        return self._shards

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and entries of tensors and slices, as they are in the index."""
        return ((key, value) for key, value in self._table.items() if key)

    # --- the index

    def _entry(self, key: bytes, name: str) -> Entry:
        message = self._parse(protos.checkpoint_pb2.BundleEntryProto, key)
        shape = shape_of(message.shape)
        dtype = BY_NUMBER.get(message.dtype)
        entry = Entry(
            name, dtype, message.dtype, shape, message.shard_id, message.offset, message.size, message.crc32c
        )
        if problem := _problem(entry, self._shards, bool(message.slices)):
            raise DataLossError(f"{self._index}: tensor {name!r}: {problem}")
        return entry

    def _parse(self, kind: Any, key: bytes) -> Any:
        if key not in self._table:
            raise DataLossError(f"{self._index}: expected a {kind.__name__} for {key!r:.80}; there is none")
        message = kind()
        try:
            message.ParseFromString(self._table[key])
        except protos.DecodeError as error:
            raise DataLossError(f"{self._index}: expected a {kind.__name__} for {key!r:.80}") from error
        return message

    def _name(self, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise DataLossError(f"{self._index}: expected names in UTF-8; got {key!r:.80}") from error


def write_bundle(tensors: Iterable[tuple[str, Array]], data: IO[bytes], parts: Iterable[Part] = ()) -> bytes:
    """Write the bytes of ``tensors``, pairs of name and array, and of ``parts`` of others to ``data``, the
    file of the only shard, from its beginning. Returns the content of the index, which makes them a
    checkpoint.
    """
    table = {b"": _header(1)}
    offset = 0
    for name, array in tensors:
        entry = _write_array(array, data, offset)
        offset += entry.size
        table[name.encode()] = entry.SerializeToString()
    whole: dict[str, Any] = {}
    for part in parts:
        entry = _write_array(part.array, data, offset)
        offset += entry.size
        if part.name not in whole:
            whole[part.name] = protos.checkpoint_pb2.BundleEntryProto(dtype=entry.dtype)
            _set_shape(whole[part.name], part.shape)
        place = whole[part.name].slices.add()
        for start, length, size in zip(part.begin, part.array.shape, part.shape, strict=True):
            place.extent.add() if length == size else place.extent.add(start=start, length=length)
        table[slice_key(part.name, place)] = entry.SerializeToString()
    table |= {name.encode(): entry.SerializeToString() for name, entry in whole.items()}
    return write_table(sorted(table.items()))


def merged_index(prefixes: Sequence[str]) -> tuple[bytes, list[str]]:
    """The content of the index of one checkpoint with all tensors of ``prefixes``, and the files of its
    shards, in order. Raises `DataLossError` for a tensor that is in two of them, but for slices of one.
    """
    table: dict[bytes, Any] = {}
    files: list[str] = []
    for prefix in prefixes:
        bundle = TensorBundle(prefix)
        for key, value in bundle.items():
            entry = protos.checkpoint_pb2.BundleEntryProto.FromString(value)
            if not entry.slices:
                entry.shard_id += len(files)
            if key in table:
                if not (entry.slices and table[key].slices):
                    raise DataLossError(f"{index_path(prefix)}: {key!r:.200} is in another file too")
                table[key].slices.extend(entry.slices)
            else:
                table[key] = entry
        files += [data_path(prefix, shard, bundle.shards) for shard in range(bundle.shards)]
    items = {key: entry.SerializeToString() for key, entry in table.items()}
    return write_table(sorted({b"": _header(len(files)), **items}.items())), files


def _header(shards: int) -> bytes:
    header = protos.checkpoint_pb2.BundleHeaderProto(num_shards=shards)
    header.version.producer = _PRODUCER
    return header.SerializeToString()


def _write_array(array: Array, data: IO[bytes], offset: int) -> Any:
    """The entry of ``array``, which is then in ``data``."""
    dtype = as_dtype(array.dtype)
    encoded, crc = _encoded(array, dtype)
    entry = protos.checkpoint_pb2.BundleEntryProto(offset=offset, crc32c=mask(crc))
    entry.dtype = cast(Any, dtype.number)
    _set_shape(entry, array.shape)
    entry.size = sum(data.write(each) for each in encoded)
    return entry


def _set_shape(entry: Any, shape: Sequence[int]) -> None:
    entry.shape.SetInParent()
    for size in shape:
        entry.shape.dim.add(size=size)


# --- what an entry says


def _problem(entry: Entry, shards: int, is_sliced: bool) -> str | None:
    """The reason why this cannot be an entry, None if it can."""
    elements = count(entry.shape)
    if min((*entry.shape, entry.offset, entry.nbytes)) < 0 or elements >= 1 << 62:
        return f"it has shape {list(entry.shape)}, {entry.nbytes} bytes at {entry.offset}"
    if is_sliced:
        return None
    if not 0 <= entry.shard < shards:
        return f"expected it in one of {shards} files; it is in {entry.shard}"
    if entry.dtype not in (None, string) and entry.nbytes != elements * entry.dtype.size:
        return f"expected {elements * entry.dtype.size} bytes of {entry.dtype.name}; got {entry.nbytes}"
    return None


def _check_crc(crc: int, entry: Entry, where: str) -> None:
    if mask(crc) != entry.crc:
        raise DataLossError(f"{where}: damaged: expected checksum {entry.crc:#010x}; got {mask(crc):#010x}")


# --- bytes of arrays


def _buffer(array: Array) -> memoryview:
    return memoryview(cast(Any, array))


def _encoded(array: Array, dtype: DType) -> tuple[list[bytes | memoryview], int]:
    """The bytes to write, and their CRC; that of strings has their lengths in a fixed size."""
    if dtype is not string:
        content = _buffer(np.ascontiguousarray(array, dtype.np.newbyteorder("<")).reshape(-1).view(np.uint8))
        return [content], crc32c(content)
    elements = [bytes(each) for each in array.reshape(-1)]
    crc = crc32c(b"".join(_length(len(each)) for each in elements))
    of_lengths, joined = _CRC.pack(mask(crc)), b"".join(elements)
    sizes = b"".join(encode_varint(len(each)) for each in elements)
    return [sizes, of_lengths, joined], crc32c(joined, crc32c(of_lengths, crc))


def _length(size: int) -> bytes:
    return size.to_bytes(4 if size < 1 << 32 else 8, "little")


def _strings(content: Array, entry: Entry, where: str) -> Array:
    data, elements = content.tobytes(), count(entry.shape)
    sizes, at = list[int](), 0
    try:
        if elements > len(data):
            raise ValueError(f"{len(data)} bytes cannot have {elements} strings")
        for _ in range(elements):
            size, at = decode_varint(data, at)
            sizes.append(size)
        if at + _CRC.size + sum(sizes) != len(data):
            raise ValueError(f"{len(data)} bytes are not {at} of lengths, 4 and {sum(sizes)}")
    except ValueError as error:
        raise DataLossError(f"{where}: {error}") from error
    _check_crc(crc32c(data[at:], crc32c(b"".join(map(_length, sizes)))), entry, where)
    found, at = np.empty(elements, object), at + _CRC.size
    for i, size in enumerate(sizes):
        found[i] = data[at : at + size]
        at += size
    return found.reshape(entry.shape)
