"""`schedule_on`: the schedule of a mesh with an axis of stages, from the text that graphs have of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.attributes import SCHEDULE, STAGE
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.schedule_file import parse_schedule
from flowrt.graph.pipeline.schedules import TABLE, order


@functools.lru_cache(64)
def schedule_on(mesh: Mesh, text: str) -> Schedule:
    """The schedule ``text`` for the positions and the turns of ``mesh``: the name of a row of `TABLE`,
    perhaps followed by the number of chunks, or the actions themselves, as in a file.

    >>> schedule_on(Mesh([Axis("micro", 4, is_time=True)], stages=("pp", 2)), "interleaved 2").stages
    4

    Raises `InvalidArgumentError` for a schedule of other sizes, and what `order` and `parse_schedule` raise.
    """
    positions, turns = len(mesh.positions), turns_of(mesh)
    name, *chunks = text.split()[:2] or [""]
    if name in TABLE or "\n" not in text:
        return order(name, positions, turns, *map(int, chunks))
    found = parse_schedule(text, "schedule")
    for what, wanted, have in (
        ("devices", positions, found.devices), ("micro-batches", turns, found.micro_batches)
    ):  # fmt: skip
        if wanted != have:
            raise InvalidArgumentError(
                f"schedule: expected {wanted} {what}, as the mesh {mesh} has; got one of {have}"
            )
    return found


def turns_of(mesh: Mesh) -> int:
    """The number of turns of each device."""
    return math.prod(axis.size for axis in mesh.axes if axis.is_time)


def position_of(attrs: Mapping[str, Any], mesh: Mesh) -> int:
    """The position in ``mesh`` of a variable with ``attrs``; 0 without an axis of stages."""
    if mesh.stages is None:
        return 0
    return schedule_on(mesh, attrs[SCHEDULE]).device_of(int(attrs[STAGE]))
