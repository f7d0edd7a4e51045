"""Linux's futex: a thread sleeps on a word of memory, possibly shared with other processes, until it changes.

The kernel compares and sleeps atomically, and `wake` publishes all earlier stores: so no change followed by a
`wake` is missed. x86-64 only. See futex(2); Franke, Russell and Kirkwood, "Fuss, futexes and furwocks"
(2002).
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
_wake = ctypes.PyDLL(None).syscall  # it returns at once: releasing the GIL would take longer
_wake.argtypes = _ARGUMENTS


def wait_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32 bits at ``address`` equal the lowest of ``value``, for at most ``timeout_s``
    seconds, until a `wake`, or a signal.
    """
    timeout = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _wait(_FUTEX, address, _WAIT, value & 0xFFFFFFFF, ctypes.addressof(timeout))


def wake(address: int) -> None:
    """Wake all threads that sleep on the word at ``address``, after publishing earlier stores."""
    _wake(_FUTEX, address, _WAKE, _EVERYBODY, None)
