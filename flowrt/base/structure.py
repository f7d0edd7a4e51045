"""Nested structures: tuples, namedtuples, lists and mappings with anything else as leaves.

Rules of this file: leaves are visited in order, the keys of a mapping sorted; None is a leaf; ``is_leaf`` can
declare more (such as lists to make tensors of). Packing keeps the container's type and a mapping's own key
order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from flowrt.errors import InvalidArgumentError

Structure: TypeAlias = Any  # a leaf, or a container of structures
IsLeaf: TypeAlias = Callable[[Any], bool]


def flatten(structure: Structure, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves in order. Raises `InvalidArgumentError` when the keys of a mapping cannot be sorted."""
    children = _children(structure, is_leaf)
    if children is None:
        return [structure]
    return [leaf for _, child in children for leaf in flatten(child, is_leaf)]


def leaf_paths(structure: Structure, is_leaf: IsLeaf | None = None) -> list[str]:
    """The path of each leaf: ``["['image']", "['size'][0]"]``; of a lone leaf ``""``."""
    children = _children(structure, is_leaf)
    if children is None:
        return [""]
    return [f"[{key!r}]{path}" for key, child in children for path in leaf_paths(child, is_leaf)]


def pack_as(structure: Structure, flat: Iterable[Any], is_leaf: IsLeaf | None = None) -> Structure:
    """A structure like ``structure`` with the leaves ``flat``.

    Raises `InvalidArgumentError` unless their number is that of the leaves of ``structure``.
    """
    leaves = list(flat)
    expected = len(flatten(structure, is_leaf))
    if len(leaves) != expected:
        raise InvalidArgumentError(f"pack_as {structure!r}: expected {expected} leaves; got {len(leaves)}")
    return _pack(structure, iter(leaves), is_leaf)


def map_structure(
    fn: Callable[..., Any], structure: Structure, *others: Structure, is_leaf: IsLeaf | None = None
) -> Structure:
    """``fn`` of corresponding leaves, packed like ``structure``; the others may be deeper, not shallower."""
    columns = [flatten(structure, is_leaf), *(flatten_up_to(structure, other, is_leaf) for other in others)]
    return pack_as(structure, [fn(*leaves) for leaves in zip(*columns, strict=True)], is_leaf)


def flatten_up_to(shallow: Structure, value: Structure, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The parts of ``value`` at the leaves of ``shallow``; they may be structures themselves.

    Lists and tuples match each other. Raises `InvalidArgumentError`, with the path, if the structures differ.
    """
    return list(_parts(shallow, value, is_leaf, ""))


def same_structure(a: Structure, b: Structure) -> bool:
    """Whether the containers, their lengths and their keys are equal."""
    return bool(_skeleton(a) == _skeleton(b))


def _skeleton(structure: Structure) -> Structure:
    return pack_as(structure, [None] * len(flatten(structure)))


def _children(structure: Structure, is_leaf: IsLeaf | None) -> list[tuple[Any, Structure]] | None:
    """(key, child) of a container; None for a leaf."""
    if is_leaf is not None and is_leaf(structure):
        return None
    if isinstance(structure, Mapping):
        return [(key, structure[key]) for key in _sorted_keys(structure)]
    if isinstance(structure, tuple | list):
        return list(enumerate(structure))
    return None


def _sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:
        raise InvalidArgumentError(
            f"nested structure: expected keys that can be sorted; got {list(mapping)!r}. Use keys of the "
            "same type"
        ) from None


def _pack(structure: Structure, leaves: Iterator[Any], is_leaf: IsLeaf | None) -> Structure:
    children = _children(structure, is_leaf)
    if children is None:
        return next(leaves)
    packed = {key: _pack(child, leaves, is_leaf) for key, child in children}
    if isinstance(structure, Mapping):
        like: Any = copy.copy(structure)
        like.update(packed)
        return like
    if hasattr(structure, "_fields"):
        return type(structure)(*packed.values())
    return type(structure)(packed.values())


def _parts(shallow: Structure, value: Structure, is_leaf: IsLeaf | None, path: str) -> Iterator[Any]:
    children = _children(shallow, is_leaf)
    if children is None:
        yield value
        return
    keyed = isinstance(shallow, Mapping)
    if not isinstance(value, Mapping if keyed else tuple | list):
        raise _mismatch(path, f"a {type(shallow).__name__} of {len(children)}", f"{value!r:.60}")
    keys = [key for key, _ in children]
    found = _sorted_keys(value) if isinstance(value, Mapping) else list(range(len(value)))
    if found != keys:
        expected, got = (f"keys {keys}", f"{found}") if keyed else (f"{len(keys)} items", f"{len(found)}")
        raise _mismatch(path, expected, got)
    for key, child in children:
        yield from _parts(child, value[key], is_leaf, f"{path}[{key!r}]")


def _mismatch(path: str, expected: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"nested structure{path and ' at ' + path}: expected {expected}; got {got}")
