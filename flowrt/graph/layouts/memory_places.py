"""Places of variables in one memory, one behind the other: those of a unit, and the slots of these.

    elements    0       64                  192     256
                | w     | u                 | b     |
    _memory     "0 256 192 w@unit"          of w, in a unit of three of which an optimizer trains two
                "0 192 192 w@unit/Adam"     of the slot of w, with that of u

A place is text on the handle of the variable, so it is the same in every step of the graph, in its files and
on the wire. All coordinates of a mesh have equal parts of such variables, and each a memory of its own:
`flowrt.graph.resources.unit_memory`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.attributes import MEMORY, as_stored, layouts_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node

GRAIN = 64
"""Elements: each place begins at a multiple, so it is aligned to 64 bytes, as memory of its own is, in any
dtype that slots have.
"""

_PLACE = re.compile(r"(\d+) (\d+) (\d+) (\S+)", re.ASCII)


class MemoryPlace(NamedTuple):
    """``begin``: the first element of a variable in the memory ``name``, which has ``length``, and in which
    those that are trained come first, in ``trained`` elements.
    """

    begin: int
    length: int
    trained: int
    name: str

    def __str__(self) -> str:
        return " ".join(map(str, self))


def place_of(attrs: Mapping[str, Any]) -> MemoryPlace | None:
    """The place that ``attrs`` of a handle name; None if the variable has memory of its own.

    Raises `InvalidArgumentError` for a text that names none, as a file may have.
    """
    if MEMORY not in attrs:
        return None
    found = _PLACE.fullmatch(str(attrs[MEMORY]))
    if found is None:
        raise InvalidArgumentError(
            f"{MEMORY}: expected a place in memory, such as '0 256 192 w@unit'; got {attrs[MEMORY]!r}"
        )
    begin, length, trained, name = found.groups()
    return MemoryPlace(int(begin), int(length), int(trained), name)


def attributes_of_slots_place(slot: Node, variable: Node) -> dict[str, str]:
    """The attributes that give an optimizer's ``slot`` of ``variable`` the same place, in a memory of all
    such slots of variables that are trained; none if the variable has no place, or is not trained.
    """
    place = place_of(variable.attrs)
    if place is None or place.begin >= place.trained:
        return {}
    kind = slot.name.replace(variable.name, "", 1).strip("/")
    return {MEMORY: str(place._replace(length=place.trained, name=f"{place.name}/{kind}"))}


def places_of_unit(handles: Sequence[Node], trained: Collection[str], mesh: Mesh) -> dict[str, MemoryPlace]:
    """The places of the variables ``handles``, of one dtype, in a memory of all, by name. One of which the
    coordinates of ``mesh`` have unequal parts gets none, and one alone neither.
    """
    sizes = {node.name: size for node in handles if (size := _equal_part(node, mesh)) is not None}
    if len(sizes) < 2:
        return {}
    ordered = sorted(sizes, key=lambda name: name not in trained)
    begins, end, end_of_trained = dict[str, int](), 0, 0
    for name in ordered:
        begins[name] = end
        end += -(-sizes[name] // GRAIN) * GRAIN
        if name in trained:
            end_of_trained = end
    memory = f"{ordered[0]}@unit"
    return {name: MemoryPlace(begin, end, end_of_trained, memory) for name, begin in begins.items()}


def _equal_part(handle: Node, mesh: Mesh) -> int | None:
    """The elements that each coordinate has of a variable; None if they are unequal or unknown."""
    layouts, shape = layouts_of(as_stored(handle.attrs), mesh), handle.attrs["shape"]
    if layouts is None or shape is None or None in shape or handle.attrs["dtype"].np.kind == "O":
        return None
    first, last = (layouts.used.local_shape(shape, mesh.coordinates[i]) for i in (0, -1))
    return math.prod(first) if first == last else None
