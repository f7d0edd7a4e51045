"""The only threads of datasets: a producer that reads ahead, and a pool that maps in order.

Rules of this file:
 - values and errors reach the consumer in the order of their elements;
 - the producer waits for room *before* it computes, so it is never more than the buffer's capacity ahead;
 - a thread ends with the stream that started it: when that ends, is closed, is garbage-collected, or the
   interpreter exits. Closing wakes the thread, then waits at most `CLOSE_S` seconds for an element in
   progress;
 - a blocked consumer checks every `POLL_S` seconds whether its run was cancelled.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Generic, TypeVar, final

from flowrt.data.node import CLOSE_S, Element, Iteration, Stream

T = TypeVar("T")

POLL_S = 0.05
_END: Any = object()


@final
class Buffer(Generic[T]):
    """A bounded queue between one producer and one consumer, either of which may end it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """Block the producer until an item fits; False after the consumer has closed the buffer."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._items) < self._capacity)
            return not self._over

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """End the items: the consumer reads the remaining ones, then gets ``error`` or the end."""
        with self._changed:
            if not self._over:
                self._over, self._error = True, error
            self._changed.notify_all()

    def items(self, iteration: Iteration) -> Iterator[T]:
        """The items in order.

        Raises the producer's error in its place, and `CancelledError` when the run is closed.
        """
        while (item := self._get(iteration)) is not _END:
            yield item
        if self._error is not None:
            raise self._error

    def _get(self, iteration: Iteration) -> T:
        with self._changed:
            while not self._items and not self._over:
                iteration.check()
                self._changed.wait(POLL_S)
            if not self._items:
                return _END
            self._changed.notify_all()
            return self._items.popleft()


def read_ahead(
    open_input: Callable[[Iteration], Stream[Element]], capacity: int, iteration: Iteration
) -> Stream[Element]:
    """The elements of ``open_input``, up to ``capacity`` of them computed ahead by a thread."""
    with closing(_Producer(open_input, capacity, iteration)) as producer:
        yield from producer.buffer.items(iteration)


@final
class _Producer:
    """A running thread and its buffer. ``close``, garbage collection and the interpreter's exit end both."""

    def __init__(
        self, open_input: Callable[[Iteration], Stream[Element]], capacity: int, iteration: Iteration
    ) -> None:
        self.buffer: Buffer[Element] = Buffer(capacity)
        stopped = threading.Event()
        upstream = dataclasses.replace(iteration, cancelled=lambda: stopped.is_set() or iteration.cancelled())
        thread = threading.Thread(
            target=_produce, args=(open_input, upstream, self.buffer), name="flowrt-prefetch", daemon=True
        )
        thread.start()
        self.close = weakref.finalize(self, _stop, stopped, self.buffer, thread)


def _produce(
    open_input: Callable[[Iteration], Stream[Element]], iteration: Iteration, buffer: Buffer[Element]
) -> None:
    failure = None
    try:
        with closing(open_input(iteration)) as elements:
            while buffer.wait_for_room() and (element := next(elements, _END)) is not _END:
                buffer.put(element)
    except BaseException as error:  # noqa: BLE001 - raised again by the consumer, in the error's turn
        failure = error
    buffer.end(failure)


def _stop(stopped: threading.Event, buffer: Buffer[Element], thread: threading.Thread) -> None:
    stopped.set()
    buffer.end()
    if thread is threading.current_thread():  # the garbage collector ran in the producer itself
        return
    thread.join(CLOSE_S)
    if thread.is_alive():
        warnings.warn(
            f"prefetch: {CLOSE_S:g} s after closing, its thread still computes an element; then it ends",
            RuntimeWarning,
            stacklevel=2,
        )


def map_in_order(
    fn: Callable[..., Element],
    open_input: Callable[[Iteration], Stream[Element]],
    workers: int,
    iteration: Iteration,
) -> Stream[Element]:
    """``fn(*element)`` for every element, with up to ``workers`` calls ahead, on as many threads."""
    pool = ThreadPoolExecutor(workers, "flowrt-map")
    pending: deque[Future[Element]] = deque()
    try:
        with closing(open_input(iteration)) as elements:
            for future in _submitted(pool, fn, elements):
                pending.append(future)
                if len(pending) > workers:
                    yield _result(pending.popleft(), iteration)
            while pending:
                yield _result(pending.popleft(), iteration)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        started = [future for future in pending if not future.cancelled()]  # wait() never returns the others
        pool.shutdown(wait=not wait(started, CLOSE_S).not_done)  # idle threads end immediately


def _submitted(
    pool: ThreadPoolExecutor, fn: Callable[..., Element], elements: Stream[Element]
) -> Iterator[Future[Element]]:
    """A future for every element; an error of ``elements`` is the last one's."""
    try:
        for element in elements:
            yield pool.submit(fn, *element)
    except Exception as error:  # noqa: BLE001 - raised again when its turn comes
        failed: Future[Element] = Future()
        failed.set_exception(error)
        yield failed


def _result(future: Future[Element], iteration: Iteration) -> Element:
    while not wait([future], POLL_S).done:
        iteration.check()
    return future.result()
