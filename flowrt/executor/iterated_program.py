"""From a loop over scalars to one function of machine code that makes its iterations.

A body that is arithmetic on scalars costs nanoseconds; to call its kernels would cost a hundred times that.
Such a body, of operations that have a rule for loops (`OpDef.loop`), becomes one scalar program, and
`flowrt.device.llvm_iteration` the loop around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from flowrt import dtypes
from flowrt.device.llvm_iteration import llvm_iteration
from flowrt.device.loop_math import expand_functions
from flowrt.device.loops import DTYPES, LoopBuilder, LoopProgram, Value
from flowrt.errors import InternalError
from flowrt.graph.node import Node, Ref, Subgraph
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
    if len(body) > MAX_NODES or body.targets or not body.feeds:
        return False
    return all(map(_is_scalar, body))


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
    if node.op.name not in ("_Feed", "Const"):
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
        self._values: dict[Ref, Value] = {}

    def run(self) -> LoopProgram | None:
        builder, body = self._builder, self._body
        for name in body.feeds:
            operand = builder.operand(body.nodes[name].outputs[0].dtype.name)
            self._values[name, 0] = builder.load(operand, is_row=True)
        for node in body:
            if node.op.name == "Const":
                array = node.attrs["value"]
                self._values[node.name, 0] = builder.const(array.item(), array.dtype.name)
            elif node.op.name != "_Feed":
                results = self._computed(node)
                if results is None:
                    return None
                self._values.update(((node.name, i), value) for i, value in enumerate(results))
        pred, *results = [self._values[ref] for ref in body.fetches]
        for operand, value in enumerate(results):
            builder.put(value, operand)
        builder.put(pred, builder.operand("bool"))
        program = builder.build()
        return program if program.status is None else None

    def _computed(self, node: Node) -> Sequence[Value] | None:
        op = node.op
        assert op.loop is not None
        attrs: Mapping[str, Any] = {key: node.attrs[key] for key in op.loop_attrs}
        try:
            results = op.loop.build(self._builder, *self._arguments(node), **attrs)
        except InternalError:  # dtypes that the rule cannot bring together
            return None
        if results is None:
            return None
        results = results if isinstance(results, tuple) else (results,)
        names = [spec.dtype.name for spec in node.outputs]
        return results if [value.dtype for value in results] == names else None

    def _arguments(self, node: Node) -> list[Any]:
        refs, arguments = iter(node.inputs), []
        for argument in node.op.inputs:
            items = [self._values[next(refs)] for _ in range(argument.length(node.attrs))]
            arguments.append(tuple(items) if argument.is_list else items[0])
        return arguments
