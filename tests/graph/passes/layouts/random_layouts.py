"""Random meshes, layouts and stages, for graphs that run with them and without, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.graph.layouts.attributes import SCHEDULE, STAGE, attributes_of
from flowrt.graph.layouts.layout import REPLICATED, Layout, Placement, Shard
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.schedules import TABLE, order

DEVICES = 9
CONFIG = tf.ConfigProto(device_count={"CPU": DEVICES})


def random_mesh(rng: np.random.Generator) -> Mesh:
    """One to three axes of one to three, at most one of time, on at most `DEVICES` devices."""
    while True:
        axes = [Axis(name, int(rng.integers(1, 4))) for name in "abc"[: rng.integers(1, 4)]]
        if rng.random() < 0.4:
            turn = int(rng.integers(len(axes)))
            axes[turn] = axes[turn]._replace(is_time=True)
        mesh = Mesh(axes)
        if mesh.num_devices <= DEVICES:
            return mesh


def random_layout(rng: np.random.Generator, mesh: Mesh, shape: Sequence[int], in_time: bool) -> Layout:
    """Any layout of a tensor of ``shape``; on axes of time only if ``in_time``."""

    def placement(axis: Axis) -> Placement:
        if not shape or rng.random() < 0.4 or (axis.is_time and not in_time):
            return REPLICATED
        return Shard(int(rng.integers(len(shape))))

    return Layout(mesh, [placement(axis) for axis in mesh.axes])


def give(tensor: Any, layout: Layout, stored: Layout | None = None, schedule: Schedule | None = None) -> None:
    """Give ``tensor``, a variable or a placeholder, a layout; and ``schedule``, of a mesh with stages."""
    op = tensor.op
    kept = {} if schedule is None else {SCHEDULE: schedule.name}
    op.mutate(attrs={**op.node.attrs, **attributes_of(layout, stored), **kept})


def random_schedule(rng: np.random.Generator, micro_batches: int, most: int = 3) -> Schedule:
    """Any schedule of the table, on at most ``most`` devices."""
    names = [*TABLE]
    return order(names[int(rng.integers(len(names)))], int(rng.integers(1, most + 1)), micro_batches)


def staged_mesh(rng: np.random.Generator, schedule: Schedule) -> Mesh:
    """A random mesh on each device of ``schedule``, with its micro-batches as turns."""
    while True:
        mesh = random_mesh(rng)
        if not any(axis.is_time for axis in mesh.axes) and mesh.size * schedule.devices <= DEVICES:
            turns = Axis("turn", schedule.micro_batches, is_time=True)
            return Mesh([turns, *mesh.axes], stages=("p", schedule.devices))


def give_stages(rng: np.random.Generator, graph: tf.Graph, count: int) -> None:
    """Give stages to the operations of ``graph``, later ones to later operations; variables are anywhere. A
    list is not sent, so no stage ends between one and its readers.
    """
    made = graph.get_operations()
    place = {op.name: number for number, op in enumerate(made)}
    lists = [(place[t.op.name], place[op.name]) for op in made for t in op.inputs if t.dtype == tf.variant]
    ends = [i for i in range(len(made) + 1) if not any(maker < i <= reader for maker, reader in lists)]
    starts = np.sort(rng.choice(ends, count - 1))
    for number, op in enumerate(made):
        stage = int(np.searchsorted(starts, number, "right"))
        stage = int(rng.integers(count)) if op.type == "VarHandleOp" else stage
        op.mutate(attrs={**op.node.attrs, STAGE: str(stage)})
