"""``flowrt.gfile``: TensorFlow 1's file functions, on local files.

Raises `NotFoundError`, `AlreadyExistsError`, `PermissionDeniedError` or `FailedPreconditionError` as
TensorFlow does.
"""

from __future__ import annotations

import glob
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from flowrt.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, PermissionDeniedError
from flowrt.tf1.missing_names import missing_from


@contextmanager
def _typed_errors(path: Any) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file or directory") from error
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path}: exists already") from error
    except PermissionError as error:
        raise PermissionDeniedError(f"{path}: permission denied") from error
    except (IsADirectoryError, NotADirectoryError, OSError) as error:
        raise FailedPreconditionError(f"{path}: {error.strerror}") from error


class _TextWriter(io.TextIOWrapper):
    """A text file that is given text or bytes, as TensorFlow's are."""

    def write(self, content: str | bytes) -> int:
        return super().write(content.decode() if isinstance(content, bytes) else content)


class _BytesWriter(io.BufferedWriter):
    """A file of bytes that is given bytes or text."""

    def write(self, content: Any) -> int:
        return super().write(content.encode() if isinstance(content, str) else content)


def GFile(name: Any, mode: str = "r") -> IO[Any]:
    """Open a file. Text modes are UTF-8; all modes write text and bytes alike.

    Args:
        name: A path.
        mode: A mode of Python's `open`, such as "r", "rb", "w" or "a".

    Returns:
        The file, a context manager.

    Example:
        >>> with tf.gfile.Open('notes.txt', 'w') as file:
        ...     count = file.write('hello')
        >>> with tf.gfile.Open('notes.txt') as file:
        ...     file.read()
        'hello'
    """
    kind = mode.replace("b", "")
    with _typed_errors(name):
        if kind not in ("w", "a", "x"):
            return open(name, mode, encoding=None if "b" in mode else "utf-8")
        raw = io.FileIO(name, kind)
    if "b" in mode:
        return _BytesWriter(raw)
    return _TextWriter(io.BufferedWriter(raw), encoding="utf-8")


Open = FastGFile = GFile


def Exists(filename: Any) -> bool:
    """Whether there is a file or directory ``filename``.

    Args:
        filename: A path.

    Returns:
        True or False.

    Example:
        >>> tf.gfile.Exists('missing.txt')
        False
    """
    return os.path.exists(filename)


def IsDirectory(dirname: Any) -> bool:
    """Whether ``dirname`` is a directory."""
    return os.path.isdir(dirname)


def MakeDirs(dirname: Any) -> None:
    """Make the directory ``dirname`` and those above it, unless they are there.

    Args:
        dirname: A path.

    Example:
        >>> tf.gfile.MakeDirs('runs/first')
        >>> tf.gfile.IsDirectory('runs/first')
        True
    """
    with _typed_errors(dirname):
        os.makedirs(dirname, exist_ok=True)


def MkDir(dirname: Any) -> None:
    """Make the directory ``dirname``. Raises `AlreadyExistsError`, and `NotFoundError` without its parent."""
    with _typed_errors(dirname):
        os.mkdir(dirname)


def Remove(filename: Any) -> None:
    with _typed_errors(filename):
        os.remove(filename)


def DeleteRecursively(dirname: Any) -> None:
    with _typed_errors(dirname):
        shutil.rmtree(dirname)


def ListDirectory(dirname: Any) -> list[str]:
    """The names in the directory ``dirname``, sorted."""
    with _typed_errors(dirname):
        return sorted(os.listdir(dirname))


def Glob(filename: Any) -> list[str]:
    """The names that the pattern ``filename`` matches, sorted.

    Args:
        filename: A pattern, such as ``"data/*.csv"``.

    Returns:
        A list of paths.

    Example:
        >>> for name in ('part-0', 'part-1'):
        ...     tf.gfile.Open(name, 'w').close()
        >>> tf.gfile.Glob('part-*')
        ['part-0', 'part-1']
    """
    return sorted(glob.glob(os.fspath(filename)))


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:
    if not overwrite and os.path.exists(newpath):
        raise AlreadyExistsError(f"{newpath}: exists already; pass overwrite=True to replace it")
    with _typed_errors(oldpath):
        shutil.copyfile(oldpath, newpath)


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:
    if not overwrite and os.path.exists(newname):
        raise AlreadyExistsError(f"{newname}: exists already; pass overwrite=True to replace it")
    with _typed_errors(oldname):
        os.replace(oldname, newname)


class FileStatistics(NamedTuple):
    """Facts of a file: its size in bytes, and when it was changed, in ns since 1970."""

    length: int
    mtime_nsec: int
    is_directory: bool


def Stat(filename: Any) -> FileStatistics:
    with _typed_errors(filename):
        found = os.stat(filename)
    return FileStatistics(found.st_size, found.st_mtime_ns, os.path.isdir(filename))


def Walk(top: Any, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    return os.walk(top, topdown=in_order)


__getattr__ = missing_from("gfile")
