"""Seconds, traffic and memory of a step in given layouts, as `lower_layouts` emits it.

A tensor goes from the layout in which it is computed to each layout in which it is read by the steps of
`flowrt.graph.layouts.redistribution.plan`, and readers share what they have in common: a step is emitted, and
counted, once. Slices take no time. What a device does is counted for the first coordinate, which has the
largest parts.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt import dtypes
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Link
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial
from flowrt.graph.layouts.redistribution import Step, plan, received_bytes, seconds
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.passes.layouts.step_layouts import Layouts

LinkOf: TypeAlias = Callable[[tuple[str, ...]], Link]
"""The link between the devices of a group along axes of the mesh, by their names."""

NodeSeconds: TypeAlias = Callable[[Node, Sequence[TensorSpec], Sequence[TensorSpec]], float]
"""Seconds of a node on a device, from the specs of its local inputs and outputs."""


class Prices(NamedTuple):
    """The prices of a step. ``planned_with`` is the link by which a session chooses its collectives."""

    node: NodeSeconds
    link: LinkOf
    planned_with: Link = DEFAULT_LINKS.inside


class Moved(NamedTuple):
    """A step of a redistribution, which ends in the layout ``after``."""

    step: Step
    after: Layout
    seconds: float
    nbytes: int


@final
class StepCost(NamedTuple):
    """``computing`` and ``moving`` are seconds, ``state_bytes`` those of the variables on a device;
    ``collectives`` counts steps of redistributions by name, ``moved_bytes`` has what all devices receive in
    them.
    """

    computing: float
    moving: float
    state_bytes: int
    collectives: Mapping[str, int]
    moved_bytes: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return self.computing + self.moving


@final
class Tariff:
    """Costs of single nodes and redistributions by ``prices``; equal ones are worked out once."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.way = functools.lru_cache(None)(self._way)

    def node(self, step: Subgraph, node: Node, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> float:
        """Seconds of ``node`` on a device that has its tensors in these layouts."""
        given = [_local(step.spec(ref), layout) for ref, layout in zip(node.inputs, inputs, strict=True)]
        made = [_local(spec, layout) for spec, layout in zip(node.outputs, outputs, strict=True)]
        return self._prices.node(node, given, made)

    def _way(self, have: Layout, wanted: Layout, spec: TensorSpec) -> tuple[Moved, ...] | None:
        """The steps with messages from one layout to another; None if there are none that lead there."""
        if any(
            isinstance(to, Partial) and to != start
            for start, to in zip(have.placements, wanted.placements, strict=True)
        ):
            return None
        shape, size = tuple(d or 0 for d in spec.shape or ()), spec.dtype.np.itemsize
        found: list[Moved] = []
        layout = have
        for step in plan(have, wanted, shape, size, self._prices.planned_with):
            after = step.apply(layout)
            if step.collective != "Slice":
                link = self._prices.link(tuple(have.mesh.axes[axis].name for axis in step.axes))
                nbytes = received_bytes(step, layout, shape, size)
                found.append(Moved(step, after, seconds(step, layout, shape, size, link), nbytes))
            layout = after
        return tuple(found)


def _local(spec: TensorSpec, layout: Layout) -> TensorSpec:
    """The part of a tensor that the first coordinate has."""
    if layout.is_replicated or not spec.shape or spec.dtype is dtypes.resource:
        return spec
    return TensorSpec(spec.dtype, _first_part(layout, spec.shape))


@functools.lru_cache(65_536)
def _first_part(layout: Layout, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return layout.local_shape([size or 0 for size in shape], layout.mesh.coordinates[0])


def given(have: Layout, wanted: Layout, is_zero: bool) -> Layout:
    """The layout in which a reader gets a tensor for ``wanted``: zeros that all have are sums of zeros."""
    if not is_zero or have is wanted:
        return wanted
    placements = [
        start if isinstance(to, Partial) and start == REPLICATED else to
        for to, start in zip(wanted.placements, have.placements, strict=True)
    ]
    return Layout(wanted.mesh, placements)


def cost_of(layouts: Layouts, prices: Prices, times: Mapping[str, int] = {}) -> StepCost:
    """The cost of the step of ``layouts``, fetches whole on each device. What happens inside loops and
    branches is that of their node alone. ``times``: how often a node of a name counts, if not once.
    """
    tariff, step = Tariff(prices), layouts.subgraph
    computing = math.fsum(
        times.get(node.name, 1) * tariff.node(step, node, layouts.inputs[node.name], _computed(layouts, node))
        for node in step
    )
    moves = [
        (moved, times.get(ref[0], 1))
        for ref, wanted in _wanted(layouts).items()
        for moved in _moves(layouts, tariff, ref, wanted)
    ]
    counts, nbytes = Counter[str](), Counter[str]()
    for moved, often in moves:
        counts[moved.step.collective] += often
        nbytes[moved.step.collective] += often * moved.nbytes
    states = sum(
        times.get(name, 1) * state_bytes(step.nodes[name], handle.stored)
        for (name, _), handle in layouts.handles.items()
    )
    moving = math.fsum(often * moved.seconds for moved, often in moves)
    return StepCost(computing, moving, states, counts, nbytes)


def state_bytes(handle: Node, stored: Layout) -> int:
    """The bytes of the variable ``handle`` on a device, kept as ``stored``."""
    sizes = _first_part(stored, tuple(handle.attrs["shape"]))
    return math.prod(sizes) * int(handle.attrs["dtype"].np.itemsize)


def _computed(layouts: Layouts, node: Node) -> list[Layout]:
    """The layouts in which ``node`` itself gives its outputs."""
    value = layouts.values.get((node.name, 0))
    if value is not None:
        return [value.stored]
    if node.op is relayout_op:
        return list(layouts.inputs[node.name])
    if node.name in layouts.single:
        return [Layout.replicated(layouts.mesh)] * len(node.outputs)
    return [layouts.outputs[node.name, i] for i in range(len(node.outputs))]


def _wanted(layouts: Layouts) -> dict[Ref, list[Layout]]:
    """The layouts in which each tensor is read, and fetched."""
    step, none = layouts.subgraph, Layout.replicated(layouts.mesh)
    found: dict[Ref, list[Layout]] = {}
    for node in step:
        if layouts.values.get((node.name, 0)) and node.inputs[0] in layouts.values:
            continue  # a cast of a variable's value, as it is stored
        wanted = [none] * len(node.inputs) if node.name in layouts.single else layouts.inputs[node.name]
        for ref, layout in zip(node.inputs, wanted, strict=True):
            if step.spec(ref).dtype not in (dtypes.resource, dtypes.variant):
                found.setdefault(ref, []).append(layout)
    for ref in step.fetches:
        found.setdefault(ref, []).append(none)
    return found


def _moves(layouts: Layouts, tariff: Tariff, ref: Ref, wanted: Iterable[Layout]) -> list[Moved]:
    node = layouts.subgraph.nodes[ref[0]]
    have, spec = _computed(layouts, node)[ref[1]], node.outputs[ref[1]]
    found: dict[Layout, Moved] = {}
    for layout in wanted:
        for moved in tariff.way(have, given(have, layout, ref in layouts.free), spec) or ():
            found.setdefault(moved.after, moved)
    return list(found.values())
