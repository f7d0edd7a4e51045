"""Calls that several threads of the host share: the parts of a kernel of NumPy's, which computes on one core.
`flowrt.device.llvm.host_pool` has the threads of compiled loops.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import final

from flowrt.device.llvm.host_pool import num_threads

Call = Callable[[], object]


def run_shared(calls: Sequence[Call]) -> None:
    """Make ``calls``, each once and in any order, on this thread and on those of `num_threads` that are idle,
    in copies of the caller's context. Costs about 50 us. Returns when all have ended; an error of one, or
    Ctrl-C, is raised then, and others may not have begun.
    """
    left = iter(calls)  # threads draw each call once
    others = [_helpers.submit(_all_of(left)) for _ in range(min(num_threads(), len(calls)) - 1)]
    try:
        _run_all(left)
    finally:
        for _ in left:  # after an error they are not made
            pass
        begun = [other for other in others if not other.cancel()]
        _wait_for(begun)
    for other in begun:
        other.result()


def _wait_for(begun: Sequence[Future[None]]) -> None:
    """Wait until all have ended, also after Ctrl-C: they write to memory of the caller's."""
    try:
        wait(begun)
    except BaseException:
        _wait_for(begun)
        raise


def _all_of(calls: Iterable[Call]) -> Call:
    context = contextvars.copy_context()
    return lambda: context.run(_run_all, calls)


def _run_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call()


@final
class _Helpers:
    """Threads that wait for work, as many as were needed at once."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be new, without threads: in a fork's child, too."""
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[Future[None], Call]] = SimpleQueue()
        self._num_threads = 0

    def submit(self, call: Call) -> Future[None]:
        """The end of ``call``, which another thread makes unless it is cancelled before."""
        if self._num_threads < num_threads() - 1:
            self._start()
        future = Future[None]()
        if self._num_threads:
            self._work.put((future, call))
        return future

    def _start(self) -> None:
        with self._lock:
            if self._num_threads < num_threads() - 1:
                with suppress(RuntimeError):  # the process has as many as it may
                    threading.Thread(target=self._run, name="flowrt kernels", daemon=True).start()
                    self._num_threads += 1

    def _run(self) -> None:
        while True:
            _make(*self._work.get())


def _make(future: Future[None], call: Call) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        call()
    except BaseException as error:  # noqa: BLE001 (raised by the thread that waits)
        future.set_exception(error)
    else:
        future.set_result(None)


_helpers = _Helpers()
os.register_at_fork(after_in_child=_helpers.begin)
