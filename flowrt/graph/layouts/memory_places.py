"""Places of variables in one memory, one behind the other: those of a unit, and the slots of these.

    elements    0       64              192     256
                | w     | u             | b     |
    _memory     "64 256 w@unit"         of u, in a unit of three
    _states     "0 192 u@unit/0"        of u, if an optimizer trains u and b, before it makes slots
    _memory     "0 192 u@unit/0"        of the first slot of u, with that of b

A place is text on the handle of the variable, so it is the same in every step of the graph, in its files and
on the wire. All coordinates of a mesh have equal parts of such variables, and each a memory of its own:
`flowrt.graph.resources.unit_memory`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.attributes import MEMORY, STATES, as_stored, layouts_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node

GRAIN = 64
"""Elements: each place begins at a multiple, so it is aligned to 64 bytes, as memory of its own is, in any
dtype that slots have.
"""

_PLACE = re.compile(r"(\d+) (\d+) (\S+@unit(?:[@/]\S*)?)", re.ASCII)
"""The name is that of no variable, and of no part of one on an axis ``unit``."""


class MemoryPlace(NamedTuple):
    """``begin``: the first element of a variable in the memory ``name``, which has ``length``."""

    begin: int
    length: int
    name: str

    def __str__(self) -> str:
        return " ".join(map(str, self))


def place_of(attrs: Mapping[str, Any], key: str = MEMORY) -> MemoryPlace | None:
    """The place that ``attrs`` of a handle name by ``key``; None if the variable has memory of its own.

    Raises `InvalidArgumentError` for a text that names none, as a file may have.
    """
    if key not in attrs:
        return None
    found = _PLACE.fullmatch(str(attrs[key]))
    if found is None:
        raise InvalidArgumentError(
            f"{key}: expected a place in memory, such as '0 256 w@unit'; got {attrs[key]!r}"
        )
    begin, length, name = found.groups()
    return MemoryPlace(int(begin), int(length), name)


def numbered(place: MemoryPlace, number: int) -> MemoryPlace:
    """``place`` in the memory of the states with this ``number``."""
    return place._replace(name=f"{place.name.partition('@unit')[0]}@unit/{number}")


def next_number(variable: Node) -> int:
    """The number of the next state of ``variable``; 0 if none has had a place."""
    place = place_of(variable.attrs, STATES)
    digits = "" if place is None else place.name.rpartition("/")[2]
    return int(digits) if digits.isdecimal() else 0


def places_together(handles: Sequence[Node], mesh: Mesh) -> dict[str, MemoryPlace]:
    """The places of the variables ``handles``, of one dtype, in a memory of all, by name. One of which the
    coordinates of ``mesh`` have unequal parts gets none, and one alone neither.
    """
    sizes = {node.name: size for node in handles if (size := _equal_part(node, mesh)) is not None}
    if len(sizes) < 2:
        return {}
    begins, end = dict[str, int](), 0
    for name, size in sizes.items():
        begins[name] = end
        end += -(-size // GRAIN) * GRAIN
    memory = f"{next(iter(sizes))}@unit"
    return {name: MemoryPlace(begin, end, memory) for name, begin in begins.items()}


def _equal_part(handle: Node, mesh: Mesh) -> int | None:
    """The elements that each coordinate has of a variable; None if they are unequal or unknown."""
    layouts, shape = layouts_of(as_stored(handle.attrs), mesh), handle.attrs["shape"]
    if layouts is None or shape is None or None in shape or handle.attrs["dtype"].np.kind == "O":
        return None
    first, last = (layouts.used.local_shape(shape, mesh.coordinates[i]) for i in (0, -1))
    return math.prod(first) if first == last else None
