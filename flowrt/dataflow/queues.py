"""Queues, which pass elements between steps of a session, or of a cluster's sessions.

FIFOQueue             in insertion order
PaddingFIFOQueue      the same, with different shapes: elements dequeued together are padded
RandomShuffleQueue    in random order
PriorityQueue         by the first component, the smallest first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrt.dtypes import DType, as_dtype, int64
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.random.random_ops import seed_attrs
from flowrt.graph.ops.state import queues as ops
from flowrt.graph.shapes import Shape, TensorShape, as_shape, is_static


class QueueBase:
    """A queue's operations. An element has one component per dtype; with ``names`` elements are dicts.

    Operations are colocated with the queue. A dequeue from an empty queue, or an enqueue to a full one,
    waits, in order of arrival. A closed queue rejects enqueues (`CancelledError`) and, when empty, dequeues
    (`OutOfRangeError`).
    """

    def __init__(
        self,
        dtypes: Sequence[DType],
        shapes: Sequence[Any],
        names: str | Sequence[str] | None,
        queue_ref: Tensor,
    ) -> None:
        self.dtypes = list(dtypes)
        self.names = [names] if isinstance(names, str) else None if names is None else list(names)
        self._shapes = [as_shape(shape) for shape in shapes]
        self._queue_ref = queue_ref
        if self.names is not None and len(self.names) != len(dtypes):
            raise InvalidArgumentError(
                f"names: expected one a component, {len(dtypes)}; got {len(self.names)}"
            )

    @property
    def queue_ref(self) -> Tensor:
        """The queue's handle."""
        return self._queue_ref

    @property
    def name(self) -> str:
        return self._queue_ref.op.name

    @property
    def shapes(self) -> list[TensorShape]:
        """The shapes of the components; of unknown rank if the queue accepts any."""
        return [TensorShape(shape) for shape in self._shapes or [None] * len(self.dtypes)]

    # --- operations

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """The operation that adds an element: a tensor, a list of components, or a dict by name. Raises
        `InvalidArgumentError` or `DTypeError` if the element does not match the queue.
        """
        with get_default_graph().colocate_with(self._queue_ref):
            return ops.queue_enqueue_op(
                self._queue_ref, self._components(vals), name=name or f"{self._short_name}_enqueue"
            )

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """The operation that adds an element a row of ``vals``."""
        with get_default_graph().colocate_with(self._queue_ref):
            return ops.queue_enqueue_many_op(
                self._queue_ref, self._components(vals), name=name or f"{self._short_name}_EnqueueMany"
            )

    def dequeue(self, name: str | None = None) -> Any:
        """The first element: a tensor, a list of them, or a dict by name."""
        with get_default_graph().colocate_with(self._queue_ref):
            return self._element(
                ops.queue_dequeue_op(
                    self._queue_ref, component_types=self.dtypes, name=name or f"{self._short_name}_Dequeue"
                )
            )

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """``n`` elements, stacked; fewer are an `OutOfRangeError` when the queue is closed. Raises
        `InvalidArgumentError` for a queue without shapes.
        """
        return self._many(ops.queue_dequeue_many_op, n, name or f"{self._short_name}_DequeueMany")

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """``n`` elements, stacked, or the remaining ones of a closed queue, at least one."""
        return self._many(ops.queue_dequeue_up_to_op, n, name or f"{self._short_name}_DequeueUpTo")

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """The operation that closes the queue. What waits for room is still added, unless
        ``cancel_pending_enqueues``.
        """
        with get_default_graph().colocate_with(self._queue_ref):
            return ops.queue_close_op(
                self._queue_ref,
                cancel_pending_enqueues=cancel_pending_enqueues,
                name=name or f"{self._short_name}_Close",
            )

    def is_closed(self, name: str | None = None) -> Tensor:
        with get_default_graph().colocate_with(self._queue_ref):
            return ops.queue_is_closed_op(self._queue_ref, name=name or f"{self._short_name}_is_closed")

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements: int32."""
        with get_default_graph().colocate_with(self._queue_ref):
            return ops.queue_size_op(self._queue_ref, name=name or f"{self._short_name}_Size")

    # --- elements

    def _stacks(self, shape: Shape) -> bool:
        """Whether elements with a component of ``shape`` may be stacked."""
        return is_static(shape)

    @property
    def _short_name(self) -> str:
        return self.name.rpartition("/")[2]

    def _components(self, vals: Any) -> list[Tensor]:
        if isinstance(vals, Mapping):
            if self.names is None or sorted(vals) != sorted(self.names):
                raise InvalidArgumentError(
                    f"queue {self.name!r}: expected the components {self.names}; got a dict of {sorted(vals)}"
                )
            vals = [vals[name] for name in self.names]
        elif self.names is not None:
            raise DTypeError(f"queue {self.name!r}: expected a dict of {self.names}; got {vals!r}")
        given = list(vals) if isinstance(vals, list | tuple) else [vals]
        if len(given) != len(self.dtypes):
            raise InvalidArgumentError(
                f"queue {self.name!r}: expected {len(self.dtypes)} components; got {len(given)}"
            )
        return [convert_to_tensor(value, dtype) for value, dtype in zip(given, self.dtypes, strict=True)]

    def _element(self, components: Sequence[Tensor]) -> Any:
        if self.names is not None:
            return dict(zip(self.names, components, strict=True))
        return components[0] if len(components) == 1 else list(components)

    def _many(self, op: Any, n: Any, name: str) -> Any:
        if len(self._shapes) != len(self.dtypes) or not all(map(self._stacks, self._shapes)):
            raise InvalidArgumentError(
                f"queue {self.name!r}: expected fully defined shapes to stack elements; got"
                f" {[str(shape) for shape in self.shapes]}. Pass shapes= when the queue is made"
            )
        with get_default_graph().colocate_with(self._queue_ref):
            return self._element(op(self._queue_ref, n, component_types=self.dtypes, name=name))


class FIFOQueue(QueueBase):
    """A queue in insertion order.

    Holds ``capacity`` elements, any number if negative. ``dtypes`` and ``shapes`` are those of an element's
    components: one, or a list. Sessions of a cluster share a queue by ``shared_name`` (or name) and device.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        types, known = _types_of(dtypes), _shapes_of(shapes, dtypes)
        handle = _new_queue(ops.fifo_queue_op, types, known, capacity, shared_name, name)
        super().__init__(types, known, names, handle)


class PaddingFIFOQueue(QueueBase):
    """A `FIFOQueue` of elements with unknown dimensions in their ``shapes``. Elements dequeued together are
    padded at the end to the largest sizes among them, with zeros or empty strings.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        types, known = _types_of(dtypes), _shapes_of(shapes, dtypes)
        if len(known) != len(types) or None in known:
            raise InvalidArgumentError(
                f"PaddingFIFOQueue: expected a shape of known rank for each component; got {shapes!r}"
            )
        handle = _new_queue(ops.padding_fifo_queue_op, types, known, capacity, shared_name, name)
        super().__init__(types, known, names, handle)

    def _stacks(self, shape: Shape) -> bool:
        return shape is not None


class RandomShuffleQueue(QueueBase):
    """A queue that draws its next element at random by ``seed``; ``min_after_dequeue`` elements remain in it
    until it is closed: the more, the better mixed. For the other arguments see `FIFOQueue`.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        types, known = _types_of(dtypes), _shapes_of(shapes, dtypes)
        if min_after_dequeue < 0 or 0 <= capacity <= min_after_dequeue:
            raise InvalidArgumentError(
                "RandomShuffleQueue: expected min_after_dequeue from 0 to below the capacity; got"
                f" {min_after_dequeue} of {capacity}"
            )
        attrs = {"min_after_dequeue": min_after_dequeue, **seed_attrs(seed)}
        handle = _new_queue(ops.random_shuffle_queue_op, types, known, capacity, shared_name, name, **attrs)
        super().__init__(types, known, names, handle)


class PriorityQueue(QueueBase):
    """A queue that returns the element with the smallest priority first, in insertion order for equal ones.

    An element's first component is its priority, an int64 scalar; ``types`` and ``shapes`` are the others'.
    """

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        others, known = _types_of(types), _shapes_of(shapes, types)
        handle = _new_queue(ops.priority_queue_op, others, known, capacity, shared_name, name)
        super().__init__([int64, *others], [(), *known] if known else [], names, handle)


def _new_queue(
    op: OpDef,
    types: Sequence[DType],
    shapes: Sequence[Shape],
    capacity: int,
    shared_name: str | None,
    name: str,
    **attrs: int,
) -> Tensor:
    return op(
        component_types=types,
        shapes=shapes,
        capacity=capacity,
        shared_name=shared_name or "",
        container=get_default_graph().get_container_scope(),
        name=name,
        **attrs,
    )


def _types_of(dtypes: Any) -> list[DType]:
    return [as_dtype(d) for d in (dtypes if isinstance(dtypes, list | tuple) else [dtypes])]


def _shapes_of(shapes: Any, dtypes: Any) -> list[Shape]:
    """One shape a component, none if ``shapes`` is None. Raises `InvalidArgumentError` for another number."""
    count = len(_types_of(dtypes))
    if shapes is None:
        return []
    is_list = isinstance(shapes, list | tuple) and (
        count > 1 or any(isinstance(s, list | tuple | TensorShape) for s in shapes)
    )
    found = [as_shape(shape) for shape in (shapes if is_list else [shapes])]
    if len(found) != count:
        raise InvalidArgumentError(f"shapes: expected one a component, {count}; got {len(found)}")
    return found
