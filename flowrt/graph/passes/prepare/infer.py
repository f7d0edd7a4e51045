"""Shape inference over a subgraph, repeated with the static shapes of the feeds.

The shapes of a loop's variables are a fixed point over its iterations. A list that begins without elements
does not determine their shape itself: it is that of the elements that the loop writes. The loop of a
gradient, which reads that list, thus gets the shapes of the forward loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import KNOWN
from flowrt.graph.evaluate import located
from flowrt.graph.inference import describe_data
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect, PartialValue, ShapeContext
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import writes_once
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, compatible, is_static, merge, relax


def infer_shapes(subgraph: Subgraph) -> Subgraph:
    """Refine every output without a static shape. Raises `InvalidArgumentError` if the feeds do not match."""
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
    shapes = [s[1] for s in specs]
    written = None if node.op.lists is None else node.op.lists.written
    context = ShapeContext(
        node.op,
        node.attrs,
        shapes if written is None else _as_declared(node, specs),
        [s[0] for s in specs],
        lambda i: partial_value(nodes.__getitem__, node.inputs[i]),
    )
    try:
        found = (
            node.op.shape(context) if written is None else _holding(node, context, shapes[0], written(shapes))
        )
        outputs = tuple(TensorSpec(o[0], merge(o[1], s)) for o, s in zip(node.outputs, found, strict=True))
    except InvalidArgumentError as error:
        raise located(node, error, f"; inputs are ({describe_data(node.op, node.attrs, specs)})") from None
    return node if outputs == node.outputs else node.replace(outputs=outputs)


def _holding(node: Node, declared: ShapeContext, shape: Shape, written: Shape) -> list[Shape]:
    """The shape of a list that gets another element. Shapes inferred for earlier elements need not hold for
    it; the declared shape holds for all.
    """
    node.op.shape(declared)  # raises if the element does not fit
    return [relax(shape, written)]


def _as_declared(node: Node, specs: Sequence[TensorSpec]) -> list[Shape]:
    """The shapes of the inputs; for lists only the declared shape, which the node's own list has, too."""
    declared = node.outputs[0].shape
    return [declared if s.dtype is dtypes.variant else s.shape for s in specs]


# --- functions


def _infer_functions(node: Node, nodes: Mapping[str, Node]) -> Node:
    """``node`` with the shapes in its functions and of its outputs refined by its inputs' shapes."""
    shapes = [nodes[name].outputs[index].shape for name, index in node.inputs]
    values = [partial_value(nodes.__getitem__, ref) for ref in node.inputs]
    carried = len(node.attrs["T"]) if node.op.name == "_Loop" else 0
    begin = [nodes[name].op.lists for name, _ in node.inputs[1 : 1 + carried]]
    unset = [i for i, lists in enumerate(begin) if lists is not None and lists.begins]

    def refine(function: Subgraph) -> Subgraph:
        first = len(shapes) - len(function.feeds)  # follow a predicate or an index
        return _refine(function, shapes[first:], values[first:], carried, unset)

    return _infer(with_functions(node, refine), nodes)


def _refine(
    function: Subgraph,
    shapes: Sequence[Shape],
    values: Sequence[PartialValue],
    carried: int,
    unset: Sequence[int],
) -> Subgraph:
    """``function`` for arguments of ``shapes``. Its first ``carried`` results are its next arguments; the
    lists among them that begin without any element set, ``unset``, hold the elements that the function
    writes. Those may come from another such list, so this is repeated once per list.
    """
    parameters = [function.nodes[name] for name in function.feeds]
    given = [merge(p.outputs[0].shape, shape) for p, shape in zip(parameters, shapes, strict=True)]
    refined = _widen(function, given, values, carried)
    for _ in unset:
        before = list(given)
        for k in unset:
            written = _written(refined, k)
            given[k] = merge(given[k], written) if compatible(given[k], written) else given[k]
        if given == before:
            break
        refined = _widen(function, given, values, carried)
    return refined


def _widen(function: Subgraph, given: list[Shape], values: Sequence[PartialValue], carried: int) -> Subgraph:
    """``function`` for the ``given`` shapes; those that vary between iterations are widened until nothing
    changes, at most once per dimension.
    """
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
        if spec != parameter.outputs[0] or known != parameter.attrs.get(KNOWN):
            attrs = {key: v for key, v in parameter.attrs.items() if key != KNOWN}
            attrs = {**attrs, "shape": shape} | ({} if known is None else {KNOWN: known})
            nodes[name] = parameter.replace(attrs=attrs, outputs=(spec,))
            changed = True
    return function.replace(nodes=nodes) if changed else function


# --- lists


def _written(body: Subgraph, k: int) -> Shape:
    """Common shape of all elements that an iteration writes to its variable ``k``, a list."""
    found: list[Shape] = []
    if _argument(body, body.fetches[1 + k], found) != k or not found:
        return None
    return functools.reduce(relax, found)


def _argument(function: Subgraph, ref: Ref, found: list[Shape]) -> int | None:
    """Index of the argument that became the list ``ref`` through writes alone; the shapes of the written
    elements are appended to ``found``. None if there is none, or if other operations are involved.
    """
    while ref[0] not in function.feeds:
        node, output = function.nodes[ref[0]], ref[1]
        position: int | None = 0
        if node.op.name == "_Loop":
            body: Subgraph = node.attrs["body"]
            position = 1 + output if _argument(body, body.fetches[1 + output], found) == output else None
        elif node.op.name == "_Case":
            arguments = {_argument(b, b.fetches[output], found) for b in node.attrs["branches"]}
            argument = arguments.pop()
            position = None if arguments or argument is None else 1 + argument
        elif (written := _written_once(node)) is not None:
            found.append(written([function.spec(r).shape for r in node.inputs]))
        elif output or not node.op.uses_list(ListUse.POPPED):
            position = None
        if position is None:
            return None
        ref = node.inputs[position]
    return function.feeds.index(ref[0])


def _written_once(node: Node) -> Callable[[Sequence[Shape]], Shape] | None:
    """The rule ``written`` of a ``node`` that adds an element to its first input, a list, if a read of an
    unset element has no other shape: the front end reads a `TensorArray` with the common shape of its
    elements.
    """
    lists = node.op.lists
    if lists is None or not (lists.use is ListUse.PUSHED or (lists.use is ListUse.SET and writes_once(node))):
        return None
    return lists.written
