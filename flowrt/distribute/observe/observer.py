"""`Observer`: a task's diagnostics of its steps: counts, its last events, written when a step fails, and
reports of steps that wait too long.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import final

from flowrt.distribute.observe.flight_recorder import FlightRecorder, What, write_record
from flowrt.distribute.observe.metrics import Counts
from flowrt.distribute.observe.missing_sender import describe
from flowrt.distribute.observe.stalls import Stall, StallWatch, report_stall
from flowrt.distribute.wire.messages import Message
from flowrt.errors import OpError
from flowrt.rendezvous.remote import RemoteRendezvous

LOGGER = logging.getLogger(__name__)


@final
class Observer:
    """Observer of the steps of ``task`` with ``incarnation``; records are written to ``log_dir``, if given.
    Thread-safe, except `look`, which one thread calls periodically.
    """

    def __init__(self, task: str, incarnation: int, log_dir: str | os.PathLike[str] | None = None) -> None:
        self._task, self._incarnation = task, incarnation
        self._log_dir = None if log_dir is None else Path(log_dir)
        self.counts = Counts()
        self._recorder = FlightRecorder()
        self.note = self._recorder.record
        """``note(what, step, key, peer)``: record an event now."""
        self._watch = StallWatch()

    def aborted(self, step: int, error: OpError) -> None:
        """A step was ended by ``error``: a reason to write the record."""
        self.note(What.ABORTED, step, error.message)
        if self._log_dir is None:
            return
        try:
            write_record(self._log_dir, self._recorder.read(self._task, self._incarnation))
        except OSError as failure:
            LOGGER.warning("%s: the last events could not be written: %s", self._task, failure)

    def look(self, now: float, steps: Iterable[tuple[int, RemoteRendezvous]]) -> list[Stall]:
        """Check the running ``steps`` at ``now`` of the monotonic clock. Logs and returns those that have
        waited for the same tensors of other tasks for `flowrt.distribute.observe.stalls.STALL_S` seconds.
        """
        stalls = self._watch.observe(now, {step: rendezvous.awaited() for step, rendezvous in steps})
        for stall in stalls:
            LOGGER.warning("%s", report_stall(stall, self._task, self._last_heard))
        return stalls

    def heard_progress(self, step: int, task: str, message: Message | None, error: OpError | None) -> None:
        """Log the report of ``task``, for which a step waits, or the reason why there is none."""
        does = f"does not report its state: {error}" if message is None else message.body.text
        LOGGER.warning("step %x: %s %s", step, task, does)

    def _last_heard(self, task: str) -> str | None:
        event = self._recorder.last_of(task)
        return None if event is None else f"{describe(event)}, {time.monotonic() - event.time:.0f} s ago"
