"""Parts of a step, one for each class of devices, as their processes would compile them, without the devices.

    StepRequest -> the global step, as a session would have it
                -> lowered, for the first coordinate of each position
                -> `own_parts` of its rank, placed, fused, scheduled, with a memory plan: `DevicePart`

The passes are those of a session. Every device is a rank of a group that nobody has joined, in a process of
its own, and only the first coordinate of each position gets operations: so a mesh of thousands of devices
takes no longer than its groups do. What that coordinate does for others of its class is left out: it gives
them positions of random draws, in pipelines their parts of feeds, and waits for the ends of their updates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowrt.device.device import Device
from flowrt.device.host.host import HostExecutor
from flowrt.device.spec import DeviceSpec
from flowrt.executor.bind.bind import Partition, compile_partition
from flowrt.executor.lower.schedule import loop_compilers, schedule_parts
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links
from flowrt.graph.layouts.attributes import MESH, mesh_of
from flowrt.graph.layouts.mesh import Coordinate, Mesh, format_mesh
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.passes.layouts.lower_layouts import in_order, lowered
from flowrt.graph.passes.layouts.own_part import check_state, own_parts
from flowrt.graph.passes.layouts.processes import Own
from flowrt.graph.passes.layouts.variable_shards import mesh_on
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before, stages_from
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.pipeline.actions import Action
from flowrt.graph.resources.variables import VariableResource

GROUP = "plan"
"""The group of all devices, and the job of their processes."""

HERE = DeviceSpec("localhost", 0, 0, "CPU", 0)
"""The device of each process, as its session calls it."""

NO_MESH = Mesh([])


class DevicePart(NamedTuple):
    """The part of the device ``rank`` of ``mesh``, at ``position``. ``whole`` is its part before anything is
    fused, with the names of ``actions``: those of operations that take turns.
    """

    mesh: Mesh
    rank: int
    position: int
    partition: Partition
    whole: Subgraph
    actions: Mapping[str, Action | None]


def device_parts(request: StepRequest, links: Links = DEFAULT_LINKS) -> list[DevicePart]:
    """The part of each position's first coordinate; one part if the step has no mesh.

    Raises the errors of `Session.run` for a step that does not compile, and `UnimplementedError` for state
    that processes cannot share, or parts of variables that the script reads.
    """
    options = CompileOptions([HERE], loops=loop_compilers([HERE]), links=links)
    return parts_of(compile_step(request, options, pipeline=stages_before("lower_layouts")), links)


def parts_of(
    step: Subgraph, links: Links = DEFAULT_LINKS, turns: Collection[int] | None = None
) -> list[DevicePart]:
    """The same of a global ``step`` with static shapes, in front of the lowering of its layouts. With
    ``turns``, of which the first is one, all others are left out.

    Raises `UnimplementedError`, too, if turns are left out and a tensor needs the parts of all of them.
    """
    options = CompileOptions([HERE], loops=loop_compilers([HERE]), links=links)
    mesh = mesh_of(step)
    if mesh is None:
        return [_part(NO_MESH, 0, 0, step, {}, options)]
    if mesh.devices is not None:
        step = _without_devices(step, mesh)
    mesh = mesh_on(Mesh(mesh.axes, None, mesh.stages), _processes(mesh.num_devices))
    check_state(step)
    first = _first_coordinates(mesh, turns)
    ranks = tuple(mesh.place(first[0], position) for position in mesh.positions)
    own = Own(mesh, GROUP, ranks, first)
    found = lowered(step, _processes(mesh.num_devices), links, own)
    assert found is not None
    parts = own_parts(in_order(found, links), own, [(rank,) for rank in ranks], [HERE], "")
    return [
        _part(mesh, rank, at, part, found.actions, options)
        for at, (rank, part) in enumerate(zip(ranks, parts, strict=True))
    ]


def part_alone(step: Subgraph) -> DevicePart:
    """The part of one device that has all of ``step``, with static shapes, whatever layouts it has."""
    return _part(NO_MESH, 0, 0, step, {}, CompileOptions([HERE], loops=loop_compilers([HERE])))


def space_of(mesh: Mesh) -> dict[str, int]:
    """The sizes of the axes of a position, by name."""
    return {axis.name: axis.size for axis in mesh.axes if not axis.is_time}


def _first_coordinates(mesh: Mesh, turns: Collection[int] | None) -> tuple[Coordinate, ...]:
    """The coordinates of ``turns``, or of all, of the first device of a position."""
    spans = [range(axis.size if axis.is_time else 1) for axis in mesh.axes]
    every = enumerate(itertools.product(*spans))
    return tuple(at for turn, at in every if turns is None or turn in turns)


def _processes(count: int) -> list[DeviceSpec]:
    return [DeviceSpec(GROUP, None, task, "CPU", 0) for task in range(count)]


def _without_devices(step: Subgraph, mesh: Mesh) -> Subgraph:
    """``step`` over ``mesh`` on devices that are not named."""
    text = format_mesh(Mesh(mesh.axes, None, mesh.stages))

    def changed(node: Node) -> Node:
        node = with_functions(node, lambda function: function.mapped(changed))
        return node.replace(attrs={**node.attrs, MESH: text}) if MESH in node.attrs else node

    return step.mapped(changed)


def _part(
    mesh: Mesh,
    rank: int,
    position: int,
    own: Subgraph,
    actions: Mapping[str, Action | None],
    options: CompileOptions,
) -> DevicePart:
    placed = compile_step(own, options, pipeline=stages_from("place"))
    ((subgraph, schedule),) = schedule_parts(placed, options).values()
    partition = compile_partition(subgraph, schedule, _device(), _resource, has_loops=True)
    return DevicePart(mesh, rank, position, partition, placed, actions)


@cache
def _device() -> Device:
    """A device for which memory is planned; none is allocated."""
    return Device(HERE, HostExecutor(HERE.to_string()))


def _resource(node: Node) -> Any:
    """The state of ``node``; of a variable, with an array of its shape without memory."""
    assert node.op.state is not None
    resource = node.op.state(node)
    if isinstance(resource, VariableResource):
        resource.pin(lambda shape, dtype: np.broadcast_to(np.zeros((), dtype), shape))
    return resource


# --- memory


def variable_bytes(part: DevicePart, trainable: frozenset[str]) -> dict[str, int]:
    """The bytes of the variables that the device keeps: ``weights``, which are ``trainable`` by name,
    ``copies`` of them (`flowrt.graph.passes.layouts.keep_copies`), and ``states``, of optimizers and others.
    """
    found = {"weights": 0, "copies": 0, "states": 0}
    for node in part.partition.subgraph:
        if node.op is var_handle_op:
            name, *ends = node.name.split("@")
            kind = "copies" if "copy" in ends else "weights" if name in trainable else "states"
            found[kind] += math.prod(node.attrs["shape"]) * node.attrs["dtype"].np.itemsize
    return found
