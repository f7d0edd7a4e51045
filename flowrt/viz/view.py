"""`GraphView`: a graph as drawn. Pure data, read by every format and changed by none.

A view is built from the parts of a graph (`flowrt.viz.from_parts`); focusing and folding
(`flowrt.viz.folding`) return views again.

Rules of this file:
  1. Nodes and groups have stable names: those of the operations and of their scopes. Names in a function are
     prefixed with the owner's name and the function's label, ``while:body/add``.
  2. A node is in one group, a group in one other, or in none: "". An operation with the name of a scope is in
     this scope.
  3. Attributes are short texts: for an array above `MAX_EMBEDDED` bytes only dtype and shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from flowrt.graph.shapes import Shape
from flowrt.profiler.text_table import size_text

MAX_EMBEDDED = 1024
"""Maximum size in bytes of a constant to show, and to embed in a file for viewing."""


class TensorView(NamedTuple):
    """``dtype`` by name; ``shape`` has None for unknown dimensions and is None for an unknown rank;
    ``nbytes`` is None if it does not follow from the shape. ``layout`` is the text of a tensor that a mesh
    cuts, ``float32[8/dp, 1024/tp]``, in a view of layouts.
    """

    dtype: str
    shape: Shape
    nbytes: int | None
    layout: str = ""

    def __str__(self) -> str:
        if self.layout:
            return self.layout
        dims = "?" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


class Role(StrEnum):
    """The purpose of an operation that is not part of the model: it is drawn beside it. Ordered: what several
    need is of the first of them.
    """

    OPTIMIZER = "optimizer"
    GRADIENT = "gradients"
    SUMMARY = "summaries"
    CHECKPOINT = "checkpoints"
    INITIALIZER = "initializers"


class NodeView(NamedTuple):
    """One operation, or a closed group of ``num_ops``: then ``op`` is "". ``label`` is the last part of the
    name, ``group`` its group, ``source`` the user's ``file:line`` or "". In a view of layouts, ``device`` is
    the stage of a pipeline. A closed group on several ``devices`` is on no ``device``.
    """

    name: str
    label: str
    op: str
    group: str
    device: str
    attrs: Mapping[str, str]
    outputs: tuple[TensorView, ...]
    source: str
    num_ops: int = 1
    devices: tuple[str, ...] = ()


_STAGE = "stage "


def stage_name(number: int) -> str:
    """The device of a `NodeView` at a stage of a pipeline."""
    return f"{_STAGE}{number}"


def is_stage(device: str) -> bool:
    return device.startswith(_STAGE)


class EdgeKind(StrEnum):
    """Ordered: edges that folding merges get the last of their kinds."""

    CONTROL = "control"
    DATA = "data"
    TRANSFER = "transfer"
    """A tensor transferred between devices."""


class Moved(NamedTuple):
    """A ``tensor`` ("node:0") that changes its layout: by which collective over which axes of the mesh, the
    bytes that all devices receive, and what it becomes, ``float32[8/dp, 1024]``.
    """

    tensor: str
    collective: str
    axes: str
    nbytes: int
    becomes: str

    def __str__(self) -> str:
        size = f", {size_text(self.nbytes)}" if self.nbytes else ""
        return f"{self.collective} over {self.axes}{size}"


def totals(moves: Iterable[Moved]) -> dict[str, tuple[int, int]]:
    """The number of ``moves`` by each collective, and their bytes."""
    found: dict[str, tuple[int, int]] = {}
    for move in moves:
        count, nbytes = found.get(move.collective, (0, 0))
        found[move.collective] = count + 1, nbytes + move.nbytes
    return found


class EdgeView(NamedTuple):
    """``num_edges`` from ``source`` to ``target``: ``tensor`` ("node:0") and its facts are those of the first
    edge with a tensor, ``nbytes`` the sum (0 if unknown). ``transport`` is how a transfer is carried,
    ``moves`` are the steps to the layouts that the readers need, each once, in a view of layouts.
    """

    source: str
    target: str
    kind: EdgeKind
    tensor: str = ""
    facts: TensorView | None = None
    nbytes: int = 0
    transport: str = ""
    num_edges: int = 1
    moves: tuple[Moved, ...] = ()


class GroupKind(StrEnum):
    SCOPE = "scope"
    FUNCTION = "function"
    DEVICE = "device"
    SERIES = "series"
    """Many of one kind: scopes of the same structure, ``layer_0`` to ``layer_11``; controls from a device."""
    ROLE = "role"
    """The operations of a `Role`, in their scopes: beside the model, without edges from and to it."""


class GroupView(NamedTuple):
    """``parent`` is the enclosing group, or ""; ``num_ops`` counts its operations, nested ones included."""

    name: str
    label: str
    kind: GroupKind
    parent: str
    num_ops: int


Groups: TypeAlias = Mapping[str, GroupView]


class GraphView(NamedTuple):
    """``nodes`` by name in execution order, ``groups`` by name, a group before its contents."""

    nodes: Mapping[str, NodeView]
    edges: Sequence[EdgeView]
    groups: Groups


def around(groups: Groups, name: str) -> Iterator[GroupView]:
    """The group called ``name`` and those around it, the innermost first; nothing for ""."""
    while name:
        group = groups[name]
        yield group
        name = group.parent


def held_groups(view: GraphView) -> dict[str, GroupView]:
    """The groups of ``view`` that hold nodes, with their counts."""
    counts: dict[str, int] = {}
    for node in view.nodes.values():
        for group in around(view.groups, node.group):
            counts[group.name] = counts.get(group.name, 0) + node.num_ops
    return {n: g._replace(num_ops=counts[n]) for n, g in view.groups.items() if n in counts}
