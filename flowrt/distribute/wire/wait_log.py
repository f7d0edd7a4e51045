"""`WaitLog`: says from time to time that a wait goes on, and for what."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import final

REPORT_S = 5.0
"""Interval between reports of one wait."""


@final
class WaitLog:
    """Reports of one wait, which begins now by ``clock``, in seconds."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._next = clock() + REPORT_S

    def waits_for(self, what: object) -> None:
        """Call it often: it logs ``what`` once in `REPORT_S` seconds, the first time after as long."""
        now = self._clock()
        if now >= self._next:
            self._next = now + REPORT_S
            self._logger.warning("still waiting: %s", what)
