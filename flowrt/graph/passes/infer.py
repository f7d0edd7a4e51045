"""Shape inference over a subgraph: again, with what is known now (the shapes of the feeds)."""

from __future__ import annotations

from collections.abc import Mapping

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import ShapeContext
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import is_static, merge


def infer_shapes(subgraph: Subgraph) -> Subgraph:
    """Refine every output whose shape is not static yet. Raises `InvalidArgumentError` where the feeds do not
    fit.
    """
    nodes: dict[str, Node] = {}
    changed = False
    for node in subgraph:
        refined = node if _is_known(node) else _infer(node, nodes)
        changed = changed or refined is not node
        nodes[node.name] = refined
    return subgraph.replace(nodes=nodes) if changed else subgraph


def _is_known(node: Node) -> bool:
    return all(is_static(spec[1]) for spec in node.outputs)


def _infer(node: Node, nodes: Mapping[str, Node]) -> Node:
    specs = [nodes[name].outputs[index] for name, index in node.inputs]
    context = ShapeContext(
        node.op,
        node.attrs,
        [s[1] for s in specs],
        [s[0] for s in specs],
        lambda i: partial_value(nodes.__getitem__, node.inputs[i]),
    )
    try:
        shapes = node.op.shape(context)
        outputs = tuple(TensorSpec(o[0], merge(o[1], s)) for o, s in zip(node.outputs, shapes, strict=True))
    except InvalidArgumentError as error:
        raise located(node, error, f"; inputs are ({', '.join(map(str, specs))})") from None
    return node if outputs == node.outputs else node.replace(outputs=outputs)
