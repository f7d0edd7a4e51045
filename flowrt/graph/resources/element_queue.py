"""`ElementQueue`: a bounded queue that serves waiting threads in FIFO order. Its store determines the order
of the elements (`flowrt.graph.resources.element_stores`).

`QueueState` is the pure logic, without threads: an attempt to add or take elements queues up behind earlier
ones and is filled as space or elements become available. An attempt may thus exceed the capacity, and no
attempt is overtaken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import final

from flowrt.errors import CancelledError, InvalidArgumentError, OpError, OutOfRangeError
from flowrt.graph.resources.element_stores import Element, InOrder, Store
from flowrt.graph.resources.step_context import wait_until
from flowrt.graph.shapes import Shape


class Giving:
    """An attempt to add elements; ``left`` are those still waiting for space."""

    def __init__(self, elements: Iterable[Element]) -> None:
        self.left = deque(elements)
        self.is_done = False
        self.error: OpError | None = None


class Taking:
    """An attempt to take ``wanted`` elements, or with ``up_to`` fewer from a closed queue."""

    def __init__(self, wanted: int, up_to: bool = False) -> None:
        self.wanted, self.up_to = wanted, up_to
        self.taken: list[Element] = []
        self.is_done = False
        self.error: OpError | None = None


@final
class QueueState:
    """The queue ``name`` with ``capacity`` and elements in ``store``. After each call, all attempts that can
    proceed have done so.
    """

    def __init__(self, name: str, capacity: int, store: Store | None = None) -> None:
        self.name, self.capacity = name, capacity
        self.elements: Store = InOrder() if store is None else store
        self.is_closed = False
        self._giving: deque[Giving] = deque()
        self._taking: deque[Taking] = deque()

    def give(self, attempt: Giving) -> None:
        if self.is_closed:
            self._end(attempt, CancelledError(f"queue {self.name!r} is closed: it accepts no more elements"))
            return
        self._giving.append(attempt)
        self._go_on()

    def take(self, attempt: Taking) -> None:
        self._taking.append(attempt)
        self._go_on()

    def close(self, cancel_pending_enqueues: bool) -> None:
        """Accept no more elements, except from pending attempts; with ``cancel_pending_enqueues``, not even
        those. Closing again has no further effect.
        """
        self.is_closed = True
        if cancel_pending_enqueues:
            for attempt in self._giving:
                error = CancelledError(
                    f"queue {self.name!r} was closed during an enqueue that waited for room"
                )
                self._end(attempt, error)
            self._giving.clear()
        self._go_on()

    def withdraw(self, attempt: Giving | Taking) -> None:
        """``attempt`` ends unfinished: elements it took are put back in front, even beyond the capacity;
        elements it added stay.
        """
        if isinstance(attempt, Giving):
            if attempt in self._giving:
                self._giving.remove(attempt)
        elif attempt in self._taking:
            self._taking.remove(attempt)
            self._give_back(attempt)
        self._go_on()

    def check(self) -> None:
        """Assert the invariants."""
        assert not (self._has_one and self._taking), "an element and a waiting dequeue"
        assert not (len(self.elements) < self.capacity and self._giving), "room and a waiting enqueue"
        assert not (self.is_closed and self._taking), "a call waits although the queue is closed"

    @property
    def _has_one(self) -> bool:
        """Whether an element is available."""
        return len(self.elements) > (0 if self.is_closed else self.elements.reserve)

    def _go_on(self) -> None:
        while self._fill_first_giving() or self._fill_first_taking():
            pass
        if self.is_closed and not self._giving:
            while self._taking:
                self._end_short(self._taking.popleft())

    def _fill_first_giving(self) -> bool:
        """Whether the first attempt in line could add anything."""
        if not self._giving or (len(self.elements) >= self.capacity and self._giving[0].left):
            return False
        attempt = self._giving[0]
        while attempt.left and len(self.elements) < self.capacity:
            self.elements.add(attempt.left.popleft())
        if not attempt.left:
            self._end(self._giving.popleft(), None)
        return True

    def _fill_first_taking(self) -> bool:
        if not self._taking or (not self._has_one and self._taking[0].wanted > len(self._taking[0].taken)):
            return False
        attempt = self._taking[0]
        while self._has_one and len(attempt.taken) < attempt.wanted:
            attempt.taken.append(self.elements.take())
        if len(attempt.taken) == attempt.wanted:
            self._end(self._taking.popleft(), None)
        return True

    def _end_short(self, attempt: Taking) -> None:
        """End an attempt for which there are too few elements. They go to the next one that wants fewer."""
        if attempt.up_to and attempt.taken:
            self._end(attempt, None)
            return
        counts = f"{attempt.wanted} requested, {len(attempt.taken)} available"
        self._give_back(attempt)
        error = OutOfRangeError(f"queue {self.name!r} is closed and has too few elements: {counts}")
        self._end(attempt, error)
        self._fill_first_taking()

    def _give_back(self, attempt: Taking) -> None:
        self.elements.give_back(attempt.taken)
        attempt.taken = []

    def _end(self, attempt: Giving | Taking, error: OpError | None) -> None:
        attempt.is_done, attempt.error = True, error


@final
class ElementQueue:
    """A `QueueState` for many threads. A wait ends when it is served, when the queue is closed, or with the
    step that the thread is running (`flowrt.graph.resources.step_context`). ``shapes`` are those of an
    element's components, none for any. Raises `InvalidArgumentError` for a capacity below one available
    element.
    """

    def __init__(
        self, name: str, capacity: int, store: Store | None = None, shapes: Sequence[Shape] = ()
    ) -> None:
        self.shapes = shapes
        self._state = QueueState(name, capacity, store)
        least = self._state.elements.reserve + 1
        if capacity < least:
            raise InvalidArgumentError(
                f"queue {name!r}: expected a capacity of at least {least}, min_after_dequeue + 1; got "
                f"{capacity}"
            )
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._state.elements)

    @property
    def is_closed(self) -> bool:
        return self._state.is_closed

    def put(self, elements: Iterable[Element]) -> None:
        """Add ``elements``, each when there is space. Raises `CancelledError` when the queue is closed."""
        attempt = Giving(elements)
        with self._changed:
            self._state.give(attempt)
            self._wait_for(attempt, "full")

    def get(self, wanted: int, up_to: bool = False) -> Sequence[Element]:
        """Take ``wanted`` elements; from a closed queue, with ``up_to``, those available. Raises
        `OutOfRangeError` when the queue is closed and has too few, which stay there.
        """
        attempt = Taking(wanted, up_to)
        with self._changed:
            self._state.take(attempt)
            self._wait_for(attempt, "empty")
            return attempt.taken

    def close(self, cancel_pending_enqueues: bool = True) -> None:
        """See `QueueState.close`. Called without arguments at the end of the session."""
        with self._changed:
            self._state.close(cancel_pending_enqueues)
            self._changed.notify_all()

    def _wait_for(self, attempt: Giving | Taking, obstacle: str) -> None:
        self._changed.notify_all()
        message = f"queue {self._state.name!r} is {obstacle}"
        try:
            wait_until(lambda: attempt.is_done, self._changed.wait, obstacle=lambda: message)
        except BaseException:
            self._state.withdraw(attempt)
            self._changed.notify_all()
            raise
        if attempt.error is not None:
            raise attempt.error
