"""`SharedLayers`: the layouts with which devices of a host share the layers of a model, for the search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import final

from flowrt.graph.collectives.cost import Link
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.plan.choice import Entries
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.layouts.chosen_layouts import Seeds, layouts_of, propagated, seeds_of
from flowrt.plan.layouts.layout_choices import Choice, Part, parts_of
from flowrt.plan.layouts.layout_costs import NodeSeconds, Prices, StepCost, cost_of
from flowrt.plan.layouts.layout_search import cheapest_choices
from flowrt.plan.model import Seconds
from flowrt.plan.stage_search import Shared
from flowrt.plan.step.costs import ELEMENTS, Demand, Rates, nbytes_of
from flowrt.plan.step.fewer_blocks import EqualBlocks
from flowrt.plan.step.recorded import Recorded

SEARCHED = 4
"""The number of equal blocks that are searched for layouts, which all of them get."""


@final
class SharedLayers:
    """The layouts with which devices of a host of ``cluster`` share the layers of ``recorded``, which has
    equal ``blocks``. They are found by ``rates``; ``took`` has what operations take when all is compiled.
    """

    def __init__(
        self, recorded: Recorded, blocks: EqualBlocks, cluster: Cluster, rates: Rates, took: Seconds
    ) -> None:
        inside, self._took = _inside(cluster), took
        self._prices = Prices(node_seconds(rates), lambda axes: inside)
        self._samples = recorded.samples
        self._few = blocks.fewer(SEARCHED)
        self._times = {name: 1 + count for name, count in Counter(self._few.like.values()).items()}
        """The times that an operation of a block counts: for itself, and for those of the blocks left out."""
        self._alone = self._cost(Mesh([("tp", 1)]), {})

    def among(self, tp: int) -> Shared:
        """The cheapest layouts with which ``tp`` devices have a batch together, whatever other devices do:
        without layouts, each computes all of it, if the collectives of layers in parts take longer.
        """
        mesh, few = Mesh([("tp", tp)]), self._few
        found = _layouts_of_layers(few.step, mesh, self._prices)
        found |= {name: found[like] for name, like in few.like.items() if like in found}
        if not found:
            return Shared()
        cost, alone = self._cost(mesh, found), self._alone
        computing, moving = cost.computing / alone.computing, cost.moving / self._samples
        return Shared(
            tuple(found.items()), computing, cost.state_bytes / alone.state_bytes, computing,
            lambda samples: moving * samples,
        )  # fmt: skip

    def _cost(self, mesh: Mesh, layouts: Mapping[str, Entries]) -> StepCost:
        """The cost of all blocks in ``layouts`` of variables, with a whole batch."""
        step = self._few.step
        seeds = {name: entries for name, entries in layouts.items() if name in step.nodes}
        found = propagated(step, mesh, Seeds(seeds, {}, None))
        prices = self._prices._replace(node=self._compiled(found.subgraph))
        return cost_of(found, prices, self._times)

    def _compiled(self, step: Subgraph) -> NodeSeconds:
        """The seconds of a device for its part of a node of ``step``: the same share of those in a program
        for one device as by rates.
        """

        def seconds(node: Node, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> float:
            whole = self._prices.node(node, [step.spec(ref) for ref in node.inputs], node.outputs)
            share = self._prices.node(node, inputs, outputs) / whole if whole else 0.0
            return self._took(step, node).seconds(share)

        return seconds


def _layouts_of_layers(step: Subgraph, mesh: Mesh, prices: Prices) -> dict[str, Entries]:
    """The cheapest layouts of the variables of ``step`` that are in parts, by name."""
    every = parts_of(step, mesh)
    values = frozenset(name for part in every if part.handles for name in part.members)
    parts = [_with_batch(part, step, values) for part in every]
    chosen = cheapest_choices(step, parts, mesh, prices)
    variables = seeds_of(layouts_of(step, mesh, parts, chosen.choices)).variables
    return {
        name: tuple("tp" if entry == "tp" else None for entry in entries)
        for name, entries in variables.items()
        if "tp" in entries
    }


def _with_batch(part: Part, step: Subgraph, values: Collection[str]) -> Part:
    """``part`` without the choices in which a layer is whole and its batch in parts: devices that share the
    batch are another axis. Layers are products with ``values`` of variables.
    """
    node = step.nodes[part.members[0]]
    if part.handles or node.op.cost is None:
        return part
    weights = [i for i, (name, _) in enumerate(node.inputs) if name in values]

    def is_layer(choice: Choice) -> bool:
        is_whole = all(layout.is_replicated for layout in (*choice.inputs, *choice.outputs))
        return is_whole or not any(choice.inputs[i].is_replicated for i in weights)

    return part._replace(choices=tuple(choices for choices in part.choices if is_layer(choices[0])))


def _inside(cluster: Cluster) -> Link:
    """The link inside a host; that between hosts which are one device each."""
    wire, uplink = cluster.host.link, cluster.rack.uplink
    if wire is not None:
        return wire.link
    assert uplink is not None
    return Link(uplink.latency, 1 / uplink.bandwidth)


def node_seconds(rates: Rates) -> NodeSeconds:
    """Seconds of a node by ``rates``, from the specs of its tensors."""

    def seconds(node: Node, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> float:
        flops = node.op.cost(list(inputs), tuple(outputs)) if node.op.cost is not None else None
        nbytes = sum(map(nbytes_of, [*inputs, *outputs]))
        if flops is not None:
            return rates.seconds(Demand(flops, nbytes, inputs[0].dtype.name))
        elements = math.fsum(math.prod(size or 1 for size in spec.shape or ()) for spec in outputs)
        return rates.seconds(Demand(elements, nbytes, ELEMENTS))

    return seconds
