"""`shared_layers`: the layouts with which devices of a host share the layers of a model, for the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowrt.graph.collectives.cost import Link
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, TensorSpec
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.layouts.chosen_layouts import Seeds, propagated
from flowrt.plan.layouts.layout_costs import NodeSeconds, Prices, cost_of
from flowrt.plan.layouts.layout_search import cheapest_layouts
from flowrt.plan.stage_search import Shared
from flowrt.plan.step.costs import ELEMENTS, Demand, Rates, nbytes_of
from flowrt.plan.step.recorded import Recorded


def shared_layers(recorded: Recorded, tp: int, cluster: Cluster, rates: Rates) -> Shared | None:
    """The layouts that `cheapest_layouts` finds for all devices, of which ``tp`` share a part of the batch;
    None if it is cheaper that these share the batch, too.
    """
    dp = cluster.num_devices // tp
    inside, outside = _links(cluster)
    prices = Prices(node_seconds(rates), lambda axes: inside if axes == ("tp",) else outside)
    step = recorded.step(has_parts=False)
    found = cheapest_layouts(step, Mesh([("dp", dp), ("tp", tp)]), prices)
    layouts = tuple((name, tuple(entries)) for name, entries in found.seeds.variables.items())
    sharing = [entries for _, entries in layouts if "tp" in entries]
    if found.seeds.batch not in ("dp", None) or not sharing:
        return None
    only_dp = Seeds({name: [None] * len(entries) for name, entries in layouts}, {}, found.seeds.batch)
    alone = cost_of(propagated(step, Mesh([("dp", dp)]), only_dp), prices)
    cost = found.as_propagated
    computing, variables = cost.computing / alone.computing, cost.state_bytes / alone.state_bytes
    beyond = max(0.0, cost.moving - alone.moving * variables)
    whole = tuple((name, _without_dp(entries)) for name, entries in layouts)
    return Shared(
        whole, computing, variables, computing, lambda samples: beyond * samples * dp / recorded.samples
    )


def _without_dp(entries: Sequence[Any]) -> tuple[str | None, ...]:
    return tuple("tp" if entry == "tp" else None for entry in entries)


def _links(cluster: Cluster) -> tuple[Link, Link]:
    """The links inside a host, and between hosts; the same if there is one host, or one device each."""
    wire, uplink = cluster.host.link, cluster.rack.uplink
    outside = None if uplink is None else Link(uplink.latency, 1 / uplink.bandwidth)
    inside = outside if wire is None else wire.link
    assert inside is not None
    return inside, outside or inside


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
