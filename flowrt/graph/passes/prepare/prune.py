"""Pruning: from the user's graph to the subgraph that one run needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import feed_beside
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import ATTRIBUTES as LAYOUT_ATTRIBUTES
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import Shape
from flowrt.graph.topology import sort_topologically

FEW = 50
"""Number of nodes above a tenth that are still visited individually."""


class StepRequest(NamedTuple):
    """The request for a step: ``fetches`` and ``targets`` of ``graph``, with ``feeds`` of these shapes.
    Nothing waits for the operations in ``done``.
    """

    graph: Graph
    fetches: Sequence[Tensor]
    targets: Sequence[Operation]
    feeds: Mapping[Tensor, Shape]
    done: Collection[str] = ()


def extract(
    graph: Graph,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Mapping[Tensor, Shape],
    done: Collection[str] = (),
) -> Subgraph:
    """The part of ``graph`` that ``fetches`` and ``targets`` need when ``feeds`` (with their shapes) are
    given.

    A fed tensor becomes a ``_Feed`` node, with its producer's name if that has no other output, and nodes
    needed only by it are pruned. Control edges from the operations named in ``done`` are dropped: they ran
    earlier in the step. Raises `InvalidArgumentError` for a placeholder that is needed and not fed, and for a
    cycle.
    """
    fed = {tensor.ref: feed_node(tensor, shape) for tensor, shape in feeds.items()}
    operations = graph.operations
    wanted, names = [t.ref for t in fetches], [op.name for op in targets]
    return _extract(operations, lambda name: operations[name].node, wanted, names, fed, done)


def extract_nodes(
    nodes: Mapping[str, Node],
    fetches: Sequence[Ref],
    targets: Sequence[str],
    fed: Mapping[Ref, Node],
    done: Collection[str] = (),
) -> Subgraph:
    """`extract` of a graph as data: ``nodes`` in order of creation, ``fed`` each fed tensor's `feed_node`."""
    return _extract(nodes, nodes.__getitem__, fetches, targets, fed, done)


def _extract(
    names: Iterable[str],
    node_of: Callable[[str], Node],
    fetches: Sequence[Ref],
    targets: Sequence[str],
    fed: Mapping[Ref, Node],
    done: Collection[str],
) -> Subgraph:
    """``names`` of all nodes, in order of creation. Only the nodes needed are looked at: a graph may have
    many more.
    """
    renamed = {ref: (node.name, 0) for ref, node in fed.items() if node.name != ref[0]}
    found: dict[str, Node] = {node.name: node for node in fed.values()}
    stack = [name for name, index in fetches if (name, index) not in fed] + list(targets)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        node = node_of(name)
        if node.op.name == "Placeholder":
            message = f"expected a value in feed_dict for this placeholder of {node.outputs[0]}; got none"
            raise located(node, InvalidArgumentError(message))
        if renamed:
            node = node.redirected(renamed)
        if done and node.controls:
            node = node.replace(controls=tuple([c for c in node.controls if c not in done]))
        found[name] = node
        for producer, _ in node.inputs:
            if producer not in found:
                stack.append(producer)
        stack += node.controls
    # list(): one step under the interpreter lock, while other threads may add operations
    ordered = {name: found[name] for name in list(names) if name in found}
    aliases = {node.name: node for node in fed.values() if node.name not in ordered}
    return Subgraph(
        sort_topologically(aliases | ordered),
        tuple(node.name for node in fed.values()),
        tuple(renamed.get(ref, ref) for ref in fetches),
        tuple(targets),
    )


def extract_more(
    earlier: Subgraph,
    graph: Graph,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Mapping[Tensor, Shape],
) -> Subgraph | None:
    """`extract`, visiting only nodes not in ``earlier``, which was extracted from the same, unchanged part of
    ``graph``.

    None if those are more than a tenth of it or not pure, if the feeds differ, or if ``earlier`` has targets
    that are not requested.
    """
    fed = [feed_node(tensor, shape) for tensor, shape in feeds.items()]
    names = tuple([node.name for node in fed])
    if names != earlier.feeds or any(earlier.nodes[n.name].outputs != n.outputs for n in fed):
        return None
    wanted = [op.name for op in targets]
    refs = [t.ref for t in fetches]
    is_renamed = any(tensor.op.name != name for tensor, name in zip(feeds, names, strict=True))
    if is_renamed or not set(wanted).issuperset(earlier.targets):
        return None
    found: dict[str, Node] = {}
    stack = [name for name, _ in refs] + wanted
    while stack:
        name = stack.pop()
        if name in earlier.nodes or name in found:
            continue
        node = graph.operations[name].node
        if node.op.effect is not Effect.PURE or node.controls or len(found) > len(earlier) // 10 + FEW:
            return None
        found[name] = node
        stack += [producer for producer, _ in node.inputs]
    added = {name: found[name] for name in list(graph.operations) if name in found} if found else found
    whole = Subgraph({**earlier.nodes, **added}, names, tuple(refs), tuple(wanted))
    return prune_behind(earlier, whole) if _is_in_order(added) else None


def _is_in_order(nodes: Mapping[str, Node]) -> bool:
    """Whether every node comes after its inputs."""
    seen: set[str] = set()
    for node in nodes.values():
        if any(producer in nodes and producer not in seen for producer, _ in node.inputs):
            return False
        seen.add(node.name)
    return True


def prune_behind(earlier: Subgraph, later: Subgraph) -> Subgraph:
    """`prune` of a subgraph that begins with all nodes of ``earlier``, all of them needed there. If the roots
    of ``earlier`` are still roots, or are read by the added nodes, nothing is visited.
    """
    needed = set(later.roots())
    for name in islice(later.nodes, len(earlier), None):
        needed.update(later.nodes[name].predecessors)
    unasked = set(earlier.roots()) - needed
    return without_unread(later, unasked) if unasked else later


def without_unread(subgraph: Subgraph, names: Iterable[str]) -> Subgraph:
    """``subgraph`` without the unneeded nodes among ``names``, and nodes only they needed."""
    num_readers = Counter([name for node in subgraph for name in node.predecessors])
    roots, nodes, stack = set(subgraph.roots()), dict(subgraph.nodes), list(names)
    while stack:
        name = stack.pop()
        if name in nodes and name not in roots and not num_readers[name]:
            before = nodes.pop(name).predecessors
            num_readers.subtract(before)
            stack += before
    return subgraph if len(nodes) == len(subgraph) else subgraph.replace(nodes=nodes)


def feed_node(tensor: Tensor, shape: Shape) -> Node:
    """Replacement for a tensor that is fed with a value of ``shape``."""
    return feed_of(tensor.op.node, tensor.index, shape)


def feed_of(node: Node, index: int, shape: Shape) -> Node:
    """`feed_node` of the output ``index`` of ``node``."""
    name = node.name if len(node.outputs) == 1 else f"_feed_{node.name}_{index}"
    feed = feed_beside(node, name, TensorSpec(node.outputs[index].dtype, shape))
    layout = {key: value for key, value in node.attrs.items() if key in LAYOUT_ATTRIBUTES}
    return feed.replace(attrs={**feed.attrs, **layout}) if layout else feed


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
    return subgraph.with_nodes([node for node in subgraph if node.name in needed])


def redirect(
    subgraph: Subgraph, replacement: Mapping[Ref, Ref], nodes: Iterable[Node] | None = None
) -> Subgraph:
    """``subgraph`` (with ``nodes``), with readers of a tensor in ``replacement`` redirected to the other
    tensor.
    """
    if not replacement:
        return subgraph if nodes is None else subgraph.with_nodes(nodes)
    changed = [node.redirected(replacement) for node in (subgraph if nodes is None else nodes)]
    fetches = tuple(replacement.get(ref, ref) for ref in subgraph.fetches)
    return subgraph.with_nodes(changed).replace(fetches=fetches)


def drop_unread(part: Subgraph) -> Subgraph:
    """``part``, of one device, without pure nodes that nothing reads. All others stay: another device waits
    for what this one sends, though its own part does not read it.
    """
    needed = {*part.roots(), *[node.name for node in part if node.op.effect is not Effect.PURE]}
    for node in reversed([*part]):
        if node.name in needed:
            needed.update(node.predecessors)
    return part.with_nodes([node for node in part if node.name in needed])
