"""``flowrt.logging``: TensorFlow 1's names over Python's logger ``flowrt``."""

from __future__ import annotations

import logging as _logging

DEBUG, INFO, WARN, ERROR, FATAL = (
    _logging.DEBUG,
    _logging.INFO,
    _logging.WARNING,
    _logging.ERROR,
    _logging.CRITICAL,
)

_logger = _logging.getLogger("flowrt")

debug, info, warning, warn, error, fatal, log = (
    _logger.debug, _logger.info, _logger.warning, _logger.warning, _logger.error, _logger.critical, _logger.log,
)  # fmt: skip


def get_verbosity() -> int:
    return _logger.getEffectiveLevel()


def set_verbosity(v: int) -> None:
    """Show messages from level ``v`` on, on standard error unless the program has set up logging."""
    _logger.setLevel(v)
    if not _logger.handlers and not _logging.getLogger().handlers:
        handler = _logging.StreamHandler()
        handler.setFormatter(_logging.Formatter("%(levelname)s:flowrt:%(message)s"))
        _logger.addHandler(handler)


def flush() -> None:
    for handler in _logger.handlers:
        handler.flush()
