"""Collectives between the devices of one process, of a cluster's tasks, or of several sessions.

    all_reduce(values)         one operation for all ranks of this graph      graph/ops/collective
       | at compile time, after placement
    lower_collectives          an algorithm: named, or the cheapest           graph/collectives, graph/passes
       |-- expanded            slices, sums and copies on the ranks' devices; between two devices of one graph
       |                       the step's sends and receives, to other graphs `_GroupSend` and `_GroupRecv`
       '-- native              a start and a wait per rank; in between the rank's `Communicator` runs it
                               (if the whole group is in one process, the step itself: no `join` needed)
    run                        like any step

The functions here build graph operations. ``values`` has one tensor per rank of this graph, each on its
rank's device; results are on these devices, in the same order. With ``group=None`` the values are the whole
group: one graph, run by one session, with any devices of its process or cluster. A `Group` has ranks in other
graphs too, each run by its own session: every graph builds the same collectives in the same order, and every
process calls `join` before its session runs.

All take ``lowering``: "auto" (the cost model chooses), the name of an algorithm (see
`flowrt.graph.collectives.algorithms.ALGORITHMS`), or "native"; and ``name``.

    parts, reduction, membership, plan          pure: chunks, sums, members, the collectives of a step
    futex, shared_memory_segment                wait on a memory word; memory for the ranks of a host
    shared_memory_rounds, shared_memory         synchronized ranks around that segment
    in_process, nccl, mpi, over_peers           ranks as threads; on GPUs; in an MPI world; on any hosts
    mesh_forming, mesh                          connecting the ranks; a connection between each two
    tagged_messages                             messages that are awaited by tag
    interruption                                ending all groups of a process
    split                                       groups of some ranks of a group, over its connections
    communicator, communicator_thread           blocking collectives on arrays; their thread
    call_totals                                 counts of these, for the metrics of the process
    communicator_registry                       communicators by name
    member, group                               interface for operations; `Group` and `join`
    probe                                       ``flowrt-worker --probe``: latency between tasks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.distribute.collectives.group import Group as Group
from flowrt.distribute.collectives.group import JoinedGroup as JoinedGroup
from flowrt.distribute.collectives.group import join as join
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.collective import collectives
from flowrt.graph.ops.collective.collective_gradients import next_instance, nowhere
from flowrt.graph.shapes import as_shape, is_static
from flowrt.graph.source import user_line


def all_reduce(
    values: Sequence[Any],
    reduction: str = "sum",
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "AllReduce",
) -> list[Tensor]:
    """The reduction of all ranks' values for each rank: "sum", "mean", "prod", "min" or "max".

    The values have one dtype and shape, and so do the results; a mean of integers is rounded down. Raises
    `InvalidArgumentError`, showing both, for mismatching values, and for an unknown reduction.
    """
    tensors = _tensors(values, group, name)
    return _collective(
        collectives.all_reduce_op, [tensors], len(tensors), group, lowering, name, reduction=reduction
    )


def reduce(
    values: Sequence[Any],
    reduction: str = "sum",
    root: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "Reduce",
) -> Tensor:
    """The reduction of all ranks' values on the rank ``root``. A graph without that rank gets a tensor
    without elements that is available once the graph's ranks have contributed: run it, or depend on it.

    If the root's graph differentiates the result, the others must do so, too: their loss, a tensor without
    elements, contributes nothing, and its gradient with respect to their values is that of the root's loss.
    """
    tensors = _tensors(values, group, name)
    return _to_root(collectives.reduce_op, tensors, root, group, lowering, name, reduction=reduction)


def all_gather(
    values: Sequence[Any],
    axis: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "AllGather",
) -> list[Tensor]:
    """All ranks' values for each rank, concatenated along ``axis``. In one graph their sizes may differ
    there; between graphs they have one shape.
    """
    tensors = _tensors(values, group, name)
    return _collective(
        collectives.all_gather_op, [tensors], len(tensors), group, lowering, name, axis=_axis(axis, tensors)
    )


def gather(
    values: Sequence[Any],
    axis: int = 0,
    root: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "Gather",
) -> Tensor:
    """The same as `all_gather`, on the rank ``root`` only. See `reduce` for graphs without that rank."""
    tensors = _tensors(values, group, name)
    return _to_root(collectives.gather_op, tensors, root, group, lowering, name, axis=_axis(axis, tensors))


def reduce_scatter(
    values: Sequence[Any],
    reduction: str = "sum",
    axis: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "ReduceScatter",
) -> list[Tensor]:
    """Part i of the reduction for rank i, split along ``axis`` as by ``numpy.array_split``."""
    tensors = _tensors(values, group, name)
    attrs = {"reduction": reduction, "axis": _axis(axis, tensors)}
    return _collective(collectives.reduce_scatter_op, [tensors], len(tensors), group, lowering, name, **attrs)


def all_to_all(
    values: Sequence[Any],
    axis: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "AllToAll",
) -> list[Tensor]:
    """Part i of every rank's value for rank i, split along ``axis`` as by ``numpy.array_split``, and
    concatenated along it. In one graph sizes may differ there; between graphs the values have one shape.
    """
    tensors = _tensors(values, group, name)
    return _collective(
        collectives.all_to_all_op, [tensors], len(tensors), group, lowering, name, axis=_axis(axis, tensors)
    )


def broadcast(
    value: Any,
    devices: Sequence[str],
    root: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "Broadcast",
) -> list[Tensor]:
    """The value of the rank ``root`` for each rank, on ``devices``, one per rank of this graph.

    A graph without the root passes a pair (dtype, shape) in place of the value, or a tensor of that dtype and
    shape, with ignored elements: through it, its graph takes part in the gradient of the root's value. Its
    own gradient is zero. Raises `InvalidArgumentError` for one without a static shape.
    """
    given, attrs = _from_root(value, root, group, name)
    return _from_one(collectives.broadcast_op, given, devices, group, lowering, name, root=root, **attrs)


def scatter(
    value: Any,
    devices: Sequence[str],
    axis: int = 0,
    root: int = 0,
    group: Group | None = None,
    lowering: str = "auto",
    name: str = "Scatter",
) -> list[Tensor]:
    """Part i of the value of ``root`` for rank i, on device i of ``devices``, split along ``axis``. See
    `broadcast` for graphs without the root.
    """
    given, attrs = _from_root(value, root, group, name)
    attrs |= {"axis": _axis(axis, given), "root": root}
    return _from_one(collectives.scatter_op, given, devices, group, lowering, name, **attrs)


def barrier(
    devices: Sequence[str], group: Group | None = None, lowering: str = "auto", name: str = "Barrier"
) -> list[Operation]:
    """One operation per rank, on ``devices``, which finishes when all ranks have reached theirs. A rank
    reaches it when the enclosing control dependencies are done.
    """
    graph = get_default_graph()
    signals = []
    for device in devices:
        with graph.device(device):
            signals.append(identity(constant(np.zeros(1, np.int32)), name=f"{name}/signal"))
    results = _collective(collectives.barrier_op, [signals], len(signals), group, lowering, name)
    found = []
    for device, result in zip(devices, results, strict=True):
        with graph.device(device):
            found.append(identity(result, name=f"{name}/done").op)
    return found


# --- building


def _tensors(values: Sequence[Any], group: Group | None, name: str) -> list[Tensor]:
    """``values`` as tensors. Raises `InvalidArgumentError` unless there is one per rank, and `DTypeError`."""
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidArgumentError(
            f"{name}: expected a list with one value per rank; got {values!r}", source=user_line()
        )
    _check_count(len(values), group, name, "values")
    tensors = [convert_to_tensor(value) for value in values]
    ranks = range(len(values)) if group is None else group.ranks
    for rank, tensor in zip(ranks, tensors, strict=True):
        if tensor.dtype is not tensors[0].dtype:
            raise DTypeError(
                f"{name}: expected values of the same dtype; rank {ranks[0]} has {tensors[0].dtype.name}, "
                f"rank {rank} has {tensor.dtype.name}. Use flowrt.cast()",
                source=user_line(),
            )
    return tensors


def _check_count(count: int, group: Group | None, name: str, what: str) -> None:
    if group is not None and count != len(group.ranks):
        raise InvalidArgumentError(
            f"{name}: expected {len(group.ranks)} {what}, one for each of the ranks {list(group.ranks)} of "
            f"group {group.key!r} in this graph; got {count}",
            source=user_line(),
        )


def _axis(axis: int, tensors: Sequence[Tensor]) -> int:
    """``axis`` counted from the front, where the rank is known."""
    dims = tensors[0].spec.shape if tensors else None
    return axis + len(dims) if axis < 0 and dims is not None else axis


def _membership(group: Group | None, count: int, lowering: str) -> dict[str, Any]:
    """The attributes of a collective of ``group``, or of a whole group of ``count`` ranks."""
    group = group or Group("local", count, tuple(range(count)))
    return {
        "group_key": group.key,
        "group_size": group.size,
        "ranks": group.ranks,
        "tasks": group.tasks,
        "instance_key": next_instance(get_default_graph(), group.key),
        "lowering": lowering,
    }


def _collective(
    op: OpDef, inputs: Sequence[Any], count: int, group: Group | None, lowering: str, name: str, **attrs: Any
) -> list[Tensor]:
    """The results of ``op``, which has no device of its own and ignores device scopes."""
    attrs |= _membership(group, count, lowering)
    with nowhere():
        results: list[Tensor] = op(*inputs, name=name, **attrs)
    return results


def _to_root(
    op: OpDef, tensors: list[Tensor], root: int, group: Group | None, lowering: str, name: str, **attrs: Any
) -> Tensor:
    attrs |= {"root": root, **_membership(group, len(tensors), lowering)}
    with nowhere():
        result: Tensor = op(tensors, name=name, **attrs)
    return result


def _from_root(value: Any, root: int, group: Group | None, name: str) -> tuple[list[Tensor], dict[str, Any]]:
    """The value, and the attrs of a graph without the root."""
    if isinstance(value, tuple):
        dtype, shape = value
        return [], {"T": dtype, "shape": as_shape(shape)}
    tensor = convert_to_tensor(value)
    if group is None or root in group.ranks:
        return [tensor], {}
    if not is_static(tensor.spec.shape):
        raise InvalidArgumentError(
            f"{name}: expected a tensor of static shape as the spec of rank {root}'s value, which is in "
            f"another graph; got {tensor}",
            source=user_line(),
        )
    return [tensor], {"shape": tensor.spec.shape}


def _from_one(
    op: OpDef,
    given: list[Tensor],
    devices: Sequence[str],
    group: Group | None,
    lowering: str,
    name: str,
    **attrs: Any,
) -> list[Tensor]:
    _check_count(len(devices), group, name, "devices")
    places = []
    for device in devices:
        with get_default_graph().device(device):
            places.append(constant(np.zeros(0, np.int32), name=f"{name}/place"))
    return _collective(op, [given, places], len(places), group, lowering, name, **attrs)
