"""Nested results of branches and bodies: their first difference, and leaves that wrap tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowrt.base.structure import Structure


class Difference(NamedTuple):
    """The first difference of two structures: its path (``"[0]['x']"``, "" for the root), and both parts."""

    place: str
    first: str
    second: str

    @property
    def at(self) -> str:
        """`place` for the end of a sentence."""
        return f", at {self.place}" if self.place else ""


def difference(first: Structure, second: Structure, place: str = "") -> Difference | None:
    """The first place where the structures differ; None if they do not. A list and a tuple count as the same,
    as in TensorFlow; None is a leaf.
    """
    keys = _keys(first)
    if _kind(first) != _kind(second) or keys != _keys(second):
        return Difference(place, _described(first), _described(second))
    for key in keys or ():
        found = difference(first[key], second[key], f"{place}[{key!r}]")
        if found is not None:
            return found
    return None


def _kind(structure: Structure) -> Any:
    if isinstance(structure, Mapping):
        return Mapping
    if not isinstance(structure, (list, tuple)):
        return None
    return getattr(structure, "_fields", list)


def _keys(structure: Structure) -> list[Any] | None:
    if isinstance(structure, Mapping):
        return sorted(structure)
    return list(range(len(structure))) if isinstance(structure, (list, tuple)) else None


def _described(structure: Structure) -> str:
    keys = _keys(structure)
    if keys is None:
        return f"{structure!r:.100}"
    what = type(structure).__name__
    return f"a {what} with the keys {keys}" if isinstance(structure, Mapping) else f"a {what} of {len(keys)}"


def flow_of(leaf: Any) -> Any:
    """The tensor of a leaf: for a TensorArray its list."""
    return leaf.flow if hasattr(leaf, "_with_flow") else leaf
