"""`ReceiveMemory`: buffers for large received arrays, reused when the arrays are freed.

Fresh memory costs a page fault for every 4 KiB, 15 ms for 64 MiB, a quarter of the time to receive them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import final

import numpy as np

from flowrt.device.workspace import new_bytes
from flowrt.rendezvous.channel.channel import Bytes

LARGE = 1 << 20
"""Bytes from which memory is kept; below, the C library keeps it."""
MAX_FREE = 256 << 20
"""Bytes kept for future arrays."""


@final
class ReceiveMemory:
    """Any thread may call `allocate`; arrays may die anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Bytes] = []
        self._dead: deque[Bytes] = deque()  # finalizers put blocks here: they must not wait for the lock

    def allocate(self, nbytes: int) -> Bytes:
        """Uninitialised bytes at a multiple of 64."""
        if nbytes < LARGE:
            return new_bytes(nbytes)
        capacity = 1 << (nbytes - 1).bit_length()  # untouched pages cost nothing
        with self._lock:
            self._collect()
            at = next((at for at, block in enumerate(self._free) if block.nbytes == capacity), None)
            block = None if at is None else self._free.pop(at)
        if block is None:
            block = new_bytes(capacity)
        return np.asarray(_Lease(block, nbytes, self._dead))

    def _collect(self) -> None:
        """Recycle blocks of freed arrays; the oldest surplus ones are released."""
        while self._dead:
            self._free.append(self._dead.popleft())
        while sum(block.nbytes for block in self._free) > MAX_FREE and len(self._free) > 1:
            del self._free[0]


class _Lease:
    """The base of an array and of all its views: when the last of them dies, so does this."""

    def __init__(self, block: Bytes, nbytes: int, dead: deque[Bytes]) -> None:
        self._block = block
        self._dead = dead
        self.__array_interface__ = {**block.__array_interface__, "shape": (nbytes,)}

    def __del__(self) -> None:
        self._dead.append(self._block)
