"""Effects of the whole batch in a step with micro-batches: only later effects wait for them.

    with tf.control_dependencies([tf.assert_less(h, 100.0)]):
        h = tf.layers.dense(h, 64)

An assertion, a print or a counter is of the whole batch, so it runs behind all micro-batches; what must wait
for it could not be computed of the first one before the last one has come. But an operation without an effect
may as well be computed before: nobody sees in which order. So it does not wait, and the effects behind it do,
updates for instance: if the assertion fails, nothing is updated. What passes through a print goes past it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowrt.graph.effects import is_stateful, touches
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.assign_stages import nodes_of_batch


def wait_for_effects(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` in which effects alone wait for those effects that need the batch; the same object if no
    other operation does.
    """
    batch = nodes_of_batch(subgraph)
    late = {node.name for node in subgraph if is_stateful(node) and not batch.isdisjoint(node.predecessors)}
    """Effects that need the batch; and, of the nodes so far, those that need these."""
    if not late:
        return subgraph
    in_turns = _leading_to(subgraph, batch)
    nodes: dict[str, Node] = {}
    past: dict[Ref, Ref] = {}
    owed: dict[str, dict[str, None]] = {}
    """The effects for which an operation does not wait, though the effects behind it have to."""
    written: dict[str, frozenset[Ref]] = {}
    """The variables that an operation, or one before it, writes."""
    for before in subgraph:
        written[before.name] = _written(before, written)
        node = before.redirected(past)
        passed = [name for name, index in before.inputs if (name, index) in past]
        behind = dict.fromkeys(
            [*passed, *(name for each in before.predecessors for name in owed.get(each, ()))]
        )
        if is_stateful(node):
            controls = tuple(dict.fromkeys((*node.controls, *behind)))
        else:
            read = {touch.handle for touch in touches(node)}
            may_go = node.name in in_turns
            freed = [c for c in node.controls if may_go and c in late and read.isdisjoint(written[c])]
            kept = [name for name in behind if not read.isdisjoint(written[name])]
            controls = tuple(dict.fromkeys(name for name in (*node.controls, *kept) if name not in freed))
            owed[node.name] = behind | dict.fromkeys(freed)
        if not late.isdisjoint((*controls, *(name for name, _ in node.inputs))):
            late.add(node.name)
        nodes[node.name] = node if controls == node.controls else node.replace(controls=controls)
        if node.name in late and _passes_its_input(subgraph, before):
            past[node.name, 0] = node.inputs[0]
    if not past and not any(owed.values()):
        return subgraph
    effects = [name for found in owed.values() for name in found] + [name for name, _ in past]
    return Subgraph(
        nodes,
        subgraph.feeds,
        tuple(past.get(ref, ref) for ref in subgraph.fetches),
        tuple(dict.fromkeys((*subgraph.targets, *effects))),
    )


def _leading_to(subgraph: Subgraph, names: Collection[str]) -> set[str]:
    """``names``, and what they are computed from."""
    found = set(names)
    for node in reversed(list(subgraph)):
        if node.name in found:
            found.update(name for name, _ in node.inputs)
    return found


def _written(node: Node, written: Mapping[str, frozenset[Ref]]) -> frozenset[Ref]:
    earlier = {written[name] for name in node.predecessors}
    own = frozenset(touch.handle for touch in touches(node) if touch.writes)
    return next(iter(earlier)) if len(earlier) == 1 and not own else own.union(*earlier)


def _passes_its_input(subgraph: Subgraph, node: Node) -> bool:
    """Whether the output of ``node`` is its first input, as that of a print is."""
    is_same = node.op.effect is Effect.STATEFUL and node.op.alias
    return is_same and node.outputs == (subgraph.spec(node.inputs[0]),)
