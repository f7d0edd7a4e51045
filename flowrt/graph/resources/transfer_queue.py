"""`TransferQueue`: a bounded queue between steps and a host thread, or between two steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, final

from flowrt.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
)
from flowrt.graph.resources.step_context import wait_until


@final
class TransferQueue:
    """Items in order, at most ``capacity``; the faster side waits for the other.

    Any thread may use either end. A wait ends with an item or space, when the queue is closed, with the step
    that the thread is running (`flowrt.graph.resources.step_context`), or after ``timeout_s`` seconds,
    whichever is first; if it raises, the queue is unchanged.
    """

    __slots__ = ("_capacity", "_changed", "_error", "_is_closed", "_items", "_name")

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise InvalidArgumentError(f"queue {name!r}: expected a capacity of at least 1; got {capacity}")
        self._name, self._capacity = name, capacity
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._error: OpError | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any, timeout_s: float | None = None) -> None:
        """Append ``item`` when there is space.

        Raises `CancelledError`, or the error that the queue was closed with, and `DeadlineExceededError`.
        """
        with self._changed:
            has_room = lambda: len(self._items) < self._capacity  # noqa: E731
            self._wait_until(has_room, f"full, with {self._capacity} items", timeout_s)
            if self._is_closed:
                raise self._error or CancelledError(
                    f"queue {self._name!r} is closed: items are no longer taken"
                )
            self._items.append(item)
            self._changed.notify_all()

    def get(self, timeout_s: float | None = None) -> Any:
        """Take the first item when there is one.

        Raises `OutOfRangeError` when the queue is closed and empty, or the error that it was closed with, and
        `DeadlineExceededError`.
        """
        with self._changed:
            self._wait_until(lambda: bool(self._items), "empty", timeout_s)
            if not self._items:
                raise self._error or OutOfRangeError(f"queue {self._name!r} is closed and empty")
            self._changed.notify_all()
            return self._items.popleft()

    def close(self, error: OpError | None = None) -> None:
        """Accept no more items; those present can still be taken. With ``error`` they are dropped, and both
        ends raise it. Closing again changes nothing.
        """
        with self._changed:
            if not self._is_closed:
                self._is_closed, self._error = True, error
                if error is not None:
                    self._items.clear()
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool], obstacle: str, timeout_s: float | None) -> None:
        """Wait for ``ready()``, or for the queue to be closed. A timeout error names ``obstacle`` as the
        state of the queue during the wait.
        """
        message = f"queue {self._name!r} is {obstacle}"
        if not wait_until(lambda: ready() or self._is_closed, self._changed.wait, timeout_s, lambda: message):
            raise DeadlineExceededError(f"{message}, after {timeout_s} s")
