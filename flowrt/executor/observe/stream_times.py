"""Times of a program's work: on an asynchronous device by its own clock, else by the host's.

    mark(stream) -> an event at the current end of the stream --settle--> the times of all marks --> records

Tracing does not serialize the device: an event is put on a stream, and read after the step. The device's
clock is aligned with the host's at one mark, which is waited for: the error is at most the time that the host
takes to notice it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Observer of a program during one step. Marks are opaque."""

    waited: Record
    """Records the wait of a receive."""

    def mark(self, stream: Stream | None) -> Any:
        """Here is the work on ``stream`` now; on the first where none was used."""

    def record(self, stream: Stream | None, node: Node, first: Any) -> None:
        """``stream`` has been given all that it is to do for ``node``, since the mark ``first``."""

    def settle(self) -> None:
        """The step's work was given to the streams."""


def watch_program(device: Device, number: int, clock: Callable[[], int], recorder: StepRecorder) -> Watch:
    """The times of instructions of the host stream ``number``, or of an asynchronous device: its own where it
    has them and ``recorder`` is thorough, else those of launches. ``clock`` is the host's, in nanoseconds.
    """
    if not device.is_asynchronous:
        record = recorder.on(device, number, f"stream {number}")
        return HostTimes(clock, {}, record, record)
    waited = recorder.on(device, len(device.streams), "host")
    if recorder.is_thorough and device.executor.create_timed_event() is not None:
        return StreamTimes(device, clock, recorder, waited)
    records = {
        stream: recorder.on(device, number, f"stream {number}, launches")
        for number, stream in enumerate(device.streams)
    }
    return HostTimes(clock, records, records[device.streams[0]], waited)


@final
class HostTimes:
    """Times that the host takes to compute each node, or to submit its work to a stream: ``records`` of the
    streams, by default the ``first``.
    """

    def __init__(
        self, clock: Callable[[], int], records: Mapping[Stream, Record], first: Record, waited: Record
    ) -> None:
        self._clock, self._records, self._first, self.waited = clock, records, first, waited

    def mark(self, stream: Stream | None) -> int:
        return self._clock()

    def record(self, stream: Stream | None, node: Node, first: int) -> None:
        record = self._first if stream is None else self._records.get(stream, self._first)
        record(node, first, self._clock())

    def settle(self) -> None:
        """All is recorded."""


@final
class StreamTimes:
    """Execution times on the device, by timed events after each node's work."""

    def __init__(
        self, device: Device, clock: Callable[[], int], recorder: StepRecorder, waited: Record
    ) -> None:
        self._device, self.waited = device, waited
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
