"""Times of work on an asynchronous device, by its own clock.

    mark(stream) -> an event at the current end of the stream --settle--> the times of all marks --> records

Tracing does not serialize the device: an event is put on a stream, and read after the step. The device's
clock is aligned with the host's at one mark, which is waited for: the error is at most the time that the host
takes to notice it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, final

from flowrt.device.deadline import finish
from flowrt.device.device import Device
from flowrt.device.stream_executor import Event, Stream
from flowrt.executor.observe.step_stats import Record, StepRecorder
from flowrt.graph.node import Node


class _Timed(NamedTuple):
    """The work of ``stream`` for ``node`` between two marks."""

    stream: Stream
    node: Node
    first: Event
    last: Event
    pool_bytes: int


class Watch(Protocol):
    """Observer of a device's streams during one step. Marks are opaque."""

    def mark(self, stream: Stream | None) -> Any:
        """Here is the work on ``stream`` now; on the first where none was used."""

    def record(self, stream: Stream | None, node: Node, first: Any) -> None:
        """``stream`` has been given all that it is to do for ``node``, since the mark ``first``."""

    def settle(self) -> None:
        """The step's work was given to the streams."""


def watch_streams(device: Device, clock: Callable[[], int], recorder: StepRecorder) -> Watch:
    """The device's own times where it has them and ``recorder`` is thorough, else those of launches.
    ``clock`` is the host's, in nanoseconds.
    """
    if recorder.is_thorough and device.executor.create_timed_event() is not None:
        return StreamTimes(device, clock, recorder)
    return LaunchTimes(device, clock, recorder)


@final
class LaunchTimes:
    """Times that the host takes to submit each node's work to a stream."""

    def __init__(self, device: Device, clock: Callable[[], int], recorder: StepRecorder) -> None:
        self._clock = clock
        records = [
            recorder.on(device, number, f"stream {number}, launches") for number in range(len(device.streams))
        ]
        self._records: dict[Stream | None, Record] = dict(zip(device.streams, records, strict=True))
        self._records[None] = records[0]

    def mark(self, stream: Stream | None) -> int:
        return self._clock()

    def record(self, stream: Stream | None, node: Node, first: int) -> None:
        self._records[stream](node, first, self._clock())

    def settle(self) -> None:
        """All is recorded."""


@final
class StreamTimes:
    """Execution times on the device, by timed events after each node's work."""

    def __init__(self, device: Device, clock: Callable[[], int], recorder: StepRecorder) -> None:
        self._device = device
        self._records = {
            stream: recorder.on(device, number, f"stream {number}")
            for number, stream in enumerate(device.streams)
        }
        self._timed: list[_Timed] = []
        self._origin = self.mark(None)
        finish(device.streams[0])
        self._origin_ns = clock()

    def mark(self, stream: Stream | None) -> Event:
        executor = self._device.executor
        event = executor.create_timed_event()
        assert event is not None  # the device has them
        executor.record(stream or self._device.streams[0], event)
        return event

    def record(self, stream: Stream | None, node: Node, first: Event) -> None:
        stream = stream or self._device.streams[0]
        in_use = self._device.pool.stats().bytes_in_use
        self._timed.append(_Timed(stream, node, first, self.mark(stream), in_use))

    def settle(self) -> None:
        """Wait for the streams, and record. Work submitted for a node on another stream, before its own, is
        attributed to that stream: the slices of a stream do not overlap. The node's first mark may be on that
        other stream, and later than the last one on its own.
        """
        for stream in self._records:
            finish(stream)
        ends = dict.fromkeys(self._records, 0)
        for stream, node, first, last, in_use in self._timed:
            end = max(ends[stream], self._at(last))
            start = min(end, max(ends[stream], self._at(first)))
            self._records[stream](node, start, end, in_use)
            ends[stream] = end

    def _at(self, event: Event) -> int:
        return self._origin_ns + self._device.executor.elapsed_ns(self._origin, event)
