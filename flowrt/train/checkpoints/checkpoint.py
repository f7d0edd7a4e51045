"""The checkpoint store: tensors by name, saved atomically, by one process or by several together.

`checkpoint_format` describes the files. A save takes four steps:

    1. The first process creates the new manifest as ``P.<save id>.pending`` and locks it (``flock``) until
       the save ends.
    2. Each process writes and syncs its shards under names unique to this save; the old checkpoint's are
       untouched.
    3. When all have done so, the first one writes and syncs the manifest and renames it to ``P.index.json``.
       This rename commits the save.
    4. It removes the shards that no manifest names: the replaced checkpoint's and those of killed saves.

    Rule 1: a shard is never changed and its name never reused, so a reader's checks stay valid.
    Rule 2: a sweep spares a save with a locked pending manifest; the lock dies with its process.
    Rule 3: a save that raised before the rename removes its own files; after the rename it removes nothing.
    Rule 4: only the process with the lock commits or removes, so whether a save was committed has one answer.

Any number of threads and processes may save, read and remove under one prefix; the last rename wins.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from flowrt.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, OpError
from flowrt.storage.durable_files import PathLike, path_string, sync_directory, typed_os_errors, write_synced
from flowrt.train.checkpoints import checkpoint_format as form
from flowrt.train.checkpoints.checkpoint_format import Manifest, ShardEntry, TensorEntry
from flowrt.train.checkpoints.pieces import plan_shards
from flowrt.train.checkpoints.shard_file import HeldPiece, write_shard
from flowrt.train.checkpoints.stored_arrays import Array
from flowrt.train.checkpoints.together import ALONE, Processes

MAX_SHARD_BYTES = 1 << 30  # a copy over a network that breaks off goes on with the file that it was at
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}  # a file system without: no sweeps there

_FILE_OF_A_CHECKPOINT = re.compile(r"\.(index|index\.json|meta|data-\d+-of-\d+)$")


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


def shard_path(prefix: str, save_id: str, number: int, count: int) -> str:
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
    pieces = [HeldPiece.of_array(name, array) for name, array in tensors.items()]
    write_pieces(path, lambda: pieces, ALONE, max_shard_bytes)


def write_pieces(
    prefix: str | None,
    collect: Callable[[], Sequence[HeldPiece]],
    processes: Processes,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> str:
    """Save what ``collect`` returns in each of ``processes``, which between them have each tensor once.

    They call it at the same time and save under one prefix, in a directory that all see: that of the first
    process, where another gives None. Returns the prefix. Raises as `write_checkpoint`, and what ``collect``
    raises: an error in one process is an error in all. If a process is killed, the others raise
    `UnavailableError`, and files may be left, which the next save removes.
    """
    save = _Save(processes)
    with ExitStack() as stack:
        save.begin(prefix, collect, max_shard_bytes, stack)
        save.commit(save.write())
    if processes.number == 0:
        with suppress(OSError):  # the save is committed; the next one removes what is left
            _sweep(save.prefix)
    return save.prefix


class _Save:
    """One save, in one of its processes: its steps, each of which ends in all at once."""

    prefix: str
    _save_id: str
    _pending: IO[bytes]
    """The new manifest, in the first process."""
    _pieces: Sequence[HeldPiece]
    """The pieces that this process adds; a tensor without elements has no bytes."""
    _shards: list[list[HeldPiece]]
    """The pieces with bytes, by shard."""
    _numbers: range
    """The numbers of this process's shards."""
    _count: int
    """The number of all shards."""

    def __init__(self, processes: Processes) -> None:
        self._processes, self._is_first = processes, processes.number == 0

    def begin(
        self,
        prefix: str | None,
        collect: Callable[[], Sequence[HeldPiece]],
        max_shard_bytes: int,
        stack: ExitStack,
    ) -> None:
        """Find what there is to write, and under which names. The first process holds the lock until
        ``stack`` ends.
        """

        def begin() -> tuple[str | None, str, int]:
            path = None if prefix is None else check_prefix(prefix)
            self._plan(collect(), max_shard_bytes)
            if path is not None and self._processes.count > 1:
                path = os.path.abspath(path)
            if not self._is_first:
                return path, "", len(self._shards)
            assert path is not None
            with typed_os_errors(f"saving checkpoint {path}"):
                make_directory(path)
                save_id, self._pending = stack.enter_context(_pending_save(path))
            return path, save_id, len(self._shards)

        begun = self._processes.all(begin)
        self.prefix, self._save_id, _ = begun[0]
        for number, (path, _, _) in enumerate(begun):
            if path not in (None, self.prefix):
                raise InvalidArgumentError(
                    f"save: expected one prefix in all processes; got {self.prefix!r}, and {path!r} in "
                    f"process {number}"
                )
        counts = [count for _, _, count in begun]
        first = sum(counts[: self._processes.number])
        self._numbers, self._count = range(first, first + len(self._shards)), sum(counts)

    def _plan(self, pieces: Sequence[HeldPiece], max_shard_bytes: int) -> None:
        self._pieces = pieces
        held: dict[str, HeldPiece] = {}
        for piece in pieces:
            if piece.num_elements and held.setdefault(piece.key, piece) is not piece:
                raise InvalidArgumentError(
                    f"checkpoint: expected different names of tensors and pieces; got {piece.key!r} of "
                    f"{held[piece.key].tensor!r} and {piece.tensor!r}"
                )
        plan = plan_shards({key: piece.nbytes for key, piece in held.items()}, max_shard_bytes)
        self._shards = [[held[key] for key in keys] for keys in plan]

    def write(self) -> list[Any]:
        """Write this process's shards: what each process adds to the manifest."""
        return self._processes.all(self._write)

    def _write(self) -> dict[str, Any]:
        entries = list[ShardEntry]()
        with typed_os_errors(f"saving checkpoint {self.prefix}"):
            for number, pieces in zip(self._numbers, self._shards, strict=True):
                entries.append(write_shard(self._shard_path(number), pieces))
        number_of = {
            piece.key: number
            for number, pieces in zip(self._numbers, self._shards, strict=True)
            for piece in pieces
        }
        found: dict[str, TensorEntry] = {}
        for piece in self._pieces:
            known = found.get(piece.tensor)
            added = (piece.entry(number_of[piece.key]),) if piece.num_elements else ()
            earlier = () if known is None else known.pieces
            found[piece.tensor] = TensorEntry(piece.dtype, piece.tensor_shape, (*earlier, *added))
        return form.manifest_body(Manifest(self._save_id, tuple(entries), found))

    def commit(self, bodies: Sequence[Any]) -> None:
        """Write the manifest of all processes, and rename it."""
        self._processes.all(lambda: self._commit(bodies) if self._is_first else None)

    def _commit(self, bodies: Sequence[Any]) -> None:
        path = self.prefix
        manifest = form.joined_manifest(bodies, f"saving checkpoint {path}")
        with typed_os_errors(f"saving checkpoint {path}"):
            if self._processes.count > 1:
                self._check_visible(manifest)
            write_synced(self._pending, form.encode_manifest(manifest))
            sync_directory(path)  # no manifest on disk before its shards' names
            os.replace(_pending_path(path, self._save_id), _manifest_path(path))
            sync_directory(path)  # no shard swept before the manifest that replaces it

    def _check_visible(self, manifest: Manifest) -> None:
        """Raise `FailedPreconditionError` unless this process sees the shards of all others."""
        for number, entry in enumerate(manifest.shards):
            shard = self._shard_path(number)
            if not os.path.isfile(shard) or os.path.getsize(shard) != entry.nbytes:
                raise FailedPreconditionError(
                    f"saving checkpoint {self.prefix}: expected a directory that all processes share; the "
                    f"first one does not see {os.path.basename(shard)}, which another has written"
                )

    def _shard_path(self, number: int) -> str:
        return shard_path(self.prefix, self._save_id, number, self._count)


def make_directory(prefix: str) -> None:
    """Make the directory of ``prefix`` if its parent is there. Raises `InvalidArgumentError` otherwise."""
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
            with suppress(FileNotFoundError):  # removed by another process
                os.unlink(path)


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
        return read_manifest(prefix).save_id == save_id
    except NotFoundError:
        return False
    except OpError:  # unreadable: it may name any shard
        return True


# Reading


def is_of_flowrt(prefix: str) -> bool:
    """Whether flowrt completed a save under this prefix; the contents of its files are not checked."""
    return os.path.isfile(_manifest_path(prefix))


def why_absent(prefix: str) -> str:
    """The reason why there is no checkpoint under ``prefix``, and what to do."""
    if os.path.isdir(prefix):
        return "it is a directory. Use latest_checkpoint(directory)"
    if file := _FILE_OF_A_CHECKPOINT.search(prefix):
        return f"remove {file[0]!r} from it"
    return f"there is no {_manifest_path(prefix)}, nor {prefix}.index"


def read_manifest(prefix: str) -> Manifest:
    path, expected = _manifest_path(prefix), f"checkpoint {prefix}: expected its manifest"
    try:
        with typed_os_errors(expected), open(path, "rb") as file:
            data = file.read()
    except NotFoundError:
        raise NotFoundError(f"{expected}; {why_absent(prefix)}") from None
    return form.decode_manifest(data, path)
