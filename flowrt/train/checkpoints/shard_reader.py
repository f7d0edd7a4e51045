"""`ShardReader`: the tensors of a checkpoint that flowrt has saved."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import final

from flowrt.dtypes import DType
from flowrt.storage.durable_files import PathLike
from flowrt.train.checkpoints.checkpoint import check_prefix, read_manifest, shard_path
from flowrt.train.checkpoints.checkpoint_format import piece_key
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.pieces import slices_of
from flowrt.train.checkpoints.shard_file import ShardFile
from flowrt.train.checkpoints.stored_tensor import ShardPiece, ShardTensor


@final
class ShardReader(CheckpointReader):
    """The constructor reads only the manifest. Raises as `CheckpointReader`, and `NotFoundError` if there is
    no checkpoint.
    """

    def __init__(self, prefix: PathLike) -> None:
        self.prefix = check_prefix(prefix)
        manifest = read_manifest(self.prefix)
        self.save_id, self.tensors = manifest.save_id, manifest.tensors
        self._entries = manifest.shards
        self._files: dict[int, ShardFile] = {}
        """Open shards, by number."""

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(entry.shape) for name, entry in self.tensors.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        return {name: entry.dtype for name, entry in self.tensors.items()}

    def _names(self) -> Collection[str]:
        return self.tensors

    def _stored(self, name: str) -> ShardTensor:
        entry = self.tensors[name]
        pieces = [
            ShardPiece(
                slices_of(piece),
                piece_key(name, piece, entry.shape),
                self._path(piece.shard),
                partial(self._file, piece.shard),
            )
            for piece in entry.pieces
        ]
        return ShardTensor(name, entry.dtype, entry.shape, pieces)

    def _path(self, number: int) -> str:
        return shard_path(self.prefix, self.save_id, number, len(self._entries))

    def _file(self, number: int, where: str) -> ShardFile:
        if number not in self._files:
            self._files[number] = ShardFile(self._path(number), self._entries[number], where)
        return self._files[number]
