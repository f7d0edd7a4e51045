"""Shape inference over a subgraph: again, with what is known now (the shapes of the feeds).

What a loop's variables are is a fixed point over its iterations. A list that begins without elements says
nothing of them itself: it holds what the loop writes. So a gradient, whose loop reads that, has the shapes
of the way forward.
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
    """The shape of a list that gets an element more. What its elements were found to be so far nobody has
    promised of this one; what was declared holds for all.
    """
    node.op.shape(declared)  # raises if the element does not fit
    return [relax(shape, written)]


def _as_declared(node: Node, specs: Sequence[TensorSpec]) -> list[Shape]:
    """The shapes of the inputs, of lists only what was declared: that the node's own list has, too."""
    declared = node.outputs[0].shape
    return [declared if s.dtype is dtypes.variant else s.shape for s in specs]


# --- functions


def _infer_functions(node: Node, nodes: Mapping[str, Node]) -> Node:
    """``node`` with what its inputs' shapes say of the shapes in its functions, and of its outputs'."""
    shapes = [nodes[name].outputs[index].shape for name, index in node.inputs]
    values = [partial_value(nodes.__getitem__, ref) for ref in node.inputs]
    carried = len(node.attrs["T"]) if node.op.name == "_Loop" else 0
    begin = [nodes[name].op.lists for name, _ in node.inputs[1 : 1 + carried]]
    unset = [i for i, lists in enumerate(begin) if lists is not None and lists.begins]

    def refine(function: Subgraph) -> Subgraph:
        first = len(shapes) - len(function.feeds)  # behind a predicate or an index
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
    lists among them that begin without an element that is set, ``unset``, hold what the function writes.
    That may be elements of another such list: so once a list.
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
    """``function`` for the ``given`` shapes, of which what is not the same in all iterations is widened until
    nothing changes, at most once a dimension.
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
    """What is known of all elements that an iteration writes to its variable ``k``, a list."""
    found: list[Shape] = []
    if _argument(body, body.fetches[1 + k], found) != k or not found:
        return None
    return functools.reduce(relax, found)


def _argument(function: Subgraph, ref: Ref, found: list[Shape]) -> int | None:
    """The number of the argument that became the list ``ref``, by what writes to it alone: elements of these
    shapes, which ``found`` gets. None: there is none, or what is done to it is not known.
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
    """The rule ``written`` of a ``node`` that gives its first input, a list, one element more, where a reader
    of one that was never set gives it no other shape: the front end reads a `TensorArray` by the shape that
    all its elements have.
    """
    lists = node.op.lists
    if lists is None or not (lists.use is ListUse.PUSHED or (lists.use is ListUse.SET and writes_once(node))):
        return None
    return lists.written
