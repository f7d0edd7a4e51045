"""Collectives: one operation for the ranks of a group that this graph has.

    values: N * T  ->  N * T        value i is given by, and result i is made for, the graph's i-th rank

A group is *whole* in a graph that has all of its ranks; then a collective is a function like any other, which
the kernels here compute (a reference: see `flowrt.graph.passes.collectives` for what runs). Otherwise other
graphs, run by other sessions, have the rest, and an operation of theirs with the same group and instance is
the other half of this one. Taking all ranks of a graph in one operation makes a collective all or nothing: no
pass and no fetch can have one rank without the others.

Attributes that all have:

    group_key, group_size, ranks   the group, how many ranks it has, and which of them this graph has
    instance_key                   names the collective among those of the group, alike in all graphs
    lowering                       "auto", the name of an algorithm, or "native"
    tasks                          of a group that is not whole, a number a rank, alike for those in one task

Payloads are cut along an axis as by ``numpy.array_split``: the first parts are one longer where the axis
cannot be divided. The gradient of a collective is a collective: all-reduce of all-reduce, all-gather of
reduce-scatter, broadcast of reduce, gather of scatter, and back; all-to-all of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import FailedPreconditionError
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.op_def import (
    BY_VJP,
    NONDIFFERENTIABLE,
    Effect,
    OpDef,
    Sample,
    attr_int,
    attr_ints,
    attr_shape,
    attr_string,
    define_op,
    sample,
)
from flowrt.graph.ops.arithmetic import multiply
from flowrt.graph.ops.collective_shapes import (
    at_root,
    exchanged,
    from_root,
    gathered,
    reduced_parts,
    resized,
    same_for_all,
    scattered,
)
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

_GROUP = {
    "group_key": attr_string(""),
    "group_size": attr_int(),
    "ranks": attr_ints(),
    "instance_key": attr_string(),
    "lowering": attr_string("auto"),
    "tasks": attr_ints(()),
}
_REDUCTION = {"reduction": attr_string("sum")}
_ROOT = {"root": attr_int(0)}
_AXIS = {"axis": attr_int(0)}


# --- reference kernels, of whole groups


def _check_whole(count: int, group_size: int) -> None:
    if count != group_size:
        raise FailedPreconditionError(
            f"expected all {group_size} ranks of the group in this graph; got {count}: only a session can "
            "reach the others"
        )


def _reduce(xp: Any, values: Any, reduction: str) -> Any:
    stacked = xp.stack(values)
    if reduction == "mean":
        total = stacked.sum(axis=0, dtype=stacked.dtype)
        return (
            total // len(values)
            if stacked.dtype.kind in "iu"
            else (total / len(values)).astype(stacked.dtype)
        )
    dtype = {"dtype": stacked.dtype} if reduction in ("sum", "prod") else {}
    return getattr(stacked, reduction)(axis=0, **dtype)


def _copies(xp: Any, value: Any, count: int) -> list[Any]:
    return [xp.array(value) for _ in range(count)]


def _all_reduce(xp: Any, values: Any, group_size: int, reduction: str) -> list[Any]:
    _check_whole(len(values), group_size)
    return _copies(xp, _reduce(xp, values, reduction), group_size)


def _reduce_to_root(xp: Any, values: Any, group_size: int, reduction: str) -> list[Any]:
    _check_whole(len(values), group_size)
    return _copies(xp, _reduce(xp, values, reduction), 1)


def _broadcast(xp: Any, value: Any, places: Any, group_size: int) -> list[Any]:
    _check_whole(len(places), group_size)
    return _copies(xp, value[0], group_size)


def _all_gather(xp: Any, values: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    return _copies(xp, xp.concatenate(values, axis=axis), group_size)


def _gather(xp: Any, values: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    return [xp.concatenate(values, axis=axis)]


def _scatter(xp: Any, value: Any, places: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(places), group_size)
    return [xp.array(part) for part in xp.array_split(value[0], group_size, axis=axis)]


def _reduce_scatter(xp: Any, values: Any, group_size: int, reduction: str, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    total = _reduce(xp, values, reduction)
    return [xp.array(part) for part in xp.array_split(total, group_size, axis=axis)]


def _all_to_all(xp: Any, values: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    rows = [xp.array_split(value, group_size, axis=axis) for value in values]
    return [xp.concatenate([row[rank] for row in rows], axis=axis) for rank in range(group_size)]


# --- instances and values of a rank


def next_instance(graph: Graph, group_key: str) -> str:
    """The key of the next collective of a group that is built in ``graph``: they are counted, so that graphs
    that build the same have the same keys.
    """
    built = graph.root.get_collection_ref(("collectives", group_key))
    built.append(None)
    return str(len(built) - 1)


def _same_group(op: Operation) -> dict[str, Any]:
    """The attributes of one more collective of ``op``'s group."""
    attrs = op.node.attrs
    kept = {key: attrs[key] for key in ("group_key", "group_size", "ranks", "lowering", "tasks")}
    if kept["lowering"] != "native":
        kept["lowering"] = "auto"  # another kind may not have the algorithm
    return {**kept, "instance_key": next_instance(op.graph, attrs["group_key"])}


def _beside(like: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """``values``, each where the value of its rank in ``like`` is."""
    found = []
    for rank, value in zip(like, values, strict=True):
        with get_default_graph().colocate_with(rank.op):
            found.append(identity(value))
    return found


def places_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """For each tensor one without elements that is where it is."""
    found = []
    for tensor in tensors:
        with get_default_graph().colocate_with(tensor.op):
            found.append(constant(np.zeros(0, np.int32), name="place"))
    return found


def _results(built: Any) -> list[Tensor]:
    """What a collective with a list of results returns: the operation itself, if the list is empty."""
    return built if isinstance(built, list) else []


def _given(outputs: Sequence[Tensor], dys: Sequence[Tensor | None]) -> list[Tensor]:
    """A gradient for each output; zero for those that nothing depends on: the others need their part."""
    return [zeros_like(y) if dy is None else dy for y, dy in zip(outputs, dys, strict=True)]


# --- gradients


def _of_reduction(op: Operation, totals: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of what was reduced. Rank i has ``totals[i]``, the gradient of the result summed over
    all who have it, and ``results[i]``, the result.
    """
    reduction, values = op.node.attrs["reduction"], list(op.inputs)
    if reduction == "sum":
        return list(totals)
    if reduction == "mean":
        return [divide(total, cast(op.node.attrs["group_size"], total.dtype)) for total in totals]
    if reduction == "prod":
        others = _products_of_others(op)
        return [multiply(total, other) for total, other in zip(totals, others, strict=True)]
    taken = [cast(equal(x, y), x.dtype) for x, y in zip(values, results, strict=True)]
    counts = all_reduce_op(_beside(values, taken), reduction="sum", **_same_group(op))
    shares = zip(taken, counts, totals, strict=True)
    return [multiply(divide(one, count), total) for one, count, total in shares]


def _products_of_others(op: Operation) -> list[Tensor]:
    """For each rank the product of the other ranks' values: not the result divided by its own, which may be
    zero.
    """
    rows = [expand_dims(value, 0) for value in op.inputs]
    every = all_gather_op(_beside(op.inputs, rows), axis=0, **_same_group(op))
    ranks = zip(op.node.attrs["ranks"], every, strict=True)
    return [
        reduce_prod(concat([getitem(rows, slice(0, rank)), getitem(rows, slice(rank + 1, None))], 0), axis=0)
        for rank, rows in ranks
    ]


def _all_reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    given = _beside(op.inputs, _given(op.outputs, dys))
    totals = all_reduce_op(given, reduction="sum", **_same_group(op))
    return _of_reduction(op, totals, op.outputs)


def _reduce_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    results = [] if op.node.attrs["reduction"] in ("sum", "mean", "prod") else _from_the_root(op, op.outputs)
    return _of_reduction(op, _from_the_root(op, _given(op.outputs, dys)), results)


def _from_the_root(op: Operation, values: Sequence[Tensor]) -> list[Tensor]:
    """What the root has, for every rank of a reduction; in the graph of the root as its value."""
    ranks, root = op.node.attrs["ranks"], op.node.attrs["root"]
    if root in ranks:
        values = _beside([op.inputs[ranks.index(root)]], values)
    kind, dims = op.inputs[0].dtype, op.inputs[0].spec.shape
    given: list[Tensor] = broadcast_op(
        values, places_of(op.inputs), root=root, T=kind, shape=dims, **_same_group(op)
    )
    return given


def _broadcast_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    attrs, places = op.node.attrs, op.inputs[op.node.attrs["M"] :]
    given = _beside(places, _given(op.outputs, dys))
    group = _same_group(op)
    total = reduce_op(given, reduction="sum", root=attrs["root"], M=attrs["M"], **group)
    return [*_results(total), *[None] * len(places)]


def _all_gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    given = _beside(op.inputs, _given(op.outputs, dys))
    axis = op.node.attrs["axis"]
    if _is_even(op):
        parts: list[Tensor] = reduce_scatter_op(given, reduction="sum", axis=axis, **_same_group(op))
        return parts
    return _own_parts(op, all_reduce_op(given, reduction="sum", **_same_group(op)))


def _gather_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    attrs, values = op.node.attrs, _given(op.outputs, dys)
    if not _is_even(op):
        return _own_parts(op, _from_the_root(op, values))
    if attrs["root"] in attrs["ranks"]:
        values = _beside([op.inputs[attrs["ranks"].index(attrs["root"])]], values)
    dims, axis, p = op.inputs[0].spec.shape, attrs["axis"], attrs["group_size"]
    whole = resized(dims, axis, dims[axis] * p)  # type: ignore[index]
    given = {"root": attrs["root"], "axis": axis, "T": op.inputs[0].dtype, "shape": whole}
    parts: list[Tensor] = scatter_op(values, places_of(op.inputs), **given, **_same_group(op))
    return parts


def _is_even(op: Operation) -> bool:
    """Whether all ranks are known to give as much. In other graphs they do: the session compares them."""
    shapes = {value.spec.shape for value in op.inputs}
    return len(shapes) == 1 and is_static(next(iter(shapes)))


def _own_parts(op: Operation, wholes: Sequence[Tensor]) -> list[Tensor]:
    """Of what was joined, each rank's part."""
    axis = op.node.attrs["axis"]
    sizes = [getitem(shape(value), slice(axis, axis + 1)) for value in op.inputs]
    every = all_gather_op(_beside(op.inputs, sizes), axis=0, **_same_group(op))
    found = []
    for rank, whole, known in zip(op.node.attrs["ranks"], wholes, every, strict=True):
        first = sum([getitem(known, r) for r in range(rank)], 0)
        index = (slice(None),) * axis + (slice(first, first + getitem(known, rank)),)
        found.append(getitem(whole, index))
    return found


def _scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    attrs, places = op.node.attrs, op.inputs[op.node.attrs["M"] :]
    given = _beside(places, _given(op.outputs, dys))
    group = _same_group(op)
    whole = gather_op(given, root=attrs["root"], axis=attrs["axis"], M=attrs["M"], **group)
    return [*_results(whole), *[None] * len(places)]


def _reduce_scatter_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    axis, reduction = op.node.attrs["axis"], op.node.attrs["reduction"]
    given = _beside(op.inputs, _given(op.outputs, dys))
    totals = all_gather_op(given, axis=axis, **_same_group(op))
    results = [] if reduction in ("sum", "mean", "prod") else _beside(op.inputs, op.outputs)
    if results:
        results = all_gather_op(results, axis=axis, **_same_group(op))
    return _of_reduction(op, totals, results)


def _all_to_all_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor]:
    given = _beside(op.inputs, _given(op.outputs, dys))
    parts: list[Tensor] = all_to_all_op(given, axis=op.node.attrs["axis"], **_same_group(op))
    return parts


# --- definitions


def _whole(p: int, **attrs: Any) -> dict[str, Any]:
    return {"group_size": p, "ranks": tuple(range(p)), "instance_key": "0", **attrs}


def _values(*shapes: tuple[int, ...], **attrs: Any) -> Callable[[np.random.Generator], list[Sample]]:
    """One sample with a value of each shape, in two dtypes."""

    def samples(rng: np.random.Generator) -> list[Sample]:
        reals = tuple(rng.standard_normal(dims) for dims in shapes)
        integers = tuple(rng.integers(1, 9, dims, np.int32) for dims in shapes)
        group = _whole(len(shapes), **attrs)
        return [sample(values, **group) for values in (reals, integers)]

    return samples


def _from_one(dims: tuple[int, ...]) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples of what three ranks get from one value."""
    places = (np.zeros(0, np.int32),) * 3
    return lambda rng: [
        sample((rng.standard_normal(dims),), places, **_whole(3)),
        sample((rng.integers(1, 9, dims, np.int32),), places, **_whole(3)),
    ]


def _define(name: str, signature: str, attrs: Mapping[str, Any], **rules: Any) -> OpDef:
    return define_op(
        name,
        signature,
        types={"T": dtypes.NUMERIC},
        attrs={**_GROUP, **attrs},
        jvp=BY_VJP,
        effect=Effect.STATEFUL,
        **rules,
    )


_TO_ROOT = {"M": attr_int()}
_FROM_ROOT = {"shape": attr_shape(None)}

all_reduce_op = _define(
    "AllReduce",
    "values: N * T -> N * T",
    _REDUCTION,
    shape=same_for_all,
    kernel=_all_reduce,
    vjp=_all_reduce_vjp,
    samples=_values((2, 3), (2, 3), (2, 3)),
    doc="Every rank gets the reduction of all ranks' values.",
)

reduce_op = _define(
    "Reduce",
    "values: N * T -> M * T",
    {**_REDUCTION, **_ROOT, **_TO_ROOT},
    shape=at_root,
    kernel=_reduce_to_root,
    vjp=_reduce_vjp,
    samples=_values((3,), (3,), M=1, root=1),
    doc="The rank ``root`` gets the reduction; M is 1 in its graph and 0 in others.",
)

broadcast_op = _define(
    "Broadcast",
    "value: M * T, places: N * int32 -> N * T",
    {**_ROOT, **_FROM_ROOT},
    shape=from_root,
    kernel=_broadcast,
    vjp=_broadcast_vjp,
    samples=_from_one((2, 2)),
    doc="Every rank gets the value of ``root``, in whose graph M is 1; others have ``shape`` instead.",
)

all_gather_op = _define(
    "AllGather",
    "values: N * T -> N * T",
    _AXIS,
    shape=gathered,
    kernel=_all_gather,
    vjp=_all_gather_vjp,
    samples=_values((2, 1), (2, 3), axis=1),
    doc="Every rank gets all ranks' values one behind the other along ``axis``.",
)

gather_op = _define(
    "Gather",
    "values: N * T -> M * T",
    {**_AXIS, **_ROOT, **_TO_ROOT},
    shape=gathered,
    kernel=_gather,
    vjp=_gather_vjp,
    samples=_values((1, 2), (3, 2), M=1),
    doc="The rank ``root`` gets all ranks' values one behind the other along ``axis``.",
)

scatter_op = _define(
    "Scatter",
    "value: M * T, places: N * int32 -> N * T",
    {**_AXIS, **_ROOT, **_FROM_ROOT},
    shape=scattered,
    kernel=_scatter,
    vjp=_scatter_vjp,
    samples=_from_one((5, 2)),
    doc="Rank i gets part i of the value of ``root``, cut along ``axis``.",
)

reduce_scatter_op = _define(
    "ReduceScatter",
    "values: N * T -> N * T",
    {**_REDUCTION, **_AXIS},
    shape=reduced_parts,
    kernel=_reduce_scatter,
    vjp=_reduce_scatter_vjp,
    samples=_values((3, 5), (3, 5), axis=1),
    doc="Rank i gets part i of the reduction, cut along ``axis``.",
)

all_to_all_op = _define(
    "AllToAll",
    "values: N * T -> N * T",
    _AXIS,
    shape=exchanged,
    kernel=_all_to_all,
    vjp=_all_to_all_vjp,
    samples=_values((5, 2), (5, 2), (5, 2)),
    doc="Rank i gets part i of every rank's value, one behind the other along ``axis``.",
)

barrier_op = define_op(
    "Barrier",
    "signals: N * T -> N * T",
    types={"T": (dtypes.int32,)},
    attrs=_GROUP,
    shape=same_for_all,
    kernel=lambda xp, signals, group_size: _all_reduce(xp, signals, group_size, "max"),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (sample((np.zeros(1, np.int32), np.zeros(1, np.int32)), **_whole(2)),),
    effect=Effect.STATEFUL,
    doc="A rank gets its signal back when all ranks have given theirs.",
)

COLLECTIVES = frozenset(
    (
        all_reduce_op, reduce_op, broadcast_op, all_gather_op, gather_op, scatter_op, reduce_scatter_op,
        all_to_all_op, barrier_op,
    )
)  # fmt: skip
