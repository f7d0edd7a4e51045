"""`Workspace`: per-thread scratch buffers for kernels, reused by the next kernel of the thread.

Concurrent steps, and the streams of a step, run on separate threads, so buffers are not shared. The cached
size is bounded; a kernel that needs more allocates the rest temporarily.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.device.stream_executor import ALIGNMENT
from flowrt.errors import ResourceExhaustedError

Array: TypeAlias = np.ndarray[Any, Any]

MAX_KEPT = 32 << 20
"""Bytes that a thread keeps for its kernels."""


class _Memory(NamedTuple):
    """Bytes and their address, which NumPy takes 3 us to tell, or 15 between two large products."""

    array: Array
    address: int


NOTHING = _Memory(np.empty(0, np.uint8), 0)


def new_bytes(nbytes: int) -> Array:
    """Uninitialised memory of NumPy's, aligned."""
    raw = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes]


@final
class Workspace:
    """Scratch memory from ``allocate(nbytes)``, which returns an aligned array of bytes. Thread-safe.

    Memory is reused across requests: new pages would cost 0.2 us each.
    """

    def __init__(self, allocate: Callable[[int], Array] = new_bytes) -> None:
        self._allocate = allocate
        self._own = threading.local()
        self._lock = threading.Lock()
        self._pieces = weakref.WeakSet[_Piece]()

    def begin(self) -> Callable[[tuple[int, ...], Any], Array]:
        """Release this thread's previous arrays. Returns ``new(shape, dtype)``, which creates uninitialized
        arrays. It raises the errors of ``allocate``.
        """
        piece = self._piece()
        piece.begin()
        return piece.array

    def address(self, nbytes: int) -> int:
        """Address of a buffer of at least ``nbytes`` bytes, however many, kept for this thread."""
        return self._piece().address(nbytes)

    def let_go(self) -> None:
        """Release everything: the memory is freed when running kernels are done with it."""
        with self._lock:
            pieces = list(self._pieces)
        for piece in pieces:
            piece.memory = NOTHING

    def _piece(self) -> _Piece:
        try:
            piece: _Piece = self._own.piece
        except AttributeError:
            piece = self._own.piece = _Piece(self._allocate)
            with self._lock:
                self._pieces.add(piece)
        return piece


@final
class _Piece:
    """One thread's buffer. It grows to the size of the last kernel's requests when the next begins."""

    __slots__ = ("__weakref__", "_allocate", "_asked", "memory")

    def __init__(self, allocate: Callable[[int], Array]) -> None:
        self._allocate = allocate
        self._asked = 0
        self.memory = NOTHING
        """Replaced, never modified: another thread may release it at any time."""

    def begin(self) -> None:
        asked, self._asked = self._asked, 0
        if self.memory.array.nbytes < asked <= MAX_KEPT:
            with suppress(ResourceExhaustedError):  # to keep memory is only a saving
                self._grow(asked)

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        dtype = np.dtype(dtype)
        nbytes = max(math.prod(shape) * dtype.itemsize, 1)
        memory, start = self.memory.array, self._asked
        self._asked += -(-nbytes // ALIGNMENT) * ALIGNMENT
        if self._asked > memory.nbytes:
            memory, start = self._allocate(nbytes), 0
        return np.ndarray(shape, dtype, memory, start)

    def address(self, nbytes: int) -> int:
        memory = self.memory
        if memory.array.nbytes < nbytes:
            memory = self._grow(nbytes)
        return memory.address

    def _grow(self, nbytes: int) -> _Memory:
        self.memory = NOTHING  # the old one first
        array = self._allocate(nbytes)
        self.memory = memory = _Memory(array, array.ctypes.data)
        return memory


WORKSPACE = Workspace()
"""Scratch memory of libraries that allocate none themselves."""
