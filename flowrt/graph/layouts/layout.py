"""`Layout`: what of a tensor each coordinate of a mesh has."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final
from weakref import WeakValueDictionary

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.schedule import offset
from flowrt.graph.layouts.mesh import Coordinate, Mesh
from flowrt.graph.shapes import Shape
from flowrt.graph.source import user_line

REDUCTIONS = ("sum", "max", "min", "prod")


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """Each coordinate of the axis has a part of dimension ``dim``. ``unit``: as many elements, one after the
    other, stay together: those of a row of a batch that was joined with another dimension.
    """

    dim: int
    unit: int = field(default=1, repr=False)


@final
@dataclass(frozen=True, slots=True)
class Replicate:
    """Each coordinate of the axis has the same."""


@final
@dataclass(frozen=True, slots=True)
class Partial:
    """Each coordinate of the axis has a tensor of the whole shape; their reduction is the value."""

    reduction: str = "sum"


Placement: TypeAlias = Shard | Replicate | Partial
Entry: TypeAlias = str | Sequence[str] | None
"""The axes that shard a dimension: none, one, or several in the mesh's order."""

REPLICATED = Replicate()


@final
class Layout:
    """A placement for each axis of ``mesh``, in their order. Equal layouts are one object.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)])
    >>> layout = Layout(mesh, [Shard(0), Shard(1)])
    >>> layout.local_shape((5, 8), (0, 1))
    (3, 4)
    >>> layout.slices((5, 8), (1, 1))
    (slice(3, 5, None), slice(4, 8, None))

    Raises `InvalidArgumentError` for another number of placements, and an unknown reduction.
    """

    __slots__ = ("__weakref__", "is_replicated", "mesh", "placements")

    mesh: Mesh
    placements: tuple[Placement, ...]
    is_replicated: bool
    """Whether every coordinate has the whole."""

    def __new__(cls, mesh: Mesh, placements: Iterable[Placement]) -> Layout:
        found = tuple(placements)
        layout = _layouts.get((mesh, found))
        if layout is None:
            _check(mesh, found)
            layout = object.__new__(cls)
            layout.mesh, layout.placements = mesh, found
            layout.is_replicated = all(isinstance(placement, Replicate) for placement in found)
            layout = _layouts.setdefault((mesh, found), layout)
        return layout

    @staticmethod
    def replicated(mesh: Mesh) -> Layout:
        """The layout in which every coordinate has the whole."""
        return Layout(mesh, [REPLICATED] * len(mesh.axes))

    @property
    def partial_axes(self) -> tuple[int, ...]:
        """The numbers of the axes on which it is `Partial`."""
        return tuple(i for i, placement in enumerate(self.placements) if isinstance(placement, Partial))

    def axes_of(self, dim: int) -> tuple[int, ...]:
        """The numbers of the axes that shard dimension ``dim``, the major one first."""
        placements = enumerate(self.placements)
        return tuple(i for i, p in placements if isinstance(p, Shard) and p.dim == dim)

    def with_placement(self, axis: int, placement: Placement) -> Layout:
        """The layout with ``placement`` on the axis of that number."""
        return Layout(self.mesh, (*self.placements[:axis], placement, *self.placements[axis + 1 :]))

    def slices(self, shape: Sequence[int], coordinate: Coordinate) -> tuple[slice, ...]:
        """The part of a tensor of ``shape`` that ``coordinate`` has, by dimension; of a `Partial`, the part
        that its addend covers.
        """
        starts, sizes = [0] * len(shape), list(shape)
        for axis, placement, index in zip(self.mesh.axes, self.placements, coordinate, strict=True):
            if isinstance(placement, Shard):
                dim, unit = placement.dim, placement.unit
                size, count = sizes[dim], -(-sizes[dim] // unit)  # the last unit may be shorter
                first = min(offset(index, count, axis.size) * unit, size)
                starts[dim] += first
                sizes[dim] = min(offset(index + 1, count, axis.size) * unit, size) - first
        return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))

    def local_shape(self, shape: Sequence[int], coordinate: Coordinate) -> tuple[int, ...]:
        """The shape of the part that ``coordinate`` has."""
        return _local_shape(self, tuple(shape), coordinate)

    def check_rank(self, rank: int, where: str) -> None:
        """Raises `InvalidArgumentError` unless all sharded dimensions are below ``rank``."""
        for axis, placement in zip(self.mesh.axes, self.placements, strict=True):
            if isinstance(placement, Shard) and placement.dim >= rank:
                raise InvalidArgumentError(
                    f"{where}: expected a layout of at most {rank} dimensions; axis {axis.name!r} shards "
                    f"dimension {placement.dim}",
                    source=user_line(),
                )

    def __reduce__(self) -> tuple[type[Layout], tuple[Mesh, tuple[Placement, ...]]]:
        return Layout, (self.mesh, self.placements)

    def __str__(self) -> str:
        return format_layout(self)

    def __repr__(self) -> str:
        return f"<Layout {format_layout(self)} of {self.mesh}>"


@functools.lru_cache(8192)
def _local_shape(layout: Layout, shape: tuple[int, ...], coordinate: Coordinate) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in layout.slices(shape, coordinate))


_layouts: WeakValueDictionary[tuple[Mesh, tuple[Placement, ...]], Layout] = WeakValueDictionary()


def _check(mesh: Mesh, placements: tuple[Placement, ...]) -> None:
    if len(placements) != len(mesh.axes):
        raise InvalidArgumentError(
            f"layout: expected {len(mesh.axes)} placements, one per axis of {mesh}; got {len(placements)}",
            source=user_line(),
        )
    for placement in placements:
        if isinstance(placement, Partial) and placement.reduction not in REDUCTIONS:
            raise InvalidArgumentError(
                f"layout: expected a reduction of {', '.join(REDUCTIONS)}; got {placement.reduction!r}",
                source=user_line(),
            )
        if isinstance(placement, Shard) and placement.dim < 0:
            raise InvalidArgumentError(
                f"layout: expected dimensions of at least 0; got {placement}", source=user_line()
            )


def layout_of(mesh: Mesh, entries: Sequence[Entry], where: str = "layout") -> Layout:
    """The layout with an entry per dimension, as scripts write it: the axes that shard the dimension.

    >>> layout_of(Mesh([("dp", 2), ("tp", 2)]), [None, ("dp", "tp")]).placements
    (Shard(dim=1), Shard(dim=1))

    Raises `InvalidArgumentError` for an unknown axis, an axis in two dimensions, and axes of a dimension that
    are not in the mesh's order.
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise InvalidArgumentError(
            f"{where}: expected a list with an entry per dimension: None, an axis, or several; got "
            f"{entries!r}",
            source=user_line(),
        )
    placements: list[Placement] = [REPLICATED] * len(mesh.axes)
    for dim, entry in enumerate(entries):
        names = _axes_of_entry(entry, dim, where)
        axes = [mesh.axis(name, where) for name in names]
        if axes != sorted(set(axes)):
            order = ", ".join(axis.name for axis in mesh.axes)
            raise InvalidArgumentError(
                f"{where}: expected different axes in the mesh's order, {order}, for dimension {dim}; got "
                f"{', '.join(names)}",
                source=user_line(),
            )
        for axis in axes:
            if isinstance(other := placements[axis], Shard):
                raise InvalidArgumentError(
                    f"{where}: expected axis {mesh.axes[axis].name!r} to shard one dimension; got "
                    f"{other.dim} and {dim}",
                    source=user_line(),
                )
            placements[axis] = Shard(dim)
    return Layout(mesh, placements)


def _axes_of_entry(entry: Any, dim: int, where: str) -> tuple[str, ...]:
    if entry is None or isinstance(entry, str):
        return () if entry is None else (entry,)
    if isinstance(entry, Sequence) and all(isinstance(name, str) for name in entry):
        return tuple(entry)
    raise InvalidArgumentError(
        f"{where}: expected None, an axis, or several for dimension {dim}; got {entry!r}", source=user_line()
    )


# --- as text


_TEXT = re.compile(r"\[(?P<entries>[^\]]*)\](?:\+\{(?P<partial>[^}]*)\})?")


def format_layout(layout: Layout, rank: int | None = None) -> str:
    """The text that `parse_layout` reads, with an entry for each of ``rank`` dimensions, or up to the last
    one that is sharded: ``[dp, -, tp.ep]``, and what is partial: ``[-]+{pp, tp:max}``.
    """
    if rank is None:
        rank = max([p.dim + 1 for p in layout.placements if isinstance(p, Shard)], default=0)
    entries = [_axes_text(layout, dim) or "-" for dim in range(rank)]
    return f"[{', '.join(entries)}]{_partial_text(layout)}"


def describe(dtype: str, shape: Shape, layout: Layout) -> str:
    """A tensor with its layout: ``float32[8/dp, 1024/tp]+{pp}``."""
    if shape is None:
        return f"{dtype}<unknown>{layout}"
    sizes = ["?" if size is None else str(size) for size in shape]
    axes = [_axes_text(layout, dim) for dim in range(len(sizes))]
    entries = [f"{size}/{names}" if names else size for size, names in zip(sizes, axes, strict=True)]
    return f"{dtype}[{', '.join(entries)}]{_partial_text(layout)}"


def _axes_text(layout: Layout, dim: int) -> str:
    return ".".join(layout.mesh.axes[axis].name for axis in layout.axes_of(dim))


def _partial_text(layout: Layout) -> str:
    found = [
        axis.name if placement.reduction == "sum" else f"{axis.name}:{placement.reduction}"
        for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True)
        if isinstance(placement, Partial)
    ]
    return f"+{{{', '.join(found)}}}" if found else ""


@functools.lru_cache(1024)
def parse_layout(text: str, mesh: Mesh) -> Layout:
    """The layout over ``mesh`` that ``text`` names, see `format_layout`. Raises `InvalidArgumentError`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"layout: expected a text like '[dp, -]+{{tp}}'; got {text[:200]!r}")
    entries = [None if entry == "-" else entry.split(".") for entry in _words(found["entries"])]
    placements = list(layout_of(mesh, entries).placements)
    for word in _words(found["partial"] or ""):
        name, _, reduction = word.partition(":")
        axis = mesh.axis(name)
        if not isinstance(placements[axis], Replicate):
            raise InvalidArgumentError(f"layout: expected axis {name!r} once; got {text!r}")
        placements[axis] = Partial(reduction or "sum")
    return Layout(mesh, placements)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []
