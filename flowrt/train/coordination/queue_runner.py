"""`QueueRunner`: threads that fill a queue, and `start_queue_runners`, which starts them all."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowrt import protos
from flowrt.dataflow.queues import QueueBase
from flowrt.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
)
from flowrt.executor.session.default_session import get_default_session
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.variables.variable import GraphKeys

LOGGER = logging.getLogger(__name__)


class QueueRunner:
    """Runs each of ``enqueue_ops`` in a loop on its own thread. A list may repeat an operation.

    The threads end when the data is used up (an error of ``queue_closed_exception_types``; the last one then
    runs ``close_op``), when their coordinator stops (``cancel_op`` is run), or with an error, which is
    reported to the coordinator.

    ``queue_runner_def`` is the message of one, instead of the other arguments: with ``import_scope`` before
    the names in it, they are operations of the default graph.
    """

    def __init__(
        self,
        queue: QueueBase | Operation | None = None,
        enqueue_ops: Sequence[Operation] | None = None,
        close_op: Operation | None = None,
        cancel_op: Operation | None = None,
        queue_closed_exception_types: Sequence[type[BaseException]] | None = None,
        queue_runner_def: Any = None,
        import_scope: str | None = None,
    ) -> None:
        if queue_runner_def is not None:
            scope = f"{import_scope}/" if import_scope else ""
            find = get_default_graph().get_operation_by_name
            parts = parts_of(queue_runner_def, lambda name: find(f"{scope}{name}"))
            queue, enqueue_ops, close_op, cancel_op, queue_closed_exception_types = parts
        if queue is None or not enqueue_ops:
            raise InvalidArgumentError(
                f"QueueRunner: expected a queue and enqueue_ops; got {queue!r} and {enqueue_ops!r}"
            )
        if not isinstance(queue, Operation):
            close_op = queue.close() if close_op is None else close_op
            cancel_op = queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
        if close_op is None or cancel_op is None:
            raise InvalidArgumentError(
                f"QueueRunner: expected a close_op and a cancel_op for the queue {queue.name!r}; got none"
            )
        self.queue, self.enqueue_ops = queue, list(enqueue_ops)
        self.close_op, self.cancel_op = close_op, cancel_op
        self.queue_closed_exception_types = tuple(queue_closed_exception_types or (OutOfRangeError,))
        self._lock = threading.Lock()
        self._running: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Threads that fill the queue, by session."""
        self._raised: list[Exception] = []

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def exceptions_raised(self) -> list[Exception]:
        """The errors of threads that had no coordinator."""
        return self._raised

    def to_proto(self, export_scope: str | None = None) -> Any:
        """The message of this one: names of operations, as far as they are in ``export_scope`` without it."""
        prefix = f"{export_scope}/" if export_scope else ""

        def name(named: Any) -> str:
            found: str = named.name
            return found.removeprefix(prefix)

        return protos.meta_graph_pb2.QueueRunnerDef(
            queue_name=name(self.queue),
            enqueue_op_name=[name(op) for op in self.enqueue_ops],
            close_op_name=name(self.close_op),
            cancel_op_name=name(self.cancel_op),
            queue_closed_exception_types=[
                each.error_code for each in self.queue_closed_exception_types if issubclass(each, OpError)
            ],
        )

    @staticmethod
    def from_proto(queue_runner_def: Any, import_scope: str | None = None) -> QueueRunner:
        """The runner of a message. Raises as the constructor, and `KeyError` for a name of no operation."""
        return QueueRunner(queue_runner_def=queue_runner_def, import_scope=import_scope)

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """The threads for ``sess``: none if those of an earlier call still run."""
        with self._lock:
            if self._running.get(sess, 0) > 0:
                return []
            self._running[sess] = len(self.enqueue_ops)
            self._raised = []
        works = [partial(self._fill, sess, op, coord) for op in self.enqueue_ops]
        if coord is not None:
            works.append(partial(self._cancel_on_stop, sess, coord))
        threads = [
            threading.Thread(target=work, name=f"flowrt-{self.name}-{i}", daemon=daemon)
            for i, work in enumerate(works)
        ]
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    # --- on the threads

    def _fill(self, sess: Any, op: Operation, coord: Coordinator | None) -> None:
        is_last_to_close = False
        try:
            while coord is None or not coord.should_stop():
                sess.run(op)
        except self.queue_closed_exception_types:
            is_last_to_close = self._count_down(sess) == 0
        except Exception as error:  # noqa: BLE001 (for the coordinator, or kept)
            self._count_down(sess)
            self._report(error, coord)
        else:
            self._count_down(sess)
        if is_last_to_close:
            _run_if_open(sess, self.close_op)

    def _count_down(self, sess: Any) -> int:
        with self._lock:
            self._running[sess] -= 1
            return self._running[sess]

    def _report(self, error: Exception, coord: Coordinator | None) -> None:
        if coord is None:
            LOGGER.error("queue %r: an enqueue thread has ended: %s", self.name, error)
            self._raised.append(error)
        elif not (coord.should_stop() and isinstance(error, CancelledError)):
            coord.request_stop(error)

    def _cancel_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        _run_if_open(sess, self.cancel_op)


def parts_of(message: Any, find: Callable[[str], Operation]) -> tuple[Any, ...]:
    """The first arguments of a `QueueRunner`: the operations that a message names."""
    errors = {each.error_code: each for each in OpError.__subclasses__()}
    return (
        find(message.queue_name),
        [find(name) for name in message.enqueue_op_name],
        find(message.close_op_name),
        find(message.cancel_op_name),
        [errors[code] for code in message.queue_closed_exception_types if code in errors],
    )


def _run_if_open(sess: Any, op: Operation) -> None:
    try:
        sess.run(op)
    except (OpError, RuntimeError) as error:  # the session was closed meanwhile: with it the queue's users
        LOGGER.info("%s was not run: %s", op.name, error)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Have `start_queue_runners` start ``qr``."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """The threads of all runners in ``collection`` of the session's graph.

    A runner has ``create_threads(sess, coord, daemon, start)``. Raises `FailedPreconditionError` without a
    session.
    """
    session = get_default_session() if sess is None else sess
    if session is None:
        raise FailedPreconditionError("start_queue_runners: expected a session; got none. Pass sess=")
    runners = session.graph.get_collection(collection)
    return [thread for runner in runners for thread in runner.create_threads(session, coord, daemon, start)]
