"""`Layouts`: the layouts of all tensors of a step, or of a function in it, as `propagate` finds them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, final

from flowrt import dtypes
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.pipeline.actions import Schedule


class Gather(NamedTuple):
    """A sharded ``tensor`` that is gathered because an operation has no rule to compute on parts of it.
    ``reason``: why it has none, or nothing.
    """

    node: str
    op: str
    source: str
    tensor: Ref
    layout: Layout
    nbytes: int
    reason: str

    @classmethod
    def of(cls, node: Node, tensor: Ref, layout: Layout, spec: TensorSpec, reason: str) -> Gather:
        nbytes = math.prod(d or 1 for d in spec.shape or ()) * spec.dtype.np.itemsize
        return cls(node.name, node.op.name, str(node.source or ""), tensor, layout, nbytes, reason)

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return (
            f"layouts: {self.op} {self.node!r}{where} cannot use {self.tensor[0]!r} in {self.layout}"
            f"{self.reason and f': {self.reason}'}; gathers {self.nbytes:,} bytes a step"
        )


class Unsized(NamedTuple):
    """An input with a batch of unknown size, which every coordinate therefore gets whole."""

    node: str
    op: str
    source: str

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return (
            f"layouts: {self.op} {self.node!r}{where} gives batches of unknown size; each is computed whole, "
            "on one device. For a dataset, batch(n, drop_remainder=True) makes the size known"
        )


class Handle(NamedTuple):
    """A variable: the layout in which operations get it, the one in which it is stored, its shape, and
    whether it is in host memory. ``summed``: the layout of what contracts a dimension of it that is in parts,
    once it is added up.
    """

    used: Layout
    stored: Layout
    shape: tuple[int | None, ...]
    is_on_host: bool
    summed: Layout | None = None


class Parameter(NamedTuple):
    """An argument of a function: a tensor in ``layout``, or a variable. ``may_cut``: other layouts are
    possible; otherwise it is there once. ``is_free``: as in `Layouts.free`.
    """

    layout: Layout
    handle: Handle | None
    may_cut: bool
    is_free: bool


@final
@dataclass
class Layouts:
    """The layout of each output, and for each node on all coordinates those of its inputs."""

    mesh: Mesh
    subgraph: Subgraph
    """The step, with forms in place of operations of which a whole dimension is cut."""
    outputs: dict[Ref, Layout] = field(default_factory=dict)
    """The layout of a handle is that in which the variable is stored; that of a list, of its elements."""
    inputs: dict[str, tuple[Layout, ...]] = field(default_factory=dict)
    handles: dict[Ref, Handle] = field(default_factory=dict)
    """Variables over the mesh."""
    values: dict[Ref, Handle] = field(default_factory=dict)
    """Values of variables as they are kept, from which others are redistributed: of reads, and of casts of
    them to a narrower dtype.
    """
    single: set[str] = field(default_factory=set)
    """Nodes that run once; every coordinate reads their outputs."""
    free: set[Ref] = field(default_factory=set)
    """Zeros, and lists without elements: what is replicated of these is right in any layout."""
    summed: dict[Ref, Layout] = field(default_factory=dict)
    """Tensors that are a variable's value, or `Partial` products with it; and its `Handle.summed`."""
    functions: dict[str, tuple[Layouts, ...]] = field(default_factory=dict)
    """The layouts in the functions of each loop or branch that is computed in parts."""
    gathers: list[Gather] = field(default_factory=list)
    joined: list[tuple[str, Ref]] = field(default_factory=list)
    """Views, each with an input that is gathered for products: it is in parts because of `summed`."""
    schedule: Schedule | None = None
    """The schedule of a pipeline, if the mesh has an axis of stages."""
    stages: dict[str, int] = field(default_factory=dict)
    """The stage of each node of a pipeline. A function is at the stage of its owner."""
    unsized: list[Unsized] = field(default_factory=list)

    @property
    def remarks(self) -> list[str]:
        """Sentences on what is whole though the script cut it."""
        return [*map(str, self.gathers), *map(str, self.unsized)]

    def position(self, name: str) -> int:
        """The position on the axis of stages of the node ``name``; 0 without one."""
        return 0 if self.schedule is None else self.schedule.device_of(self.stages[name])

    def given(self, ref: Ref, wanted: Layout) -> Layout:
        """The layout in which a reader is given ``ref`` for ``wanted``: where that is Partial, replicated
        zeros stay replicated, which is the same.
        """
        have = self.outputs[ref]
        if ref not in self.free or have is wanted:
            return wanted
        placements = [
            h if isinstance(w, Partial) and h == REPLICATED else w
            for w, h in zip(wanted.placements, have.placements, strict=True)
        ]
        return Layout(wanted.mesh, placements)


class ListsDifferError(Exception):
    """A list of tensors is needed in two layouts; only its elements can be redistributed."""


def check_list(spec: TensorSpec, layouts: Layouts, ref: Ref, wanted: Layout) -> None:
    """Raise `ListsDifferError` if ``ref`` is a list that cannot be had in the layout ``wanted``."""
    if spec.dtype is dtypes.variant and layouts.outputs[ref] is not wanted and ref not in layouts.free:
        raise ListsDifferError
