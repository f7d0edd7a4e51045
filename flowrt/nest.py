"""``flowrt.nest``: functions of nested structures, under TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrt.base.structure import flatten, flatten_up_to, pack_as, same_structure
from flowrt.base.structure import map_structure as _map
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "assert_same_structure", "flatten", "flatten_up_to", "is_nested", "is_sequence", "map_structure",
    "map_structure_up_to", "pack_sequence_as",
]  # fmt: skip


def is_nested(seq: Any) -> bool:
    """Whether ``seq`` is a container: a list, tuple or mapping."""
    return isinstance(seq, (list, tuple, Mapping))


is_sequence = is_nested


def pack_sequence_as(structure: Any, flat_sequence: Any) -> Any:
    """A structure like ``structure`` with the leaves ``flat_sequence``."""
    return pack_as(structure, flat_sequence)


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """``func`` of corresponding leaves, packed like the first structure. Raises as
    `assert_same_structure`.
    """
    for other in structure[1:]:
        assert_same_structure(structure[0], other)
    return _map(func, *structure)


def map_structure_up_to(shallow_tree: Any, func: Callable[..., Any], *inputs: Any) -> Any:
    """``func`` of the parts of ``inputs`` at the leaves of ``shallow_tree``, packed like it.

    Raises `InvalidArgumentError` for an input that lacks a container of ``shallow_tree``.
    """
    parts = [flatten_up_to(shallow_tree, value) for value in inputs]
    return pack_as(shallow_tree, [func(*leaves) for leaves in zip(*parts, strict=True)])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raises `InvalidArgumentError` for containers of other lengths or keys, `DTypeError` for other types."""
    if not same_structure(nest1, nest2):
        flat = len(flatten(nest1)) != len(flatten(nest2))
        error = InvalidArgumentError if flat or not check_types else DTypeError
        raise error(f"nest: expected one structure; got {nest1!r:.60} and {nest2!r:.60}")


__getattr__ = missing_from("nest")
