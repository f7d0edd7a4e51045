"""`CheckpointReader`: the tensors of a checkpoint, whole or in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, final

from flowrt.base.progress import Progress
from flowrt.dtypes import DType
from flowrt.errors import NotFoundError, nearest
from flowrt.train.checkpoints.checkpoint import check_prefix, read_manifest, shard_path
from flowrt.train.checkpoints.checkpoint_format import piece_key
from flowrt.train.checkpoints.durable_files import PathLike
from flowrt.train.checkpoints.pieces import slices_of
from flowrt.train.checkpoints.shard_file import ShardFile
from flowrt.train.checkpoints.stored_arrays import Array
from flowrt.train.checkpoints.stored_tensor import StoredPiece, StoredTensor

T = TypeVar("T")


def read_checkpoint(prefix: PathLike, names: Iterable[str] | None = None) -> dict[str, Array]:
    """The tensors ``names`` (all of them if None), by name, all from the same save.

    Raises as `CheckpointReader` does. When a save replaces the checkpoint meanwhile, the new one is read.
    """
    wanted = None if names is None else list(names)

    def read(reader: CheckpointReader) -> dict[str, Array]:
        found: dict[str, Array] = {}
        chosen = list(reader.tensors) if wanted is None else wanted
        with Progress("restoring", len(chosen), "tensors") as progress:
            for done, name in enumerate(chosen):
                progress.update(done, name)
                found[name] = reader.get_tensor(name)
        return found

    return read_one_save(prefix, read)


def read_one_save(prefix: PathLike, read: Callable[[CheckpointReader], T]) -> T:
    """Call ``read`` with a reader of the checkpoint, and again, with a new one, if a save replaces the
    checkpoint meanwhile. Returns its result.
    """
    reader = CheckpointReader(prefix)
    while True:
        try:
            return read(reader)
        except NotFoundError:
            newer = CheckpointReader(prefix)
            if newer.save_id == reader.save_id:
                raise
            reader = newer  # the shards were swept while we read, which only another save can repeat


@final
class CheckpointReader:
    """Reads the tensors of one checkpoint, one at a time; what is read is checked when it is first needed.

    The constructor reads only the manifest. Raises `NotFoundError` (no checkpoint; no such tensor; a missing
    shard, perhaps because the checkpoint was replaced since) and `DataLossError` (a file is damaged). After
    an error the reader is unchanged. Not thread-safe.
    """

    def __init__(self, filepattern: PathLike) -> None:
        self.prefix = check_prefix(filepattern)
        manifest = read_manifest(self.prefix)
        self.save_id, self.tensors = manifest.save_id, manifest.tensors
        self._entries = manifest.shards
        self._files: dict[int, ShardFile] = {}
        """Open shards, by number."""

    def has_tensor(self, tensor_str: str) -> bool:
        return tensor_str in self.tensors

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(entry.shape) for name, entry in self.tensors.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        return {name: entry.dtype for name, entry in self.tensors.items()}

    def get_tensor(self, tensor_str: str) -> Array:
        """A new array with the value of one tensor; object dtype with elements of type bytes for strings."""
        return self.stored(tensor_str).value()

    def stored(self, name: str) -> StoredTensor:
        """The tensor ``name``, to read parts of it. Raises `NotFoundError` if there is none."""
        entry = self.tensors.get(name)
        if entry is None:
            where, count = f"checkpoint {self.prefix}", len(self.tensors)
            hint = nearest(str(name), self.tensors)
            raise NotFoundError(f"{where}: expected one of its {count} tensors; got {name!r}.{hint}")
        pieces = [
            StoredPiece(
                slices_of(piece),
                piece_key(name, piece, entry.shape),
                self._path(piece.shard),
                partial(self._file, piece.shard),
            )
            for piece in entry.pieces
        ]
        return StoredTensor(name, entry.dtype, entry.shape, pieces)

    def _path(self, number: int) -> str:
        return shard_path(self.prefix, self.save_id, number, len(self._entries))

    def _file(self, number: int, where: str) -> ShardFile:
        if number not in self._files:
            self._files[number] = ShardFile(self._path(number), self._entries[number], where)
        return self._files[number]
