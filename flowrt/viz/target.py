"""The output file: checked before the work begins, replaced only on success."""

from __future__ import annotations

import os

from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.storage.durable_files import replace_file, typed_os_errors

PathLike = str | os.PathLike[str]


def check_target(path: PathLike, source: object = None) -> None:
    """Raises `NotFoundError` for a missing directory, and `InvalidArgumentError` for an existing path that
    must not be replaced: a directory, a device (/dev/stdout), and ``source``, if that is a path.
    """
    target = os.fspath(path)
    wrong = f"{target}: cannot write it: expected"
    directory = os.path.dirname(target) or "."
    if not os.path.isdir(directory):
        raise NotFoundError(f"{wrong} a directory {directory!r}; got none")
    if not os.path.exists(target):
        return
    if not os.path.isfile(target):
        got = "a directory" if os.path.isdir(target) else "a device or a pipe"
        raise InvalidArgumentError(f"{wrong} a file; got {got}")
    if isinstance(source, str | os.PathLike) and os.path.exists(source) and os.path.samefile(source, target):
        raise InvalidArgumentError(f"{wrong} a file other than the source; got the source")


def write_target(path: PathLike, data: bytes) -> str:
    """Replace the content of the file at ``path``, or of the target of a link, by ``data``; returns the path.
    Raises the `OpError` of a place that cannot be written; the old content then remains.
    """
    target = os.fspath(path)
    with typed_os_errors(f"{target}: cannot write it"):
        try:
            replace_file(os.path.realpath(target), data)
        except OSError as error:  # which names the file a second time
            raise OSError(error.errno, error.strerror) from error
    return target
