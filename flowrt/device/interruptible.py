"""`acquire`: wait for a lock so that Ctrl-C is always noticed.

A signal that comes when a thread has let go of the interpreter and not yet blocked is noticed by nobody until
the lock is free, which may be at the end of a long step: Python looks for signals between instructions, and
when one interrupts the wait. So a wait is cut into slices.
"""

from __future__ import annotations

import threading
import time

NOTICED_WITHIN_S = 0.1


def acquire(lock: threading.Lock, timeout_s: float | None) -> bool:
    """Whether ``lock`` could be taken within ``timeout_s`` seconds; None: wait until it can."""
    if timeout_s is None:
        while not lock.acquire(timeout=NOTICED_WITHIN_S):
            pass
        return True
    end_s = time.monotonic() + timeout_s
    while not lock.acquire(timeout=min(max(0.0, timeout_s), NOTICED_WITHIN_S)):
        timeout_s = end_s - time.monotonic()
        if timeout_s <= 0:
            return False
    return True
