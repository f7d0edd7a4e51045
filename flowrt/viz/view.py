"""`GraphView`: a graph as it is drawn. Pure data, which every format reads and none writes.

A view is made of the parts of a graph (`flowrt.viz.from_parts`) and may then be cut down (`flowrt.viz.focus`)
and folded (`flowrt.viz.fold`); what comes out is a view again.

Rules of this file:
  1. Nodes and groups are found by names that do not change: those of the operations and of their scopes.
     What stands in a function has the name of the owner and the function's label before its own,
     ``while:body/add``.
  2. A node stands in one group, a group in one other, or in none: "". An operation whose name is also that of
     a scope stands in this scope.
  3. Attributes are short texts: of an array above `MAX_EMBEDDED` bytes only dtype and shape are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from flowrt.graph.shapes import Shape

MAX_EMBEDDED = 1024
"""Bytes of a constant whose value is shown, and written into a file that is made to be looked at."""


class TensorView(NamedTuple):
    """``dtype`` by name; ``shape`` has None for unknown dimensions and is None for an unknown rank;
    ``nbytes`` is None where the shape does not tell.
    """

    dtype: str
    shape: Shape
    nbytes: int | None

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


class NodeView(NamedTuple):
    """One operation, or a closed group of ``num_ops``: then ``op`` is "". ``label`` is the last part of the
    name, ``group`` the group that it stands in, ``source`` the user's ``file:line`` or "".
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


class EdgeKind(StrEnum):
    """Ordered: of the edges that a fold makes one of, the last kind is the kind of all."""

    CONTROL = "control"
    DATA = "data"
    TRANSFER = "transfer"
    """A tensor that goes from one device to another."""


class EdgeView(NamedTuple):
    """``num_edges`` from ``source`` to ``target``: ``tensor`` ("node:0") and its facts are of the first that
    has one, ``nbytes`` of all together (0 where unknown). ``transport`` says how a transfer goes.
    """

    source: str
    target: str
    kind: EdgeKind
    tensor: str = ""
    facts: TensorView | None = None
    nbytes: int = 0
    transport: str = ""
    num_edges: int = 1


class GroupKind(StrEnum):
    SCOPE = "scope"
    FUNCTION = "function"
    DEVICE = "device"
    SERIES = "series"
    """Scopes of one make, ``layer_0`` to ``layer_11``."""


class GroupView(NamedTuple):
    """``parent`` is the group around it, or ""; ``num_ops`` counts what is in it and in what it holds."""

    name: str
    label: str
    kind: GroupKind
    parent: str
    num_ops: int


Nodes: TypeAlias = Mapping[str, NodeView]
Groups: TypeAlias = Mapping[str, GroupView]


class GraphView(NamedTuple):
    """``nodes`` by name in the order in which they run, ``groups`` by name, a group before what it holds."""

    nodes: Nodes
    edges: Sequence[EdgeView]
    groups: Groups


def around(groups: Groups, name: str) -> Iterator[GroupView]:
    """The group called ``name`` and those around it, the innermost first; nothing for ""."""
    while name:
        group = groups[name]
        yield group
        name = group.parent


def held_groups(view: GraphView) -> dict[str, GroupView]:
    """Those groups of ``view`` that hold nodes, with their counts."""
    counts: dict[str, int] = {}
    for node in view.nodes.values():
        for group in around(view.groups, node.group):
            counts[group.name] = counts.get(group.name, 0) + node.num_ops
    return {n: g._replace(num_ops=counts[n]) for n, g in view.groups.items() if n in counts}
