"""Shape inference over a subgraph: again, with what is known now (the shapes of the feeds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.inference import describe_data
from flowrt.graph.node import Node, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect, PartialValue, ShapeContext
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, is_static, merge, relax


def infer_shapes(subgraph: Subgraph) -> Subgraph:
    """Refine every output whose shape is not static yet. Raises `InvalidArgumentError` where the feeds do not
    fit.
    """
    nodes: dict[str, Node] = {}
    changed = False
    for node in subgraph:
        if node.op.effect is Effect.NESTED:
            refined = _infer_functions(node, nodes)
        else:
            refined = node if _is_known(node) else _infer(node, nodes)
        changed = changed or refined is not node
        nodes[node.name] = refined
    return subgraph.replace(nodes=nodes) if changed else subgraph


def _is_known(node: Node) -> bool:
    for spec in node.outputs:  # noqa: SIM110 (half the time of all())
        if not is_static(spec[1]):
            return False
    return True


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
        raise located(node, error, f"; inputs are ({describe_data(node.op, node.attrs, specs)})") from None
    return node if outputs == node.outputs else node.replace(outputs=outputs)


# --- functions


def _infer_functions(node: Node, nodes: Mapping[str, Node]) -> Node:
    """``node`` with what its inputs' shapes say of the shapes in its functions, and of its outputs'."""
    shapes = [nodes[name].outputs[index].shape for name, index in node.inputs]
    values = [partial_value(nodes.__getitem__, ref) for ref in node.inputs]
    carried = len(node.attrs["T"]) if node.op.name == "_Loop" else 0

    def refine(function: Subgraph) -> Subgraph:
        first = len(shapes) - len(function.feeds)  # behind a predicate or an index
        return _refine(function, shapes[first:], values[first:], carried)

    return _infer(with_functions(node, refine), nodes)


def _refine(
    function: Subgraph, shapes: Sequence[Shape], values: Sequence[PartialValue], carried: int
) -> Subgraph:
    """``function`` for arguments of ``shapes``. Its first ``carried`` results are its next arguments: what is
    not the same in all iterations is widened until nothing changes, at most once a dimension.
    """
    parameters = [function.nodes[name] for name in function.feeds]
    given = [merge(p.outputs[0].shape, shape) for p, shape in zip(parameters, shapes, strict=True)]
    while True:
        refined = infer_shapes(_with_parameters(function, given, values, carried))
        results = refined.fetches[1 : 1 + carried]
        after = [relax(a, refined.spec(ref).shape) for a, ref in zip(given, results, strict=False)]
        if after == given[:carried]:
            return refined
        given[:carried] = after


def _with_parameters(
    function: Subgraph, shapes: Sequence[Shape], values: Sequence[PartialValue], carried: int
) -> Subgraph:
    nodes = dict(function.nodes)
    changed = False
    for position, (name, shape, value) in enumerate(zip(function.feeds, shapes, values, strict=True)):
        parameter = nodes[name]
        spec = TensorSpec(parameter.outputs[0].dtype, shape)
        known = None if position < carried else value
        if spec != parameter.outputs[0] or known != parameter.attrs.get("_known"):
            attrs = {key: v for key, v in parameter.attrs.items() if key != "_known"}
            attrs = {**attrs, "shape": shape} | ({} if known is None else {"_known": known})
            nodes[name] = parameter.replace(attrs=attrs, outputs=(spec,))
            changed = True
    return function.replace(nodes=nodes) if changed else function
