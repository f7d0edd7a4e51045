"""The checkpoint store: arrays by name, saved atomically.

`checkpoint_format` describes the files. A save takes four steps:

    1. The new manifest is created as ``P.<save id>.pending`` and locked (``flock``) until the save ends.
    2. The shards are written and synced under names unique to this save; the old checkpoint's are untouched.
    3. The manifest is written, synced and renamed to ``P.index.json``. This rename commits the save.
    4. Shards that no manifest names are removed: the replaced checkpoint's and those of killed saves.

    Rule 1: a shard is never changed and its name never reused, so a reader's checks stay valid.
    Rule 2: a sweep spares a save with a locked pending manifest; the lock dies with its process.
    Rule 3: a save that raised before the rename removes its own files; after the rename it removes nothing.

Any number of threads and processes may save, read and remove under one prefix; the last rename wins.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, final

import safetensors
import safetensors.numpy

from flowrt.base.progress import Progress
from flowrt.dtypes import DType
from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError, nearest
from flowrt.train.checkpoints import checkpoint_format as form
from flowrt.train.checkpoints.checkpoint_format import Array, Manifest, ShardEntry
from flowrt.train.checkpoints.durable_files import (
    PathLike,
    path_string,
    sync_directory,
    typed_os_errors,
    write_synced,
)

MAX_SHARD_BYTES = 256 << 20  # a save holds about two shards in memory in addition to the tensors
CHUNK_BYTES = 1 << 20  # read at a time for a checksum; larger ones leave the CPU's cache
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}  # a file system without: no sweeps there

_FILE_OF_TENSORFLOW = re.compile(r"\.(index|meta|data-\d+-of-\d+)$")


# Names


def check_prefix(prefix: PathLike) -> str:
    """The prefix as a string. Raises `InvalidArgumentError` unless it can begin a file's name."""
    path = path_string(prefix, "checkpoint prefix")
    if os.path.basename(path) in ("", ".", ".."):
        raise InvalidArgumentError(f"checkpoint prefix: expected it to end in a file name; got {path!r}")
    return path


def _manifest_path(prefix: str) -> str:
    return f"{prefix}.index.json"


def _pending_path(prefix: str, save_id: str) -> str:
    return f"{prefix}.{save_id}.pending"


def _shard_path(prefix: str, save_id: str, number: int, count: int) -> str:
    return f"{prefix}.{save_id}-{number:05d}-of-{count:05d}.safetensors"


def _shards_by_save(prefix: str) -> dict[str, list[str]]:
    """The paths of all shards under a prefix, whether a manifest names them or not, by save id."""
    directory, base = os.path.split(prefix)
    pattern = re.compile(rf"{re.escape(base)}\.({form.SAVE_ID.pattern})-\d{{5,}}-of-\d{{5,}}\.safetensors")
    found: dict[str, list[str]] = {}
    for name in os.listdir(directory or "."):
        if match := pattern.fullmatch(name):
            found.setdefault(match[1], []).append(os.path.join(directory, name))
    return found


# Writing


def write_checkpoint(
    prefix: PathLike, tensors: Mapping[str, Array], *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Save ``tensors`` (name to array) under ``prefix``; an existing checkpoint is replaced.

    Arrays are stored dense, in C order; strings are object arrays of bytes (or of str, stored as UTF-8).
    Tensors share a shard of up to ``max_shard_bytes`` bytes; a larger tensor has its own shard. The last
    directory of ``prefix`` is created if it is missing.

    Raises `InvalidArgumentError` (prefix, name), `DTypeError` (array), `ResourceExhaustedError` (disk full),
    `PermissionDeniedError` and other file system errors. After an error the previous checkpoint remains and
    no file of the failed save is left; only if syncing the directory failed after the rename, the new one
    remains. A killed process leaves files behind, which the next save under ``prefix`` removes.
    """
    path = check_prefix(prefix)
    if max_shard_bytes < 1:
        raise InvalidArgumentError(f"max_shard_bytes: expected at least 1; got {max_shard_bytes}")
    for name, array in tensors.items():
        form.check_tensor(name, array)
    stored = {name: form.to_stored(name, array) for name, array in tensors.items()}
    plan = form.plan_shards({name: array.nbytes for name, array in stored.items()}, max_shard_bytes)
    entries = {name: form.entry(tensors[name], number) for number, names in enumerate(plan) for name in names}
    shards = [{name: stored[name] for name in names} for names in plan]
    with typed_os_errors(f"saving checkpoint {path}"):
        _make_directory(path)
        with _pending_save(path) as (save_id, file):
            paths = [_shard_path(path, save_id, number, len(shards)) for number in range(len(shards))]
            written = tuple(map(_write_shard, paths, shards))
            write_synced(file, form.encode_manifest(Manifest(save_id, written, entries)))
            sync_directory(path)  # no manifest on disk before its shards' names
            os.replace(_pending_path(path, save_id), _manifest_path(path))
            sync_directory(path)  # no shard swept before the manifest that replaces it
    with suppress(OSError):  # the save is committed; the next one removes what is left
        _sweep(path)


def _make_directory(prefix: str) -> None:
    directory = os.path.dirname(prefix) or "."
    if os.path.isdir(directory):
        return
    try:
        os.mkdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        message = f"saving checkpoint {prefix}: expected the parent directory of {directory}; got none"
        raise InvalidArgumentError(message) from None
    except FileExistsError:  # by another process, just now; or a file
        if not os.path.isdir(directory):
            message = f"saving checkpoint {prefix}: expected a directory; got the file {directory}"
            raise InvalidArgumentError(message) from None


@contextmanager
def _pending_save(prefix: str) -> Iterator[tuple[str, IO[bytes]]]:
    """A new save's id and its manifest file, locked; all the save's files are removed if the body raises."""
    save_id = secrets.token_hex(8)
    try:
        with open(_pending_path(prefix, save_id), "xb") as file:
            _lock(file)
            yield save_id, file
    except BaseException:
        _abandon(prefix, save_id)
        raise


def _lock(file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _abandon(prefix: str, save_id: str) -> None:
    pending = _pending_path(prefix, save_id)
    if not os.path.exists(pending):  # renamed: the save is committed, even if something was raised afterwards
        return
    with suppress(OSError):
        for path in (*_shards_by_save(prefix).get(save_id, ()), pending):  # the lock's file last
            os.unlink(path)


def _write_shard(path: str, tensors: Mapping[str, Array]) -> ShardEntry:
    data = safetensors.numpy.save(dict(tensors))
    with open(path, "xb") as file:
        write_synced(file, data)
    return ShardEntry(len(data), form.checksum(data))


# Removing


def remove_checkpoint(checkpoint_prefix: PathLike) -> None:
    """Remove a checkpoint: first its manifest, so that none ever names a missing shard, then its shards.

    Does nothing if there is none. Raises `PermissionDeniedError` and other file system errors.
    """
    prefix = check_prefix(checkpoint_prefix)
    with typed_os_errors(f"removing checkpoint {prefix}"), suppress(FileNotFoundError):
        with suppress(FileNotFoundError):
            os.unlink(_manifest_path(prefix))
        _sweep(prefix)


def _sweep(prefix: str) -> None:
    """Remove all shards under ``prefix`` that neither the manifest nor a save in progress needs."""
    for save_id, shards in _shards_by_save(prefix).items():
        # In this order: a save that is no longer in progress is already in the manifest or never will be.
        if _in_progress(prefix, save_id) or _is_current(prefix, save_id):
            continue
        for path in (*shards, _pending_path(prefix, save_id)):
            with suppress(FileNotFoundError):
                os.unlink(path)


def _in_progress(prefix: str, save_id: str) -> bool:
    try:
        with open(_pending_path(prefix, save_id), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # locked, or unknown
        return True
    return False


def _is_current(prefix: str, save_id: str) -> bool:
    try:
        return _read_manifest(prefix).save_id == save_id
    except NotFoundError:
        return False
    except OpError:  # unreadable: it may name any shard
        return True


# Reading


def checkpoint_exists(checkpoint_prefix: PathLike) -> bool:
    """Whether a save under this prefix was completed; the contents of its files are not checked."""
    return os.path.isfile(_manifest_path(check_prefix(checkpoint_prefix)))


def is_of_tensorflow(prefix: str) -> bool:
    """Whether TensorFlow has saved a checkpoint under this prefix; flowrt does not read its format."""
    return os.path.isfile(f"{prefix}.index")


def why_absent(prefix: str) -> str:
    """The reason why there is no checkpoint under ``prefix``, and what to do."""
    manifest = _manifest_path("")
    if prefix.endswith(manifest) and checkpoint_exists(prefix.removesuffix(manifest)):
        return f"remove {manifest!r} from it"
    if os.path.isdir(prefix):
        return "it is a directory. Use latest_checkpoint(directory)"
    if is_of_tensorflow(_FILE_OF_TENSORFLOW.sub("", prefix)):
        return (
            "it is in TensorFlow's own format, which flowrt does not read. Write the values to a file with "
            "numpy.savez there, and assign each to its variable here with load(value, session)"
        )
    return f"there is no {_manifest_path(prefix)}"


def read_checkpoint(prefix: PathLike, names: Iterable[str] | None = None) -> dict[str, Array]:
    """The tensors ``names`` (all of them where None), by name, all from the same save.

    Raises as `CheckpointReader` does. When a save replaces the checkpoint meanwhile, the new one is read.
    """
    wanted = None if names is None else list(names)
    reader = CheckpointReader(prefix)
    while True:
        try:
            return _read_all(reader, list(reader.tensors) if wanted is None else wanted)
        except NotFoundError:
            newer = CheckpointReader(prefix)
            if newer.save_id == reader.save_id:
                raise
            reader = newer  # the shards were swept while we read, which only another save can repeat


def _read_all(reader: CheckpointReader, names: Sequence[str]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    with Progress("restoring", len(names), "tensors") as progress:
        for done, name in enumerate(names):
            progress.update(done, name)
            found[name] = reader.get_tensor(name)
    return found


@final
class CheckpointReader:
    """Reads the tensors of one checkpoint, one at a time; each shard is checked when it is first needed.

    The constructor reads only the manifest. Raises `NotFoundError` (no checkpoint; no such tensor; a missing
    shard, perhaps because the checkpoint was replaced since) and `DataLossError` (a file is damaged). After
    an error the reader is unchanged. Not thread-safe.
    """

    def __init__(self, filepattern: PathLike) -> None:
        self.prefix = check_prefix(filepattern)
        manifest = _read_manifest(self.prefix)
        self.save_id, self.tensors = manifest.save_id, manifest.tensors
        self._entries = manifest.shards
        self._shards: dict[int, Any] = {}  # open and checked, by number

    def has_tensor(self, tensor_str: str) -> bool:
        return tensor_str in self.tensors

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        return {name: list(entry.shape) for name, entry in self.tensors.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        return {name: entry.dtype for name, entry in self.tensors.items()}

    def get_tensor(self, tensor_str: str) -> Array:
        """A new array with the value of one tensor; object dtype with elements of type bytes for strings."""
        entry = self.tensors.get(tensor_str)
        if entry is None:
            where, count = f"checkpoint {self.prefix}", len(self.tensors)
            hint = nearest(str(tensor_str), self.tensors)
            raise NotFoundError(f"{where}: expected one of its {count} tensors; got {tensor_str!r}.{hint}")
        where = f"{self._shard_path(entry.shard)}: tensor {tensor_str!r}"
        with typed_os_errors(where), _safetensors_errors(where):
            shard = self._shard(entry.shard)
            header = shard.get_slice(tensor_str)
            entry.check_stored(where, header.get_dtype(), tuple(header.get_shape()))
            return form.from_stored(entry, shard.get_tensor(tensor_str), where)

    def _shard_path(self, number: int) -> str:
        return _shard_path(self.prefix, self.save_id, number, len(self._entries))

    def _shard(self, number: int) -> Any:
        if number not in self._shards:
            path = self._shard_path(number)
            _check_file(path, self._entries[number])
            self._shards[number] = safetensors.safe_open(path, framework="np")
        return self._shards[number]


def _read_manifest(prefix: str) -> Manifest:
    path, expected = _manifest_path(prefix), f"checkpoint {prefix}: expected its manifest"
    try:
        with typed_os_errors(expected), open(path, "rb") as file:
            data = file.read()
    except NotFoundError:
        raise NotFoundError(f"{expected}; {why_absent(prefix)}") from None
    return form.decode_manifest(data, path)


def _check_file(path: str, entry: ShardEntry) -> None:
    """Raise `DataLossError` unless the file has the size and the checksum of the manifest's entry."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.nbytes:
            raise DataLossError(f"{path}: expected {entry.nbytes} bytes; got {size}")
        found = form.checksum(b"")
        while chunk := file.read(CHUNK_BYTES):
            found = form.checksum(chunk, int(found, 16))
    if found != entry.crc32:
        raise DataLossError(f"{path}: expected CRC-32 {entry.crc32}; got {found}")


@contextmanager
def _safetensors_errors(where: str) -> Iterator[None]:
    try:
        yield
    except safetensors.SafetensorError as error:
        raise DataLossError(
            f"{where}: expected the content described by the manifest; got {error}"
        ) from error
