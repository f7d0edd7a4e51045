"""``contrib.slim.queues``: the threads that fill queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowrt.tf1.missing_names import missing_from
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.coordination.queue_runner import start_queue_runners

__all__ = ["QueueRunners"]


@contextmanager
def QueueRunners(session: Any) -> Iterator[None]:
    """Run the graph's queue runners for this block; afterwards they are stopped and waited for.

    Example:
        >>> number = tf.train.range_input_producer(3, shuffle=False).dequeue()
        >>> with tf.Session() as session:
        ...     session.run(tf.local_variables_initializer())
        ...     with tf.contrib.slim.queues.QueueRunners(session):
        ...         print(session.run(number))
        0
    """
    coordinator = Coordinator()
    threads = start_queue_runners(session, coordinator)
    try:
        yield
    finally:
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=120, ignore_live_threads=True)


__getattr__ = missing_from("contrib.slim.queues")
