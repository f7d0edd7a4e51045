"""A queue of tensors that are computed ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrt.contrib.slim.data.parallel_reader import summarize_fullness
from flowrt.dataflow.queues import FIFOQueue, PaddingFIFOQueue, QueueBase
from flowrt.graph.construction.graph import get_default_graph
from flowrt.train.coordination.queue_runner import QueueRunner, add_queue_runner


def prefetch_queue(
    tensors: Any,
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """A queue that ``num_threads`` threads of a queue runner fill with ``tensors``, a list or a dict: its
    elements are dequeued alike. ``dynamic_pad`` allows shapes with unknown dimensions.

    Example:
        >>> queue = tf.contrib.slim.prefetch_queue.prefetch_queue([tf.constant([1.0, 2.0])])
        >>> queue.dequeue().shape
        TensorShape([2])
    """
    names = sorted(tensors) if isinstance(tensors, Mapping) else None
    parts = list(tensors) if names is None else [tensors[key] for key in names]
    with get_default_graph().name_scope(name or "prefetch_queue"):
        kind: Any = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        made: QueueBase = kind(
            capacity, [part.dtype for part in parts], [part.shape for part in parts], names, shared_name
        )
        add_queue_runner(QueueRunner(made, [made.enqueue(tensors)] * num_threads))
        summarize_fullness(made, capacity)
    return made
