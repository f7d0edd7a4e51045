"""Section ``transfer``: bandwidth between the host's memory and the device's, each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.cli.selftest.target import Result, Target, median_s

NBYTES = 64 << 20
"""64 MiB: 3 ms at 25 GB/s, so the 10 us to start a copy are negligible."""

REPEATS = 7


def check_transfer(target: Target) -> Result:
    """Copy 64 MiB in both directions, from pageable memory and, where the device has it, from pinned."""
    if not target.computes:
        return Result("left out: no bytes move on this device")
    kinds: dict[str, Callable[..., Any]] = {"pageable": np.empty}
    if pinned_empty := getattr(target.device.executor, "pinned_empty", None):
        kinds["pinned"] = pinned_empty
    figures, failures = [], []
    for kind, empty in kinds.items():
        to_device, to_host, is_equal = measure(target, empty)
        figures.append(f"{kind} {to_device:.1f} GB/s to the device, {to_host:.1f} back")
        if not is_equal:
            failures.append(f"{kind}: the bytes read back differ from those sent")
    return Result(f"{NBYTES >> 20} MiB: {'; '.join(figures)}", tuple(failures))


def measure(target: Target, empty: Callable[..., Any]) -> tuple[float, float, bool]:
    """Bytes per nanosecond to the device and back, and whether the bytes survived the round trip."""
    executor = target.device.executor
    stream, memory = executor.create_stream("copies"), executor.allocate(NBYTES)
    there, back = empty((NBYTES,), np.uint8), empty((NBYTES,), np.uint8)
    there[:] = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)

    def send() -> None:
        executor.memcpy_to_device(stream, memory, there)
        executor.block_host_until_done(stream)

    def fetch() -> None:
        executor.memcpy_to_host(stream, back, memory)
        executor.block_host_until_done(stream)

    seconds = median_s(send, REPEATS), median_s(fetch, REPEATS)
    executor.deallocate(memory)
    return NBYTES / seconds[0] / 1e9, NBYTES / seconds[1] / 1e9, bool(np.array_equal(there, back))
