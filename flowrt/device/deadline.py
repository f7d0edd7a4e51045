"""Deadline for a thread's waits for a device: that of its step.

Most work of a device is not waited for. If the host does wait (for fetched values, for space in a full queue
of copies), a stalled device would block the step forever: so these waits use `finish`. Kernels and programs
use the step itself (`flowrt.graph.resources.step_context`), which devices do not depend on.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import final

from flowrt.device.stream_executor import Stream


class _Thread(threading.local):
    end_s: float | None = None


_thread = _Thread()


@final
class deadline:
    """A context in which `finish` waits ``seconds`` from now at most, None: for ever; one for each time."""

    __slots__ = ("_end_s", "_outer")

    def __init__(self, seconds: float | None) -> None:
        self._end_s = None if seconds is None else time.monotonic() + seconds

    def __enter__(self) -> None:
        self._outer, _thread.end_s = _thread.end_s, self._end_s

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.end_s = self._outer


def finish(stream: Stream) -> None:
    """Wait until ``stream`` has finished its work. Raises its error, and `DeadlineExceededError` at this
    thread's deadline; the work then continues.

    A simulated device is never late: it has a virtual clock.
    """
    end_s = _thread.end_s if stream.executor.computes else None
    left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
    stream.executor.block_host_until_done(stream, left_s)
