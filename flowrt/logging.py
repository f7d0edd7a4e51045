"""``flowrt.logging``: TensorFlow 1's names over Python's logger ``flowrt``."""

from __future__ import annotations

import logging as _logging
import os as _os
import sys as _sys
from collections import Counter as _Counter
from pathlib import Path as _Path

from flowrt.base import log_records as _log_records
from flowrt.errors import InvalidArgumentError as _InvalidArgumentError
from flowrt.tf1.missing_names import missing_from

DEBUG, INFO, WARN, ERROR, FATAL = (
    _logging.DEBUG,
    _logging.INFO,
    _logging.WARNING,
    _logging.ERROR,
    _logging.CRITICAL,
)

_logger = _logging.getLogger("flowrt")
_counts = _Counter[tuple[str, int]]()

debug, info, warning, warn, error, fatal, log = (
    _logger.debug, _logger.info, _logger.warning, _logger.warning,
    _logger.error, _logger.critical, _logger.log,
)  # fmt: skip


def get_verbosity() -> int:
    return _logger.getEffectiveLevel()


def set_verbosity(v: int) -> None:
    """Show messages from level ``v`` on, on standard error unless the program has set up logging.

    Args:
        v: The level: `logging.DEBUG`, `INFO`, `WARN`, `ERROR` or `FATAL`.

    Example:
        >>> tf.logging.set_verbosity(tf.logging.ERROR)
    """
    _logger.setLevel(v)
    if not _logger.handlers and not _logging.getLogger().handlers:
        handler = _logging.StreamHandler()
        handler.setFormatter(
            _log_records.formatter("%(levelname)s:flowrt:%(message)s", _log_records.own_task())
        )
        _logger.addHandler(handler)


def log_if(level: int, msg: str, condition: bool, *args: object) -> None:
    if condition:
        _logger.log(level, msg, *args)


def log_first_n(level: int, msg: str, n: int, *args: object) -> None:
    """Log the first ``n`` calls from the calling line."""
    log_if(level, msg, _calls() <= n, *args)


def log_every_n(level: int, msg: str, n: int, *args: object) -> None:
    """Log the first of every ``n`` calls from the calling line."""
    log_if(level, msg, (_calls() - 1) % n == 0, *args)


def vlog(level: int, msg: str, *args: object) -> None:
    """Log at level DEBUG for a positive ``level``."""
    _logger.log(DEBUG if level > 0 else INFO, msg, *args)


def _calls() -> int:
    """The number of calls so far from the line that called our caller."""
    frame = _sys._getframe(2)
    place = (frame.f_code.co_filename, frame.f_lineno)
    _counts[place] += 1
    return _counts[place]


def flush() -> None:
    for handler in _logger.handlers:
        handler.flush()


def _set_from_environment() -> None:
    """``FLOWRT_LOG=info`` and its like, without a line in the script. Raises `InvalidArgumentError`."""
    levels = {"debug": DEBUG, "info": INFO, "warn": WARN, "warning": WARN, "error": ERROR, "fatal": FATAL}
    asked, directory = _os.environ.get("FLOWRT_LOG", ""), _os.environ.get(_log_records.DIRECTORY)
    if asked and asked.lower() not in levels:
        raise _InvalidArgumentError(f"FLOWRT_LOG: expected one of {', '.join(levels)}; got {asked!r}")
    if asked or directory or _log_records.uses_json():
        set_verbosity(levels[asked.lower() or "warn"])
    if directory:
        task = _log_records.own_task()
        try:
            _log_records.add_log(_logger, _Path(directory) / _log_records.log_name(task), task)
        except OSError as error:
            raise _InvalidArgumentError(
                f"{_log_records.DIRECTORY}: expected a directory for logs; got {directory!r}"
                f" ({error.strerror})"
            ) from None


_set_from_environment()


__getattr__ = missing_from("logging")
