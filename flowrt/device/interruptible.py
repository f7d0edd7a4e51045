"""`in_slices`: wait in a way that always responds to Ctrl-C and other signals.

A signal that arrives after a thread has released the GIL and before it blocks is not handled until the wait
ends, which may be never: Python checks for signals between instructions, and when one interrupts the wait. On
two busy cores, a worker that was signalled just when it began to wait did not end in two of three test runs.
So a wait of the main thread is split into slices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

NOTICED_WITHIN_S = 0.1


def in_slices(wait: Callable[[float], bool], timeout_s: float | None) -> bool:
    """Call ``wait(seconds)`` until it returns True, or for ``timeout_s`` seconds. Whether it did."""
    if timeout_s is None:
        while not wait(NOTICED_WITHIN_S):
            pass
        return True
    end_s = time.monotonic() + timeout_s
    while not wait(min(max(0.0, timeout_s), NOTICED_WITHIN_S)):
        timeout_s = end_s - time.monotonic()
        if timeout_s <= 0:
            return False
    return True


def acquire(lock: threading.Lock, timeout_s: float | None) -> bool:
    """Whether ``lock`` could be taken within ``timeout_s`` seconds; None: wait until it can."""
    return in_slices(lambda slice_s: lock.acquire(timeout=slice_s), timeout_s)
