"""Finding, opening and removing a checkpoint, flowrt's or TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from flowrt.base.progress import Progress
from flowrt.errors import NotFoundError
from flowrt.storage.durable_files import PathLike, path_string, typed_os_errors
from flowrt.train.checkpoints import checkpoint
from flowrt.train.checkpoints.checkpoint import check_prefix, is_of_flowrt
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.shard_reader import ShardReader
from flowrt.train.checkpoints.stored_arrays import Array
from flowrt.train.checkpoints.tensorflow_reader import TensorFlowReader, is_of_tensorflow
from flowrt.train.checkpoints.tensorflow_writer import remove_bundle_files

T = TypeVar("T")


def checkpoint_exists(checkpoint_prefix: PathLike) -> bool:
    """Whether a save under this prefix was completed, by flowrt or by TensorFlow; the contents of its files
    are not checked. A directory (``model/``) is no prefix: false.
    """
    prefix = path_string(checkpoint_prefix, "checkpoint prefix")
    return is_of_flowrt(prefix) or is_of_tensorflow(prefix)


def open_checkpoint(filepattern: PathLike) -> CheckpointReader:
    """A reader of the checkpoint with this prefix; flowrt's, if there is one, else TensorFlow's.

        reader = tf.train.NewCheckpointReader("model.ckpt-1000")
        reader.get_variable_to_shape_map()  # {'dense/kernel': [784, 10]}

    Raises `NotFoundError` if there is none, and as `CheckpointReader` does.
    """
    prefix = check_prefix(filepattern)
    of_tensorflow = not is_of_flowrt(prefix) and is_of_tensorflow(prefix)
    return TensorFlowReader(prefix) if of_tensorflow else ShardReader(prefix)


def remove_checkpoint(checkpoint_prefix: PathLike) -> None:
    """Remove a checkpoint: first its index, so that none ever names a missing file, then the rest.

    Does nothing if there is none. Raises `PermissionDeniedError` and other file system errors.
    """
    checkpoint.remove_checkpoint(checkpoint_prefix)
    prefix = check_prefix(checkpoint_prefix)
    with typed_os_errors(f"removing checkpoint {prefix}"):
        remove_bundle_files(prefix)


def read_checkpoint(prefix: PathLike, names: Iterable[str] | None = None) -> dict[str, Array]:
    """The tensors ``names`` (all of them if None), by name, all from the same save.

    Raises as `open_checkpoint` does. When a save replaces the checkpoint meanwhile, the new one is read.
    """
    wanted = None if names is None else list(names)

    def read(reader: CheckpointReader) -> dict[str, Array]:
        found: dict[str, Array] = {}
        chosen = list(reader.get_variable_to_shape_map()) if wanted is None else wanted
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
    reader = open_checkpoint(prefix)
    while True:
        try:
            return read(reader)
        except NotFoundError:
            newer = open_checkpoint(prefix)
            if newer.save_id == reader.save_id:
                raise
            reader = newer  # its files were swept while we read, which only another save can repeat
