"""Until when this thread may wait for a device: the deadline of its step.

Most of what a device does is not waited for. Where the host does wait (for what is fetched, for room in a
full queue of copies), a device that does not get on would hold the step for ever: so these waits go through
`finish`. Kernels and programs ask the step itself (`flowrt.graph.resources.step_context`), which devices do
not know.
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
    """Wait until ``stream`` has done all that is on it. Raises its error, and `DeadlineExceededError` at this
    thread's deadline; the work goes on then.

    A device that only pretends is never late: its seconds are others than the deadline's.
    """
    end_s = _thread.end_s if stream.executor.computes else None
    left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
    stream.executor.block_host_until_done(stream, left_s)
