"""`RareLog`: warnings of what a stranger can repeat at will, such that they do not fill the log."""

from __future__ import annotations

import itertools
import logging
from typing import final


@final
class RareLog:
    """Logs the 1st, 2nd, 4th, 8th ... warning, with its number. Any thread may call it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts = itertools.count(1)

    def warn(self, text: str, *args: object) -> None:
        count = next(self._counts)
        if not count & (count - 1):
            self._logger.warning(f"{text} (number %d)", *args, count)
