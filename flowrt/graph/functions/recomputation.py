"""Recomputation: a function's gradient recomputes the values that it reads instead of keeping them.

Activation checkpointing (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016)
for calls with the attr `RECOMPUTE`: their gradient reads from a second call of the same function, which runs
once the incoming gradient is available. Between the two calls only the arguments are live.

Rules of this file:
  1. Only pure operations are recomputed. Values read from a variable or produced by an effect are kept as
     outputs of the first call, as are the results of branches or loops that contain such operations.
  2. A random draw is split into its position in the stream (24 bytes, kept) and a pure function of it
     (`flowrt.graph.ops.random.random_ops`): both calls draw the same.
  3. The second call gets its arguments through an Identity that waits for the incoming gradient. This delays
     it, and prevents common subexpression elimination from merging it with the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowrt import dtypes
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.random.random_ops import random_position
from flowrt.graph.passes.prepare.prune import prune, redirect
from flowrt.graph.topology import sort_topologically

RECOMPUTE = "_recompute"
"""Attr of a call with a gradient that recomputes the values that it reads."""


def with_positions(function: Subgraph) -> Subgraph:
    """``function`` with the draws of its random operations split (rule 2)."""
    nodes: list[Node] = []
    for node in function:
        if node.op.effect is Effect.RANDOM and node.op is not random_position:
            nodes += _split(node)
        else:
            nodes.append(node)
    return function.with_nodes(nodes)


def _split(draw: Node) -> list[Node]:
    """The position of a draw, and the draw from it under the original name."""
    op, name = random_position, f"{draw.name}/position"
    attrs = {key: draw.attrs[key] for key in op.attrs}
    outputs = (TensorSpec(dtypes.uint64, (3,)),)
    position = Node(name, op, (), draw.controls, attrs, draw.device, draw.source, outputs)
    there = op_def(f"{draw.op.name}At")
    whole = {key: attr.default for key, attr in there.attrs.items() if key not in draw.attrs}
    rest = whole | {key: value for key, value in draw.attrs.items() if key not in attrs}
    return [position, draw.replace(op=there, inputs=(*draw.inputs, (name, 0)), controls=(), attrs=rest)]


def compute_again(
    op: Operation,
    forward: FuncGraph,
    wanted: Sequence[Tensor],
    dys: Sequence[Tensor],
    hand_out: Callable[[Sequence[tuple[FuncGraph, Tensor]]], list[Tensor]],
) -> list[Tensor]:
    """The tensors ``wanted`` of ``forward``, the function of ``op``, in the default graph: from a second
    call, which waits for ``dys``. ``hand_out`` adds outputs to ``op``, tensors of ``forward``.
    """
    kept = _lasting(wanted)
    outputs = hand_out([(forward, tensor) for tensor in kept]) if kept else []
    function = _without(forward, wanted, kept)
    arrived = [identity(dy) for dy in dys]  # separately: a call ends when all of it has run
    with get_default_graph().control_dependencies(arrived):
        arguments = [_later(tensor) for tensor in [*op.inputs, *outputs]]
    call = op_def("PartitionedCall")
    kinds = tuple(t.dtype for t in wanted)
    again = call(arguments, f=function, Tout=kinds, name=f"{op.name}_again/")
    return list(again)


def _later(tensor: Tensor) -> Tensor:
    """``tensor``, delayed until the gradient is available; handles and lists are not delayed."""
    if tensor.dtype in (dtypes.resource, dtypes.variant):
        return tensor
    return identity(tensor)


def _lasting(wanted: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that ``wanted`` depend on and that must not be recomputed: results of impure operations."""
    found: dict[Tensor, None] = {}
    seen: set[Tensor] = set()
    stack = list(wanted)
    while stack:
        tensor = stack.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor.op.type == "_Feed":
            continue
        if _is_repeatable(tensor.op.node):
            stack += tensor.op.inputs
        else:
            found[tensor] = None
    return list(found)


def _is_repeatable(node: Node) -> bool:
    """Whether the node always returns the same outputs for the same inputs, without side effects."""
    if node.op.effect is Effect.NESTED:
        return all(_is_repeatable(n) for f in owned_subgraphs(node.attrs) for n in f if n.op.name != "_Feed")
    return node.op.is_pure


def _without(forward: FuncGraph, wanted: Sequence[Tensor], kept: Sequence[Tensor]) -> Subgraph:
    """The function from the parameters of ``forward`` and the values ``kept`` to ``wanted``."""
    feeds = {t.ref: _feed(t) for t in kept}
    stand_ins: dict[Ref, Ref] = {ref: (feed.name, 0) for ref, feed in feeds.items()}
    nodes = [*feeds.values(), *[op.node.replace(controls=()) for op in forward.get_operations()]]
    parameters = [t.op.name for t in forward.parameters] + [feed.name for feed in feeds.values()]
    fetches = tuple(t.ref for t in wanted)
    whole = Subgraph(sort_topologically({n.name: n for n in nodes}), tuple(parameters), fetches)
    return prune(redirect(whole, stand_ins))


def _feed(tensor: Tensor) -> Node:
    """A parameter for the value of ``tensor``."""
    attrs = {"dtype": tensor.dtype, "shape": tensor.spec.shape}
    name = f"{tensor.op.name}/kept_{tensor.index}"
    return Node(name, feed_op, (), (), attrs, "", tensor.op.node.source, (tensor.spec,))
