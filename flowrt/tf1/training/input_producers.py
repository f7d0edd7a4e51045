"""Queues that a thread fills with the parts of a tensor, epoch after epoch: file names, rows, numbers.

    limit_epochs   a tensor that can be evaluated a number of times; then the step raises `OutOfRangeError`
    queue          filled by a `QueueRunner` with the tensor's rows, shuffled in each epoch

The threads are started by `start_queue_runners`. With a number of epochs there is a local variable that
counts them: ``local_variables_initializer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.dataflow.queues import FIFOQueue
from flowrt.dtypes import float32, int64, string
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import range as number_range
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import shape, size
from flowrt.graph.ops.random.sampling import random_shuffle
from flowrt.graph.ops.text.assertions import Assert
from flowrt.graph.ops.text.summaries import scalar
from flowrt.graph.shapes import as_shape, compatible, format_shape
from flowrt.graph.typing import TensorLike
from flowrt.train.coordination.queue_runner import QueueRunner, add_queue_runner
from flowrt.variables.variable import GraphKeys, Variable


def limit_epochs(tensor: TensorLike, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """``tensor``, which can be evaluated ``num_epochs`` times (None: unlimited); after that the step raises
    `OutOfRangeError`. Raises `InvalidArgumentError` for no epochs.
    """
    value = convert_to_tensor(tensor)
    if num_epochs is None:
        return value
    if num_epochs <= 0:
        raise InvalidArgumentError(f"limit_epochs: expected num_epochs > 0; got {num_epochs}")
    graph = get_default_graph()
    with graph.name_scope(name or "limit_epochs"):
        collections = [GraphKeys.LOCAL_VARIABLES]
        epochs = Variable(0, dtype=int64, trainable=False, collections=collections, name="epochs")
        with graph.control_dependencies([epochs.count_up_to(num_epochs)]):
            limited: Tensor = identity(value)
        return limited


def input_producer(
    input_tensor: TensorLike,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """A queue of the rows of ``input_tensor``, each epoch in a random order with ``shuffle``.

    ``element_shape`` is the shape of a row, if not known from the tensor. ``summary_name`` names a summary of
    how full the queue is. Raises `InvalidArgumentError` for a scalar, and rows of no known shape.
    """
    with get_default_graph().name_scope(name or "input_producer"):
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        row = _row_shape(rows, element_shape)
        rows = limit_epochs(random_shuffle(rows, seed) if shuffle else rows, num_epochs)
        queue = FIFOQueue(capacity, rows.dtype, [row], shared_name=shared_name, name="input_producer")
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            scalar(summary_name, cast(queue.size(), float32) * (1.0 / capacity))
        return queue


def _row_shape(rows: Tensor, element_shape: Any) -> tuple[int | None, ...]:
    whole = rows.spec.shape
    known = whole[1:] if whole else None
    if whole == ():
        raise InvalidArgumentError("input_producer: expected a tensor of rank 1 or more; got a scalar")
    given = known if element_shape is None else as_shape(element_shape)
    if given is None or None in given or not compatible(given, known):
        raise InvalidArgumentError(
            f"input_producer: expected rows of a known shape; got {format_shape(known)} and element_shape"
            f" {element_shape}"
        )
    return given


def string_input_producer(
    string_tensor: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Operation | None = None,
) -> FIFOQueue:
    """A queue of the strings in a vector: of file names. See `input_producer`. Raises
    `InvalidArgumentError` for a vector without any, also when run.
    """
    with get_default_graph().name_scope(name or "input_producer") as scope:
        names = convert_to_tensor(string_tensor, string)
        complaint = "string_input_producer: expected at least one string; got none"
        if names.spec.shape == (0,):
            raise InvalidArgumentError(complaint)
        with get_default_graph().control_dependencies([Assert(size(names) > 0, [complaint])]):
            names = identity(names)
        full = f"fraction_of_{capacity}_full"
        return input_producer(
            names, [], num_epochs, shuffle, seed, capacity, shared_name, full, scope, cancel_op
        )


def range_input_producer(
    limit: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue of the numbers 0 to ``limit`` - 1. See `input_producer`."""
    with get_default_graph().name_scope(name or "input_producer") as scope:
        full = f"fraction_of_{capacity}_full"
        numbers = number_range(limit)
        return input_producer(numbers, [], num_epochs, shuffle, seed, capacity, shared_name, full, scope)


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """The next row of each of the tensors, which have the same number of rows. See `input_producer`. Raises
    `InvalidArgumentError` for no tensors, and if the numbers of rows differ.
    """
    with get_default_graph().name_scope(name or "input_producer"):
        tensors = [convert_to_tensor(tensor) for tensor in tensor_list]
        counts = {tensor.spec.shape[0] for tensor in tensors if tensor.spec.shape}
        if not tensors or len(counts - {None}) > 1:
            raise InvalidArgumentError(
                "slice_input_producer: expected tensors with equal numbers of rows; got"
                f" {[format_shape(tensor.spec.shape) for tensor in tensors]}"
            )
        rows = shape(tensors[0])[0]
        queue = range_input_producer(rows, num_epochs, shuffle, seed, capacity, shared_name)
        number = queue.dequeue()
        return [gather(tensor, number) for tensor in tensors]
