"""Linux's futex: a thread sleeps on a word of memory, which other processes may share, until it changes.

The kernel compares and goes to sleep as one step, and has all stores before `wake` seen: so nobody sleeps
through a change that was followed by a `wake`. x86-64 only. See futex(2); Franke, Russell and Kirkwood,
"Fuss, futexes and furwocks" (2002).
"""

from __future__ import annotations

import ctypes

_FUTEX, _WAIT, _WAKE = 202, 0, 1
"""The number of the system call on x86-64, and two operations for words that processes share."""
_EVERYBODY = 0x7FFFFFFF
_ARGUMENTS = (ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_wait = ctypes.CDLL(None).syscall
_wait.argtypes = _ARGUMENTS
_wake = ctypes.PyDLL(None).syscall  # it returns at once: to let go of the interpreter would take longer
_wake.argtypes = _ARGUMENTS


def wait_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32 bits at ``address`` are the lowest of ``value``, for ``timeout_s`` seconds at most,
    until somebody calls `wake`, or a signal comes.
    """
    timeout = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _wait(_FUTEX, address, _WAIT, value & 0xFFFFFFFF, ctypes.addressof(timeout))


def wake(address: int) -> None:
    """Wake all who sleep on the word at ``address``, behind the stores that came before."""
    _wake(_FUTEX, address, _WAKE, _EVERYBODY, None)
