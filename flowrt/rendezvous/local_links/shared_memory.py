"""Shared memory between two processes of one host: arrays are written once by the sender and read in place.

A segment is anonymous memory (a memfd), mapped by both ends. Its descriptor is sent once, over the Unix
socket, with the first frame that uses it. So nothing can be left behind, however a process ends: the kernel
frees a segment with its last mapping.

    sender                                             receiver
    place(array): free segment or a new one, copy  ->  lend(segment, nbytes): array in the segment
    take_back(segments)                            <-  the array is freed: RELEASE
    a surplus free one: unmapped, RETIRE           ->  drop(segments): unmapped, when no array is left in it

A segment holds one array at a time. Reuse makes it fast: its pages are already mapped, while fresh ones cost
both ends a fault for every 4 KiB.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, final

import numpy as np

from flowrt.errors import DataLossError, ResourceExhaustedError
from flowrt.rendezvous.channel.channel import Bytes, Payload

SHARED = 64 << 10
"""Minimum size in bytes for shared memory; smaller arrays are as fast through the socket."""
MAX_FREE = 256 << 20
"""Bytes of free segments that a sender keeps for each connection."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Placement(NamedTuple):
    """Location of an array. ``descriptor`` is that of a new segment, which the receiver does not have yet."""

    segment: int
    nbytes: int
    capacity: int
    descriptor: int | None


@final
class Mapping:
    """``capacity`` bytes of a segment, mapped until this and all arrays in it are dead."""

    # Not mmap.mmap, which keeps a descriptor for each mapping: thousands of segments would use them up.

    def __init__(self, descriptor: int, capacity: int) -> None:
        """Raises `ResourceExhaustedError`."""
        address = _libc.mmap(None, capacity, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise ResourceExhaustedError(
                f"shared memory: expected to map {capacity} bytes; got {os.strerror(ctypes.get_errno())}"
            )
        self.address, self.capacity = address, capacity
        self._munmap = _libc.munmap  # at interpreter exit the module's globals may be cleared first

    def __del__(self) -> None:
        if hasattr(self, "_munmap"):
            self._munmap(self.address, self.capacity)

    def array(self, nbytes: int, on_death: Callable[[], None] | None = None) -> Bytes:
        """The first ``nbytes`` bytes; ``on_death`` is called when no array view of them is left."""
        return np.asarray(_Span(self, nbytes, on_death))


class _Span:
    """Array interface over an address, which NumPy keeps as the base of the array and of all its views."""

    def __init__(self, mapping: Mapping, nbytes: int, on_death: Callable[[], None] | None) -> None:
        self._mapping = mapping
        self._on_death = on_death
        self.__array_interface__ = {
            "version": 3,
            "data": (mapping.address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        if self._on_death is not None:
            self._on_death()


@final
class SegmentPool:
    """The sender's segments of one connection. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: dict[int, Mapping] = {}
        self._free: deque[int] = (
            deque()
        )  # the one that was used last at the right: its pages are in the cache
        self._used: set[int] = set()
        self._next = 0

    def place(self, array: Payload) -> Placement:
        """Copy ``array`` to a segment. Raises `ResourceExhaustedError` if none can be allocated."""
        capacity = _capacity(array.nbytes)
        descriptor = None
        with self._lock:
            segment = next(
                (at for at in reversed(self._free) if self._mappings[at].capacity == capacity), None
            )
            if segment is not None:
                self._free.remove(segment)
            else:
                descriptor = create_segment(capacity)
                segment = self._add(descriptor, capacity)
            self._used.add(segment)
            mapping = self._mappings[segment]
        np.copyto(mapping.array(array.nbytes), array)
        return Placement(segment, array.nbytes, capacity, descriptor)

    def take_back(self, segments: Iterable[int]) -> list[int]:
        """The receiver has done with ``segments``. Returns those that are unmapped for it, to be retired.

        Raises `DataLossError` for a segment that the receiver does not have.
        """
        with self._lock:
            for segment in segments:
                if segment not in self._used:
                    raise DataLossError(f"shared memory: expected a segment in use; got {segment}")
                self._used.remove(segment)
                self._free.append(segment)
            return self._trim()

    def close(self) -> None:
        """Unmap all."""
        with self._lock:
            self._mappings.clear()
            self._free.clear()
            self._used.clear()

    def _add(self, descriptor: int, capacity: int) -> int:
        try:
            mapping = Mapping(descriptor, capacity)
        except ResourceExhaustedError:
            os.close(descriptor)
            raise
        self._next += 1
        self._mappings[self._next] = mapping
        return self._next

    def _trim(self) -> list[int]:
        retired = []
        free = sum(self._mappings[segment].capacity for segment in self._free)
        while free > MAX_FREE and len(self._free) > 1:
            segment = self._free.popleft()
            free -= self._mappings.pop(segment).capacity
            retired.append(segment)
        return retired


@final
class SegmentMap:
    """The receiver's segments of the peer. One thread calls; any may call ``released``, with a segment and
    its capacity, also a finalizer.
    """

    def __init__(self, released: Callable[[int, int], None]) -> None:
        self._released = released
        self._mappings: dict[int, Mapping] = {}

    def add(self, segment: int, descriptor: int, capacity: int) -> None:
        """Map a new segment and close ``descriptor``.

        Raises `DataLossError` if it is invalid, `ResourceExhaustedError`.
        """
        if segment in self._mappings:
            os.close(descriptor)
            raise DataLossError(f"shared memory: expected a new segment; got {segment} again")
        self._mappings[segment] = map_segment(descriptor, capacity)

    def lend(self, segment: int, nbytes: int) -> Bytes:
        """The array in ``segment``. Raises `DataLossError` for one that is not there or too small."""
        mapping = self._mappings.get(segment)
        if mapping is None or mapping.capacity < nbytes:
            raise DataLossError(f"shared memory: expected a segment of {nbytes} bytes; got number {segment}")
        capacity = mapping.capacity
        return mapping.array(nbytes, lambda: self._released(segment, capacity))

    def drop(self, segments: Iterable[int]) -> None:
        """The sender uses ``segments`` no more."""
        for segment in segments:
            self._mappings.pop(segment, None)

    def close(self) -> None:
        """Unmap all in which no array is left, and the others when theirs dies."""
        self._mappings.clear()


def _capacity(nbytes: int) -> int:
    """The next power of two, so that there are few sizes to keep. Pages that are not used cost nothing."""
    return 1 << (nbytes - 1).bit_length()


def map_segment(descriptor: int, capacity: int) -> Mapping:
    """The segment of another process given by ``descriptor``, which is closed.

    Raises `DataLossError` unless it was made by `create_segment`, `ResourceExhaustedError`.
    """
    try:
        # A sealed segment cannot be cut short later, which would make reading it a SIGBUS.
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if seals & _SEALS != _SEALS or os.fstat(descriptor).st_size != capacity:
            raise DataLossError(f"shared memory: expected a sealed segment of {capacity} bytes")
        return Mapping(descriptor, capacity)
    finally:
        os.close(descriptor)


def create_segment(capacity: int) -> int:
    """The descriptor of a new segment, zeros. Raises `ResourceExhaustedError`."""
    try:
        descriptor = os.memfd_create("flowrt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ResourceExhaustedError(f"shared memory: expected a new segment; {error}") from error
    try:
        os.ftruncate(descriptor, capacity)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise ResourceExhaustedError(f"shared memory: expected {capacity} bytes; {error}") from error
    return descriptor
