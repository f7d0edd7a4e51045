"""Pruning: from the user's graph to the subgraph that one run needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.graph import Graph, Operation, Tensor
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import op_def
from flowrt.graph.shapes import Shape
from flowrt.graph.topology import sort_topologically


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
    fed = {tensor.ref: feed_node(tensor, shape) for tensor, shape in feeds.items()}
    # list(): one step under the interpreter lock, while other threads may add operations
    nodes = {name: operation.node for name, operation in list(graph.operations.items())}
    return extract_nodes(nodes, [t.ref for t in fetches], [op.name for op in targets], fed, done)


def extract_nodes(
    nodes: Mapping[str, Node],
    fetches: Sequence[Ref],
    targets: Sequence[str],
    fed: Mapping[Ref, Node],
    done: Collection[str] = (),
) -> Subgraph:
    """`extract` from a graph as data: ``nodes`` in order of creation, ``fed`` the `feed_node` of each fed
    tensor.
    """
    renamed = {ref: (node.name, 0) for ref, node in fed.items() if node.name != ref[0]}
    found: dict[str, Node] = {node.name: node for node in fed.values()}
    stack = [name for name, index in fetches if (name, index) not in fed] + list(targets)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        node = nodes[name]
        if node.op.name == "Placeholder":
            message = f"expected a value in feed_dict for this placeholder of {node.outputs[0]}; got none"
            raise located(node, InvalidArgumentError(message))
        if renamed:
            inputs = tuple([renamed.get(ref, ref) for ref in node.inputs])
            node = node if inputs == node.inputs else node.replace(inputs=inputs)
        if done and node.controls:
            node = node.replace(controls=tuple([c for c in node.controls if c not in done]))
        found[name] = node
        for producer, _ in node.inputs:
            if producer not in found:
                stack.append(producer)
        stack += node.controls
    ordered = {name: found[name] for name in nodes if name in found}
    aliases = {node.name: node for node in fed.values() if node.name not in nodes}
    return Subgraph(
        sort_topologically(aliases | ordered),
        tuple(node.name for node in fed.values()),
        tuple(renamed.get(ref, ref) for ref in fetches),
        tuple(targets),
    )


def feed_node(tensor: Tensor, shape: Shape) -> Node:
    """What stands in the place of a tensor that is fed with a value of ``shape``."""
    name = tensor.op.name if len(tensor.op.outputs) == 1 else f"_feed_{tensor.op.name}_{tensor.index}"
    attrs = {"dtype": tensor.dtype, "shape": shape}
    spec = TensorSpec(tensor.dtype, shape)
    return Node(name, op_def("_Feed"), (), (), attrs, tensor.op.device, tensor.op.node.source, (spec,))


def prune(subgraph: Subgraph) -> Subgraph:
    """Drop the nodes that no fetch, target or feed needs."""
    needed = set(subgraph.roots())
    for node in reversed(list(subgraph)):  # readers before what they read
        if node.name in needed:
            for name, _ in node.inputs:
                needed.add(name)
            needed.update(node.controls)
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
