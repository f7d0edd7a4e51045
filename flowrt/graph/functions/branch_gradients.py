"""Derivatives of branches and calls.

The gradient of an If is an If with the same predicate, over the gradients of its branches; the same holds for
a Case and a call. A tensor of a branch that its gradient reads becomes an extra output of the forward
operation; the other branches return a placeholder there, which is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import constant_tensor, convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.derivatives.gradients import total_of
from flowrt.graph.functions.function_gradients import Gradient, spec_of_gradient, tangents_of, zeros_like
from flowrt.graph.functions.recomputation import RECOMPUTE, compute_again
from flowrt.graph.node import Subgraph, TensorSpec, static_shape
from flowrt.graph.ops.lists.tensor_lists import empty_tensor_list
from flowrt.graph.shapes import num_elements


@final
class _Branches:
    """The gradient of an If, a Case or a call."""

    def __init__(self, op: Operation, dys: Sequence[Any]) -> None:
        self._op, self._outer = op, get_default_graph()
        self._functions = _functions(op)
        self._forwards = [FuncGraph.of(f, op.graph, f"a branch of {op.name!r}") for f in self._functions]
        self._extra: list[tuple[FuncGraph, Tensor]] = []
        """Tensors that branches return for their gradients, in the order of the new outputs."""
        self._seeds = [(i, dy) for i, dy in enumerate(dys) if dy is not None]
        self._dys = [convert_to_tensor(dy) for _, dy in self._seeds]

    def run(self) -> list[Any]:
        graphs, shares = zip(*[self._differentiate(forward) for forward in self._forwards], strict=True)
        arguments = self._op.inputs[len(self._op.inputs) - len(self._forwards[0].parameters) :]
        wanted = [i for i, t in enumerate(arguments) if any(found[i] for found in shares)]
        results = [
            self._results(g, [f[i] for i in wanted], [arguments[i] for i in wanted])
            for g, f in zip(graphs, shares, strict=True)
        ]
        extra = self._hand_out()
        outputs = self._build(graphs, results, extra) if wanted else []
        found: list[Any] = [None] * len(self._op.inputs)
        first = len(self._op.inputs) - len(arguments)
        for i, output in zip(wanted, outputs, strict=True):
            found[first + i] = output
        return found

    def _differentiate(self, forward: FuncGraph) -> tuple[Gradient, list[list[Any]]]:
        """The gradient function of a branch, and the gradient contributions to its parameters."""
        graph = Gradient(self._outer, forward, self._op, lambda tensor: self._keep(graph, forward, tensor))
        seeds = [graph.parameter(dy.spec, "dy") for dy in self._dys]
        results = self._functions[self._forwards.index(forward)].fetches
        ys = [forward.tensor(results[i]) for i, _ in self._seeds]
        shares = graph.backpropagate(ys, seeds, forward.parameters)
        return graph, [shares.get(p.ref, []) for p in forward.parameters]

    def _keep(self, graph: Gradient, forward: FuncGraph, tensor: Tensor) -> Tensor:
        found = next((i for i, e in enumerate(self._extra) if e[1] is tensor), None)
        if found is None:
            found = len(self._extra)
            self._extra.append((forward, tensor))
        parameter = graph.stand_in(tensor, "kept")
        graph.kept_outputs[found] = parameter
        return parameter

    def _results(self, graph: Gradient, shares: list[list[Any]], arguments: list[Tensor]) -> list[Tensor]:
        """One gradient for each of ``arguments``: zeros if the branch has none."""
        found = []
        with graph:
            for argument, own in zip(arguments, shares, strict=True):
                total = total_of(own, argument)
                gradient = zeros_like(graph.capture(argument)) if total is None else convert_to_tensor(total)
                found.append(gradient if gradient.graph is graph else graph.capture(gradient))
        return found

    def _hand_out(self) -> list[Tensor]:
        """Tensors of the forward function that gradients read: outputs of it, or of a second call."""
        if not self._extra:
            return []
        if RECOMPUTE in self._op.node.attrs:
            wanted = [tensor for _, tensor in self._extra]
            return compute_again(self._op, self._forwards[0], wanted, self._dys, self._extend)
        return self._extend(self._extra)

    def _extend(self, extra: Sequence[tuple[FuncGraph, Tensor]]) -> list[Tensor]:
        """Add these outputs to the forward operation."""
        functions, specs = [], [tensor.spec for _, tensor in extra]
        for forward, function in zip(self._forwards, self._functions, strict=True):
            absent = dict.fromkeys(tensor.spec for owner, tensor in extra if owner is not forward)
            with forward, forward.control_dependencies(None):
                nothing = {spec: _nothing(spec) for spec in absent}
                added = [tensor if owner is forward else nothing[tensor.spec] for owner, tensor in extra]
            fetches = [*[forward.tensor(ref) for ref in function.fetches], *added]
            functions.append(forward.again(fetches, function))
        if len(functions) > 1:  # a branch that is not taken has nothing to hand out
            specs = [spec if _is_small(spec) else TensorSpec(spec.dtype, None) for spec in specs]
        attrs = _with_functions(self._op, functions)
        attrs["Tout"] = (*self._op.node.attrs["Tout"], *[spec.dtype for spec in specs])
        return self._op.extend([], attrs, specs)

    def _build(
        self, graphs: Sequence[Gradient], results: Sequence[list[Tensor]], extra: list[Tensor]
    ) -> list[Tensor]:
        """The operation over the branches' gradients."""
        captured = list(dict.fromkeys(t for graph in graphs for t in graph.captured()))
        functions = []
        for graph, found in zip(graphs, results, strict=True):
            own = graph.parameters[: len(self._dys)]
            passed = [graph.capture(tensor) for tensor in captured]
            kept = [graph.kept_output(i, t) for i, t in enumerate(extra)]
            graph.parameters = [*own, *passed, *kept]
            functions.append(graph.subgraph(found))
        inputs = [*self._dys, *captured, *extra]
        attrs = {**_with_functions(self._op, functions), "Tout": tuple(t.dtype for t in results[0])}
        op = self._op.op_def
        chooser = self._op.inputs[: len(op.inputs) - 1]  # a predicate or an index; a call has none
        return list(op(*chooser, inputs, **attrs, name=f"{self._op.name}_gradient/"))


def _functions(op: Operation) -> list[Subgraph]:
    """The functions of an If, a Case or a call."""
    attrs = op.node.attrs
    if "then_branch" in attrs:
        return [attrs["then_branch"], attrs["else_branch"]]
    return list(attrs["branches"]) if "branches" in attrs else [attrs["f"]]


def _with_functions(op: Operation, functions: Sequence[Subgraph]) -> dict[str, Any]:
    """The attrs of `_functions`, with these."""
    if "then_branch" in op.node.attrs:
        return {"then_branch": functions[0], "else_branch": functions[1]}
    return {"branches": tuple(functions)} if "branches" in op.node.attrs else {"f": functions[0]}


NOTHING = "_nothing"
"""Private attr of the placeholder of a result that a branch does not have."""

MAX_NOTHING = 1 << 10
"""Maximum size in bytes of a full-shape placeholder. A loop that keeps placeholders stores one per iteration
for each tensor of each branch not taken.
"""


def _nothing(spec: TensorSpec) -> Tensor:
    """Placeholder for a tensor of a branch that is not taken; it is never read. It has the shape of a small
    tensor, so that an enclosing loop can be compiled.
    """
    if spec.dtype is dtypes.variant:
        return empty_tensor_list(-1, -1, element_dtype=dtypes.float32)
    if spec.dtype is dtypes.string:
        return constant_tensor(as_array(b""))
    shape = static_shape(spec) if _is_small(spec) else ()
    found = constant_tensor(np.zeros(shape, spec.dtype.np))
    found.op.mutate(attrs={**found.op.node.attrs, NOTHING: True})
    return found


def _is_small(spec: TensorSpec) -> bool:
    count = num_elements(spec.shape)
    return spec.dtype is not dtypes.string and count is not None and count * spec.dtype.size <= MAX_NOTHING


def branches_vjp(op: Operation, *dys: Any) -> list[Any]:
    """The gradient of an If, a Case or a call: the same operation over the gradients of its functions."""
    return _Branches(op, dys).run()


def branches_jvp(op: Operation, *tangents: Any) -> list[Any]:
    """The tangents of an If, a Case or a call, computed by its functions together with their results."""
    functions = _functions(op)
    count = len(functions[0].feeds)
    first, outputs = len(op.inputs) - count, list(op.outputs)
    moving = [i for i in range(count) if tangents[first + i] is not None]
    forwards = [FuncGraph.of(f, op.graph, f"a branch of {op.name!r}") for f in functions]
    moved: list[list[Tensor | None]] = []
    for forward, function in zip(forwards, functions, strict=True):
        parameters = list(forward.parameters)
        given = [forward.parameter(spec_of_gradient(parameters[i]), "tangent") for i in moving]
        results = [forward.tensor(ref) for ref in function.fetches]
        moved.append(tangents_of(forward, results, [parameters[i] for i in moving], given))
    wanted = [i for i in range(len(outputs)) if any(found[i] is not None for found in moved)]
    changed = []
    for forward, function, found in zip(forwards, functions, moved, strict=True):
        results = [forward.tensor(ref) for ref in function.fetches]
        with forward:
            added = [zeros_like(results[i]) if (t := found[i]) is None else t for i in wanted]
        changed.append(forward.again([*results, *added], function))
    attrs = _with_functions(op, changed)
    attrs["Tout"] = (*op.node.attrs["Tout"], *[outputs[i].dtype for i in wanted])
    given = [convert_to_tensor(tangents[first + i]) for i in moving]
    attrs["Tin"] = (*op.node.attrs["Tin"], *[t.dtype for t in given])
    specs = [TensorSpec(outputs[i].dtype, outputs[i].spec.shape) for i in wanted]
    found_outputs = iter(op.extend(given, attrs, specs))
    return [next(found_outputs) if i in set(wanted) else None for i in range(len(outputs))]
