"""Lowering: from the control flow of a graph to the two compiled forms.

* A call is inlined. In a pipeline its operations belong to the stage of the call.
* If and Case become `_Case`: an index, and one function per branch.
* While becomes `_Loop`. The loop is rotated (loop inversion: Muchnick, *Advanced Compiler Design*, 18.5): its
  condition is computed once in front of it, and from then on at the end of the body, from the body's results.
  A loop thus has one function, in which condition and body share common subexpressions. Variables that the
  body returns unchanged are invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowrt import dtypes
from flowrt.graph.layouts.attributes import FORWARD, STAGE
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, with_functions
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.prepare.order_effects import Replaced, replace_owners


def lower(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` without If, Case, While and calls, including its functions."""
    if not any(node.op.effect is Effect.NESTED for node in subgraph):
        return subgraph
    return replace_owners(subgraph, lambda node, _: _RULES[node.op.name](with_functions(node, lower)))


_KEPT = (COLOCATION, STAGE, FORWARD)
"""Attributes that a loop or branch has in any form."""


def _at_stage_of(node: Node, inlined: list[Node]) -> list[Node]:
    """Nodes that were inlined in place of ``node``, at its stage of a pipeline."""
    place = {key: node.attrs[key] for key in (STAGE, FORWARD) if key in node.attrs}
    return [each.replace(attrs={**place, **each.attrs}) for each in inlined] if place else inlined


def _lower_call(node: Node) -> Replaced:
    nodes, results = inline(node.attrs["f"], node.inputs, f"{node.name}/", node.controls)
    nodes = _at_stage_of(node, nodes)
    effects = [f"{node.name}/{target}" for target in node.attrs["f"].targets]
    ends = dict.fromkeys([ref[0] for ref in results] + effects)
    inner = {n.name for n in nodes}
    waits = tuple(name for name in ends if name in inner) or node.controls
    # control dependents of the call wait for its results
    done = node.beside(node.name, no_op, controls=waits)
    return [*nodes, done], dict(enumerate(results)), effects


def _lower_branches(node: Node) -> Replaced:
    index, branches = dtypes.int32, node.attrs.get("branches")
    if branches is None:  # an If
        index, branches = dtypes.bool_, (node.attrs["else_branch"], node.attrs["then_branch"])
    kinds = tuple(spec.dtype for spec in node.outputs)
    attrs = {key: value for key, value in node.attrs.items() if key in ("Tin", *_KEPT)}
    attrs |= {"Tindex": index, "Tout": kinds, "branches": branches}
    return [node.replace(op=op_def("_Case"), attrs=attrs)], {}, ()


def _lower_while(node: Node) -> Replaced:
    condition, body = node.attrs["cond"], node.attrs["body"]
    first, (pred,) = inline(condition, node.inputs, f"{node.name}/first/", node.controls)
    again, (next_pred,) = inline(condition, body.fetches, "", ())
    results = dict(zip(body.feeds, body.fetches, strict=True))
    carried = [i for i, (name, ref) in enumerate(results.items()) if ref != (name, 0)]
    invariant = [i for i in range(len(body.feeds)) if i not in set(carried)]
    feeds = tuple(body.feeds[i] for i in (*carried, *invariant))
    fetches = (next_pred, *[body.fetches[i] for i in carried])
    nodes = {n.name: n for n in [*body, *again]}
    rotated = Subgraph(nodes, feeds, fetches, (*body.targets, *condition.targets))
    attrs = {key: value for key, value in node.attrs.items() if key in _KEPT}
    attrs |= {
        "T": tuple(node.outputs[i].dtype for i in carried),
        "C": tuple(node.outputs[i].dtype for i in invariant),
        "body": rotated,
    }
    loop = node.replace(
        op=op_def("_Loop"),
        inputs=(pred, *[node.inputs[i] for i in (*carried, *invariant)]),
        attrs=attrs,
        outputs=tuple(node.outputs[i] for i in carried),
    )
    place = {position: (node.name, number) for number, position in enumerate(carried)}
    effects = [f"{node.name}/first/{target}" for target in condition.targets]
    return (
        [*_at_stage_of(node, first), loop],
        {i: place.get(i, ref) for i, ref in enumerate(node.inputs)},
        effects,
    )


_RULES: dict[str, Callable[[Node], Replaced]] = {
    "PartitionedCall": _lower_call,
    "StatefulPartitionedCall": _lower_call,
    "If": _lower_branches,
    "Case": _lower_branches,
    "While": _lower_while,
}


def inline(
    function: Subgraph, arguments: Sequence[Ref], prefix: str, controls: tuple[str, ...]
) -> tuple[list[Node], list[Ref]]:
    """The nodes of ``function`` with ``arguments`` in place of its parameters and ``prefix`` before their
    names, and its results. Nodes without inputs wait for ``controls``.
    """
    parameters = {(name, 0): ref for name, ref in zip(function.feeds, arguments, strict=True)}

    def moved(ref: Ref) -> Ref:
        return parameters.get(ref) or (prefix + ref[0], ref[1])

    skipped = set(function.feeds)
    nodes = []
    for node in function:
        if node.name in skipped:
            continue
        waits = tuple([prefix + c for c in node.controls if c not in skipped])
        inputs = tuple([moved(ref) for ref in node.inputs])
        if controls and not waits and all(ref in parameters for ref in node.inputs):
            waits = controls
        name, attrs, source = prefix + node.name, node.attrs, node.source
        nodes.append(Node(name, node.op, inputs, waits, attrs, node.device, source, node.outputs))
    return nodes, [moved(ref) for ref in function.fetches]
