"""Gathering again: what is whole for products only is not kept for the backward pass, but gathered once more.

With sequence parallelism a product reads the whole of a tensor that is otherwise in parts. Its gradient reads
it again, much later; if the whole were kept in between, activations would take the memory that parts save.
So the view through which products read it is split in two, one for the readers that come first and one for
those that depend on them: each has a gather of its own, as lowering shares one among the readers of one view
(Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.topology import sort_topologically


def with_later_gathers(found: Layouts) -> Subgraph:
    """The step of ``found``, with a second view for the later readers of each in ``found.joined``; the same
    object if there are none.
    """
    step = found.subgraph
    if not found.joined:
        return step
    nodes, readers = dict(step.nodes), _readers(step)
    for name, ref in found.joined:
        later = _later(readers[name], readers)
        if later and all(_is_product(step.nodes[reader]) for reader in readers[name]):
            _add_view(nodes, step.nodes[name], ref, later)
    return step if len(nodes) == len(step.nodes) else step.replace(nodes=sort_topologically(nodes))


def _is_product(node: Node) -> bool:
    """Whether ``node`` is linear in each input and takes more time than it takes to read them."""
    return bool(node.op.linear_in) and node.op.cost is not None


def _readers(step: Subgraph) -> Mapping[str, Sequence[str]]:
    """The nodes that read each node's outputs, in the order of the step."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in step:
        for source in dict.fromkeys(name for name, _ in node.inputs):
            found[source].append(node.name)
    return found


def _later(first: Sequence[str], readers: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes of ``first`` that depend on another of them."""
    reached: set[str] = set()
    queue = [each for name in first for each in readers.get(name, ())]
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += readers.get(name, ())
    return [name for name in first if name in reached]


def _add_view(nodes: dict[str, Node], view: Node, ref: Ref, later: Sequence[str]) -> None:
    """Give the nodes ``later`` a copy of ``view``, of ``ref``; it waits for what the first of them reads."""
    kept, again = f"{later[0]}/@kept", f"{later[0]}/@again"  # no name of a user has @
    source, first = nodes[ref[0]], nodes[later[0]]
    after = tuple(dict.fromkeys(name for name, _ in first.inputs if name != view.name))
    spec = source.outputs[ref[1]]
    nodes[kept] = Node(kept, identity, (ref,), after, {"T": spec.dtype}, view.device, view.source, (spec,))
    nodes[again] = view.replace(name=again, inputs=_exchanged(view.inputs, ref, (kept, 0)))
    for name in later:
        node = nodes[name]
        nodes[name] = node.replace(inputs=_exchanged(node.inputs, (view.name, 0), (again, 0)))


def _exchanged(inputs: Iterable[Ref], old: Ref, new: Ref) -> tuple[Ref, ...]:
    return tuple(new if ref == old else ref for ref in inputs)
