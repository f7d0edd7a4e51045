"""Recomputation by stage: the backward pass of a stage computes its forward pass again.

Only what arrives at a stage is kept until then, so that a micro-batch in flight takes the memory of a stage's
inputs (Huang et al. 2019, GPipe). The second forward pass belongs to the action of the backward pass, so the
order of actions delays it. A draw is made again at its first position in the stream, and gives the same; a
loop or branch that draws is not computed again. One that reads a variable reads the same value: updates wait
for it, and if the forward pass writes the variable, it is not computed again either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from flowrt import dtypes
from flowrt.graph.effects import draws, is_stateful, touches
from flowrt.graph.layouts.attributes import AGAIN, FORWARD, REMAT, STAGE
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.assign_stages import assign_stages, backward_nodes, nodes_of_batch
from flowrt.graph.topology import sort_topologically

_MADE_AGAIN = (Effect.PURE, Effect.RANDOM, Effect.NESTED)


def recompute_stages(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with a second forward pass of each stage; the same object if no node asks for it."""
    if not any(REMAT in node.attrs for node in subgraph):
        return subgraph
    stages, backward = assign_stages(subgraph), backward_nodes(subgraph)
    repeated = _repeated(subgraph, stages, backward)
    if not repeated:
        return subgraph
    readers: dict[Ref, list[str]] = defaultdict(list)
    """The second loops and branches that read a variable."""
    for node in subgraph:
        for touch in touches(node) if node.name in repeated else ():
            readers[touch.handle].append(_again(node.name))
    nodes: dict[str, Node] = {}
    for node in subgraph:
        own = tuple(  # what arrives from another stage is kept
            (_again(name), index) if name in repeated and stages[name] == stages[node.name] else (name, index)
            for name, index in node.inputs
        )
        if node.name in backward:
            later = [name for touch in touches(node) if touch.writes for name in readers[touch.handle]]
            nodes[node.name] = node.replace(inputs=own, controls=(*node.controls, *later))
        else:
            nodes[node.name] = node
        if node.name in repeated:
            again = {FORWARD: node.name, STAGE: str(stages[node.name])}
            if node.op.effect is Effect.RANDOM:
                again[AGAIN] = node.name
            name, attrs = _again(node.name), {**node.attrs, **again}
            nodes[name] = node.replace(name=name, inputs=own, controls=(), attrs=attrs)
    return subgraph.replace(nodes=sort_topologically(nodes))


def _again(name: str) -> str:
    return f"{name}/again"


def _repeated(subgraph: Subgraph, stages: Mapping[str, int], backward: set[str]) -> set[str]:
    """The nodes of the forward pass that the backward pass of their stage reads, or that lead to these."""
    forward = [node for node in subgraph if node.name not in backward]
    written = {touch.handle for node in forward for touch in touches(node) if touch.writes}
    candidates = nodes_of_batch(subgraph).intersection(
        node.name
        for node in forward
        if _may_repeat(node) and written.isdisjoint(touch.handle for touch in touches(node))
    )
    read = {
        name
        for node in subgraph
        if node.name in backward
        for name, _ in node.inputs
        if stages[name] == stages[node.name]
    }
    found: set[str] = set()
    for node in reversed(list(subgraph)):
        if node.name in read and node.name in candidates:
            found.add(node.name)
            read |= {name for name, _ in node.inputs if stages[name] == stages[node.name]}
    return found


def _may_repeat(node: Node) -> bool:
    has_lists = any(spec.dtype in (dtypes.variant, dtypes.resource) for spec in node.outputs)
    has_draws = any(draws(each) for function in owned_subgraphs(node.attrs) for each in function)
    is_pure = node.op.effect in _MADE_AGAIN and not is_stateful(node) and not has_draws
    return bool(node.inputs) and is_pure and not has_lists
