"""The processes of a mesh, if each runs its own session, and the part of this one.

They have joined a group that is called as the job of the mesh's devices, with a rank for each device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowrt.device.spec import parse_device
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.layouts.mesh import Coordinate, Mesh, parse_mesh
from flowrt.graph.resources.groups import ranks_here


class Own(NamedTuple):
    """The part of this process in ``mesh``: its devices are the ranks of the group ``key``, of which
    ``ranks`` are here.
    """

    mesh: Mesh
    key: str
    ranks: tuple[int, ...]

    def readers(self) -> list[tuple[Coordinate, int]]:
        """The coordinate and position of each process that reads its fetches: the first ones there."""
        first: dict[int, tuple[Coordinate, int]] = {}
        for place, at in self.mesh.places().items():
            first.setdefault(self.task(place), at)
        return [first[task] for task in sorted(first)]

    def task(self, rank: int) -> int:
        assert self.mesh.devices is not None
        return parse_device(self.mesh.devices[rank]).task or 0


def own_of(mesh: Mesh) -> Own | None:
    """The part of this process; None unless it has joined the processes of ``mesh``."""
    key = None if mesh.devices is None else parse_device(mesh.devices[0]).job
    ranks = ranks_here(key) if key else ()
    return Own(mesh, key, ranks) if key and ranks else None


def own_of_variable(attrs: Mapping[str, Any]) -> Own | None:
    """The part of this process in the mesh of the variable with ``attrs``, None if no other has a part."""
    return own_of(parse_mesh(attrs[MESH])) if MESH in attrs else None
