"""Pruning: from the user's graph to the subgraph that one run needs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.graph import Graph, Operation, Tensor
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import op_def
from flowrt.graph.shapes import Shape

MAX_SHOWN = 12
"""Nodes of a cycle that its error names."""


def extract(
    graph: Graph,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Mapping[Tensor, Shape],
    done: Collection[str] = (),
) -> Subgraph:
    """The part of ``graph`` that ``fetches`` and ``targets`` need when ``feeds`` (with their shapes) are
    given.

    A fed tensor becomes a ``_Feed`` node, under its producer's name when that has no other output, and what
    only it needed falls away. Nobody waits for the operations named in ``done``: they ran earlier in the
    step. Raises `InvalidArgumentError` for a placeholder that is needed and not fed, and for a cycle.
    """
    fed = {tensor.ref: _feed_node(tensor, shape) for tensor, shape in feeds.items()}
    renamed = {ref: (node.name, 0) for ref, node in fed.items() if node.name != ref[0]}
    operations = graph.operations
    found: dict[str, Node] = {node.name: node for node in fed.values()}
    stack = [t.op.name for t in fetches if t.ref not in fed] + [op.name for op in targets]
    while stack:
        name = stack.pop()
        if name in found:
            continue
        node = operations[name].node
        if node.op.name == "Placeholder":
            message = f"expected a value in feed_dict for this placeholder of {node.outputs[0]}; got none"
            raise located(node, InvalidArgumentError(message))
        if renamed:
            inputs = tuple([renamed.get(ref, ref) for ref in node.inputs])
            node = node if inputs == node.inputs else node.replace(inputs=inputs)
        if done and node.controls:
            node = node.replace(controls=tuple([c for c in node.controls if c not in done]))
        found[name] = node
        stack += [ref[0] for ref in node.inputs if ref[0] not in found]
        stack += [control for control in node.controls if control not in found]
    # list(): one step under the interpreter lock, while other threads may add operations
    ordered = {name: found[name] for name in list(operations) if name in found}
    aliases = {node.name: node for node in fed.values() if node.name not in operations}
    return Subgraph(
        sort_topologically(aliases | ordered),
        tuple(node.name for node in fed.values()),
        tuple(renamed.get(t.ref, t.ref) for t in fetches),
        tuple(op.name for op in targets),
    )


def _feed_node(tensor: Tensor, shape: Shape) -> Node:
    name = tensor.op.name if len(tensor.op.outputs) == 1 else f"_feed_{tensor.op.name}_{tensor.index}"
    attrs = {"dtype": tensor.dtype, "shape": shape}
    spec = TensorSpec(tensor.dtype, shape)
    return Node(name, op_def("_Feed"), (), (), attrs, tensor.op.device, tensor.op.node.source, (spec,))


def sort_topologically(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes`` with producers first and otherwise in the given order; the same object if they are so
    already.

    Raises `InvalidArgumentError`, which shows the cycle, if there is one.
    """
    seen: set[str] = set()
    for name, node in nodes.items():
        if any(ref[0] not in seen for ref in node.inputs) or any(c not in seen for c in node.controls):
            return _sorted(nodes)
        seen.add(name)
    return nodes


def _sorted(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    position = {name: i for i, name in enumerate(nodes)}
    names = list(nodes)
    waiting: dict[str, int] = {}
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        producers = {ref[0] for ref in node.inputs} | set(node.controls)
        waiting[name] = len(producers)
        for producer in producers:
            readers[producer].append(name)
    ready = [position[name] for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: dict[str, Node] = {}
    while ready:
        name = names[heapq.heappop(ready)]
        ordered[name] = nodes[name]
        for reader in readers[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, position[reader])
    if len(ordered) < len(nodes):
        _raise_cycle(nodes, ordered)
    return ordered


def _raise_cycle(nodes: Mapping[str, Node], ordered: Collection[str]) -> None:
    name = next(n for n in nodes if n not in ordered)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        node = nodes[name]
        name = next(p for p in [ref[0] for ref in node.inputs] + list(node.controls) if p not in ordered)
    path = list(seen)
    cycle = path[path.index(name) :] + [name]
    if len(cycle) > MAX_SHOWN:
        cycle = [*cycle[: MAX_SHOWN - 1], f"... ({len(cycle) - MAX_SHOWN} more)", name]
    raise located(
        nodes[name], InvalidArgumentError(f"expected a graph without cycles; got {' <- '.join(cycle)}")
    )


def prune(subgraph: Subgraph) -> Subgraph:
    """Drop the nodes that no fetch, target or feed needs."""
    needed: set[str] = set()
    stack = list(subgraph.roots())
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            node = subgraph.nodes[name]
            stack += [ref[0] for ref in node.inputs]
            stack += node.controls
    if len(needed) == len(subgraph):
        return subgraph
    return subgraph.with_nodes(node for node in subgraph if node.name in needed)


def redirect(
    subgraph: Subgraph, replacement: Mapping[Ref, Ref], nodes: Iterable[Node] | None = None
) -> Subgraph:
    """``subgraph`` (with ``nodes``) where each reader of a tensor in ``replacement`` reads the other tensor
    instead.
    """
    if not replacement:
        return subgraph if nodes is None else subgraph.with_nodes(nodes)
    changed = []
    for node in subgraph if nodes is None else nodes:
        inputs = tuple([replacement.get(ref, ref) for ref in node.inputs])
        changed.append(node if inputs == node.inputs else node.replace(inputs=inputs))
    fetches = tuple(replacement.get(ref, ref) for ref in subgraph.fetches)
    return subgraph.with_nodes(changed).replace(fetches=fetches)
