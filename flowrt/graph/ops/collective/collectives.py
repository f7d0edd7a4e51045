"""Collectives: one operation for the ranks of a group that this graph has.

    values: N * T  ->  N * T        value i is the input and result i the output of the graph's i-th rank

A group is *whole* in a graph that has all of its ranks; then a collective is an ordinary function, computed
by the kernels here (a reference implementation: `flowrt.graph.passes.collective.lower_collectives` determines
what runs). Otherwise other graphs, run by other sessions, have the other ranks, and their operation with the
same group and instance is the counterpart of this one. One operation for all ranks of a graph makes a
collective all or nothing: no pass and no fetch can separate ranks.

Common attributes:

    group_key, group_size, ranks   the group, its number of ranks, and the ranks in this graph
    instance_key                   identifies the collective within the group, equal in all graphs
    lowering                       "auto", the name of an algorithm, or "native"
    tasks                          for a group that is not whole, one number per rank, equal within a task

In a collective with a root, graphs without that rank have no value and no result. Placeholders for them exist
only for gradients, which involve all graphs: an empty result, and a value that is ignored.

Payloads are split along an axis as by ``numpy.array_split``: the first parts are one longer if the axis is
not divisible. The gradient of a collective is a collective: all-reduce of all-reduce, all-gather of
reduce-scatter, broadcast of reduce, gather of scatter, and back; all-to-all of itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import FailedPreconditionError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, Effects, OpDef, Sample, define_op, sample
from flowrt.graph.ops.collective.collective_gradients import (
    all_gather_vjp,
    all_reduce_vjp,
    all_to_all_vjp,
    broadcast_vjp,
    gather_vjp,
    reduce_scatter_vjp,
    reduce_vjp,
    scatter_vjp,
)
from flowrt.graph.ops.collective.collective_shapes import (
    at_root,
    coalesced_gathered,
    coalesced_scattered,
    exchanged,
    from_root,
    gathered,
    gathered_at_root,
    reduced_parts,
    same_for_all,
    scattered,
)

_GROUP = (
    "group_key: string = '', group_size: int, ranks: list(int), instance_key: string, "
    "lowering: string = 'auto', tasks: list(int) = ()"
)
_REDUCTION = "reduction: string = 'sum'"
_ROOT = "root: int = 0"
_AXIS = "axis: int = 0"


# --- reference kernels, of whole groups


def _check_whole(count: int, group_size: int) -> None:
    if count != group_size:
        raise FailedPreconditionError(
            f"expected all {group_size} ranks of the group in this graph; got {count}: only a session can "
            "reach the others"
        )


_JOINS = {"sum": "add", "mean": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}


def _reduce(xp: Any, values: Any, reduction: str) -> Any:
    total = functools.reduce(getattr(xp, _JOINS[reduction]), values)
    if reduction != "mean":
        return total
    divide = xp.floor_divide if total.dtype.kind in "iu" else xp.divide
    return divide(total, len(values)).astype(total.dtype)


def _copies(xp: Any, value: Any, count: int) -> list[Any]:
    return [xp.array(value) for _ in range(count)]


def _all_reduce(xp: Any, values: Any, group_size: int, reduction: str) -> list[Any]:
    _check_whole(len(values), group_size)
    return _copies(xp, _reduce(xp, values, reduction), group_size)


def _reduce_to_root(xp: Any, values: Any, group_size: int, reduction: str) -> Any:
    _check_whole(len(values), group_size)
    return xp.array(_reduce(xp, values, reduction))


def _broadcast(xp: Any, value: Any, places: Any, group_size: int) -> list[Any]:
    _check_whole(len(places), group_size)
    return _copies(xp, value[0], group_size)


def _all_gather(xp: Any, values: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    return _copies(xp, xp.concatenate(values, axis=axis), group_size)


def _gather(xp: Any, values: Any, group_size: int, axis: int) -> Any:
    _check_whole(len(values), group_size)
    return xp.concatenate(values, axis=axis)


def _scatter(xp: Any, value: Any, places: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(places), group_size)
    return [xp.array(part) for part in xp.array_split(value[0], group_size, axis=axis)]


def _reduce_scatter(xp: Any, values: Any, group_size: int, reduction: str, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    total = _reduce(xp, values, reduction)
    return [xp.array(part) for part in xp.array_split(total, group_size, axis=axis)]


def _coalesced_all_gather(xp: Any, values: Any, group_size: int, axes: Sequence[int]) -> list[Any]:
    return _by_rank(
        [_all_gather(xp, values[i :: len(axes)], group_size, axis) for i, axis in enumerate(axes)]
    )


def _coalesced_reduce_scatter(
    xp: Any, values: Any, group_size: int, axes: Sequence[int], reduction: str
) -> list[Any]:
    return _by_rank(
        [
            _reduce_scatter(xp, values[i :: len(axes)], group_size, reduction, axis)
            for i, axis in enumerate(axes)
        ]
    )


def _by_rank(columns: list[list[Any]]) -> list[Any]:
    """All tensors of the first rank, then those of the second: ``columns`` have one of each rank."""
    return [each for row in zip(*columns, strict=True) for each in row]


def _all_to_all(xp: Any, values: Any, group_size: int, axis: int) -> list[Any]:
    _check_whole(len(values), group_size)
    rows = [xp.array_split(value, group_size, axis=axis) for value in values]
    return [xp.concatenate([row[rank] for row in rows], axis=axis) for rank in range(group_size)]


# --- definitions


def _whole(p: int, **attrs: Any) -> dict[str, Any]:
    return {"group_size": p, "ranks": tuple(range(p)), "instance_key": "0", **attrs}


def _values(
    *shapes: tuple[int, ...], group: int = 0, **attrs: Any
) -> Callable[[np.random.Generator], list[Sample]]:
    """One sample with a value of each shape, in two dtypes, in a ``group`` of so many ranks, else of as many
    as values.
    """

    def samples(rng: np.random.Generator) -> list[Sample]:
        reals = tuple(rng.standard_normal(dims) for dims in shapes)
        integers = tuple(rng.integers(1, 9, dims, np.int32) for dims in shapes)
        whole = _whole(group or len(shapes), **attrs)
        return [sample(values, **whole) for values in (reals, integers)]

    return samples


def _from_one(dims: tuple[int, ...]) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples for ops that give three ranks results of one value."""
    places = (np.zeros(0, np.int32),) * 3
    return lambda rng: [
        sample((rng.standard_normal(dims),), places, **_whole(3)),
        sample((rng.integers(1, 9, dims, np.int32),), places, **_whole(3)),
    ]


_MOVED = dtypes.NUMERIC | {dtypes.bool_}
"""Dtypes of values that collectives move and do not reduce."""


def _define(
    name: str, signature: str, attrs: str, types: frozenset[dtypes.DType] = dtypes.NUMERIC, **rules: Any
) -> OpDef[list[Tensor]]:
    return define_op(
        name,
        signature,
        types={"T": types},
        attrs=f"{_GROUP}, {attrs}",
        effects=Effects(Effect.STATEFUL),
        **rules,
    )


_FROM_ROOT = "shape: shape = None"

all_reduce_op = _define(
    "AllReduce",
    "values: N * T -> N * T",
    _REDUCTION,
    shape=same_for_all,
    kernel=_all_reduce,
    vjp=all_reduce_vjp,
    samples=_values((2, 3), (2, 3), (2, 3)),
    doc="Every rank gets the reduction of all ranks' values.",
)

reduce_op = _define(
    "Reduce",
    "values: N * T -> T",
    f"{_REDUCTION}, {_ROOT}",
    shape=at_root,
    kernel=_reduce_to_root,
    vjp=reduce_vjp,
    samples=_values((3,), (3,), root=1),
    doc="The rank ``root`` gets the reduction; in other graphs the result has no elements.",
)

broadcast_op = _define(
    "Broadcast",
    "value: M * T, places: N * int32 -> N * T",
    f"{_ROOT}, {_FROM_ROOT}",
    types=_MOVED,
    shape=from_root,
    kernel=_broadcast,
    vjp=broadcast_vjp,
    samples=_from_one((2, 2)),
    doc="Every rank gets the value of ``root``; other graphs set its ``shape``.",
)

all_gather_op = _define(
    "AllGather",
    "values: N * T -> N * T",
    _AXIS,
    types=_MOVED,
    shape=gathered,
    kernel=_all_gather,
    vjp=all_gather_vjp,
    samples=_values((2, 1), (2, 3), axis=1),
    doc="Every rank gets all ranks' values, concatenated along ``axis``.",
)

gather_op = _define(
    "Gather",
    "values: N * T -> T",
    f"{_AXIS}, {_ROOT}",
    types=_MOVED,
    shape=gathered_at_root,
    kernel=_gather,
    vjp=gather_vjp,
    samples=_values((1, 2), (3, 2)),
    doc="The rank ``root`` gets all ranks' values, concatenated along ``axis``.",
)

scatter_op = _define(
    "Scatter",
    "value: M * T, places: N * int32 -> N * T",
    f"{_AXIS}, {_ROOT}, {_FROM_ROOT}",
    types=_MOVED,
    shape=scattered,
    kernel=_scatter,
    vjp=scatter_vjp,
    samples=_from_one((5, 2)),
    doc="Rank i gets part i of the value of ``root``, cut along ``axis``.",
)

reduce_scatter_op = _define(
    "ReduceScatter",
    "values: N * T -> N * T",
    f"{_REDUCTION}, {_AXIS}",
    shape=reduced_parts,
    kernel=_reduce_scatter,
    vjp=reduce_scatter_vjp,
    samples=_values((3, 5), (3, 5), axis=1),
    doc="Rank i gets part i of the reduction, cut along ``axis``.",
)

coalesced_all_gather_op = _define(
    "CoalescedAllGather",
    "values: N * T -> N * T",
    "axes: list(int)",
    types=_MOVED,
    shape=coalesced_gathered,
    kernel=_coalesced_all_gather,
    vjp=NONDIFFERENTIABLE,
    samples=_values((2, 1), (3,), (2, 1), (3,), group=2, axes=(1, 0)),
    doc="AllGathers of several tensors a rank in one call, each along its own of ``axes``, of parts of one "
    "shape. Values and results are those of the first rank, then those of the second.",
)

coalesced_reduce_scatter_op = _define(
    "CoalescedReduceScatter",
    "values: N * T -> N * T",
    f"axes: list(int), {_REDUCTION}",
    shape=coalesced_scattered,
    kernel=_coalesced_reduce_scatter,
    vjp=NONDIFFERENTIABLE,
    samples=_values((3, 4), (2,), (3, 4), (2,), group=2, axes=(1, 0)),
    doc="ReduceScatters of several tensors a rank in one call, each along its own of ``axes``, to parts of "
    "one shape. Values and results are those of the first rank, then those of the second.",
)

all_to_all_op = _define(
    "AllToAll",
    "values: N * T -> N * T",
    _AXIS,
    types=_MOVED,
    shape=exchanged,
    kernel=_all_to_all,
    vjp=all_to_all_vjp,
    samples=_values((5, 2), (5, 2), (5, 2)),
    doc="Rank i gets part i of every rank's value, concatenated along ``axis``.",
)

barrier_op: OpDef[list[Tensor]] = define_op(
    "Barrier",
    "signals: N * T in int32 -> handle: N * T",
    attrs=_GROUP,
    shape=same_for_all,
    kernel=lambda xp, signals, group_size: _all_reduce(xp, signals, group_size, "max"),
    samples=lambda rng: (sample((np.zeros(1, np.int32), np.zeros(1, np.int32)), **_whole(2)),),
    effects=Effects(Effect.STATEFUL),
    doc="A rank gets its signal back when all ranks have given theirs.",
)

COLLECTIVES = frozenset(
    (
        all_reduce_op, reduce_op, broadcast_op, all_gather_op, gather_op, scatter_op, reduce_scatter_op,
        all_to_all_op, barrier_op, coalesced_all_gather_op, coalesced_reduce_scatter_op,
    )
)  # fmt: skip

COALESCED = {coalesced_all_gather_op: all_gather_op, coalesced_reduce_scatter_op: reduce_scatter_op}
"""The collective of one tensor that each coalesced one is of several."""
