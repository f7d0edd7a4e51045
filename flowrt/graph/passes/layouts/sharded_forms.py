"""Forms: an operation of which a whole dimension is cut, as operations that can be computed on parts.

A softmax along a cut dimension is a maximum, differences, powers, a sum and a quotient: their own rules give
the collectives of two short rows. The fact ``sharded`` of an op builds such a form like a ``vjp`` builds a
gradient. It takes the operation's place in the global graph, so that nothing after propagation knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.passes.optimise.fold import fold_constants
from flowrt.graph.passes.prepare.lower import inline


class Replacement(NamedTuple):
    """The nodes in place of one, and the tensors in place of its outputs that are read."""

    nodes: Sequence[Node]
    outputs: Mapping[int, Ref]


def form_of(
    node: Node,
    specs: Sequence[TensorSpec],
    values: Sequence[Any],
    read: Sequence[int],
    layout: Mapping[str, str] = {},
) -> Replacement | None:
    """The form of ``node`` for inputs of ``specs``, of which ``values`` are the known parts; None if its op
    has none. ``read`` are the outputs that are needed; ``layout`` are attributes, for the op's ``sharded`` to
    give to what it makes without inputs.
    """
    if node.op.sharded is None:
        return None
    graph = FuncGraph(Graph(), f"the form of {node.name!r}")
    attrs = {**{key: value for key, value in node.attrs.items() if not key.startswith("_")}, **layout}
    with graph:
        given = [graph.parameter(spec, known=value) for spec, value in zip(specs, values, strict=True)]
        whole = graph.append(node.op, graph.operation_name("whole"), given, attrs, node.outputs, None)
        results = node.op.sharded(whole)
    if results is None:
        return None
    function = fold_constants(graph.subgraph([results[i] for i in read]))
    nodes, refs = inline(function, node.inputs, f"{node.name}/@", node.controls)  # no name of a user has @
    here = [each.replace(device=node.device, source=node.source) for each in nodes]
    return Replacement(here, dict(zip(read, refs, strict=True)))
