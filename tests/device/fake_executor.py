"""A device of addresses without memory, whose refusals and events the test decides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import DeadlineExceededError, ResourceExhaustedError


class FakeEvent(Event):
    status = EventStatus.UNKNOWN

    def poll(self) -> EventStatus:
        return self.status


class FakeExecutor(StreamExecutor):
    """Addresses without memory. ``refuses`` decides on each region by its number and size. Events are pending
    until `finish`; a stream in ``stuck`` does not finish by waiting for it.
    """

    platform = "fake"
    xp = np
    is_asynchronous = True

    def __init__(
        self, total: int = 1 << 40, refuses: Callable[[int, int], bool] = lambda i, n: False
    ) -> None:
        super().__init__("fake:0")
        self.total, self.refuses = total, refuses
        self.asked: list[int] = []
        self.regions: dict[int, int] = {}
        self.recorded: list[tuple[Stream, FakeEvent]] = []
        self.stuck: set[Stream] = set()
        self._top = 1 << 20

    def finish(self, stream: Stream) -> None:
        for other, event in self.recorded:
            if other is stream:
                event.status = EventStatus.COMPLETE

    def memory_info(self) -> tuple[int, int]:
        return self.total - sum(self.regions.values()), self.total

    def create_stream(self, name: str = "compute") -> Stream:
        return Stream(self, name)

    def create_event(self) -> FakeEvent:
        return FakeEvent()

    def _allocate(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        if self.refuses(len(self.asked), nbytes):
            raise ResourceExhaustedError("fake:0 has no more")
        address, self._top = self._top, self._top + nbytes
        self.regions[address] = nbytes
        return address

    def _deallocate(self, address: int, nbytes: int) -> None:
        assert self.regions.pop(address) == nbytes

    def _record(self, stream: Stream, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        event.status = EventStatus.PENDING
        self.recorded.append((stream, event))

    def _block_host_until_done(self, stream: Stream, timeout_s: float | None) -> None:
        if stream in self.stuck:
            raise DeadlineExceededError(f"{stream.name} is stuck")
        self.finish(stream)

    def memory_of(self, array: Any) -> DeviceMemory:
        raise NotImplementedError

    def activate(self, stream: Stream) -> Any:
        return nullcontext()

    def use(self, stream: Stream) -> None:
        raise NotImplementedError

    def _unused(self, *arguments: Any) -> Any:
        raise NotImplementedError

    _array = _memcpy_to_device = _memcpy_to_host = _memcpy = _memset = _launch = _unused
    _wait_for = _host_callback = when_done = _unused

    def _close(self) -> None:
        pass


class SynchronousExecutor(FakeExecutor):
    is_asynchronous = False
