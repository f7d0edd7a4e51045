"""The gradients of collectives, see `flowrt.graph.ops.collectives`: collectives of the same group.

What is computed for a rank is where the rank is, whatever the scopes around say; a collective is nowhere.

Of a collective with a root, only the root's graph has a value or a result that a gradient could come from:
between graphs these kinds have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.arithmetic import multiply
from flowrt.graph.ops.comparison import equal
from flowrt.graph.ops.constant import constant
from flowrt.graph.ops.division import divide
from flowrt.graph.ops.filling import zeros_like
from flowrt.graph.ops.identities import cast, identity
from flowrt.graph.ops.joining import concat
from flowrt.graph.ops.reductions import reduce_prod
from flowrt.graph.ops.shaping import expand_dims, shape
from flowrt.graph.ops.slicing import getitem
from flowrt.graph.shapes import is_static

# --- places


@contextmanager
def nowhere() -> Iterator[None]:
    """New operations ask for no device and stay with nobody: how collectives are built."""
    graph = get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), graph.device(None):
        yield


def at_each(like: Sequence[Tensor], build: Callable[..., Tensor], *columns: Sequence[Any]) -> list[Tensor]:
    """``build(*row)`` for each row of ``columns``, where the tensor of its rank in ``like`` is."""
    found = []
    for tensor, *row in zip(like, *columns, strict=True):
        with get_default_graph().colocate_with(tensor.op, ignore_existing=True):
            found.append(build(*row))
    return found


def places_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """For each tensor one without elements that is where it is."""
    return at_each(tensors, lambda: constant(np.zeros(0, np.int32), name="place"))


# --- more collectives of a group


def next_instance(graph: Graph, group_key: str) -> str:
    """The key of the next collective of a group that is built in ``graph``: they are counted, so that graphs
    that build the same have the same keys.
    """
    built = graph.root.get_collection_ref(("collectives", group_key))
    built.append(None)
    return str(len(built) - 1)


def _build(op: Operation, kind: str, *inputs: Any, **attrs: Any) -> list[Tensor]:
    """The results of one more collective of ``op``'s group."""
    group = {key: op.node.attrs[key] for key in ("group_key", "group_size", "ranks", "tasks")}
    is_native = op.node.attrs["lowering"] == "native"
    group["lowering"] = "native" if is_native else "auto"  # another kind may not have the algorithm
    group["instance_key"] = next_instance(op.graph, group["group_key"])
    with nowhere():
        results: list[Tensor] = op_def(kind)(*inputs, **attrs, **group)
    return results


def _check_whole(op: Operation) -> None:
    attrs = op.node.attrs
    if len(attrs["ranks"]) < attrs["group_size"]:
        raise op.error(
            UnimplementedError,
            "has no gradient where other graphs have ranks of its group. Use all_reduce or all_gather",
        )


def _given(like: Sequence[Tensor], op: Operation, dys: Sequence[Tensor | None]) -> list[Tensor]:
    """A gradient for each output, beside ``like``; zero for those that nothing depends on: the other ranks
    need their part.
    """

    def given(y: Tensor, dy: Tensor | None) -> Tensor:
        found: Tensor = zeros_like(y) if dy is None else identity(dy)
        return found

    return at_each(like, given, op.outputs, dys)


# --- reductions


def all_reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    totals = _build(op, "AllReduce", _given(op.inputs, op, dys), reduction="sum")
    return _of_reduction(op, totals, op.outputs)


def reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    _check_whole(op)
    totals = _from_root(op, _given([op.inputs[op.node.attrs["root"]]], op, dys))
    results = _from_root(op, op.outputs) if _needs_results(op) else op.outputs
    return _of_reduction(op, totals, results)


def reduce_scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    axis = op.node.attrs["axis"]
    totals = _build(op, "AllGather", _given(op.inputs, op, dys), axis=axis)
    results = _build(op, "AllGather", list(op.outputs), axis=axis) if _needs_results(op) else op.outputs
    return _of_reduction(op, totals, results)


def _needs_results(op: Operation) -> bool:
    return op.node.attrs["reduction"] in ("min", "max")


def _of_reduction(op: Operation, totals: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of what was reduced. Rank i has ``totals[i]``, the gradient of the result summed over
    all who have it, and ``results[i]``, the result.
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
    """For each rank the product of the other ranks' values: not the result divided by its own, which may be
    zero.
    """
    rows = at_each(op.inputs, lambda value: expand_dims(value, 0), op.inputs)
    every = _build(op, "AllGather", rows, axis=0)

    def product(rank: int, rows: Tensor) -> Tensor:
        others = [getitem(rows, slice(0, rank)), getitem(rows, slice(rank + 1, None))]
        return reduce_prod(concat(others, 0), axis=0)

    return at_each(op.inputs, product, op.node.attrs["ranks"], every)


def _from_root(op: Operation, values: Sequence[Tensor]) -> list[Tensor]:
    """What the root has, for every rank."""
    return _build(op, "Broadcast", list(values), places_of(op.inputs), root=op.node.attrs["root"])


# --- joins and parts


def all_gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    given = _given(op.inputs, op, dys)
    if _is_even(op):
        return _build(op, "ReduceScatter", given, reduction="sum", axis=op.node.attrs["axis"])
    return _own_parts(op, _build(op, "AllReduce", given, reduction="sum"))


def gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    _check_whole(op)
    root, axis = op.node.attrs["root"], op.node.attrs["axis"]
    given = _given([op.inputs[root]], op, dys)
    if _is_even(op):
        return _build(op, "Scatter", given, places_of(op.inputs), root=root, axis=axis)
    return _own_parts(op, _from_root(op, given))


def _is_even(op: Operation) -> bool:
    """Whether all ranks are known to give as much; in other graphs they do."""
    shapes = {value.spec.shape for value in op.inputs}
    return len(shapes) == 1 and is_static(next(iter(shapes)))


def _own_parts(op: Operation, wholes: Sequence[Tensor]) -> list[Tensor]:
    """Of what was joined, each rank's part."""
    axis = op.node.attrs["axis"]
    sizes = at_each(op.inputs, lambda value: getitem(shape(value), slice(axis, axis + 1)), op.inputs)
    every = _build(op, "AllGather", sizes, axis=0)

    def part(rank: int, whole: Tensor, sizes: Tensor) -> Tensor:
        first = sum([getitem(sizes, r) for r in range(rank)], 0)
        index = (slice(None),) * axis + (slice(first, first + getitem(sizes, rank)),)
        return getitem(whole, index)

    return at_each(op.inputs, part, op.node.attrs["ranks"], wholes, every)


def broadcast_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    _check_whole(op)
    value, *places = op.inputs
    total = _build(op, "Reduce", _given(places, op, dys), reduction="sum", root=op.node.attrs["root"], M=1)
    return [*at_each([value], identity, total), *[None] * len(places)]


def scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    _check_whole(op)
    value, *places = op.inputs
    root, axis = op.node.attrs["root"], op.node.attrs["axis"]
    whole = _build(op, "Gather", _given(places, op, dys), root=root, axis=axis, M=1)
    return [*at_each([value], identity, whole), *[None] * len(places)]


def all_to_all_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    return _build(op, "AllToAll", _given(op.inputs, op, dys), axis=op.node.attrs["axis"])
