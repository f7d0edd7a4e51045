"""Log records as text or as JSON, and in files: ``FLOWRT_LOG_FORMAT`` and ``FLOWRT_LOG_DIR``.

    {"time": "2026-01-31T09:30:00.125Z", "level": "WARNING", "logger": "flowrt.distribute.launch.drain",
     "message": "...", "task": "worker:0", "pid": 4711}

With an exception, ``error`` is its traceback. A JSON record is one line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from flowrt.base.rotating_file import RotatingFile, log_bytes
from flowrt.errors import InvalidArgumentError

FORMAT, DIRECTORY = "FLOWRT_LOG_FORMAT", "FLOWRT_LOG_DIR"
TEXT, JSON = "text", "json"


def uses_json(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether records are JSON. Raises `InvalidArgumentError` for an unknown format."""
    chosen = environ.get(FORMAT) or TEXT
    if chosen not in (TEXT, JSON):
        raise InvalidArgumentError(f"{FORMAT}: expected {TEXT} or {JSON}; got {chosen!r}")
    return chosen == JSON


def formatter(text_format: str, task: str) -> logging.Formatter:
    """A formatter of the format in the environment: ``text_format`` is that of text, ``task`` a field of
    JSON.
    """
    return JsonFormatter(task) if uses_json() else logging.Formatter(text_format)


@final
class JsonFormatter(logging.Formatter):
    """A JSON object a record. ``task``: ``worker:0``, "" for a program that is no task."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.task = task

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self.task:
            fields["task"] = self.task
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps({**fields, "pid": record.process}, ensure_ascii=False)


@final
class LogFile(logging.Handler):
    """Writes records to the rotating file ``path``; once that fails, it says so and stops: the program is
    more important than its log. Raises OSError if the file cannot be opened, `InvalidArgumentError` for a
    wrong setting.
    """

    def __init__(self, path: Path, task: str) -> None:
        # First: a handler that is half made would be closed at exit all the same.
        self._file: RotatingFile | None = RotatingFile(path, log_bytes(), appends=True)
        super().__init__()
        self._path = path
        self.setFormatter(formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", task))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if self._file is None:
            return
        try:
            self._file.write(self.format(record).encode("utf-8", "replace") + b"\n")
        except OSError as error:
            self._file.close()
            self._file = None
            sys.stderr.write(f"flowrt: {self._path} is no longer written: {error}\n")
        except Exception:  # noqa: BLE001 (a wrong record, such as too few arguments)
            self.handleError(record)

    def close(self) -> None:
        """See `logging.Handler`."""
        self.acquire()
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
        finally:
            self.release()
        super().close()


def own_task() -> str:
    """The task that this process is by its environment: ``worker:0``, "" if it is none."""
    return os.environ.get("FLOWRT_TASK", "")


def log_name(task: str) -> str:
    """The name of a process's log: ``worker_0.log`` for task ``worker:0``, else by its number."""
    return f"{task.replace(':', '_') or os.getpid()}.log"


def add_log(logger: logging.Logger, path: Path, task: str) -> None:
    """Have ``logger`` also write to the rotating file ``path``, from level INFO on; the console shows what it
    showed before. Raises as `LogFile`.
    """
    file = LogFile(path, task)
    level = logger.level or logging.WARNING
    if not logger.handlers:
        console = logging.StreamHandler()
        console.setFormatter(formatter("%(message)s", task))
        logger.addHandler(console)
    for handler in logger.handlers:
        handler.setLevel(max(level, handler.level))
    logger.addHandler(file)
    logger.setLevel(min(level, logging.INFO))


def name_task(logger: logging.Logger, task: str) -> None:
    """Give the records of ``logger`` that are JSON the field ``task``."""
    for handler in logger.handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.formatter.task = task
