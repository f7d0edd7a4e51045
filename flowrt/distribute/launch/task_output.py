"""Output of a task: written to its log and the console; the end is kept for a report."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, final

from flowrt.base.rotating_file import RotatingFile, log_bytes

_logger = logging.getLogger("flowrt")

TAIL_LINES = 20
MAX_LINE = 4096
"""Bytes. A longer line is split into such pieces."""

_ERROR = re.compile(r"(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Interrupt))(?:: (.*))?")
_FOLLOWS = {"UnavailableError", "AbortedError", "CancelledError"}
"""Errors that speak of another task."""


@final
class TaskOutput:
    """Handles the output of one task. A log or a console that can no longer be written is dropped: the task
    is more important than its output.
    """

    def __init__(self, log: Path | None, consoles: Sequence[BinaryIO] = (), prefix: str = "") -> None:
        """``consoles`` are for streams 0 (output) and 1 (errors), or empty; ``prefix`` precedes each line
        there. ``log`` is a new file, which rotates. Raises OSError, and `InvalidArgumentError` for a wrong
        ``FLOWRT_LOG_BYTES``.
        """
        self.log = log
        self._consoles: dict[int, BinaryIO] = dict(enumerate(consoles))
        self._prefix = prefix.encode()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._partial = {0: b"", 1: b""}
        self._log_file = None if log is None else RotatingFile(log, log_bytes(), appends=False)

    def write(self, stream: int, data: bytes) -> None:
        """Write ``data`` unchanged to the log; the console gets whole lines."""
        self._write_log(data)
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        while len(rest) > MAX_LINE:
            lines, rest = [*lines, rest[:MAX_LINE]], rest[MAX_LINE:]
        self._partial[stream] = rest
        self._show(stream, lines)

    def close(self) -> None:
        """Show the rest without an end of line, and close the log."""
        for stream, rest in self._partial.items():
            self._show(stream, [rest] if rest else [])
        self._partial = {0: b"", 1: b""}
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    def tail(self) -> list[str]:
        """The last `TAIL_LINES` lines."""
        return [line[:MAX_LINE].decode("utf-8", "replace").rstrip() for line in self._tail]

    def _write_log(self, data: bytes) -> None:
        if self._log_file is None:
            return
        try:
            self._log_file.write(data)
        except OSError as error:  # a full disk
            self._log_file.close()
            self._log_file = None
            _logger.warning("%s is no longer written: %s", self.log, error)

    def _show(self, stream: int, lines: list[bytes]) -> None:
        self._tail.extend(lines)
        console = self._consoles.get(stream)
        if console is None or not lines:
            return
        try:
            console.write(b"".join(self._prefix + line + b"\n" for line in lines))
            console.flush()
        except OSError:  # its reader, `head` for instance, has had enough
            del self._consoles[stream]


def last_error(lines: Iterable[str]) -> str | None:
    """The last line that ends a Python traceback: ``InvalidArgumentError: MatMul (train.py:3): ...``"""
    found = [match for line in lines if (match := _ERROR.fullmatch(line))]
    return ": ".join(filter(None, found[-1].groups())) if found else None


def follows_another(error: str | None) -> bool:
    """Whether ``error``, from `last_error`, reports that another task failed."""
    return error is not None and error.partition(":")[0] in _FOLLOWS
