"""Collectives on virtual CPU devices, in one graph and session: what tests of expanded lowerings share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.distribute import collectives
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.pipeline import CompileOptions, compile_step
from flowrt.graph.passes.prepare.prune import StepRequest
from tests.contracts.check_collectives import CollectiveCall


def device(rank: int, ranks_a_task: int = 0) -> str:
    """Of a rank: of this process, or of tasks that have so many ranks each."""
    if not ranks_a_task:
        return f"/job:localhost/replica:0/task:0/device:CPU:{rank}"
    return f"/job:w/replica:0/task:{rank // ranks_a_task}/device:CPU:{rank % ranks_a_task}"


def devices(p: int, ranks_a_task: int = 0) -> list[DeviceSpec]:
    return [parse_device(device(rank, ranks_a_task)) for rank in range(p)]


def placeholders(arrays: Sequence[Any], ranks_a_task: int = 0, static: bool = True) -> dict[Any, Any]:
    """One a rank, fed from its device, with its value."""
    found = {}
    for rank, array in enumerate(arrays):
        with tf.device(device(rank, ranks_a_task)):
            found[tf.placeholder(array.dtype, array.shape if static else None)] = array
    return found


def build(call: CollectiveCall, values: list[Any], places: list[str], lowering: str) -> list[Any]:
    """What each rank gets: a tensor, or None."""
    attrs, p = dict(call.attrs), len(places)
    match call.kind:
        case "Reduce" | "Gather":
            function = collectives.reduce if call.kind == "Reduce" else collectives.gather
            result = function(values, lowering=lowering, **attrs)
            return [result if rank == attrs.get("root", 0) else None for rank in range(p)]
        case "Broadcast" | "Scatter":
            function = collectives.broadcast if call.kind == "Broadcast" else collectives.scatter
            return function(values[0], places, lowering=lowering, **attrs)
    functions = {
        "AllReduce": collectives.all_reduce,
        "AllGather": collectives.all_gather,
        "ReduceScatter": collectives.reduce_scatter,
        "AllToAll": collectives.all_to_all,
    }
    return functions[call.kind](values, lowering=lowering, **attrs)


def perform(
    p: int,
    calls: Sequence[CollectiveCall],
    lowering: str = "auto",
    seed: int | None = None,
    target: str = "",
    ranks_a_task: int = 0,
    static: bool = True,
) -> list[list[Any]]:
    """Run ``calls`` in one graph, on a device a rank: of this process, or of a cluster whose master is
    ``target``. See `tests.contracts.check_collectives`.
    """
    with tf.Graph():
        feeds: dict[Any, Any] = {}
        built = []
        for call in calls:
            given = placeholders(call.values, ranks_a_task, static)
            feeds |= given
            places = [device(rank, ranks_a_task) for rank in range(p)]
            built.append(build(call, list(given), places, lowering))
        config = tf.ConfigProto(device_count={"CPU": p})
        with tf.Session(target, config=config, seed=seed) as session:
            results = iter(session.run([t for row in built for t in row if t is not None], feeds))
    return [[None if t is None else next(results) for t in row] for row in built]


def placed(p: int, fetches: Sequence[Any], feeds: dict[Any, Any], ranks_a_task: int = 0) -> Subgraph:
    """A step as it is before the cut by device."""
    fed = {tensor: np.shape(array) for tensor, array in feeds.items()}
    specs = devices(p, ranks_a_task)
    return compile_step(StepRequest(tf.get_default_graph(), fetches, [], fed), CompileOptions(specs))
