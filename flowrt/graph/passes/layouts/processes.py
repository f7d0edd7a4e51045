"""The processes of a mesh, if each runs its own session, and the part of this one.

They have joined a group that is called as the job of the mesh's devices, with a rank for each device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.device.spec import parse_device
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.layouts.mesh import Coordinate, Mesh, parse_mesh
from flowrt.graph.resources.groups import ranks_here


class Own(NamedTuple):
    """The part of this process in ``mesh``: its devices are the ranks of the group ``key``, of which
    ``ranks`` are here. With ``only``, the operations of other coordinates are left out of the step: the part
    of a rank at one of these is the same, however many others there are. Of a device that takes turns, the
    first is one of them; a sum over turns is that of those which are there.
    """

    mesh: Mesh
    key: str
    ranks: tuple[int, ...]
    only: tuple[Coordinate, ...] | None = None

    @property
    def coordinates(self) -> Sequence[Coordinate]:
        """The coordinates of which the step has operations."""
        return self.mesh.coordinates if self.only is None else self.only

    def readers(self) -> list[tuple[Coordinate, int]]:
        """The coordinate and position of each process that reads its fetches: the first ones there."""
        first: dict[int, tuple[Coordinate, int]] = {}
        for position in self.mesh.positions:
            for at in self.coordinates:
                first.setdefault(self.task(self.mesh.place(at, position)), (at, position))
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
