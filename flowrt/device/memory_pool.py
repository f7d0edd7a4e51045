"""`MemoryPool`: a device's memory, divided by a `BFCAllocator`, with owners, a limit and a report.

Allocated memory is held by its `DeviceMemory`, and by arrays over it. When the last holder releases it, its
lease adds it to a queue, which the next call on the pool processes: a lease may be destroyed anywhere, even
inside a call on the pool, so it takes no lock.

On an asynchronous device, memory is freed before the stream has finished its work on it. That stream may
reuse it at once. When another one requests memory, an event is recorded on the first, and memory freed before
is available to all once the event is complete. A pool used by only one stream records no events.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from time import monotonic
from typing import NamedTuple, Protocol, final

from flowrt.device.bfc import AllocatorStats, BFCAllocator, BinStats, Region, round_up
from flowrt.device.event_manager import wait_until_idle
from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OpError, ResourceExhaustedError

STREAM_DEADLINE_S = 10.0
"""Time that a request that does not fit waits for submitted work."""

REPORTED_TENSORS = 10


class LiveTensor(NamedTuple):
    """A tensor inside a piece of memory, and the user's source line that made it, if known."""

    name: str
    nbytes: int
    source: str | None = None


class Owner(NamedTuple):
    """Owner of memory: the name and source line of an operation. Without a line it is some other owner, and
    the requesting code knows the operation to name in an error. If it covers many tensors, ``tensors`` lists
    them; it is called for reports only, in any thread, without the pool's lock.
    """

    name: str
    source: str | None = None
    tensors: Callable[[], Iterable[LiveTensor]] | None = None


class Cache(Protocol):
    """Holder of memory that can be released on demand."""

    def let_go(self) -> None:
        """Give it back. Called in any thread, without the pool's lock."""


class Observer(Protocol):
    """Observer called, under the pool's lock, for each allocation and deallocation."""

    def allocated(self, address: int, nbytes: int) -> None:
        """``nbytes`` bytes were allocated at ``address``."""

    def deallocated(self, address: int) -> None:
        """The memory at ``address`` was freed."""


class _Lease:
    """Memory in use. It is freed when this is destroyed, or earlier, explicitly."""

    __slots__ = ("__weakref__", "address", "is_held", "nbytes", "owner", "pool", "stream")

    def __init__(
        self, pool: MemoryPool, address: int, nbytes: int, owner: Owner, stream: Stream | None
    ) -> None:
        self.pool, self.address, self.nbytes = pool, address, nbytes
        self.owner, self.stream = owner, stream
        self.is_held = True

    def __del__(self) -> None:
        if self.is_held:
            self.pool._take_back(self.address, self.stream)


class _Frontier:
    """Progress of one stream. Memory freed now gets ``stamp``; ``events`` follow earlier stamps."""

    __slots__ = ("events", "has_freed", "stamp")

    def __init__(self) -> None:
        self.stamp = 0
        self.has_freed = False
        """Whether memory was freed with ``stamp``."""
        self.events: deque[tuple[int, Event]] = deque()


@final
class MemoryPool:
    """Pool of at most ``limit_bytes`` of the executor's memory; None for all of it.

    Thread-safe. Blocks start at multiples of 256 bytes. Regions are allocated from the executor as needed,
    see `BFCAllocator.growth`.
    """

    def __init__(self, executor: StreamExecutor, limit_bytes: int | None = None) -> None:
        total = executor.memory_info()[1]
        self.executor = executor
        self._bfc = BFCAllocator(total if limit_bytes is None else min(limit_bytes, total))
        self._lock = threading.Lock()
        self._regions: dict[int, DeviceMemory] = {}
        self._leases: dict[int, weakref.ref[_Lease]] = {}
        """Leases by address. Weak, because an owner's `tensors` may hold the plan that holds the memory."""
        self._frontiers: dict[Stream, _Frontier] = {}
        """Progress of the streams that others have to wait for."""
        self._caches = weakref.WeakSet[Cache]()
        self.observer: Observer | None = None
        """Observer; set only while no memory of the pool is in use."""
        self._is_closed = False
        # The next two are all that the destruction of a lease touches. A SimpleQueue's put() is safe there,
        # where a condition variable's notify() may deadlock.
        self._returned: deque[tuple[int, Stream | None]] = deque()
        self._waiters: tuple[queue.SimpleQueue[None], ...] = ()

    # --- memory

    def allocate(
        self, nbytes: int, owner: Owner, stream: Stream | None = None, retry_s: float = 0.0
    ) -> DeviceMemory:
        """``nbytes`` bytes of uninitialised memory, which may be 0, for work on ``stream``.

        Other streams must order their work on it relative to ``stream`` by events. Without a stream, or on a
        synchronous device, the holder frees it when all work on it is done.

        If it does not fit, the pool grows, waits for the work of its streams, empties its caches, then waits
        up to ``retry_s`` seconds for other threads to free memory. Raises `ResourceExhaustedError` with a
        report after that, leaving other memory unchanged; `InvalidArgumentError` for a size that is negative
        or not an integer, or a stream of another device; `FailedPreconditionError` for a closed pool.
        """
        if stream is not None and stream.executor is not self.executor:
            raise InvalidArgumentError(
                f"{self.executor.name}: allocate: expected a stream of this device; got {stream.name} of "
                f"{stream.executor.name}"
            )
        lease = self._lease(nbytes, owner, stream)
        if lease is None and retry_s > 0:
            lease = self._wait_for_lease(nbytes, owner, stream, retry_s)
        if lease is None:
            op = None if owner.source is None else owner.name
            raise ResourceExhaustedError(self._refusal(nbytes, owner), op=op, source=owner.source)
        return DeviceMemory(self.executor, lease.address, nbytes, keep=lease)

    def deallocate(self, memory: DeviceMemory) -> None:
        """Free allocated memory now. Raises `InvalidArgumentError` for anything else, and the second time."""
        lease = memory.keep
        if not isinstance(lease, _Lease) or lease.pool is not self:
            raise InvalidArgumentError(
                f"{self.executor.name}: deallocate: expected memory allocated by this pool; got {memory!r}"
            )
        with self._lock:
            if not lease.is_held:
                raise InvalidArgumentError(
                    f"{self.executor.name}: deallocate: expected memory in use; {memory!r} was deallocated"
                )
            lease.is_held = memory.is_live = False
        self._take_back(lease.address, lease.stream)

    def add_cache(self, cache: Cache) -> None:
        """Register ``cache``, to be emptied before a request fails. It is held weakly."""
        with self._lock:
            self._caches.add(cache)

    def close(self) -> None:
        """Free all unused memory now, and the rest when its holders release it. `allocate` then raises."""
        self._finish_streams()
        with self._lock:
            self._is_closed = True
            self._drain()
            self._give_back(self._bfc.free_regions())
        self._end()

    # --- statistics

    def stats(self) -> AllocatorStats:
        """Counts and bytes of now; peaks since `clear_stats`."""
        with self._lock:
            self._drain()
            return self._bfc.stats()

    def clear_stats(self) -> None:
        """Reset counts to 0, and peaks to the current values."""
        with self._lock:
            self._drain()
            self._bfc.clear_stats()

    def check(self) -> None:
        """Raises `InternalError` when an invariant of the allocator is broken."""
        with self._lock:
            self._drain()
            self._bfc.check()

    def report(self) -> str:
        """A multi-line report: the counts, the largest live tensors, the chunks by size, and a picture. Empty
        sections are omitted.
        """
        with self._lock:
            self._drain()
            stats, bins, picture = self._bfc.stats(), self._bfc.bins(), self._bfc.picture()
            leases = [lease for ref in self._leases.values() if (lease := ref()) is not None]
        lines = [
            f"{self.executor.name}: {_size(stats.bytes_in_use)} in use (at most "
            f"{_size(stats.peak_bytes_in_use)}), {_size(stats.bytes_reserved)} reserved, limit "
            f"{_size(stats.bytes_limit)}, largest free piece {_size(stats.largest_free_block_bytes)}, "
            f"fragmentation {stats.fragmentation:.0%}",
            *_tensor_table(_largest_first(map(_tensors_of, leases)), "live tensors"),
        ]
        if stats.bytes_reserved:
            lines += [*_bin_table(bins), "Memory by address (# in use, ~ waiting for a stream, . free):"]
            lines.append(f"[{picture}]")
        return "\n".join(lines)

    # --- one request

    def _lease(self, nbytes: int, owner: Owner, stream: Stream | None) -> _Lease | None:
        """Memory that is there, or can be had without waiting for others than the streams."""
        key = stream if self.executor.is_asynchronous else None
        with self._lock:
            lease = self._try(nbytes, owner, key)
        for make_room in (self._finish_streams, self._empty_caches):
            if lease is None and make_room():
                with self._lock:
                    lease = self._try(nbytes, owner, key)
        return lease

    def _empty_caches(self) -> bool:
        """Empty the caches, for all streams; returns whether there are any."""
        with self._lock:
            caches = list(self._caches)
        for cache in caches:
            cache.let_go()
        self._finish_streams()
        return bool(caches)

    def _try(self, nbytes: int, owner: Owner, stream: Stream | None) -> _Lease | None:
        if self._is_closed:
            raise FailedPreconditionError(
                f"{self.executor.name}: expected an open memory pool; it was closed"
            )
        self._drain()
        if self._frontiers:
            self._settle(stream)
        address = self._bfc.allocate(nbytes, stream)
        if address is None and self._grow(nbytes):
            address = self._bfc.allocate(nbytes, stream)
        if address is None:
            return None
        lease = _Lease(self, address, nbytes, owner, stream)
        self._leases[address] = weakref.ref(lease)
        if self.observer is not None:
            self.observer.allocated(address, nbytes)
        return lease

    def _wait_for_lease(
        self, nbytes: int, owner: Owner, stream: Stream | None, retry_s: float
    ) -> _Lease | None:
        """Retry each time that memory is freed."""
        deadline, waiter = monotonic() + retry_s, queue.SimpleQueue[None]()
        with self._lock:
            self._waiters += (waiter,)
        try:
            while (lease := self._lease(nbytes, owner, stream)) is None:
                waiter.get(timeout=max(0.0, deadline - monotonic()))
            return lease
        except queue.Empty:
            return None
        finally:
            with self._lock:
                self._waiters = tuple(other for other in self._waiters if other is not waiter)

    def _refusal(self, nbytes: int, owner: Owner) -> str:
        with self._lock:
            stats = self._bfc.stats()
        free = stats.bytes_reserved - stats.bytes_in_use
        unreserved = stats.bytes_limit - stats.bytes_reserved
        if nbytes > stats.bytes_limit:
            hint = "This exceeds the limit."
        elif round_up(nbytes) <= unreserved:
            hint = "The device has no more: is it used by other processes?"
        elif nbytes <= free:
            hint = f"{_size(free)} are free, but not contiguous."
        else:
            hint = "A smaller batch, or a higher limit?"
        plan = [] if owner.tensors is None else _largest_first([owner.tensors()])
        purpose = "memory for the plan of a step" if plan else "memory"
        lines = [
            f"{self.executor.name}: expected {_size(nbytes)} of {purpose}; got a largest free piece of "
            f"{_size(stats.largest_free_block_bytes)} and {_size(unreserved)} not reserved yet, with "
            f"{_size(stats.bytes_in_use)} in use and a limit of {_size(stats.bytes_limit)}. {hint}"
        ]
        lines += _tensor_table(plan, "tensors that the plan must hold simultaneously")
        return "\n".join([*lines, self.report()])

    # --- freed memory

    def _take_back(self, address: int, stream: Stream | None) -> None:
        """Called from anywhere, so it only notes it."""
        self._returned.append((address, stream))
        for waiter in self._waiters:
            waiter.put(None)
        if self._is_closed:
            self._end()

    def _drain(self) -> None:
        """Process the queue of freed memory. A closed pool's streams have finished their work."""
        while self._returned:
            address, stream = self._returned.popleft()
            del self._leases[address]
            if self.observer is not None:
                self.observer.deallocated(address)
            if stream is None or self._is_closed:
                self._bfc.deallocate(address)
            else:
                frontier = self._frontiers.setdefault(stream, _Frontier())
                frontier.has_freed = True
                self._bfc.deallocate(address, stream, frontier.stamp)

    def _end(self) -> None:
        """Release the freed memory of a closed pool, unless another thread is doing so (and will recheck)."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._drain()
                self._give_back(self._bfc.free_regions())
            finally:
                self._lock.release()

    # --- streams

    def _settle(self, asking: Stream | None) -> None:
        """Make memory available to all that only ``asking`` could still use."""
        for stream in [stream for stream in self._frontiers if stream is not asking]:
            frontier = self._frontiers[stream]
            passed = -1
            try:
                if frontier.has_freed:
                    self._record(stream, frontier)
                while frontier.events and frontier.events[0][1].poll() is not EventStatus.PENDING:
                    passed = frontier.events.popleft()[0]
            except OpError:  # the stream failed, or was closed: it accepts no more events
                if not self.executor.is_idle(stream):
                    continue
                passed = frontier.stamp
                frontier.events.clear()
            if passed >= 0:
                self._bfc.advance(stream, passed)
            if not frontier.events:
                del self._frontiers[stream]

    def _record(self, stream: Stream, frontier: _Frontier) -> None:
        event = self.executor.create_event()
        self.executor.record(stream, event)
        frontier.events.append((frontier.stamp, event))
        frontier.stamp += 1
        frontier.has_freed = False

    def _finish_streams(self) -> bool:
        """Wait for the streams that others wait for; whether there were any."""
        with self._lock:
            self._drain()
            self._settle(None)
            streams = list(self._frontiers)
        for stream in streams:
            try:
                self.executor.block_host_until_done(stream, STREAM_DEADLINE_S)
            except OpError:  # a failed stream, or a late one
                wait_until_idle(stream, STREAM_DEADLINE_S)
        with self._lock:
            self._settle(None)
        return bool(streams)

    # --- regions

    def _grow(self, nbytes: int) -> bool:
        """Bring a region that ``nbytes`` fit in; False when the limit or the device forbids it."""
        growth = self._bfc.growth(nbytes)
        if growth is None:
            return False
        self._give_back(growth.give_back)
        if self._bring(growth.nbytes, round_up(nbytes)):
            return True
        free = self._bfc.free_regions()
        self._give_back(free)
        return bool(free) and self._bring(round_up(nbytes), round_up(nbytes))

    def _bring(self, nbytes: int, least: int) -> bool:
        """One region more, of less than ``nbytes`` if the device refuses that, but of at least ``least``."""
        while True:
            try:
                region = self.executor.allocate(nbytes)
                break
            except ResourceExhaustedError:
                if nbytes <= least:
                    return False
                nbytes = max(least, nbytes * 9 // 10 & -256)
        self._regions[region.address] = region
        self._bfc.add_region(region.address, nbytes)
        return True

    def _give_back(self, regions: list[Region]) -> None:
        for region in regions:
            self._bfc.remove_region(region.address)
            self.executor.deallocate(self._regions.pop(region.address))


def _tensors_of(lease: _Lease) -> Iterable[LiveTensor]:
    owner = lease.owner
    if owner.tensors is not None:
        return owner.tensors()
    return [LiveTensor(owner.name, lease.nbytes, owner.source)]


def _largest_first(groups: Iterable[Iterable[LiveTensor]]) -> list[LiveTensor]:
    return sorted(chain.from_iterable(groups), key=lambda tensor: -tensor.nbytes)


def _tensor_table(tensors: list[LiveTensor], what: str) -> list[str]:
    """Table of the largest of ``tensors``, which are sorted; no lines if there are none."""
    if not tensors:
        return []
    shown = tensors[:REPORTED_TENSORS]
    lines = [f"  {_size(nbytes):>10}  {name}  {source or ''}".rstrip() for name, nbytes, source in shown]
    return [f"The largest {len(shown)} of {len(tensors)} {what}:", *lines]


def _bin_table(bins: list[BinStats]) -> list[str]:
    lines = [
        f"  {_size(smallest):>10} {used:7} {_size(used_bytes):>10} {free:7} {_size(free_bytes):>10}"
        for smallest, free, free_bytes, used, used_bytes in bins
    ]
    return [f"  {'Chunks of':>10} {'in use':>7} {'bytes':>10} {'free':>7} {'bytes':>10}", *lines]


def _size(nbytes: int) -> str:
    """``1536`` as ``1.5 KiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{nbytes / 1024**power:.1f} {unit}"
    return f"{nbytes} B"
