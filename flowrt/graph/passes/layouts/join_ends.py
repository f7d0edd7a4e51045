"""One message where a node waits for several updates in another process, as the group of all updates does.

With one for each, 19 of a step of a GPT of 4 layers in a pipeline of 2 processes would be such messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.collectives import COLLECTIVES
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.layouts.processes import Own


def join_ends(step: Subgraph, own: Own) -> Subgraph:
    """``step``, in which a NoOp waits for the updates, on their device, and the node for the NoOp."""
    assert own.mesh.devices is not None
    tasks = {device: own.task(rank) for rank, device in enumerate(own.mesh.devices)}
    nodes: dict[str, Node] = {}
    ends: dict[tuple[str, ...], str] = {}
    for node in step:
        for device, names in _updates_elsewhere(step, node, tasks).items():
            if names not in ends:
                end = Node(f"{node.name}/_ends/{len(ends)}", no_op, (), names, {}, device, node.source, ())
                ends[names] = end.name
                nodes[end.name] = end
            others = [name for name in node.controls if name not in names]
            node = node.replace(controls=(*others, ends[names]))
        nodes[node.name] = node
    return Subgraph(nodes, step.feeds, step.fetches, step.targets) if ends else step


def _updates_elsewhere(step: Subgraph, node: Node, tasks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The updates in other processes for which ``node`` waits, by device, where there are several."""
    if len(node.controls) < 2 or node.op in COLLECTIVES or node.op.effect is Effect.NESTED:
        return {}
    here, found = tasks.get(node.device, 0), defaultdict(list)
    for source in [step.nodes[name] for name in node.controls]:
        if source.op.effect is Effect.WRITE and tasks.get(source.device, here) != here:
            found[source.device].append(source.name)
    return {device: tuple(names) for device, names in found.items() if len(names) > 1}
