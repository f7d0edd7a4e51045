"""`Workspace`: memory for what is needed only while one kernel runs."""

from __future__ import annotations

import threading
from typing import Any, final

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line."""


@final
class Workspace(threading.local):
    """One piece of memory a thread, as large as the largest that it has asked for. Who asks again has the
    same memory: new pages would cost 0.2 us each.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._address = 0

    def address(self, nbytes: int) -> int:
        """Of at least ``nbytes`` bytes, aligned."""
        if self._bytes.size < nbytes + ALIGNMENT:
            self._bytes = np.empty(nbytes + ALIGNMENT, np.uint8)
            self._address = -(-self._bytes.ctypes.data // ALIGNMENT) * ALIGNMENT
        return self._address

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """An array there, with any elements."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        start = self.address(nbytes) - self._bytes.ctypes.data
        array: np.ndarray[Any, Any] = self._bytes[start : start + nbytes].view(dtype).reshape(shape)
        return array


WORKSPACE = Workspace()
