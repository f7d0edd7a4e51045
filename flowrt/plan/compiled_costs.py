"""`CompiledCosts`: how long the operations of a recorded step take in a program for one device.

There, fused operations take less than alone, and views take nothing. So estimates are made of what is
compiled: the time of a fused group is that of the operation of which it has the name.

Of equal blocks only some are compiled. Each operation that is left out takes as long as the equal one of the
last block in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from flowrt.graph.node import Node, Subgraph
from flowrt.plan.model import Took
from flowrt.plan.step.costs import Costs
from flowrt.plan.step.device_parts import part_alone
from flowrt.plan.step.emitted import THERE
from flowrt.plan.step.fewer_blocks import FewerBlocks


@final
class CompiledCosts:
    """The times of the nodes of a step, by name, of which the blocks in ``few`` are compiled."""

    def __init__(self, few: FewerBlocks, costs: Costs) -> None:
        found = _seconds_of(few.step, costs)
        others = {name: found[like] for name, like in few.like.items() if like in found}
        self._seconds: Mapping[str, float] = found | others
        self._call_s = costs.rates.call_s

    def __call__(self, step: Subgraph, node: Node) -> Took:
        seconds = self._seconds.get(node.name, 0.0)
        call = min(seconds, self._call_s)
        return Took(seconds - call, call)


def _seconds_of(step: Subgraph, costs: Costs) -> dict[str, float]:
    """The seconds by the nodes of ``step``; of what the passes have made, by the node that it reads."""
    partition = part_alone(step).partition
    found: dict[str, float] = {}
    owners: dict[str, str] = {}
    for node in partition.subgraph:
        read = next((owners[name] for name, _ in node.inputs if name in owners), None)
        owner = node.name if node.name in step.nodes else read
        if owner is not None:
            owners[node.name] = owner
            if partition.buffers.storage.get(node.name) not in THERE:
                found[owner] = found.get(owner, 0.0) + costs(partition.subgraph, node)
    return found
