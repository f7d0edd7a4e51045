"""`SliceCheckpoint`: a checkpoint of TensorFlow, version 1: one file, a table with the values of tensors.

Under "" it lists the tensors with their slices (SavedTensorSliceMeta); each slice is a SavedSlice. It is read
only: public models of before 2017 are in it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import protos
from flowrt.dtypes import BY_NUMBER, DType, string
from flowrt.errors import DataLossError, UnimplementedError
from flowrt.storage.sstable import FOOTER_BYTES, MAGIC, read_table
from flowrt.storage.tensor_slices import Array, Piece, check_cover, count, shape_of, slice_key, slices_of


class SavedTensor(NamedTuple):
    """A tensor; ``dtype`` is None if flowrt has none such."""

    name: str
    dtype: DType | None
    dtype_number: int
    shape: tuple[int, ...]
    slices: tuple[Any, ...]


def is_table(path: str) -> bool:
    """Whether the file ends as a table does. False if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(-FOOTER_BYTES, 2)
            return file.read()[-8:] == MAGIC.to_bytes(8, "little")
    except OSError:
        return False


@final
class SliceCheckpoint:
    """The tensors of the checkpoint at ``path``, read whole. Raises `OSError` and `DataLossError`."""

    def __init__(self, path: str) -> None:
        self.prefix = path
        with open(path, "rb") as file:
            self._table = read_table(file.read(), path)
        self.entries: dict[str, SavedTensor] = {}
        for meta in self._parse(b"").meta.tensor:
            shape = shape_of(meta.shape)
            if min(shape, default=0) < 0 or count(shape) >= 1 << 62:
                raise DataLossError(f"{path}: tensor {meta.name!r}: it has shape {list(shape)}")
            dtype = BY_NUMBER.get(meta.type)
            self.entries[meta.name] = SavedTensor(meta.name, dtype, meta.type, shape, tuple(meta.slice))

    def pieces(self, name: str) -> list[Piece]:
        """The pieces of the tensor ``name``. Raises `DataLossError` unless they make the whole."""
        entry, where = self.entries[name], f"{self.prefix}: tensor {name!r}"
        found = [
            Piece(place, self.prefix, partial(self._array, entry, place, message))
            for message in entry.slices
            for place in [slices_of(message, entry.shape, where)]
        ]
        check_cover(found, entry.shape, where)
        return found

    def _array(self, entry: SavedTensor, place: tuple[slice, ...], message: Any) -> Array:
        where = f"{self.prefix}: tensor {entry.name!r}"
        if entry.dtype is None:
            raise UnimplementedError(
                f"{where}: flowrt has no dtype of TensorFlow's number {entry.dtype_number}"
            )
        shape = tuple(s.stop - s.start for s in place)
        values = _values(entry.dtype, self._parse(slice_key(entry.name, message)).data.data)
        if values.size != count(shape):
            raise DataLossError(f"{where}: expected {count(shape)} elements in a slice; got {values.size}")
        return values.reshape(shape)

    def _parse(self, key: bytes) -> Any:
        if key not in self._table:
            raise DataLossError(f"{self.prefix}: expected a value for {key!r:.80}; there is none")
        message = protos.checkpoint_pb2.SavedTensorSlices()
        try:
            message.ParseFromString(self._table[key])
        except protos.DecodeError as error:
            raise DataLossError(f"{self.prefix}: expected SavedTensorSlices for {key!r:.80}") from error
        return message


def _values(dtype: DType, data: Any) -> Array:
    """The elements of a TensorProto, which are in the field of their type, or as bytes."""
    if data.tensor_content and dtype is not string:
        whole = len(data.tensor_content) // dtype.size * dtype.size
        return np.frombuffer(data.tensor_content[:whole], dtype.np)
    match dtype.name:
        case "string":
            found = np.empty(len(data.string_val), object)
            found[:] = list(data.string_val)
            return found
        case "float32":
            return np.array(data.float_val, np.float32)
        case "float64":
            return np.array(data.double_val, np.float64)
        case "complex64":
            return _complex(np.array(data.scomplex_val, np.float32), np.complex64)
        case "complex128":
            return _complex(np.array(data.dcomplex_val, np.float64), np.complex128)
        case "int64":
            return np.array(data.int64_val, np.int64)
        case "bool":
            return np.array(data.bool_val, np.bool_)
        case "float16" | "bfloat16":
            return np.array(data.half_val, np.int32).astype(np.uint16).view(dtype.np)
        case _:
            return np.array(data.int_val, np.int32).astype(dtype.np)


def _complex(parts: Array, kind: Any) -> Array:
    return parts[: parts.size // 2 * 2].view(kind)
