"""`Threads`: an unbounded thread pool for work that may block.

A bounded pool can deadlock here: a step waits for a tensor, and its request would need a thread of the pool.
An idle thread takes new work in about 30 us; starting one takes 80.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import final


@final
class Threads:
    """``submit(work)`` runs it on a thread. Its errors are passed to ``threading.excepthook``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], object] | None]] = []
        self._all: set[threading.Thread] = set()
        self._is_closed = False

    def submit(self, work: Callable[[], object]) -> None:
        """Run ``work`` on an idle thread or a new one; after `close` do nothing."""
        with self._lock:
            if self._is_closed:
                return
            if self._idle:
                self._idle.pop().put(work)
                return
            mailbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
            mailbox.put(work)
            thread = threading.Thread(target=self._run, args=(mailbox,), name=self._name, daemon=True)
            self._all.add(thread)
        thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the idle threads, and those that work when they are done."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            threads = list(self._all)
        for mailbox in idle:
            mailbox.put(None)
        for thread in threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(timeout_s)

    def _run(self, mailbox: SimpleQueue[Callable[[], object] | None]) -> None:
        try:
            while (work := mailbox.get()) is not None:
                work()
                del work  # do not keep its objects alive
                with self._lock:
                    if self._is_closed:
                        return
                    self._idle.append(mailbox)
        finally:
            with self._lock:
                self._all.discard(threading.current_thread())
