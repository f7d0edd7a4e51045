"""Infeed and outfeed: queues through which a host thread feeds running steps, and reads from them.

    host thread       run(infeed_enqueue(batch))        run(outfeed_dequeue(...))
                              |                                 ^
    training step     infeed_dequeue(...) -> ... -> outfeed_enqueue(loss)

Both ends of a queue are operations of one graph, run by one session. An infeed resides on the device of its
`infeed_dequeue`, an outfeed on that of its `outfeed_enqueue`, so values are copied to the device in the step
that enqueues them, while others compute. A queue holds `CAPACITY` values: the faster side waits. Waiting ends
with the step's deadline, and when the session is closed.

A device has one infeed and one outfeed: ``device_ordinal`` is the index of the device. -1, the default, means
the device that the operation itself requests, and index 0 if it requests none; so the device's end needs no
ordinal, and the host's end names the device. A session without that device cannot run either end. Enqueueing
and dequeueing change the queue, so those of one step run in the order of creation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import Effect, Effects, OpDef, define_handle, define_op
from flowrt.graph.resources.transfer_queue import TransferQueue
from flowrt.graph.shapes import Shape, as_shape, compatible, format_shape
from flowrt.graph.source import misuse

CAPACITY = 8
"""Values in a queue: enough that neither end waits for the other's jitter; each may be a whole batch."""

_ELEMENT = "output_types: list(type), output_shapes: list(shape)"

transfer_queue_op = define_handle(
    "TransferQueue",
    lambda node: TransferQueue(node.name, node.attrs["capacity"]),
    "The handle of a bounded queue of the session.",
    attrs="capacity: int",
)

transfer_enqueue_op: OpDef[Operation] = define_op(
    "TransferEnqueue",
    "queue: resource, components: *Tcomponents in ANY ->",
    kernel=lambda xp, queue, components: queue.put(tuple([xp.array(c) for c in components])),  # a step's own
    effects=Effects(Effect.WRITE, waits=True),
    doc="Puts a tuple of values into a queue, when there is room.",
)


def _dequeue(
    xp: Any, queue: TransferQueue, output_types: Sequence[DType], output_shapes: Sequence[Shape]
) -> tuple[Any, ...]:
    values: tuple[Any, ...] = queue.get()
    if len(values) != len(output_types):
        raise InvalidArgumentError(f"expected a value of {len(output_types)} components; got {len(values)}")
    for i, (value, dtype, shape) in enumerate(zip(values, output_types, output_shapes, strict=True)):
        if value.dtype != dtype.np:
            raise DTypeError(f"component {i}: expected {dtype.name}; got {as_dtype(value.dtype).name}")
        if not compatible(value.shape, shape):
            expected, got = format_shape(shape), format_shape(value.shape)
            raise InvalidArgumentError(f"component {i}: expected a value of shape {expected}; got {got}")
    return values


transfer_dequeue_op: OpDef[list[Tensor]] = define_op(
    "TransferDequeue",
    "queue: resource -> *output_types in ANY",
    attrs=_ELEMENT,
    shape=lambda s: s.attrs["output_shapes"],
    kernel=_dequeue,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Takes the first tuple of values of a queue, when there is one.",
)


# --- infeed


def infeed_dequeue(dtype: Any, shape: Any, name: str | None = None, device_ordinal: int = -1) -> Tensor:
    """The next value of this operation's device's infeed. Raises `InvalidArgumentError` when
    ``device_ordinal`` is another device's.

    Raises `InvalidArgumentError` or `DTypeError` at run time for a mismatching value, which is then lost.
    """
    return infeed_dequeue_tuple([dtype], [shape], name, device_ordinal)[0]


def infeed_dequeue_tuple(
    dtypes: Sequence[Any], shapes: Sequence[Any], name: str | None = None, device_ordinal: int = -1
) -> list[Tensor]:
    """The infeed's next value, of several components. See `infeed_dequeue`."""
    queue = _queue("infeed", device_ordinal)
    with get_default_graph().rollback_on_error():
        outputs = _take(queue, dtypes, shapes, name or "infeed_dequeue")
        _live_with(queue, outputs[0].op)
    return outputs


def infeed_enqueue(
    input: Any,
    shape: Any = None,
    layout: Sequence[int] = (),
    device_ordinal: int = -1,
    name: str | None = None,
) -> Operation:
    """The operation that puts ``input`` into the infeed of device ``device_ordinal``; it waits while the
    queue is full.

    ``shape``, if given, is checked; ``layout`` is accepted and ignored.
    """
    shapes = None if shape is None else [shape]
    return infeed_enqueue_tuple([input], shapes, device_ordinal=device_ordinal, name=name)


def infeed_enqueue_tuple(
    inputs: Sequence[Any],
    shapes: Sequence[Any] | None = None,
    layouts: Sequence[int] = (),
    device_ordinal: int = -1,
    name: str | None = None,
) -> Operation:
    """The operation that puts a value of several components into the infeed. See `infeed_enqueue`."""
    tensors = [convert_to_tensor(i) for i in inputs]
    for tensor, shape in zip(tensors, shapes if shapes is not None else [], strict=shapes is not None):
        if not compatible(tensor.spec.shape, as_shape(shape)):
            raise tensor.op.error(
                InvalidArgumentError,
                f"infeed_enqueue: expected shape {format_shape(as_shape(shape))}; "
                f"got {format_shape(tensor.spec.shape)}",
            )
    queue = _queue("infeed", device_ordinal)
    return _give(queue, tensors, name or "infeed_enqueue")


# --- outfeed


def outfeed_enqueue(input: Any, name: str | None = None, device_ordinal: int = -1) -> Operation:
    """The operation that puts ``input`` into its device's outfeed; it waits while the queue is full. Raises
    `InvalidArgumentError` when ``device_ordinal`` is another device's.
    """
    return outfeed_enqueue_tuple([input], name, device_ordinal)


def outfeed_enqueue_tuple(
    inputs: Sequence[Any], name: str | None = None, device_ordinal: int = -1
) -> Operation:
    """The operation that puts a value of several components into the outfeed. See `outfeed_enqueue`."""
    queue = _queue("outfeed", device_ordinal)
    tensors = [convert_to_tensor(i) for i in inputs]
    with get_default_graph().rollback_on_error():
        operation: Operation = transfer_enqueue_op(queue, tensors, name=name or "outfeed_enqueue")
        _live_with(queue, operation)
    return operation


def outfeed_dequeue(dtype: Any, shape: Any, device_ordinal: int = -1, name: str | None = None) -> Tensor:
    """The next value of the outfeed of device ``device_ordinal``. When run, raises as `infeed_dequeue`."""
    return outfeed_dequeue_tuple([dtype], [shape], device_ordinal, name)[0]


def outfeed_dequeue_tuple(
    dtypes: Sequence[Any], shapes: Sequence[Any], device_ordinal: int = -1, name: str | None = None
) -> list[Tensor]:
    """The outfeed's next value, of several components. See `outfeed_dequeue`."""
    queue = _queue("outfeed", device_ordinal)
    with get_default_graph().colocate_with(queue):
        return _take(queue, dtypes, shapes, name or "outfeed_dequeue")


# --- the queue of an end


def _queue(kind: str, device_ordinal: Any) -> Tensor:
    """The handle of this kind of queue of a device, created on first use. Raises `InvalidArgumentError` for
    an invalid ordinal.
    """
    graph = get_default_graph()
    ordinal = device_ordinal
    if ordinal in (-1, None):
        ordinal = parse_device(graph.get_device_scope()).device_index or 0
    if not isinstance(ordinal, int) or ordinal < 0:
        raise misuse(f"device_ordinal: expected a device's index, or -1 for that of its own; got {ordinal!r}")
    known = graph.get_collection_ref((kind, ordinal))
    if not known:
        with graph.name_scope(None), graph.control_dependencies(None), graph.device(None):
            with graph.device(DeviceSpec(device_index=ordinal)):
                known.append(transfer_queue_op(capacity=CAPACITY, name=f"{kind}_queue_{ordinal}"))
    return known[0]


def _give(queue: Tensor, tensors: Sequence[Tensor], name: str) -> Operation:
    with get_default_graph().colocate_with(queue):  # wherever the host thread's scopes say
        return transfer_enqueue_op(queue, list(tensors), name=name)


def _take(queue: Tensor, types: Sequence[Any], shapes: Sequence[Any], name: str) -> list[Tensor]:
    return transfer_dequeue_op(
        queue,
        output_types=[as_dtype(dtype) for dtype in types],
        output_shapes=[as_shape(shape) for shape in shapes],
        name=name,
    )


def _live_with(queue: Tensor, operation: Operation) -> None:
    """Place the queue on the device that ``operation`` requests. Raises `InvalidArgumentError` if that is not
    the queue's.
    """
    asked, ordinal = parse_device(operation.device), parse_device(queue.op.device).device_index
    if asked.device_index not in (None, ordinal):
        raise operation.error(
            InvalidArgumentError,
            f"expected device_ordinal {asked.device_index}, that of {operation.device}; got {ordinal}",
        )
    device = asked.replace(device_index=ordinal).to_string()
    if operation.device and queue.op.device != device:
        queue.op.mutate(device=device)
