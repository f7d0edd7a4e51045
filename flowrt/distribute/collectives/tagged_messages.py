"""`TaggedMessages`: messages that are awaited by tag, each handed to the one thread that waits for it.

    the thread that reads    put(key, payload) -> the first waiter for this key, or kept
    a waiter                 take(key), or expect(key, wake) and then sleep until it has a payload

A thread that waits sleeps however suits it, e.g. by reading the connection itself (`Connection.lead`):
``wake()`` is what ends its sleep.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar, final

from flowrt.rendezvous.channel.channel import Bytes

Key: TypeAlias = tuple[int, bytes]
"""The rank that sent a message, and its header, which has the tag."""

T = TypeVar("T")


@final
class Waiter:
    """A thread that waits for a message, and the message's ``payload`` once it is served."""

    __slots__ = ("payload", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.payload: Bytes | None = None


@final
class TaggedMessages:
    """The messages of one mesh. Any thread may call anything; ``wake`` is called without a lock held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, deque[Bytes]] = {}
        self._waiters: dict[Key, deque[Waiter]] = {}
        """The waiters that are not served. A key has messages or waiters, never both."""

    def put(self, key: Key, payload: Bytes) -> None:
        """A message has arrived."""
        with self._lock:
            waiters = self._waiters.get(key)
            if waiters is None:
                self._kept.setdefault(key, deque()).append(payload)
                return
            waiter = waiters.popleft()
            if not waiters:
                del self._waiters[key]
            waiter.payload = payload
        waiter.wake()

    def take(self, key: Key) -> Bytes | None:
        """The first message of ``key``, if one is here."""
        with self._lock:
            return _take(self._kept, key) if key in self._kept else None

    def expect(self, key: Key, wake: Callable[[], object]) -> Waiter:
        """A waiter for the next message of ``key`` behind the others; `leave` ends the waiting."""
        waiter = Waiter(wake)
        with self._lock:
            if key in self._kept:
                waiter.payload = _take(self._kept, key)
            else:
                self._waiters.setdefault(key, deque()).append(waiter)
        return waiter

    def leave(self, key: Key, waiter: Waiter) -> None:
        """``waiter`` fails: what it was given goes to the next, or back in front."""
        with self._lock:
            payload = waiter.payload
            if payload is None:
                _remove(self._waiters, key, waiter)
                return
            if key not in self._waiters:
                self._kept.setdefault(key, deque()).appendleft(payload)
                return
            following = _take(self._waiters, key)
            following.payload = payload
        following.wake()

    def wake_all(self) -> None:
        """Make all waiters check whether they go on waiting."""
        with self._lock:
            waiting = [waiter for waiters in self._waiters.values() for waiter in waiters]
        for waiter in waiting:
            waiter.wake()

    def forget(self) -> None:
        """Drop all messages that nobody waits for."""
        with self._lock:
            self._kept.clear()


@final
class Parked:
    """The sleep of a thread that others wake."""

    __slots__ = ("_wakes",)

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until `wake` is called, now or before; for at most ``timeout_s`` seconds."""
        try:
            self._wakes.get(timeout=timeout_s)
        except queue.Empty:
            return

    def wake(self) -> None:
        self._wakes.put(None)

    def release(self) -> None:
        """Nothing to give back: as `Lead.release`."""


def _take(queues: dict[Key, deque[T]], key: Key) -> T:
    """The first of ``key``, which has some; a queue that is empty is removed."""
    found = queues[key].popleft()
    if not queues[key]:
        del queues[key]
    return found


def _remove(queues: dict[Key, deque[T]], key: Key, item: T) -> None:
    queues[key].remove(item)
    if not queues[key]:
        del queues[key]
