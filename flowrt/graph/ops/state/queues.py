"""Queue operations: handles for an `ElementQueue` of the session, enqueue, dequeue, close.

Those of one step run in the order of creation; a wait for the other end is a wait for another step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, Effects, OpDef, ShapeContext, define_handle, define_op
from flowrt.graph.resources.element_queue import ElementQueue
from flowrt.graph.resources.element_stores import ByPriority, InOrder, Shuffled, Store
from flowrt.graph.resources.random_stream import RandomStream
from flowrt.graph.shapes import Shape, compatible, format_shape

UNBOUNDED = 2**31 - 1
"""Elements, as TensorFlow has it for a negative capacity."""


def _define_queue(
    name: str,
    doc: str,
    store: Callable[[Node], Store] = lambda node: InOrder(),
    attrs: str = "",
    first: Sequence[tuple[DType, Shape]] = (),
) -> OpDef[Tensor]:
    """``first``: components before those that the attributes name."""

    def shapes_of(attrs: Mapping[str, Any]) -> list[Shape]:
        return [*(shape for _, shape in first), *attrs["shapes"]] if attrs["shapes"] else []

    def components(s: ShapeContext) -> tuple[list[DType], list[Shape]]:
        return [*(dtype for dtype, _ in first), *s.attrs["component_types"]], shapes_of(s.attrs)

    def new_queue(node: Node) -> ElementQueue:
        capacity = node.attrs["capacity"]
        capacity = capacity if capacity >= 0 else UNBOUNDED
        return ElementQueue(node.name, capacity, store(node), shapes_of(node.attrs))

    return define_handle(
        name,
        new_queue,
        doc,
        output="handle: resource",
        attrs="component_types: list(type), shapes: list(shape) = (), capacity: int = -1, "
        "container: string = '', shared_name: string = ''" + attrs,
        value=components,
    )


fifo_queue_op = _define_queue("FIFOQueueV2", "The handle of a first-in, first-out queue of the session.")
padding_fifo_queue_op = _define_queue(
    "PaddingFIFOQueueV2",
    "The handle of a first-in, first-out queuewith padding of elements that are dequeued together.",
)
random_shuffle_queue_op = _define_queue(
    "RandomShuffleQueueV2",
    "The handle of a queue with elements in random order.",
    lambda node: Shuffled(RandomStream(node), node.attrs["min_after_dequeue"]),
    ", min_after_dequeue: int = 0, seed: int = 0, seed2: int = 0",
)
priority_queue_op = _define_queue(
    "PriorityQueueV2",
    "The handle of a priority queue: the element with the smallest first component is dequeued first.",
    lambda node: ByPriority(),
    first=[(dtypes.int64, ())],
)


# --- enqueueing


def _check_components(s: ShapeContext, is_batch: bool) -> list[Shape]:
    """The components match the queue, as far as its handle determines them."""
    known = s.value(0)
    if known is None:
        return []
    types, shapes = known
    given = list(zip(s.dtypes[1:], s.shapes[1:], strict=True))
    if [dtype for dtype, _ in given] != list(types):
        names = ", ".join(dtype.name for dtype in types)
        raise InvalidArgumentError(
            f"expected components of {names}; got {', '.join(dtype.name for dtype, _ in given)}"
        )
    _check_shapes(shapes, [shape for _, shape in given], is_batch)
    return []


def _check_shapes(shapes: Sequence[Shape], given: Sequence[Shape], is_batch: bool) -> None:
    """``given`` are shapes of an element's components, or of a batch's; ``shapes`` the queue's, if any."""
    for i, (shape, got) in enumerate(zip(shapes, given, strict=False)):
        expected = (None, *shape) if is_batch and shape is not None else shape
        if not compatible(got, expected):
            raise InvalidArgumentError(
                f"component {i}: expected a value of shape {format_shape(expected)}; got {format_shape(got)}"
            )


def _elements_of(xp: Any, components: Sequence[Any]) -> list[tuple[Any, ...]]:
    """One element a row of the components. Raises `InvalidArgumentError` when they differ in rows."""
    rows = {component.shape[0] for component in components}
    if len(rows) != 1:
        raise InvalidArgumentError(f"expected components with equal numbers of rows; got {sorted(rows)}")
    owned = [xp.array(component) for component in components]  # a step's own memory is used again
    return [tuple([component[i, ...] for component in owned]) for i in range(rows.pop())]


def _define_enqueue(name: str, is_batch: bool, doc: str) -> OpDef[Operation]:
    def kernel(xp: Any, handle: ElementQueue, components: Sequence[Any]) -> None:
        _check_shapes(handle.shapes, [component.shape for component in components], is_batch)
        one = tuple([xp.array(component) for component in components]) if not is_batch else ()
        handle.put(_elements_of(xp, components) if is_batch else [one])

    return define_op(
        name,
        "handle: resource, components: *Tcomponents in ANY ->",
        attrs="timeout_ms: int = -1",
        shape=lambda s: _check_components(s, is_batch),
        kernel=kernel,
        effects=Effects(Effect.WRITE, waits=True),
        doc=doc,
    )


queue_enqueue_op = _define_enqueue("QueueEnqueueV2", False, "Adds an element, once there is room.")
queue_enqueue_many_op = _define_enqueue(
    "QueueEnqueueManyV2", True, "Adds one element per row of its components, each once there is room."
)


# --- dequeueing


def _shapes(s: ShapeContext, count: int | None = None) -> list[Shape]:
    """Shapes of the components of an element, or of ``count`` stacked ones (-1: unknown number)."""
    known = s.value(0)
    types = s.attrs["component_types"]
    shapes = known[1] if known is not None and known[1] else [None] * len(types)
    if count is None:
        return list(shapes)
    rows = None if count < 0 else count
    return [None if shape is None else (rows, *shape) for shape in shapes]


def _checked(elements: Sequence[Sequence[Any]], types: Sequence[DType]) -> Sequence[Sequence[Any]]:
    for element in elements:
        got = [value.dtype for value in element]
        if got != [dtype.np for dtype in types]:
            raise InvalidArgumentError(
                f"expected an element of {[d.name for d in types]}; got {list(map(str, got))}"
            )
    return elements


def _dequeue(xp: Any, handle: ElementQueue, component_types: Sequence[DType]) -> tuple[Any, ...]:
    (element,) = _checked(handle.get(1), component_types)
    return tuple(element)


queue_dequeue_op: OpDef[list[Tensor]] = define_op(
    "QueueDequeueV2",
    "handle: resource -> components: *component_types in ANY",
    attrs="component_types: list(type), timeout_ms: int = -1",
    shape=_shapes,
    kernel=_dequeue,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Takes the first element, when there is one.",
)


def _define_dequeue_many(name: str, up_to: bool, doc: str) -> OpDef[list[Tensor]]:
    def kernel(xp: Any, handle: ElementQueue, n: int, component_types: Sequence[DType]) -> tuple[Any, ...]:
        if n < 1:
            raise InvalidArgumentError(f"n: expected at least 1 element; got {n}")
        elements = _checked(handle.get(n, up_to), component_types)
        return tuple([_stacked(xp, values) for values in zip(*elements, strict=True)])

    def shape(s: ShapeContext) -> list[Shape]:
        wanted = s.value(1)
        return _shapes(s, -1 if up_to or wanted is None else wanted)

    return define_op(
        name,
        "handle: resource, n: host int32 -> components: *component_types in ANY",
        attrs="component_types: list(type), timeout_ms: int = -1",
        shape=shape,
        kernel=kernel,
        effects=Effects(Effect.WRITE, waits=True),
        doc=doc,
    )


def _stacked(xp: Any, values: Sequence[Any]) -> Any:
    """``values``, of one rank, along a new first dimension; shorter ones are padded with zeros or empty
    strings.
    """
    if all(value.shape == values[0].shape for value in values):
        return xp.stack(values)
    longest = tuple([max(sizes) for sizes in zip(*[value.shape for value in values], strict=True)])
    fill = b"" if values[0].dtype == object else 0
    stacked = xp.full((len(values), *longest), fill, values[0].dtype)
    for row, value in zip(stacked, values, strict=True):
        row[tuple([slice(size) for size in value.shape])] = value
    return stacked


queue_dequeue_many_op = _define_dequeue_many(
    "QueueDequeueManyV2", False, "Takes n elements, stacked along a new first dimension."
)
queue_dequeue_up_to_op = _define_dequeue_many(
    "QueueDequeueUpToV2", True, "Takes n elements, or the remaining ones of a closed queue, stacked."
)


# --- the queue itself

queue_close_op: OpDef[Operation] = define_op(
    "QueueCloseV2",
    "handle: resource ->",
    attrs="cancel_pending_enqueues: bool = False",
    kernel=lambda xp, handle, cancel_pending_enqueues: handle.close(cancel_pending_enqueues),
    effects=Effects(Effect.WRITE),
    doc="Closes a queue to further elements.",
)


def _define_question(name: str, answer: str, ask: Callable[[ElementQueue], Any], doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        f"handle: resource -> {answer}",
        shape=lambda s: [()],
        kernel=lambda xp, handle: xp.asarray(np.array(ask(handle), dtypes.as_dtype(answer.split()[-1]).np)),
        effects=Effects(Effect.READ),
        doc=doc,
    )


queue_is_closed_op = _define_question(
    "QueueIsClosedV2", "is_closed: bool", lambda queue: queue.is_closed, "Whether a queue is closed."
)
queue_size_op = _define_question("QueueSizeV2", "size: int32", len, "How many elements a queue has.")
