"""An implementation of `StreamExecutor` under test, and what its contract does with any of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

from flowrt.device.stream_executor import DeviceMemory, Stream, StreamExecutor
from flowrt.errors import OpError, ResourceExhaustedError

SOON_S = 60.0  # what should happen at once has happened after this, also on a loaded machine
NOT_YET_S = 0.05  # what a wrong order would do at once is done after this


class Recorder(Protocol):
    """Work that leaves a trace."""

    def put(self, stream: Stream, label: int) -> None: ...
    def spans(self) -> dict[int, tuple[float, float]]:
        """Start and end of all work that was done, in any unit of time."""


class CallbackRecorder:
    """Work that is a host callback, and time that counts its beginnings and ends."""

    def __init__(self, executor: StreamExecutor) -> None:
        self._executor, self._ticks = executor, itertools.count()
        self._spans: dict[int, tuple[float, float]] = {}

    def put(self, stream: Stream, label: int) -> None:
        def work() -> None:
            start = next(self._ticks)
            time.sleep(0)  # lets other threads in
            self._spans[label] = (start, next(self._ticks))

        self._executor.host_callback(stream, work)

    def spans(self) -> dict[int, tuple[float, float]]:
        return self._spans


class Held:
    """Work that ends when it is released."""

    def __init__(self, executor: StreamExecutor, stream: Stream) -> None:
        self._gate = threading.Event()
        executor.host_callback(stream, self._wait)

    def _wait(self) -> None:
        assert self._gate.wait(SOON_S), "the test did not release its work"

    def release(self) -> None:
        self._gate.set()


class Case(NamedTuple):
    """An implementation, and how a test gets at it."""

    make: Callable[[], StreamExecutor]
    create_stream: Callable[[Any, str], Stream] = lambda executor, name: executor.create_stream(name)
    recorder: Callable[[Any], Recorder] = CallbackRecorder
    hold: Callable[[Any, Stream], Any] = Held


def fill(executor: StreamExecutor, stream: Stream, memory: DeviceMemory, value: int) -> None:
    executor.memcpy_to_device(stream, memory, np.full(memory.nbytes, value, np.uint8))


def read(executor: StreamExecutor, stream: Stream, memory: DeviceMemory) -> list[int]:
    target = np.empty(memory.nbytes, np.uint8)
    executor.memcpy_to_host(stream, target, memory)
    executor.block_host_until_done(stream, SOON_S)
    return target.tolist()


def boom() -> None:
    raise ResourceExhaustedError("boom")


def bang() -> None:
    raise ZeroDivisionError("bang")


def fail(executor: StreamExecutor, stream: Stream, function: Callable[[], None] = boom) -> OpError:
    """Have the stream fail; its error."""
    executor.host_callback(stream, function)
    with pytest.raises(OpError) as caught:
        executor.block_host_until_done(stream, SOON_S)
    return caught.value
