"""The host device: NumPy as the array module, and streams that are queues, inline or on threads.

Rules of this file:

  1. An inline stream completes its work before the call returns. A threaded one has a worker, a daemon thread
     that starts with the first work and ends with `close` or with the stream: between work items it holds the
     queue, not the stream.
  2. A wait for an event is for the event's current `_Mark`: recording the event again does not affect earlier
     waits. A mark waits only for work issued before it, so waits cannot form a cycle.
  3. After a fork, the child has no workers. Its threaded streams start their own; those with pending work
     have failed, since the work stayed with the parent.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, cast, final
from weakref import ref

import numpy as np

from flowrt.device.event_manager import call_and_log
from flowrt.device.host_memory import Array, HostMemory, bytes_of, memory_of
from flowrt.device.interruptible import acquire
from flowrt.device.llvm.host_jit import is_available
from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
)

CGROUPS = Path("/sys/fs/cgroup")


# --- events


@final
class _Mark:
    """One place in one stream's work: pending until the stream settles it, once."""

    __slots__ = ("_waiting", "error", "status")

    def __init__(self) -> None:
        self.status = EventStatus.PENDING
        self.error: OpError | None = None
        self._waiting: list[Callable[[], object]] = []
        """Wake-up functions of waiters; never raise. 0.2 us without waiters; `threading.Event` takes 1.6."""

    def settle(self, error: OpError | None) -> None:
        """The stream is here, or failed before with ``error``."""
        self.error = error
        self.status = EventStatus.COMPLETE if error is None else EventStatus.ERROR
        while self._waiting:
            self._waiting.pop()()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the mark is settled; False if ``timeout_s`` seconds were not enough."""
        if self.status is EventStatus.PENDING:
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(
                turn.release
            )  # before looking again: `settle` changes the status, then wakes
            if self.status is EventStatus.PENDING:
                acquire(turn, timeout_s)
        return self.status is not EventStatus.PENDING

    def when_settled(self, function: Callable[[], object]) -> None:
        """Call ``function()``, which raises nothing, once: now or by the thread that settles the mark."""
        self._waiting.append(function)
        if self.status is not EventStatus.PENDING:
            try:
                self._waiting.remove(function)
            except ValueError:  # `settle` was first
                return
            function()


@final
class HostEvent(Event):
    """An event of the host's streams, of any executor of theirs."""

    def __init__(self) -> None:
        self.mark: _Mark | None = None

    def poll(self) -> EventStatus:
        return EventStatus.UNKNOWN if self.mark is None else self.mark.status


# --- streams

Work: TypeAlias = Callable[[], Any] | _Mark


class HostStream(Stream):
    """A stream of the host, inline or threaded."""

    @abstractmethod
    def put(self, work: Work) -> None:
        """Have ``work`` done, or settled, after all earlier work."""

    @abstractmethod
    def finish(self, timeout_s: float | None) -> None:
        """Block until all work is done or dropped. Raises `DeadlineExceededError`."""

    def _do(self, work: Work) -> None:
        """``work`` in its turn: left out if the stream has failed, but for marks."""
        if isinstance(work, _Mark):
            work.settle(self.error)
        elif self.error is None:
            work()


@final
class InlineStream(HostStream):
    """Does its work in the calling thread, before the call returns."""

    def put(self, work: Work) -> None:
        try:
            with np.errstate(all="ignore"):
                self._do(work)
        except Exception as error:  # noqa: BLE001 (raised at the stream's next use)
            self.fail(error)
        except BaseException as error:  # Ctrl-C is for the caller too
            self.fail(error)
            raise

    def finish(self, timeout_s: float | None) -> None:
        """Nothing is ever left to do."""


@final
class ThreadedStream(HostStream):
    """Runs its work on a separate thread, in order."""

    # Python 3.11, 2 cores: a launch takes the caller 1 us, or 4 when the thread sleeps; the function runs 10
    # us after the call, or 40 when both cores are busy. The first launch takes 100 us, to start the thread.

    def __init__(self, executor: StreamExecutor, name: str) -> None:
        super().__init__(executor, name)
        self._is_ended = False
        self._begin()
        _threaded_streams.add(ref(self, _threaded_streams.discard))

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[ThreadedStream, Work] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._n_issued = self._n_done = 0
        """Numbers of work items, without marks: when an awaited mark is reached, earlier items count."""

    def put(self, work: Work) -> None:
        with self._lock:
            if self._is_ended:
                raise FailedPreconditionError(f"{self.name}: expected an open stream; its device was closed")
            if self._worker is None:
                self._worker = self._start_worker()
            self._n_issued += not isinstance(work, _Mark)
            self._queue.put((self, work))

    def _start_worker(self) -> threading.Thread:
        worker = threading.Thread(None, _work, self.name, (self._queue,), daemon=True)
        try:
            worker.start()
        except RuntimeError as error:
            raise ResourceExhaustedError(
                f"{self.name}: expected a thread for the stream; the system refused: {error}"
            ) from error
        return worker

    def do_next(self, work: Work) -> None:
        """Run ``work``, the next item of the queue; on the worker only."""
        try:
            self._do(work)
        except BaseException as error:  # noqa: BLE001 (raised at the stream's next use)
            self.fail(error)
        self._n_done += not isinstance(work, _Mark)

    def finish(self, timeout_s: float | None) -> None:
        if threading.current_thread() is self._worker:
            raise FailedPreconditionError(
                f"{self.name}: expected another thread to wait for the stream; it cannot wait for itself"
            )
        mark = _Mark()
        self.put(mark)
        if not mark.wait(timeout_s):
            raise DeadlineExceededError(
                f"{self.name}: expected the stream's work done within {timeout_s} s; "
                f"{self._n_issued - self._n_done} pieces are left"
            )

    def end(self) -> None:
        """Do all work, then end the worker. Later work raises `FailedPreconditionError`."""
        with self._lock:
            self._is_ended = True
            self._queue.put(None)
            worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def begin_in_child(self) -> None:
        """Restart in a fork's child, on its only thread, without the parent's work."""
        queue, is_idle = self._queue, self._n_issued == self._n_done
        self._begin()
        if not is_idle:
            self.fail(
                FailedPreconditionError(
                    f"{self.name}: expected an idle stream at fork(); its work stayed in the parent. Wait "
                    "for the stream before the fork, or create a new one in the child"
                )
            )
        for work in _drain(queue):
            if isinstance(work, _Mark):
                work.settle(self.error)

    def __del__(self) -> None:
        self._queue.put(None)


def _work(queue: SimpleQueue[tuple[ThreadedStream, Work] | None]) -> None:
    """A worker's life."""
    with np.errstate(all="ignore"):
        while _work_once(queue):
            pass


def _work_once(queue: SimpleQueue[tuple[ThreadedStream, Work] | None]) -> bool:
    """Run one item, in a separate function so that its end releases the stream."""
    item = queue.get()
    if item is None:
        return False
    stream, work = item
    stream.do_next(work)
    return True


def _drain(queue: SimpleQueue[tuple[ThreadedStream, Work] | None]) -> Iterator[Work]:
    with suppress(Empty):
        while item := queue.get_nowait():
            yield item[1]


_threaded_streams: set[ref[ThreadedStream]] = set()
"""All there are. A set of references changes and is listed in one step each; a `WeakSet` is not."""


def _living_streams() -> list[ThreadedStream]:
    return [stream for reference in list(_threaded_streams) if (stream := reference()) is not None]


def _begin_in_child() -> None:
    for stream in _living_streams():
        stream.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


# --- the executor


@final
class HostExecutor(StreamExecutor):
    """NumPy. Several share the machine's cores and memory; an event of one may be waited for by another."""

    platform = "host"
    xp: Any = np
    is_asynchronous = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._memory = HostMemory(name)

    def memory_info(self) -> tuple[int, int]:
        """Memory of the machine, or of this process's control group (version 2) if that is less. The group's
        page cache counts as used, so more may be available.
        """
        free, total = _machine_memory()
        limit, used = _group_memory()
        return (free, total) if limit is None else (min(free, max(0, limit - used)), min(total, limit))

    def memory_of(self, array: Any) -> DeviceMemory:
        return memory_of(self, array)

    def create_stream(self, name: str = "compute", threaded: bool = False) -> HostStream:
        """An inline stream, or one with a separate thread, which starts with its first work."""
        self._check_open()
        return ThreadedStream(self, name) if threaded else InlineStream(self, name)

    def create_event(self) -> HostEvent:
        return HostEvent()

    def activate(self, stream: Stream) -> AbstractContextManager[Any]:
        """Infinities and NaNs are results, as on every device: NumPy does not warn of them inside."""
        return np.errstate(all="ignore")

    def use(self, stream: Stream) -> None:
        """Nothing: a NumPy call is done by the thread that makes it."""

    def compiles_loops(self) -> bool:
        return is_available()

    def _allocate(self, nbytes: int) -> int:
        return self._memory.map(nbytes)

    def _deallocate(self, address: int, nbytes: int) -> None:
        self._memory.unmap(address)

    def _array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int) -> Array:
        return self._memory.array(memory, shape, dtype, offset)

    def _bytes(self, memory: DeviceMemory) -> Array:
        return self._memory.array(memory, (memory.nbytes,), np.uint8, 0)

    def _bytes_to_write(self, memory: DeviceMemory) -> Array:
        target = self._bytes(memory)
        if not target.flags.writeable:
            raise InvalidArgumentError(
                f"{self.name}: expected memory that can be written; {memory!r} is a read-only array's"
            )
        return target

    def _memcpy_to_device(self, stream: Stream, target: DeviceMemory, source: Array) -> None:
        _issue(stream, partial(np.copyto, self._bytes_to_write(target), bytes_of(source)))

    def _memcpy_to_host(self, stream: Stream, target: Array, source: DeviceMemory) -> None:
        _issue(stream, partial(np.copyto, bytes_of(target), self._bytes(source)))

    def _memcpy(self, stream: Stream, target: DeviceMemory, source: DeviceMemory) -> None:
        _issue(stream, partial(np.copyto, self._bytes_to_write(target), self._bytes(source)))

    def _memset(self, stream: Stream, memory: DeviceMemory, value: int) -> None:
        _issue(stream, partial(self._bytes_to_write(memory).fill, value))

    def _launch(self, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        _issue(stream, partial(function, *arguments))

    def _record(self, stream: Stream, event: Event) -> None:
        mark = _Mark()
        self._own(event).mark = mark
        _issue(stream, mark)

    def _wait_for(self, stream: Stream, event: Event) -> None:
        mark = self._own(event).mark
        assert mark is not None  # it was recorded
        _issue(stream, partial(_pass, stream, mark))

    def _host_callback(self, stream: Stream, function: Callable[[], Any]) -> None:
        _issue(stream, function)

    def when_done(self, event: Event, function: Callable[[], Any]) -> None:
        mark = self._own(event).mark
        assert mark is not None  # it was recorded
        mark.when_settled(partial(call_and_log, function))

    def _block_host_until_done(self, stream: Stream, timeout_s: float | None) -> None:
        cast(HostStream, stream).finish(timeout_s)

    def _close(self) -> None:
        for stream in _living_streams():
            if stream.executor is self:
                stream.end()

    def _own(self, event: Event) -> HostEvent:
        if not isinstance(event, HostEvent):
            raise InvalidArgumentError(
                f"{self.name}: expected an event of the host; got a {type(event).__name__}"
            )
        return event


def _issue(stream: Stream, work: Work) -> None:
    cast(HostStream, stream).put(work)  # the caller has checked that it is of this executor


def _pass(stream: Stream, mark: _Mark) -> None:
    """Wait on ``stream`` for ``mark``, and propagate its error."""
    mark.wait()
    if mark.error is not None:
        stream.fail(mark.error)


def _machine_memory() -> tuple[int, int]:
    """Bytes that are available without swapping, and bytes that there are."""
    try:
        rows = (line.split() for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        kib = {row[0]: int(row[1]) for row in rows}
        return kib["MemAvailable:"] * 1024, kib["MemTotal:"] * 1024
    except (OSError, KeyError):  # not Linux
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total


def _group_memory() -> tuple[int | None, int]:
    """The control group's limit in bytes (None for none), and its current use."""
    try:
        groups = Path("/proc/self/cgroup").read_text("ascii").splitlines()
        path = next(line.removeprefix("0::/") for line in groups if line.startswith("0::/"))
        limit = (CGROUPS / path / "memory.max").read_text("ascii").strip()
        used = int((CGROUPS / path / "memory.current").read_text("ascii"))
    except (OSError, StopIteration):
        return None, 0
    return (None if limit == "max" else int(limit)), used
