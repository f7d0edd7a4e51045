"""`StagingArea`: elements made in one step for a later one, as a queue of any length."""

from __future__ import annotations

from typing import Any

from flowrt.dataflow.queues import FIFOQueue
from flowrt.graph.construction.graph import Operation, Tensor

__all__ = ["StagingArea"]


class StagingArea:
    """Elements of ``dtypes`` and ``shapes`` that `put` adds and `get`, which waits for one, takes.

    There is room for ``capacity`` elements, any number if 0; with ``names`` they are dicts. ``memory_limit``
    is accepted. Elements leave in the order in which they came.

    Example:
        >>> from flowrt.contrib.staging import StagingArea
        >>> area = StagingArea([tf.float32])
        >>> session.run(area.put([tf.constant(2.0)]))
        >>> session.run(area.get())
        [np.float32(2.0)]
    """

    def __init__(
        self,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        self._queue = FIFOQueue(capacity or -1, dtypes, shapes, names, shared_name, "staging_area")

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def dtypes(self) -> list[Any]:
        return self._queue.dtypes

    @property
    def shapes(self) -> list[Any]:
        return self._queue.shapes

    @property
    def names(self) -> list[str] | None:
        return self._queue.names

    def put(self, values: Any, name: str | None = None) -> Operation:
        """The operation that adds an element: a list of tensors, or a dict by name."""
        return self._queue.enqueue(values, name)

    def get(self, name: str | None = None) -> list[Tensor] | dict[str, Tensor]:
        """The oldest element: a list of tensors, or a dict by name."""
        found = self._queue.dequeue(name)
        return [found] if isinstance(found, Tensor) else found

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements: int32."""
        return self._queue.size(name)
