"""The derivative of a function owned by an operation: the common base of branches, calls and loops.

The gradient of a function is again a function: `Gradient`, built from the forward function's operations by
the same rules as any gradient. Tensors of the forward function that it reads must be made available to it:

  1. A constant is copied; an argument of the forward operation is captured like any outer tensor.
  2. Anything else becomes a result of the forward operation (`keep`): an extra output of branches, an extra
     variable of a loop. The compiler drops those that no gradient reads in the end.
  3. The forward operation is therefore extended (`Operation.extend`) with inputs and outputs after its own.

All operations that these rules build are ordinary ones (lists have gradients too), so second derivatives need
nothing else. The tangent of a function is computed by the forward operation itself: its function gets the
tangents as arguments, and returns tangents after its results (`tangents_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.derivatives.forward_mode import ForwardSweep
from flowrt.graph.derivatives.gradients import backpropagate
from flowrt.graph.node import SET_SHAPE, TensorSpec
from flowrt.graph.ops.base.filling import fill, zeros_like_op
from flowrt.graph.ops.lists.tensor_lists import zeros_like_list
from flowrt.graph.partial_value import partial_value

Shares = dict[Any, list[Any]]


@final
class Gradient(FuncGraph):
    """The gradient of the function ``forward``, an attr of an operation in ``outer``. ``keep`` returns the
    tensor that represents here one that only ``forward`` has.
    """

    def __init__(
        self, outer: Graph, forward: FuncGraph, owner: Operation, keep: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(outer, f"the gradient of {owner.name!r}")
        self._forward, self._keep = forward, keep
        self._arguments = _lasting_arguments(owner, forward)
        self._kept: dict[Tensor, Tensor] = {}
        self.kept_outputs: dict[int, Tensor] = {}
        """Map, for a branch, from the index of a new output of the forward operation to its parameter."""

    def is_inside(self, graph: Graph) -> bool:
        return graph is self._forward or super().is_inside(graph) or self._forward.is_twin(graph)

    def capture(self, tensor: Tensor) -> Tensor:
        if tensor.graph is not self._forward:
            if super().is_inside(tensor.graph):
                return super().capture(tensor)
            tensor = self._forward.counterpart(tensor)  # a gradient given by hand reads what the user built
        if tensor not in self._kept:
            self._kept[tensor] = self._read(tensor)
        return self._kept[tensor]

    def _read(self, tensor: Tensor) -> Tensor:
        if tensor.op.type == "Const" and not tensor.op.control_inputs:
            return self.copy_constant(tensor.op.node)
        argument = self._arguments.get(tensor)
        return self._keep(tensor) if argument is None else self.capture(argument)

    def kept_output(self, number: int, output: Tensor) -> Tensor:
        """The parameter for a new output of the forward operation, possibly shared with another branch."""
        if number not in self.kept_outputs:
            self.kept_outputs[number] = self.parameter(output.spec, "kept")
        return self.kept_outputs[number]

    def backpropagate(self, ys: Sequence[Tensor], seeds: Sequence[Any], xs: Sequence[Tensor]) -> Shares:
        """The gradient contributions to ``xs``, tensors of the forward function, by their names."""
        with self:
            return backpropagate(self, list(ys), list(seeds), list(xs), set(), False)


def _lasting_arguments(owner: Operation, function: FuncGraph) -> dict[Tensor, Tensor]:
    """The parameters of ``function`` that always equal an input of ``owner`` (in a loop, the invariants),
    with that input.
    """
    arguments = owner.inputs[len(owner.inputs) - len(function.parameters) :]
    found = dict(zip(function.parameters, arguments, strict=True))
    if owner.type == "While":
        results = owner.node.attrs["body"].fetches
        stays = [p for p, ref in zip(function.parameters, results, strict=True) if p.ref == ref]
        return {p: found[p] for p in stays}
    return found


def is_differentiable(dtype: DType) -> bool:
    """Whether gradients flow through tensors of ``dtype``: also through lists, for their elements, and
    handles, for their variables.
    """
    return dtype.is_floating or dtype.is_complex or dtype in (dtypes.variant, dtypes.resource)


def zeros_like(tensor: Tensor) -> Tensor:
    """A zero gradient for ``tensor``."""
    if tensor.dtype is dtypes.variant:
        return zeros_like_list(tensor)
    if tensor.dtype is dtypes.resource:
        kind, shape = partial_value(tensor.graph.node, tensor.ref)
        return fill(list(shape), convert_to_tensor(0, kind))
    return zeros_like_op(tensor)


def spec_of_gradient(tensor: Tensor) -> TensorSpec:
    """The gradient's shape and dtype. A parameter's has no shape that the function has set: of a loop without
    iterations that says nothing.
    """
    if tensor.dtype is dtypes.resource:
        return TensorSpec(*partial_value(tensor.graph.node, tensor.ref))
    attrs = tensor.op.node.attrs
    is_set = tensor.op.type == "_Feed" and SET_SHAPE in attrs
    return TensorSpec(tensor.dtype, attrs["shape"]) if is_set else tensor.spec


def tangents_of(
    function: FuncGraph,
    results: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Tangents of ``results``, tensors of ``function``, from those of its ``parameters``: None is zero."""
    kinds = [y.dtype for y in results]
    moving = [i for i, k in enumerate(kinds) if is_differentiable(k) and k is not dtypes.resource]
    found: list[Tensor | None] = [None] * len(results)
    if moving:
        with function:
            moved = ForwardSweep([results[i] for i in moving], parameters)(tangents)
        for i, tangent in zip(moving, moved, strict=True):
            found[i] = tangent
    return found
