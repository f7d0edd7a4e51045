"""The form that a graph has in a GraphDef, for comparisons: no lines, placeholders for what is fed."""

from __future__ import annotations

from flowrt.graph.construction.constant import feed_op, placeholder_op
from flowrt.graph.messages.graph_def import SOURCE
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.passes.prepare.infer import infer_shapes


def stored_form(graph: Subgraph) -> Subgraph:
    """``graph`` as the GraphDef that `flowrt.viz.export` writes of it is read: without lines, and if anything
    is fed, with placeholders of the fed shapes, and the shapes that follow from them.
    """
    if any(node.op is feed_op for node in graph):
        graph = infer_shapes(graph)
    return _without_notes(graph.with_nodes([placeholder_for(n) if n.op is feed_op else n for n in graph]))


def _without_notes(graph: Subgraph) -> Subgraph:
    """Neither with lines, nor with the attributes in which a GraphDef notes them."""
    return graph.with_nodes([_without_note(node) for node in graph])


def _without_note(node: Node) -> Node:
    attrs = with_functions(node, _without_notes).attrs
    return node.replace(attrs={key: attrs[key] for key in attrs if key != SOURCE}, source=None)


def placeholder_for(node: Node) -> Node:
    """A placeholder of the name, dtype and shape of ``node``, of which the value is not in the graph."""
    (spec,) = node.outputs
    attrs = {key: value for key, value in node.attrs.items() if key.startswith("_")}
    return node.replace(op=placeholder_op, attrs={**attrs, "dtype": spec.dtype, "shape": spec.shape})


def without_line(node: Node) -> Node:
    """Return ``node`` without source lines, also in its functions."""
    return with_functions(node, _without_lines).replace(source=None)


def _without_lines(graph: Subgraph) -> Subgraph:
    return graph.with_nodes([without_line(node) for node in graph])
