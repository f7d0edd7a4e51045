"""Checks of the shapes that users have set by `Tensor.set_shape`.

Readers are built for such a shape: their buffers and loops have its size, so that a value of another shape
would be stretched to it, or read in part. After this pass a node has the shapes of its op's rule again, and
an `EnsureShape` behind it has the shape that was set. Where inference finds that shape itself, the check is
simplified away.
"""

from __future__ import annotations

from flowrt.graph.layouts.attributes import FORWARD, STAGE
from flowrt.graph.node import SET_SHAPE, Node, Ref, Subgraph, TensorSpec, set_outputs, with_functions
from flowrt.graph.op_def import Effect, ShapeContext
from flowrt.graph.ops.base.identities import ensure_shape_op
from flowrt.graph.partial_value import partial_value


def check_set_shapes(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, including its functions, with a check behind each output with a set shape."""
    nodes: dict[str, Node] = {}
    checked: dict[Ref, Ref] = {}
    for node in subgraph:
        if node.op.effect is Effect.NESTED:
            node = with_functions(node, check_set_shapes)
        node = nodes[node.name] = node.redirected(checked) if checked else node
        if SET_SHAPE in node.attrs:
            _check(node, nodes, checked, subgraph)
    if all(nodes[name] is node for name, node in subgraph.nodes.items()):
        return subgraph
    fetches = tuple([checked.get(ref, ref) for ref in subgraph.fetches])
    return subgraph.replace(nodes=nodes, fetches=fetches)


def _check(node: Node, nodes: dict[str, Node], checked: dict[Ref, Ref], whole: Subgraph) -> None:
    """Add the checks of ``node`` to ``nodes`` and ``checked``."""
    outputs = list(node.outputs)
    found = node.op.shape(_context(node, nodes))
    for index in set_outputs(node):
        dtype, said = outputs[index]
        if found[index] == said:
            continue
        outputs[index] = TensorSpec(dtype, found[index])
        name = f"{node.name}/set_shape" + (f"_{index}" if index else "")
        while name in whole.nodes:
            name += "_"
        place = {key: node.attrs[key] for key in (STAGE, FORWARD) if key in node.attrs}
        attrs = {"T": dtype, "shape": said, **place}
        nodes[name] = node.beside(
            name, ensure_shape_op, ((node.name, index),), (), attrs, (TensorSpec(dtype, said),)
        )
        checked[node.name, index] = name, 0
    if outputs != list(node.outputs):
        nodes[node.name] = node.replace(outputs=tuple(outputs))


def _context(node: Node, nodes: dict[str, Node]) -> ShapeContext:
    specs = [nodes[name].outputs[index] for name, index in node.inputs]
    return ShapeContext(
        node.op,
        node.attrs,
        [spec.shape for spec in specs],
        [spec.dtype for spec in specs],
        lambda i: partial_value(nodes.__getitem__, node.inputs[i]),
    )
