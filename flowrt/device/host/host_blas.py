"""Spin time of OpenBLAS's threads, which compute NumPy's matrix products.

After a product they spin for 2**26 cycles, 25 ms, on cores that loops need. So they are made to sleep after
0.1 ms, as oneDNN's do (`flowrt.device.onednn.onednn`), unless the user's environment overrides it: the next
of several products finds them awake, and other work finds idle cores. Loop threads sleep at once
(`flowrt.device.llvm.work_stealing`).

OpenBLAS reads the environment when it is loaded, and its threads when they start. NumPy has loaded it long
before, so it is made to read it again, and its threads are ended; the next product restarts them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading

import threadpoolctl

LOGGER = logging.getLogger(__name__)

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
SPINS = "18"
"""Log2 of the number of clock cycles to spin."""

_told: set[str] = set()
"""Files of the libraries already configured, or left unchanged."""

_modules_seen = 0
"""The number of imported modules when libraries were last looked for."""


def limit_blas_threads(n_threads: int) -> None:
    """Limit products to this number of threads from now on."""
    threadpoolctl.threadpool_limits(n_threads, "blas")


def shorten_blas_spins() -> None:
    """Have the threads of each OpenBLAS in this process sleep soon after a product, if that is safe now.

    It is not where another thread may be in the middle of a product: ending OpenBLAS's threads would leave it
    waiting. Then nothing changes, and the next call may do it.

    Libraries are looked for again only after imports, which load them: it takes 0.4 ms, longer than all else
    that opens a session.
    """
    global _modules_seen  # noqa: PLW0603 (one per process)
    if TIMEOUT in os.environ or threading.active_count() > 1 or len(sys.modules) == _modules_seen:
        return
    _modules_seen = len(sys.modules)
    for library in threadpoolctl.ThreadpoolController().select(internal_api="openblas").lib_controllers:
        if library.filepath not in _told:
            _told.add(library.filepath)
            _shorten_spins(library.filepath)


def _shorten_spins(path: str) -> None:
    """No other thread of Python runs meanwhile, so none can begin a product."""
    try:
        blas = ctypes.PyDLL(path)
        read_environment, end_threads = blas.openblas_read_env, blas.blas_thread_shutdown_
    except (OSError, AttributeError) as error:  # another build than NumPy's, or an older one
        LOGGER.info("threads of %s spin as long as it likes: %s", path, error)
        return
    os.environ[TIMEOUT] = SPINS
    try:
        read_environment()
    finally:
        del os.environ[TIMEOUT]
    end_threads()
