"""The gradients of collectives, see `flowrt.graph.ops.collective.collectives`: collectives of the same group.

Operations for a rank are placed on its device, regardless of enclosing scopes; a collective has no device.

All graphs of a group must build them, each for its own part: the gradient of a graph's value includes the
losses of all graphs. A graph without the root starts from an empty result, and ends at a value that is
ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from flowrt.graph.collectives.schedule import offset
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.collective.collective_shapes import resized
from flowrt.graph.ops.elementwise.arithmetic import add, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.elementwise.division import divide, floordiv, floormod
from flowrt.graph.shapes import Shape, is_static

# --- places


@contextmanager
def nowhere() -> Iterator[None]:
    """New operations request no device and no colocation: used to build collectives."""
    graph = get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), graph.device(None):
        yield


Built = TypeVar("Built")


def at_each(like: Sequence[Tensor], build: Callable[..., Built], *columns: Sequence[Any]) -> list[Built]:
    """``build(*row)`` for each row of ``columns``, where the tensor of its rank in ``like`` is."""
    found = []
    for tensor, *row in zip(like, *columns, strict=True):
        with get_default_graph().colocate_with(tensor.op, ignore_existing=True):
            found.append(build(*row))
    return found


def places_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """An empty tensor on the device of each of the tensors."""
    return at_each(tensors, lambda: constant(np.zeros(0, np.int32), name="place"))


# --- more collectives of a group


def next_instance(graph: Graph, group_key: str) -> str:
    """The key of the next collective of a group that is built in ``graph``: they are counted, so that graphs
    that build the same have the same keys.
    """
    built = graph.root.get_collection_ref(("collectives", group_key))
    built.append(None)
    return str(len(built) - 1)


def _build(op: Operation, kind: str, *inputs: Any, **attrs: Any) -> Any:
    """The results of one more collective of ``op``'s group; of a kind with one result that."""
    group = {key: op.node.attrs[key] for key in ("group_key", "group_size", "ranks", "tasks")}
    is_native = op.node.attrs["lowering"] == "native"
    group["lowering"] = "native" if is_native else "auto"  # another kind may not have the algorithm
    group["instance_key"] = next_instance(op.graph, group["group_key"])
    with nowhere():
        return op_def(kind)(*inputs, **attrs, **group)


def _has_root(op: Operation) -> bool:
    return op.node.attrs["root"] in op.node.attrs["ranks"]


def _from_root(op: Operation, value: Tensor, dims: Shape) -> list[Tensor]:
    """The root's tensor of shape ``dims``, for every rank. In other graphs ``value`` is a placeholder."""
    root = op.node.attrs["root"]
    return list(_build(op, "Broadcast", [value], places_of(op.inputs), root=root, shape=_told(op, dims)))


def _told(op: Operation, dims: Shape) -> Shape:
    """The attr ``shape`` for a tensor from the root; the root's own graph infers it."""
    return None if _has_root(op) else dims


def _at_result(op: Operation) -> Tensor:
    """The value on the device of the result: the root's."""
    ranks, root = op.node.attrs["ranks"], op.node.attrs["root"]
    return op.inputs[ranks.index(root) if root in ranks else 0]


def _given_at_root(op: Operation, total: Tensor) -> list[Tensor]:
    """The gradient of the value that the graph gave, if it gave one: ``total`` in the root's graph, zeros,
    once it has done its part, in another.
    """
    given = op.inputs[: op.node.attrs["M"]]
    if _has_root(op):
        return at_each(given, identity, [total])
    with get_default_graph().control_dependencies([total]):
        return at_each(given, zeros_like, given)


def _given(like: Sequence[Tensor], op: Operation, dys: Sequence[Tensor | None]) -> list[Tensor]:
    """A gradient for each output, on the device of ``like``; zero for unused outputs: the other ranks need
    them.
    """

    def given(y: Tensor, dy: Tensor | None) -> Tensor:
        return zeros_like(y) if dy is None else identity(dy)

    return at_each(like, given, op.outputs, dys)


# --- reductions


def all_reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    totals = _build(op, "AllReduce", _given(op.inputs, op, dys), reduction="sum")
    return _of_reduction(op, totals, op.outputs)


def reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    dims = op.inputs[0].spec.shape
    (given,) = _given([_at_result(op)], op, dys)
    totals = _from_root(op, given, dims)
    results = _from_root(op, op.outputs[0], dims) if _needs_results(op) else op.outputs
    return _of_reduction(op, totals, results)


def reduce_scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    totals = _parts_joined(op, _given(op.inputs, op, dys))
    results = _parts_joined(op, op.outputs) if _needs_results(op) else op.outputs
    return _of_reduction(op, totals, results)


def _parts_joined(op: Operation, parts: Sequence[Tensor]) -> list[Tensor]:
    """The concatenation of ``parts`` of a split value, for every rank."""
    if _can_be_joined(op, op.inputs[0].spec.shape):
        return list(_build(op, "AllGather", list(parts), axis=op.node.attrs["axis"]))
    return list(_build(op, "AllReduce", _among_zeros(op, parts, op.inputs[0].spec.shape), reduction="sum"))


def _needs_results(op: Operation) -> bool:
    return op.node.attrs["reduction"] in ("min", "max")


def _of_reduction(op: Operation, totals: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the inputs of a reduction. Rank i has ``totals[i]``, the gradient of the result summed
    over all ranks that have it, and ``results[i]``, the result.
    """
    reduction, values = op.node.attrs["reduction"], op.inputs
    if reduction == "sum":
        return list(totals)
    if reduction == "mean":
        count = op.node.attrs["group_size"]
        return at_each(values, lambda total: divide(total, cast(count, total.dtype)), totals)
    if reduction == "prod":
        return at_each(values, multiply, totals, _products_of_others(op))
    taken = at_each(values, lambda x, y: cast(equal(x, y), x.dtype), values, results)
    counts = _build(op, "AllReduce", taken, reduction="sum")
    return at_each(values, lambda one, n, total: multiply(divide(one, n), total), taken, counts, totals)


def _products_of_others(op: Operation) -> list[Tensor]:
    """Product of the other ranks' values, for each rank; not the result divided by its own, which may be
    zero.
    """
    rows = at_each(op.inputs, lambda value: expand_dims(value, 0), op.inputs)
    every = _build(op, "AllGather", rows, axis=0)

    def product(rank: int, rows: Tensor) -> Tensor:
        others = [getitem(rows, slice(0, rank)), getitem(rows, slice(rank + 1, None))]
        return reduce_prod(concat(others, 0), axis=0)

    return at_each(op.inputs, product, op.node.attrs["ranks"], every)


# --- joins and parts


def all_gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    given = _given(op.inputs, op, dys)
    if _is_even(op):
        return list(_build(op, "ReduceScatter", given, reduction="sum", axis=op.node.attrs["axis"]))
    return _own_parts(op, _build(op, "AllReduce", given, reduction="sum"))


def gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    root, axis = op.node.attrs["root"], op.node.attrs["axis"]
    (given,) = _given([_at_result(op)], op, dys)
    if not _is_even(op):
        return _own_parts(op, _from_root(op, given, None))
    dims = op.inputs[0].spec.shape or ()
    whole = resized(dims, axis, dims[axis] * op.node.attrs["group_size"])
    parts = _build(op, "Scatter", [given], places_of(op.inputs), root=root, axis=axis, shape=_told(op, whole))
    return list(parts)


def _is_even(op: Operation) -> bool:
    """Whether all ranks are known to have values of equal size; in other graphs they do."""
    shapes = {value.spec.shape for value in op.inputs}
    return len(shapes) == 1 and is_static(next(iter(shapes)))


def _own_parts(op: Operation, wholes: Sequence[Tensor]) -> list[Tensor]:
    """The part of each rank in the concatenated values."""
    axis = op.node.attrs["axis"]
    sizes = at_each(op.inputs, lambda value: getitem(shape(value), slice(axis, axis + 1)), op.inputs)
    every = _build(op, "AllGather", sizes, axis=0)

    def part(rank: int, whole: Tensor, sizes: Tensor) -> Tensor:
        first = sum([getitem(sizes, r) for r in range(rank)], 0)
        index = (slice(None),) * axis + (slice(first, first + getitem(sizes, rank)),)
        return getitem(whole, index)

    return at_each(op.inputs, part, op.node.attrs["ranks"], wholes, every)


def broadcast_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    places = op.inputs[op.node.attrs["M"] :]
    total = _build(op, "Reduce", _given(places, op, dys), reduction="sum", root=op.node.attrs["root"])
    return [*_given_at_root(op, total), *[None] * len(places)]


def scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    attrs, places = op.node.attrs, op.inputs[op.node.attrs["M"] :]
    given, root = _given(places, op, dys), attrs["root"]
    whole = op.inputs[0].spec.shape if _has_root(op) else attrs["shape"]
    if _can_be_joined(op, whole):
        total = _build(op, "Gather", given, root=root, axis=attrs["axis"])
    else:
        total = _build(op, "Reduce", _among_zeros(op, given, whole), reduction="sum", root=root)
    return [*_given_at_root(op, total), *[None] * len(places)]


def all_to_all_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    axis, given = op.node.attrs["axis"], _given(op.inputs, op, dys)
    dims = op.inputs[0].spec.shape
    if _is_even(op) and _can_be_joined(op, dims):
        return list(_build(op, "AllToAll", given, axis=axis))
    if len(op.inputs) == op.node.attrs["group_size"]:
        return _given_back(op, given)
    assert dims is not None
    return _exchanged_back(op, given, dims[axis])


def _given_back(op: Operation, wholes: Sequence[Tensor]) -> list[Tensor]:
    """The parts of ``wholes`` for each rank, in the order in which it gave them: all ranks are here, with
    values of any sizes.
    """
    axis, size = op.node.attrs["axis"], op.node.attrs["group_size"]
    sizes = at_each(op.inputs, lambda value: getitem(shape(value), axis), op.inputs)

    def end(part: int, whole: Tensor) -> Tensor:
        """The end of ``part`` in a value of the size ``whole``."""
        return add(multiply(floordiv(whole, size), part + 1), minimum(floormod(whole, size), part + 1))

    def pieces(part: int, whole: Tensor) -> list[Tensor]:
        lengths = [subtract(end(part, n), end(part - 1, n)) for n in sizes]
        ends = list(itertools.accumulate(lengths, add, initial=constant(0)))
        places = [(slice(None),) * axis + (slice(*both),) for both in itertools.pairwise(ends)]
        return [getitem(whole, place) for place in places]

    columns = at_each(op.inputs, pieces, range(size), wholes)
    return at_each(op.inputs, lambda *row: concat(row, axis), *columns)


# --- parts of different sizes, between graphs: these exchange the largest size


def _can_be_joined(op: Operation, whole: Shape) -> bool:
    """Whether the parts of ``whole``, cut along the axis, can be joined: in one graph any can."""
    size = op.node.attrs["group_size"]
    is_whole = len(op.node.attrs["ranks"]) == size
    return is_whole or whole is None or (whole[op.node.attrs["axis"]] or 0) % size == 0


def _among_zeros(op: Operation, parts: Sequence[Tensor], whole: Shape) -> list[Tensor]:
    """Each rank's part at its position in zeros of shape ``whole``: their sum is the whole value."""
    axis, size, dims = op.node.attrs["axis"], op.node.attrs["group_size"], whole or ()

    def padded(part: Tensor, rank: int) -> Tensor:
        room = offset(rank, dims[axis], size), dims[axis] - offset(rank + 1, dims[axis], size)
        return _padded(part, axis, *room)

    return at_each(parts, padded, parts, op.node.attrs["ranks"])


def _padded(tensor: Tensor, axis: int, before: int, behind: int) -> Tensor:
    room = [(before, behind) if i == axis else (0, 0) for i in range(len(tensor.spec.shape or ()))]
    return pad(tensor, room)


def _exchanged_back(op: Operation, parts: Sequence[Tensor], length: int) -> list[Tensor]:
    """`AllToAll` of ``parts``, each of which is a part of every rank's value, of ``length``."""
    axis, size = op.node.attrs["axis"], op.node.attrs["group_size"]
    lengths = [offset(rank + 1, length, size) - offset(rank, length, size) for rank in range(size)]

    def evened(part: Tensor, rank: int) -> Tensor:
        pieces = split(part, size, axis)
        return concat([_padded(piece, axis, 0, lengths[0] - lengths[rank]) for piece in pieces], axis)

    def own(pieces: Tensor) -> Tensor:
        cut = zip(split(pieces, size, axis), lengths, strict=True)
        return concat([getitem(p, (slice(None),) * axis + (slice(0, n),)) for p, n in cut], axis)

    even = at_each(op.inputs, evened, parts, op.node.attrs["ranks"])
    exchanged: list[Tensor] = _build(op, "AllToAll", even, axis=axis)
    return at_each(op.inputs, own, exchanged)
