"""Constant evaluation: the values of tensors that depend on constants alone, before anything runs.

Tracing a `flowrt.functions.function` may request them (`flowrt.control_flow.trace`): its parameters then
represent the tensors of the call. Values are computed by the reference interpreter, each once. There is no
value for tensors that depend on a placeholder, a variable, a random number, a side effect, a loop variable,
or an operation that fails (its error belongs to the run); nor if an intermediate result exceeds the
`MAX_BYTES` of constant folding: tracing must stay cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.errors import OpError
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.inference import infer_outputs
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, PartialValue
from flowrt.graph.partial_value import MAX_ELEMENTS, as_host_value
from flowrt.graph.passes.optimise.fold import MAX_BYTES
from flowrt.graph.shapes import num_elements

Values: TypeAlias = Sequence[Any] | None
"""The outputs of an operation, or None if unknown."""


@final
class KnownValues:
    """The values of tensors of one graph and those enclosing it. ``arguments`` maps parameters to tensors."""

    def __init__(self, arguments: Mapping[Tensor, Any]) -> None:
        self._arguments = arguments
        self._values: dict[Node, Values] = {}
        """Keyed by node, not operation: gradients add outputs to operations."""

    def find(self, tensor: Tensor) -> Any:
        """The value of ``tensor``, or None if unknown."""
        tensor = self._origin(tensor)
        waiting = [tensor.op]
        while waiting:
            op = waiting[-1]
            inputs = [self._origin(t) for t in op.inputs]
            missing = [t.op for t in inputs if t.op.node not in self._values]
            if missing and op.node not in self._values:
                waiting += missing
                continue
            waiting.pop()
            if op.node not in self._values:
                self._values[op.node] = _outputs_of(op.node, [self._value(t) for t in inputs])
        return self._value(tensor)

    def _value(self, tensor: Tensor) -> Any:
        values = self._values[tensor.op.node]
        return None if values is None else values[tensor.index]

    def _origin(self, tensor: Tensor) -> Tensor:
        """The argument that the parameter ``tensor`` represents; other tensors unchanged."""
        while tensor.op.type == "_Feed":
            outer = self._arguments.get(tensor, tensor.graph.origin(tensor))
            if outer is tensor or not isinstance(outer, Tensor):
                break
            tensor = outer
        return tensor


def _outputs_of(node: Node, inputs: Sequence[Any]) -> Values:
    op = node.op
    if any(value is None for value in inputs):
        return None
    if op.effect is Effect.NESTED:
        return _results_of(node, inputs)
    if not op.is_pure:
        return None
    try:
        return evaluate_node(node, inputs) if op.name == "Const" or _is_small(node, inputs) else None
    except OpError:
        return None


def _is_small(node: Node, inputs: Sequence[Any]) -> bool:
    """Whether the outputs of ``node`` are known to have at most `MAX_BYTES`. Raises what the shape rule does.

    The node itself may have no static shape: the arguments were unknown when it was created.
    """
    specs = [_spec_of(value) for value in inputs]
    outputs = infer_outputs(
        node.op,
        node.name,
        node.attrs,
        specs,
        [spec.dtype for spec in node.outputs],
        lambda i: _host_value(inputs[i]),
        node.source,
    )
    return sum((num_elements(s.shape) or 0) * s.dtype.size for s in outputs) <= MAX_BYTES


def _spec_of(value: Any) -> TensorSpec:
    if isinstance(value, (np.ndarray, np.generic)):
        return TensorSpec(dtypes.as_dtype(value.dtype), value.shape)
    return TensorSpec(dtypes.variant, ())


def _host_value(value: Any) -> PartialValue:
    """``value`` in the form that shape rules use."""
    is_small = isinstance(value, (np.ndarray, np.generic)) and value.size <= MAX_ELEMENTS
    return as_host_value(value) if is_small else None


def _results_of(node: Node, inputs: Sequence[Any]) -> Values:
    """Results of a call, or of the branch taken; loops are not evaluated, since they may not end."""
    attrs = node.attrs
    if "f" in attrs:
        return _called(attrs["f"], inputs)
    if "then_branch" in attrs:
        return _called(attrs["then_branch" if inputs[0] else "else_branch"], inputs[1:])
    if "branches" in attrs:
        branches, index = attrs["branches"], int(inputs[0])
        return _called(branches[index if 0 <= index < len(branches) else -1], inputs[1:])
    return None


def _called(function: Subgraph, arguments: Sequence[Any]) -> Values:
    """The results of ``function``, if it has no side effects."""
    values: dict[Ref, Any] = {(name, 0): a for name, a in zip(function.feeds, arguments, strict=True)}
    feeds = set(function.feeds)
    for node in function:
        if node.name in feeds:
            continue
        outputs = _outputs_of(node, [values[ref] for ref in node.inputs])
        if outputs is None:
            return None
        values |= {(node.name, index): value for index, value in enumerate(outputs)}
    return [values[ref] for ref in function.fetches]
