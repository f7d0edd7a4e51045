"""`RotatingFile`: a log of bounded size.

    worker_0.log   <-- written; at the limit it becomes worker_0.log.1, that one .2; the oldest is dropped

``FLOWRT_LOG_BYTES`` is the limit of each file: 64 MiB by default, so a log takes at most 320.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, final

from flowrt.base.closing import Closing
from flowrt.errors import InvalidArgumentError

VARIABLE = "FLOWRT_LOG_BYTES"
DEFAULT_BYTES, MIN_BYTES = 64 << 20, 4096
KEPT = 4
"""Number of older files."""


def log_bytes() -> int:
    """The limit of each file. Raises `InvalidArgumentError`."""
    text = os.environ.get(VARIABLE) or str(DEFAULT_BYTES)
    if not text.isdecimal() or int(text) < MIN_BYTES:
        raise InvalidArgumentError(f"{VARIABLE}: expected bytes, {MIN_BYTES} or more; got {text!r}")
    return int(text)


@final
class RotatingFile(Closing):
    """Writes unbuffered to ``path``; ``appends``: to the end of a file that is there, else that is replaced.
    Creates the directory. For one thread at a time; a child of a task may have the same log: each line goes
    to the end of the file that is at ``path`` then, and either may rotate it. Raises OSError.
    """

    def __init__(self, path: Path, max_bytes: int, appends: bool) -> None:
        self._path, self._max_bytes = path, max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        if not appends:
            path.write_bytes(b"")
        self._open()
        self._is_in_line = False

    def write(self, data: bytes) -> None:
        """Write ``data``; a new file begins between two lines, unless a line is as long as a file. Raises
        OSError.
        """
        if not self._is_in_line:
            self._follow()
        if self._size and self._size + len(data) > self._max_bytes:
            end = data.find(b"\n") + 1 if self._is_in_line else 0
            self._append(data[:end])
            if not self._is_in_line or self._size > 2 * self._max_bytes:
                self._rotate()
            data = data[end:]
        self._append(data)

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._size += len(data)
        if data:
            self._is_in_line = not data.endswith(b"\n")

    def _follow(self) -> None:
        """Leave a file that another process has rotated: it would be dropped with what is written to it."""
        if self._is_current():
            self._size = os.fstat(self._file.fileno()).st_size
        else:
            self._file.close()
            self._open()

    def _is_current(self) -> bool:
        """Whether the file is still the one at the path."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        """Rename the files, unless another process has done so meanwhile, and begin a new one."""
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if self._is_current():
                self._rename()
        finally:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # closing may not: a forked child has the file, too
            self._file.close()
        self._open()

    def _rename(self) -> None:
        numbered = [self._path.with_name(f"{self._path.name}.{i}") for i in range(1, KEPT + 1)]
        names = [self._path, *numbered]
        for newer, older in zip(names[-2::-1], names[:0:-1], strict=True):
            with suppress(FileNotFoundError):  # at first there are fewer
                newer.replace(older)

    def _open(self) -> None:
        self._file: BinaryIO = self._path.open("ab", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
