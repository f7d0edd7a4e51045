"""The host device: NumPy as the array module, 64-byte aligned buffers."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt.device.spec import DeviceSpec

ALIGNMENT = 64
"""Bytes: a cache line, and the width of an AVX-512 register."""


@final
class HostDevice:
    """One CPU device. Several of them share the machine's cores and memory; they differ by name only."""

    xp: Any = np
    device_type = "CPU"

    def __init__(self, index: int, job: str = "localhost", task: int = 0) -> None:
        self.spec = DeviceSpec(job, 0, task, "CPU", index)
        self.name = self.spec.to_string()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """Uninitialised memory for an array, aligned to `ALIGNMENT` bytes."""
        dtype = np.dtype(dtype)
        count = 1
        for dim in shape:
            count *= dim
        raw = np.empty(count * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        array: np.ndarray[Any, Any] = raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
        return array

    def __repr__(self) -> str:
        return f"<HostDevice {self.name}>"
