"""Batches of elements that a graph computes: threads run the graph and enqueue its results.

    batch, shuffle_batch             num_threads threads run one graph
    batch_join, shuffle_batch_join   one thread for each of several graphs
    maybe_...                        the same, with a tensor that selects what is kept

Elements are a tensor, a list of tensors, or a dict; so are batches. The threads are started by
`start_queue_runners`; when the data is used up (`OutOfRangeError`) the queue is closed, and its remaining
elements can still be dequeued.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from flowrt.control_flow.branches import cond
from flowrt.dataflow.queues import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from flowrt.dtypes import DType, bool_, float32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.selection import boolean_mask
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.text.summaries import scalar
from flowrt.graph.shapes import Shape, as_shape, format_shape
from flowrt.graph.tf1_signatures import optional, parameters_of, required, with_parameters
from flowrt.train.coordination.queue_runner import QueueRunner, add_queue_runner

NewQueue: TypeAlias = Callable[[Sequence[DType], Sequence[Shape]], QueueBase]


def _fifo_batches(
    sources: Sequence[Any],
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str = "",
) -> Any:
    queue = PaddingFIFOQueue if dynamic_pad else FIFOQueue
    new_queue = partial(queue, capacity, shared_name=shared_name)
    what = _Batches(name, batch_size, capacity, enqueue_many, allow_smaller_final_batch)
    return _batches(sources, keep_input, new_queue, what, shapes, num_threads)


def _shuffled_batches(
    sources: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str = "",
) -> Any:
    new_queue = partial(RandomShuffleQueue, capacity, min_after_dequeue, seed=seed, shared_name=shared_name)
    what = _Batches(name, batch_size, capacity, enqueue_many, allow_smaller_final_batch, min_after_dequeue)
    return _batches(sources, keep_input, new_queue, what, shapes, num_threads)


def _public(batches: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """The public function ``name`` of ``batches``: with ``keep_input`` if its name begins with "maybe", with
    one source for several threads, or with one source per thread if its name ends with "join".
    """
    sources = "tensors_list" if name.endswith("join") else "tensors"
    changed = {"sources": required(sources), "name": optional("name")}
    absent = {"num_threads"} if name.endswith("join") else set[str]()
    if not name.startswith("maybe"):
        absent.add("keep_input")
    parameters = [changed.get(p.name, p) for p in parameters_of(batches) if p.name not in absent]

    def call(given: dict[str, Any]) -> Any:
        source = given.pop(sources)
        given["sources"] = source if name.endswith("join") else [source]
        return batches(**{"keep_input": True, **given, "name": given.get("name") or name})

    public = with_parameters(batches, parameters, call)
    public.__name__, public.__qualname__, public.__doc__ = name, name, doc
    return public


batch = _public(
    _fifo_batches,
    "batch",
    """Batches of ``batch_size`` elements ``tensors``, or of rows of them with ``enqueue_many``.

    ``shapes``: the elements', where the tensors' do not tell. With ``dynamic_pad`` they may have unknown
    dimensions (see `PaddingFIFOQueue`). Rows at the end that are no whole batch are left out, unless
    ``allow_smaller_final_batch``. Raises `InvalidArgumentError` for shapes that are not known.
    """,
)
maybe_batch = _public(
    _fifo_batches,
    "maybe_batch",
    """`batch` of the elements where ``keep_input``, a bool or with ``enqueue_many`` one per row, is
    true.
    """,
)
batch_join = _public(
    _fifo_batches,
    "batch_join",
    "`batch` of several graphs' elements, of the same structure; one thread runs each graph.",
)
maybe_batch_join = _public(
    _fifo_batches,
    "maybe_batch_join",
    "`batch_join` of the elements where ``keep_input`` is true. See `maybe_batch`.",
)
shuffle_batch = _public(
    _shuffled_batches,
    "shuffle_batch",
    """`batch` of elements in random order; ``min_after_dequeue`` of them stay to choose from (see
    `RandomShuffleQueue`).
    """,
)
maybe_shuffle_batch = _public(
    _shuffled_batches,
    "maybe_shuffle_batch",
    "`shuffle_batch` of the elements where ``keep_input`` is true. See `maybe_batch`.",
)
shuffle_batch_join = _public(
    _shuffled_batches,
    "shuffle_batch_join",
    "`shuffle_batch` of several graphs' elements, of the same structure; one thread runs each graph.",
)
maybe_shuffle_batch_join = _public(
    _shuffled_batches,
    "maybe_shuffle_batch_join",
    "`shuffle_batch_join` of the elements where ``keep_input`` is true. See `maybe_batch`.",
)


# --- the queue


class _Batches(NamedTuple):
    """Parameters of the batches."""

    name: str
    size: Any
    capacity: int
    are_rows: bool
    may_be_smaller: bool
    reserve: int = 0


def _batches(
    sources: Sequence[Any],
    keep_input: Any,
    new_queue: NewQueue,
    what: _Batches,
    shapes: Any,
    threads: int = 1,
) -> Any:
    """Batches of the elements ``sources``, each enqueued by ``threads`` threads. Raises
    `InvalidArgumentError` for a queue without room and for batches of nothing.
    """
    _check_positive(what.name, "batch_size", what.size)
    _check_positive(what.name, "num_threads", threads)
    if what.capacity <= what.reserve:
        least = f"more than min_after_dequeue={what.reserve}" if what.reserve else "1 or more"
        raise InvalidArgumentError(f"{what.name}: expected a capacity of {least}; got {what.capacity}")
    with get_default_graph().name_scope(what.name):
        elements = [[convert_to_tensor(tensor) for tensor in _components(source)] for source in sources]
        types = _common_types(elements)
        queue = new_queue(types, _element_shapes(elements, shapes, what.are_rows))
        keep = convert_to_tensor(keep_input, bool_)
        adding = [_enqueue(queue, element, keep, what.are_rows) for element in elements]
        add_queue_runner(QueueRunner(queue, adding * threads))
        _summarize(queue, what)
        take = queue.dequeue_up_to if what.may_be_smaller else queue.dequeue_many
        taken = take(what.size, name=what.name)
    if not isinstance(sources[0], Mapping):
        return taken
    return dict(zip(sorted(sources[0]), taken if isinstance(taken, list) else [taken], strict=True))


def _check_positive(name: str, argument: str, value: Any) -> None:
    """Raise unless the size is positive; a tensor is checked by the step."""
    is_wrong = value < 1 if isinstance(value, numbers.Integral) else isinstance(value, str | float | None)
    if is_wrong:
        raise InvalidArgumentError(f"{name}: expected {argument} to be an integer >= 1; got {value!r}")


def _components(source: Any) -> list[Any]:
    """The tensors of an element, those of a dict by the order of its keys. Raises `InvalidArgumentError`."""
    if isinstance(source, Mapping):
        found = [source[key] for key in sorted(source)]
    else:
        found = list(source) if isinstance(source, list | tuple) else [source]
    if not found:
        raise InvalidArgumentError("batch: expected at least one tensor; got none")
    return found


def _common_types(elements: Sequence[Sequence[Tensor]]) -> list[DType]:
    """The dtypes of the components. Raises `InvalidArgumentError` unless all elements have the same."""
    kinds = [[tensor.dtype for tensor in element] for element in elements]
    if any(kind != kinds[0] for kind in kinds):
        names = ["(" + ", ".join(dtype.name for dtype in kind) + ")" for kind in kinds]
        raise InvalidArgumentError(f"batch_join: expected elements of equal dtypes; got {', '.join(names)}")
    return kinds[0]


def _element_shapes(elements: Sequence[Sequence[Tensor]], shapes: Any, are_rows: bool) -> list[Shape]:
    """The shapes of the components of all elements. Raises `InvalidArgumentError` for a wrong number."""
    if shapes is not None:
        is_one = len(elements[0]) == 1 and not any(isinstance(each, list | tuple) for each in shapes)
        given = [as_shape(shape) for shape in ([shapes] if is_one else shapes)]
        if len(given) != len(elements[0]):
            raise InvalidArgumentError(
                f"batch: expected a shape for each of {len(elements[0])} tensors; got {shapes!r}"
            )
        return given
    return [_common_shape(tensors, are_rows) for tensors in zip(*elements, strict=True)]


def _common_shape(tensors: Sequence[Tensor], are_rows: bool) -> Shape:
    """The most specific shape common to all."""
    shapes = [tensor.spec.shape for tensor in tensors]
    if None in shapes or len({len(shape or ()) for shape in shapes}) != 1:
        return None
    if are_rows and not shapes[0]:
        raise InvalidArgumentError(
            f"batch: expected tensors of rank >= 1 with enqueue_many; got {tensors[0].name!r} of shape"
            f" {format_shape(shapes[0])}"
        )
    sizes = zip(*[shape[1:] if are_rows else shape for shape in shapes if shape is not None], strict=True)
    return tuple([same[0] if len(set(same)) == 1 else None for same in sizes])


def _enqueue(queue: QueueBase, element: list[Tensor], keep: Tensor, are_rows: bool) -> Operation:
    """An operation that enqueues the element, or its rows, as ``keep`` selects."""
    add = queue.enqueue_many if are_rows else queue.enqueue
    if are_rows and keep.spec.shape != ():
        return add([boolean_mask(tensor, keep) for tensor in element])
    if keep.op.type == "Const" and bool(keep.op.get_attr("value")):
        return add(element)

    def added() -> Tensor:
        with get_default_graph().control_dependencies([add(element)]):
            return constant(True)

    return cond(keep, added, lambda: constant(False)).op


def _summarize(queue: QueueBase, what: _Batches) -> None:
    """Add a summary of how full the queue is."""
    room = what.capacity - what.reserve
    over = f"over_{what.reserve}_of" if what.reserve else "of"
    full = cast(queue.size() - what.reserve, float32) * (1.0 / room)
    scalar(f"fraction_{over}_{what.capacity}_full", full)
