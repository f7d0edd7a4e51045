"""From a loop over scalars to one function of machine code that makes its iterations.

A body that is arithmetic on scalars costs nanoseconds; to call its kernels would cost a hundred times that.
Such a body, of operations that have a rule for loops (`OpDef.loop`), becomes one scalar program, and
`flowrt.device.llvm_iteration` the loop around it. Of a branch on scalars all sides are computed, and one is
taken: they have no effects, and a few operations cost less than a jump that the processor cannot foresee.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from flowrt import dtypes
from flowrt.device.llvm_iteration import llvm_iteration
from flowrt.device.loop_math import expand_functions
from flowrt.device.loops import DTYPES, LoopBuilder, LoopProgram, Value
from flowrt.errors import InternalError
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import LoopPattern
from flowrt.graph.shapes import is_static

MAX_SMALL = 1 << 15
"""Elements of a tensor that is small: to compute with each takes some microseconds, which threads would not
share.
"""

MAX_NODES = 200
"""Operations of a body: the compiler takes a millisecond for each few."""


class IteratedProgram(NamedTuple):
    """The text of the function, and how many carried and how many read-only operands it has, in this order;
    the predicate is the last.
    """

    text: str
    carried: int
    invariant: int


def iterated_program(loop: Node) -> IteratedProgram | None:
    """The program of ``loop``, a _Loop; None if its body is more than arithmetic on scalars."""
    if not is_scalar_loop(loop):
        return None
    body: Subgraph = loop.attrs["body"]
    program = _Tracer(body).run()
    if program is None:
        return None
    carried = range(len(loop.attrs["T"]))
    text = llvm_iteration(expand_functions(program), carried, len(body.feeds))
    return IteratedProgram(text, len(carried), len(body.feeds) - len(carried))


def is_scalar_loop(node: Node) -> bool:
    """Whether ``node`` is a loop over scalars, by what is known of it without building its program."""
    if node.op.name != "_Loop":
        return False
    body: Subgraph = node.attrs["body"]
    return bool(body.feeds) and _count(body) <= MAX_NODES and _is_on_scalars(body)


def _count(function: Subgraph) -> int:
    """The operations of a function and of those in it."""
    return len(function) + sum(_count(inner) for node in function for inner in owned_subgraphs(node.attrs))


def _is_on_scalars(function: Subgraph) -> bool:
    return not function.targets and all(map(_is_scalar, function))


def is_small_loop(node: Node) -> bool:
    """Whether ``node`` is a loop that computes small tensors of static shapes. What it reads may be large."""
    if node.op.name != "_Loop":
        return False
    return all(_is_small(inner) for inner in node.attrs["body"] if inner.op.name not in ("_Feed", "Const"))


def _is_small(node: Node) -> bool:
    return all(
        spec.dtype is dtypes.variant or (is_static(spec.shape) and math.prod(spec.shape) <= MAX_SMALL)
        for spec in node.outputs
    )


def _is_scalar(node: Node) -> bool:
    if node.op.name == "_Case":
        if not all(map(_is_on_scalars, node.attrs["branches"])):
            return False
    elif node.op.name not in ("_Feed", "Const"):
        loop = node.op.loop
        if loop is None or loop.pattern is not LoopPattern.ELEMENTWISE or not node.op.is_pure:
            return False
        if any(argument.on_host for argument in node.op.inputs):
            return False
    return all(spec.shape == () and spec.dtype.name in DTYPES for spec in node.outputs)


@final
class _Tracer:
    def __init__(self, body: Subgraph) -> None:
        self._body = body
        self._builder = LoopBuilder()

    def run(self) -> LoopProgram | None:
        builder, body = self._builder, self._body
        kinds = [body.nodes[name].outputs[0].dtype.name for name in body.feeds]
        found = self._fetched(body, [builder.load(builder.operand(kind), is_row=True) for kind in kinds])
        if found is None:
            return None
        pred, *results = found
        for operand, value in enumerate(results):
            builder.put(value, operand)
        builder.put(pred, builder.operand("bool"))
        program = builder.build()
        return program if program.status is None else None

    def _fetched(self, function: Subgraph, arguments: Sequence[Value]) -> list[Value] | None:
        """What ``function`` makes of ``arguments``; None if an operation has no rule for them."""
        values: dict[Ref, Value] = {
            (name, 0): value for name, value in zip(function.feeds, arguments, strict=True)
        }
        for node in function:
            if node.op.name == "_Feed":
                continue
            results = self._outputs(node, [values[ref] for ref in node.inputs])
            if results is None or [value.dtype for value in results] != [s.dtype.name for s in node.outputs]:
                return None
            values.update(((node.name, i), value) for i, value in enumerate(results))
        return [values[ref] for ref in function.fetches]

    def _outputs(self, node: Node, inputs: Sequence[Value]) -> Sequence[Value] | None:
        if node.op.name == "Const":
            array = node.attrs["value"]
            return (self._builder.const(array.item(), array.dtype.name),)
        return self._chosen(node, inputs) if node.op.name == "_Case" else self._computed(node, inputs)

    def _chosen(self, node: Node, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Of the branches' results those that the index says, or the last."""
        builder, (index, *arguments) = self._builder, inputs
        branches = [self._fetched(branch, arguments) for branch in node.attrs["branches"]]
        chosen = branches.pop()
        number = builder.cast(index, "int32")
        for position, results in enumerate(branches):
            if results is None or chosen is None:
                return None
            is_this = number.equals(position)
            chosen = [builder.select(is_this, *pair) for pair in zip(results, chosen, strict=True)]
        return chosen

    def _computed(self, node: Node, inputs: Sequence[Value]) -> Sequence[Value] | None:
        op = node.op
        assert op.loop is not None
        attrs: Mapping[str, Any] = {key: node.attrs[key] for key in op.loop_attrs}
        try:
            results = op.loop.build(self._builder, *_arguments(node, inputs), **attrs)
        except InternalError:  # dtypes that the rule cannot bring together
            return None
        return results if results is None or isinstance(results, tuple) else (results,)


def _arguments(node: Node, inputs: Sequence[Value]) -> list[Any]:
    """``inputs``, as the operation's rule takes them: those of a list as one tuple."""
    values, arguments = iter(inputs), list[Any]()
    for argument in node.op.inputs:
        items = tuple(itertools.islice(values, argument.length(node.attrs)))
        arguments.append(items if argument.is_list else items[0])
    return arguments
