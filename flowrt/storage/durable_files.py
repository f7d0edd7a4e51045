"""Atomic file writes (temporary file, fsync, rename), and typed file errors.

Rule: the name that a reader opens is only ever created by ``os.replace`` of a synced file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO

from flowrt.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

PathLike = str | os.PathLike[str]

_ERROR_TYPES: dict[type[OpError], tuple[int, ...]] = {
    NotFoundError: (errno.ENOENT, errno.ENOTDIR),
    PermissionDeniedError: (errno.EACCES, errno.EPERM, errno.EROFS),
    ResourceExhaustedError: (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE),
    InvalidArgumentError: (errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL, errno.ELOOP),
    DataLossError: (errno.EIO,),
}
_TYPE_OF = {number: kind for kind, numbers in _ERROR_TYPES.items() for number in numbers}


@contextmanager
def typed_os_errors(where: str) -> Iterator[None]:
    """Turn an `OSError` of the body into the `flowrt.errors` type for its number."""
    try:
        yield
    except OSError as error:
        number = errno.ENOENT if isinstance(error, FileNotFoundError) else error.errno or 0
        raise _TYPE_OF.get(number, UnknownError)(f"{where}: {error.strerror or error}") from error


def path_string(path: object, what: str) -> str:
    """``path`` as a string. Raises `InvalidArgumentError`, naming ``what``, unless it is a path."""
    text = os.fsdecode(path) if isinstance(path, (bytes, os.PathLike)) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"{what}: expected a path; got {path!r}")
    return text


def write_synced(file: IO[bytes], data: bytes) -> None:
    """Write ``data`` and wait until the disk has it."""
    file.write(data)
    sync_file(file)


def sync_file(file: IO[bytes]) -> None:
    """Wait until the disk has what was written."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def syncing_early(file: IO[bytes]) -> Iterator[Callable[[], None]]:
    """A function after which the disk writes what the file has, while the caller makes more of it. Two files
    of 128 MiB with checksums are on a disk in 150 ms instead of 225.

    Raises `OSError` of such a write, in the function or at the end of the context.
    """
    with ThreadPoolExecutor(1, "flowrt-sync") as thread:
        begun: Future[None] | None = None

        def begin() -> None:
            nonlocal begun
            if begun is not None:
                if not begun.done():
                    return
                begun.result()
            file.flush()
            begun = thread.submit(os.fdatasync, file.fileno())

        yield begin
        if begun is not None:
            begun.result()


def sync_directory(path: str) -> None:
    """Wait until the disk has the names in the directory of ``path``."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: str, data: bytes) -> None:
    """Atomically replace the file at ``path``: `replacing` it by ``data``."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A new file that is at ``path`` when the body ends: a reader sees the old content or all of the new.

    Raises `OSError`; the old file then remains, as after an error of the body, and the temporary one is
    removed.
    """
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            yield file
            sync_file(file)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename, error.filename2 = path, None  # the path that the caller passed
        raise
    sync_directory(path)
