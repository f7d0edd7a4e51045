"""Durations of the phases of a compile, as one line of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from flowrt.graph.passes.pipeline import Observer

LOGGER = logging.getLogger(__name__)

SHOWN_S = 0.005
"""A phase shorter than this is left out of the line."""


@final
class CompileTimes(Observer):
    """Seconds a phase, of one plan, from its making to `log`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        begin: Callable[[str], object] = lambda name: None,
    ) -> None:
        """``begin`` is called at the start of each phase."""
        self._clock, self._start, self._begin = clock, clock(), begin
        self.seconds: dict[str, float] = {}
        self._inner = 0.0
        """Seconds of the phases that ended inside the current one."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the context as ``name``, without that of nested phases."""
        self._begin(name)
        outer, self._inner = self._inner, 0.0
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds - self._inner
            self._inner = outer + seconds

    def log(self, partitions: int) -> None:
        """``compiled 3 partitions in 0.41 s (place 0.05, fuse 0.11)``, at level INFO."""
        if not LOGGER.isEnabledFor(logging.INFO):
            return
        shown = ", ".join(f"{name} {s:.2f}" for name, s in self.seconds.items() if s >= SHOWN_S)
        noun = "partition" if partitions == 1 else "partitions"
        total = self._clock() - self._start
        LOGGER.info("compiled %d %s in %.2f s%s", partitions, noun, total, shown and f" ({shown})")
