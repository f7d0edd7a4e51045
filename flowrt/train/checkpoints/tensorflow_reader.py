"""`TensorFlowReader`: the tensors of a checkpoint that TensorFlow has saved, of either version."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from typing import final

from flowrt.dtypes import DType
from flowrt.errors import UnimplementedError
from flowrt.storage.durable_files import PathLike, typed_os_errors
from flowrt.storage.slice_checkpoint import SliceCheckpoint, is_table
from flowrt.storage.tensor_bundle import TensorBundle, index_path
from flowrt.storage.tensor_slices import Piece
from flowrt.train.checkpoints.checkpoint import check_prefix
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.pieces import Slices
from flowrt.train.checkpoints.stored_arrays import Array
from flowrt.train.checkpoints.stored_tensor import StoredTensor


def is_of_tensorflow(prefix: str) -> bool:
    """Whether there is a checkpoint of TensorFlow's: the index of a bundle, or one table."""
    return os.path.isfile(index_path(prefix)) or (is_table(prefix) and not prefix.endswith(index_path("")))


@final
class TensorFlowReader(CheckpointReader):
    """Partitioned variables are whole. Raises as `CheckpointReader`, `NotFoundError` if there is no
    checkpoint, and `UnimplementedError` for a dtype that flowrt does not have.
    """

    def __init__(self, prefix: PathLike) -> None:
        self.prefix = check_prefix(prefix)
        with typed_os_errors(f"checkpoint {self.prefix}"):
            self._file: TensorBundle | SliceCheckpoint
            if is_table(self.prefix) and not os.path.isfile(index_path(self.prefix)):
                self._file, index = SliceCheckpoint(self.prefix), self.prefix
            else:
                self._file, index = TensorBundle(self.prefix), index_path(self.prefix)
            found = os.stat(index)
        self.save_id = hashlib.sha256(f"{found.st_size} {found.st_mtime_ns}".encode()).hexdigest()

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(entry.shape) for name, entry in self._file.entries.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        return {name: entry.dtype for name, entry in self._file.entries.items() if entry.dtype is not None}

    def _names(self) -> Collection[str]:
        return self._file.entries

    def _stored(self, name: str) -> StoredTensor[Piece]:
        entry = self._file.entries[name]
        if entry.dtype is None:
            raise UnimplementedError(
                f"checkpoint {self.prefix}: tensor {name!r} has TensorFlow's dtype {entry.dtype_number}, "
                "which flowrt does not have"
            )
        return _FileTensor(name, entry.dtype, entry.shape, self._file.pieces(name))


@final
class _FileTensor(StoredTensor[Piece]):
    def _check(self, piece: Piece, common: Slices) -> None:
        with typed_os_errors(f"{piece.path}: tensor {self.name!r}"):
            piece.array()

    def _array(self, piece: Piece) -> Array:
        return piece.array()
