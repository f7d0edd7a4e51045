"""Random meshes and layouts, and graphs that run with them and without, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.graph.layouts.attributes import attributes_of
from flowrt.graph.layouts.layout import REPLICATED, Layout, Placement, Shard
from flowrt.graph.layouts.mesh import Axis, Mesh

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


def give(tensor: Any, layout: Layout, stored: Layout | None = None) -> None:
    """Give ``tensor``, a variable or a placeholder, a layout."""
    op = tensor.op
    op.mutate(attrs={**op.node.attrs, **attributes_of(layout, stored)})
