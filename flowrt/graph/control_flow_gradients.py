"""Derivatives of operations that own functions: of branches and calls, and of loops.

The gradient of a function is a function again: `_Gradient`, built from the forward function's operations by
the same rules as any gradient. What it reads of the forward function must come to it from there:

  1. A constant is copied, an argument of the forward operation is captured as any tensor around.
  2. Anything else the forward operation hands out. Branches get one more output for it. A loop gets one more
     variable: a list, onto which the body pushes the value in each iteration, and from which the gradient's
     loop, which runs backwards, takes one at a time. What no gradient reads in the end, the compiler drops.
  3. So the forward operation changes (`Operation.extend`): more inputs and outputs behind those it had.

All that these rules build are ordinary operations (lists have gradients too), so second derivatives need
nothing else. The tangent of a function is computed by the forward operation itself: its function gets the
tangents as arguments, and returns tangents behind its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import UnimplementedError
from flowrt.graph.build import constant_tensor, convert_to_tensor
from flowrt.graph.func_graph import FuncGraph
from flowrt.graph.gradients import ancestors, backpropagate, total_of, vjp_rule
from flowrt.graph.graph import Graph, get_default_graph
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.node import Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Rule, op_def
from flowrt.graph.operation import Operation, Tensor
from flowrt.graph.partial_value import partial_value

Shares = dict[Any, list[Any]]


@final
class _Gradient(FuncGraph):
    """The gradient of the function ``forward``, an attribute of an operation in ``outer``. ``keep`` gives what
    stands in it for a tensor that only ``forward`` has.
    """

    def __init__(self, outer: Graph, forward: FuncGraph, owner: Operation, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__(outer, f"the gradient of {owner.name!r}")
        self._forward, self._owner, self._keep = forward, owner, keep
        self._kept: dict[Tensor, Tensor] = {}
        self.kept_outputs: dict[int, Tensor] = {}
        """Of a branch: by the number of a new output of the forward operation, the parameter for it."""

    def is_inside(self, graph: Graph) -> bool:
        return graph is self._forward or super().is_inside(graph)

    def capture(self, tensor: Tensor) -> Tensor:
        if tensor.graph is not self._forward:
            return super().capture(tensor)
        if tensor not in self._kept:
            self._kept[tensor] = self._read(tensor)
        return self._kept[tensor]

    def _read(self, tensor: Tensor) -> Tensor:
        if tensor.op.type == "Const" and not tensor.op.control_inputs:
            return self.copy_constant(tensor.op.node)
        argument = _argument(self._owner, self._forward, tensor)
        return self._keep(tensor) if argument is None else self.capture(argument)

    def kept_output(self, number: int, output: Tensor) -> Tensor:
        """The parameter for a new output of the forward operation, which another branch may read."""
        if number not in self.kept_outputs:
            self.kept_outputs[number] = self.parameter(output.spec, "kept")
        return self.kept_outputs[number]

    def backpropagate(self, ys: Sequence[Tensor], seeds: Sequence[Any], xs: Sequence[Tensor]) -> Shares:
        """The gradients' shares of ``xs``, tensors of the forward function, by their names."""
        with self:
            return backpropagate(self, list(ys), list(seeds), list(xs), set(), False)


def _argument(owner: Operation, forward: FuncGraph, tensor: Tensor) -> Tensor | None:
    """The input of ``owner`` that ``tensor`` always is: it is a parameter, and of a loop one that stays."""
    if tensor.op.type != "_Feed":
        return None
    position = next(i for i, p in enumerate(forward.parameters) if p is tensor)
    if owner.type == "While" and owner.node.attrs["body"].fetches[position] != tensor.ref:
        return None
    return owner.inputs[len(owner.inputs) - len(forward.parameters) + position]


def is_differentiable(dtype: DType) -> bool:
    """Whether gradients flow through tensors of ``dtype``: lists have those of their elements, handles those
    of their variables.
    """
    return dtype.is_floating or dtype.is_complex or dtype in (dtypes.variant, dtypes.resource)


def zeros_like(tensor: Tensor) -> Tensor:
    """A gradient of zeros for ``tensor``."""
    if tensor.dtype is dtypes.variant:
        return op_def("TensorListZerosLike")(tensor)  # type: ignore[no-any-return]
    if tensor.dtype is dtypes.resource:
        kind, shape = partial_value(tensor.graph.node, tensor.ref)
        return op_def("Fill")(list(shape), convert_to_tensor(0, kind))  # type: ignore[no-any-return]
    return op_def("ZerosLike")(tensor)  # type: ignore[no-any-return]


def _spec_of_gradient(tensor: Tensor) -> TensorSpec:
    if tensor.dtype is not dtypes.resource:
        return tensor.spec
    return TensorSpec(*partial_value(tensor.graph.node, tensor.ref))


# --- branches and calls


@final
class _Branches:
    """The gradient of an If, a Case or a call."""

    def __init__(self, op: Operation, dys: Sequence[Any]) -> None:
        self._op, self._outer = op, get_default_graph()
        self._functions = _functions(op)
        self._forwards = [FuncGraph.of(f, op.graph, f"a branch of {op.name!r}") for f in self._functions]
        self._extra: list[tuple[FuncGraph, Tensor]] = []
        """What branches hand out for their gradients, in the order of the new outputs."""
        self._seeds = [(i, dy) for i, dy in enumerate(dys) if dy is not None]
        self._dys = [convert_to_tensor(dy) for _, dy in self._seeds]

    def run(self) -> list[Any]:
        graphs, shares = zip(*[self._differentiate(forward) for forward in self._forwards], strict=True)
        arguments = self._op.inputs[len(self._op.inputs) - len(self._forwards[0].parameters) :]
        wanted = [i for i, t in enumerate(arguments) if any(found[i] for found in shares)]
        results = [self._results(g, [f[i] for i in wanted], [arguments[i] for i in wanted]) for g, f in zip(graphs, shares, strict=True)]
        extra = self._hand_out()
        outputs = self._build(graphs, results, extra) if wanted else []
        found: list[Any] = [None] * len(self._op.inputs)
        first = len(self._op.inputs) - len(arguments)
        for i, output in zip(wanted, outputs, strict=True):
            found[first + i] = output
        return found

    def _differentiate(self, forward: FuncGraph) -> tuple[_Gradient, list[list[Any]]]:
        """The gradient function of a branch, and the shares of each of its parameters."""
        graph = _Gradient(self._outer, forward, self._op, lambda tensor: self._keep(graph, forward, tensor))
        seeds = [graph.parameter(dy.spec, "dy") for dy in self._dys]
        results = self._functions[self._forwards.index(forward)].fetches
        ys = [forward.tensor(results[i]) for i, _ in self._seeds]
        shares = graph.backpropagate(ys, seeds, forward.parameters)
        return graph, [shares.get(p.ref, []) for p in forward.parameters]

    def _keep(self, graph: _Gradient, forward: FuncGraph, tensor: Tensor) -> Tensor:
        found = next((i for i, e in enumerate(self._extra) if e[1] is tensor), None)
        if found is None:
            found = len(self._extra)
            self._extra.append((forward, tensor))
        parameter = graph.stand_in(tensor, "kept")
        graph.kept_outputs[found] = parameter
        return parameter

    def _results(self, graph: _Gradient, shares: list[list[Any]], arguments: list[Tensor]) -> list[Tensor]:
        """One gradient for each of ``arguments``: zeros where the branch has none."""
        found = []
        with graph:
            for argument, own in zip(arguments, shares, strict=True):
                total = total_of(own, argument)
                gradient = zeros_like(graph.capture(argument)) if total is None else convert_to_tensor(total)
                found.append(gradient if gradient.graph is graph else graph.capture(gradient))
        return found

    def _hand_out(self) -> list[Tensor]:
        """Give the forward operation the outputs that gradients read."""
        if not self._extra:
            return []
        functions, specs = [], [tensor.spec for _, tensor in self._extra]
        for forward, function in zip(self._forwards, self._functions, strict=True):
            with forward, forward.control_dependencies(None):
                added = [tensor if owner is forward else _nothing(tensor) for owner, tensor in self._extra]
            fetches = [*[forward.tensor(ref) for ref in function.fetches], *added]
            functions.append(forward.again(fetches, function))
        if len(functions) > 1:  # a branch that is not taken has nothing to hand out
            specs = [TensorSpec(spec.dtype, None) for spec in specs]
        attrs = _with_functions(self._op, functions)
        attrs["Tout"] = (*self._op.node.attrs["Tout"], *[spec.dtype for spec in specs])
        return self._op.extend([], attrs, specs)

    def _build(
        self, graphs: Sequence[_Gradient], results: Sequence[list[Tensor]], extra: list[Tensor]
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
        kinds = tuple(t.dtype for t in results[0])
        name = f"{self._op.name}_gradient/"
        op = self._op.op_def
        if op.name == "If":
            outputs = op(self._op.inputs[0], inputs, then_branch=functions[0], else_branch=functions[1], Tout=kinds, name=name)
        elif op.name == "Case":
            outputs = op(self._op.inputs[0], inputs, branches=tuple(functions), Tout=kinds, name=name)
        else:
            outputs = op(inputs, f=functions[0], Tout=kinds, name=name)
        return list(outputs)


def _functions(op: Operation) -> list[Subgraph]:
    """The functions of an If, a Case or a call, in the order of its attributes."""
    attrs = op.node.attrs
    if op.type == "If":
        return [attrs["then_branch"], attrs["else_branch"]]
    return list(attrs["branches"]) if op.type == "Case" else [attrs["f"]]


def _with_functions(op: Operation, functions: Sequence[Subgraph]) -> dict[str, Any]:
    """The attributes of `_functions`, with these."""
    if op.type == "If":
        return {"then_branch": functions[0], "else_branch": functions[1]}
    return {"branches": tuple(functions)} if op.type == "Case" else {"f": functions[0]}


def _nothing(tensor: Tensor) -> Tensor:
    """What stands for ``tensor`` where its branch is not taken: nobody reads it."""
    if tensor.dtype is dtypes.variant:
        return op_def("EmptyTensorList")(-1, -1, element_dtype=dtypes.float32)  # type: ignore[no-any-return]
    return constant_tensor(np.zeros((), tensor.dtype.np))


def branches_vjp(op: Operation, *dys: Any) -> list[Any]:
    """The gradient of an If, a Case or a call: the same operation over the gradients of its functions."""
    return _Branches(op, dys).run()


# --- loops


class _Stack(NamedTuple):
    """A list that the body pushes a value onto: its position among the loop's variables, or None for a new
    one, which has ``initial`` outside, ``parameter`` and ``pushed`` inside.
    """

    position: int | None
    initial: Tensor | None
    parameter: Tensor | None
    pushed: Tensor | None


class _Popped(NamedTuple):
    """The same list in the gradient's loop: the list it gets, and the list that is left."""

    stack: _Stack
    parameter: Tensor
    rest: Tensor


@final
class _Loop:
    """The gradient of a While."""

    def __init__(self, op: Operation, dys: Sequence[Any]) -> None:
        self._op, self._dys = op, dys
        self._function: Subgraph = op.node.attrs["body"]
        self._forward = FuncGraph.of(self._function, op.graph, f"the body of {op.name!r}")
        self._parameters = list(self._forward.parameters)
        self._results = [self._forward.tensor(ref) for ref in self._function.fetches]
        self._is_invariant = [p is r for p, r in zip(self._parameters, self._results, strict=True)]
        self._stacks: dict[Tensor, _Stack] = self._known_stacks()
        self._popped: dict[Tensor, _Popped] = {}
        self._outer = get_default_graph()
        self._graph = _Gradient(self._outer, self._forward, op, self._keep)

    def run(self) -> list[Any]:
        found = [dy if stays else None for dy, stays in zip(self._dys, self._is_invariant, strict=True)]
        active, reached = self._active()
        if not active:
            return found
        graph, parameters = self._graph, self._parameters
        count = graph.parameter(TensorSpec(dtypes.int32, ()), "remaining")
        seeds = [graph.parameter(_spec_of_gradient(parameters[k]), "gradient") for k in active]
        shares = graph.backpropagate([self._results[k] for k in active], seeds, parameters)
        sums = [
            _Sum(graph, i, self._op.inputs[i], shares[parameters[i].ref])
            for i in sorted(reached)
            if self._is_invariant[i] and shares.get(parameters[i].ref)
        ]
        with graph:
            gradients = [self._carried(parameters[k], shares) for k in active]
            results = [op_def("Sub")(count, 1), *gradients, *[r for s in sums for r in s.results]]
        results += [popped.rest for popped in self._popped.values()]
        trips, lists = self._extend()
        initial = [trips, *[self._seed(k) for k in active], *[i for s in sums for i in s.initial], *lists]
        parameters_of_all = [count, *seeds, *[p for s in sums for p in s.parameters]]
        parameters_of_all += [popped.parameter for popped in self._popped.values()]
        outputs = iter(self._build(initial, parameters_of_all, results)[1:])
        for k in active:
            found[k] = next(outputs)
        for one in sums:
            i = one.position
            total = one.total([next(outputs) for _ in one.initial])
            found[i] = total if found[i] is None else total_of([found[i], total], one.argument)
        return found

    def _active(self) -> tuple[list[int], set[int]]:
        """The variables that change and have gradients, those that gradients reach among all."""
        varying = [k for k, stays in enumerate(self._is_invariant) if not stays]
        active = {k for k in varying if self._dys[k] is not None and is_differentiable(self._parameters[k].dtype)}
        reached: set[int] = set()
        while True:
            refs = _reached([self._results[k] for k in active])
            reached = {
                i for i, p in enumerate(self._parameters) if p.ref in refs and is_differentiable(p.dtype)
            }
            more = active | {k for k in varying if k in reached}
            if more == active:
                return sorted(active), reached
            active = more

    def _carried(self, parameter: Tensor, shares: Shares) -> Tensor:
        """The gradient of a variable before an iteration."""
        total = total_of(shares.get(parameter.ref, []), parameter)
        gradient = zeros_like(self._graph.capture(parameter)) if total is None else convert_to_tensor(total)
        return gradient if gradient.graph is self._graph else self._graph.capture(gradient)

    def _seed(self, k: int) -> Tensor:
        dy = self._dys[k]
        return zeros_like(self._op.outputs[k]) if dy is None else convert_to_tensor(dy)

    # --- what the forward loop keeps

    def _known_stacks(self) -> dict[Tensor, _Stack]:
        """The lists that earlier gradients had the body push onto."""
        found: dict[Tensor, _Stack] = {}
        positions = {p: i for i, p in enumerate(self._parameters)}
        for i, result in enumerate(self._results):
            if result.op.type == "TensorListPushBack" and positions.get(result.op.inputs[0]) == i:
                if "_stack" in result.op.node.attrs:
                    found[result.op.inputs[1]] = _Stack(i, None, None, None)
        return found

    def _keep(self, tensor: Tensor) -> Tensor:
        """``tensor`` of the same iteration, in the gradient's loop."""
        invariant = self._recomputed(tensor)
        if invariant is not None:
            return invariant
        if tensor not in self._stacks:
            self._stacks[tensor] = self._new_stack(tensor)
        graph = self._graph
        parameter = graph.parameter(TensorSpec(dtypes.variant, tensor.spec.shape), "kept")
        with graph, graph.control_dependencies(None):
            rest, value = op_def("TensorListPopBack")(
                parameter, _element_shape(tensor), element_dtype=tensor.dtype
            )
        self._popped[tensor] = _Popped(self._stacks[tensor], parameter, rest)
        return value  # type: ignore[no-any-return]

    def _new_stack(self, tensor: Tensor) -> _Stack:
        outside = self._op.graph
        with outside, outside.control_dependencies(None), outside.name_scope(f"{self._op.name}/"):
            initial = op_def("EmptyTensorList")(_element_shape(tensor), -1, element_dtype=tensor.dtype, name="stack")
        forward = self._forward
        parameter = forward.parameter(initial.spec, "stack")
        with forward, forward.control_dependencies(None):
            pushed = op_def("TensorListPushBack")(parameter, tensor, element_dtype=tensor.dtype, _stack=True)
        return _Stack(None, initial, parameter, pushed)

    def _recomputed(self, tensor: Tensor) -> Tensor | None:
        """``tensor`` computed again in the gradient's loop, if it is the same in every iteration."""
        op = tensor.op
        if not op.op_def.is_pure or op.control_inputs or not op.inputs or not self._is_constant(op):
            return None
        graph = self._graph
        inputs = [graph.capture(t) for t in op.inputs]
        with graph.control_dependencies(None):
            copied = graph.add(op.op_def, graph.unique_absolute(op.name), inputs, op.node.attrs, [t.dtype for t in op.outputs])
        return copied.outputs[tensor.index]

    def _is_constant(self, op: Operation) -> bool:
        """Whether ``op`` computes the same in every iteration: from what does not change, by pure rules."""
        seen: set[Operation] = set()
        stack = [op]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current.type == "_Feed":
                position = self._parameters.index(current.outputs[0]) if current.outputs[0] in self._parameters else -1
                if position < 0 or not self._is_invariant[position]:
                    return False
            elif not current.op_def.is_pure or current.control_inputs:
                return False
            stack += [t.op for t in current.inputs]
        return True

    def _extend(self) -> tuple[Tensor, list[Tensor]]:
        """Make the forward loop count its iterations and keep what the gradient reads. The number of
        iterations, and the lists.
        """
        op, forward = self._op, self._forward
        new = [stack for stack in self._stacks.values() if stack.position is None]
        counter = op.node.attrs.get("_counter")
        inputs = [stack.initial for stack in new]
        added = [stack.pushed for stack in new]
        attrs: dict[str, Any] = {}
        parameters = [*self._parameters, *[stack.parameter for stack in new]]
        if counter is None:
            attrs["_counter"] = counter = len(op.inputs) + len(new)
            with op.graph, op.graph.control_dependencies(None), op.graph.name_scope(f"{op.name}/"):
                inputs.append(constant_tensor(np.zeros((), np.int32), "count"))
            parameters.append(forward.parameter(TensorSpec(dtypes.int32, ()), "count"))
            with forward, forward.control_dependencies(None):
                added.append(op_def("AddV2")(parameters[-1], 1))
        first = len(op.inputs)
        if inputs:
            forward.parameters = parameters
            attrs["body"] = forward.again([*self._results, *added], self._function)
            condition = FuncGraph.of(op.node.attrs["cond"], op.graph, f"the condition of {op.name!r}")
            holds = condition.tensor(op.node.attrs["cond"].fetches[0])
            for tensor in inputs:
                condition.parameter(tensor.spec)
            attrs["cond"] = condition.again([holds], op.node.attrs["cond"])
            attrs["T"] = (*op.node.attrs["T"], *[t.dtype for t in inputs])
            op.extend(inputs, attrs, [t.spec for t in inputs])
        elif self._changed():
            op.mutate(attrs={**op.node.attrs, "body": forward.again(self._results, self._function)})
        number = {id(stack): first + i for i, stack in enumerate(new)}
        lists = [
            op.outputs[p.stack.position if p.stack.position is not None else number[id(p.stack)]]
            for p in self._popped.values()
        ]
        return op.outputs[counter], lists

    def _changed(self) -> bool:
        """Whether gradients of operations inside have made these hand out more."""
        return any(self._function.nodes.get(o.name) is not o.node for o in self._forward.get_operations() if o.name in self._function.nodes)

    # --- the gradient's loop

    def _build(
        self, initial: list[Tensor], parameters: list[Tensor], results: list[Tensor]
    ) -> list[Tensor]:
        graph, outer = self._graph, self._outer
        condition = FuncGraph(outer, f"the gradient of {self._op.name!r}")
        with condition:
            inside = [condition.parameter(p.spec) for p in parameters]
            holds = op_def("Greater")(inside[0], 0)
        captured = graph.captured()
        graph.parameters = [*parameters, *[graph.capture(t) for t in captured]]
        for tensor in captured:
            condition.parameter(tensor.spec)
        passed = graph.parameters[len(parameters) :]
        outputs = op_def("While")(
            [*initial, *captured],
            cond=condition.subgraph([holds]),
            body=graph.subgraph([*results, *passed]),
            parallel_iterations=self._op.node.attrs["parallel_iterations"],
            name=f"{self._op.name}_gradient/",
        )
        return list(outputs)


@final
class _Sum:
    """The sum over all iterations of an invariant's gradient: one more variable of the gradient's loop; of
    slices two, the lists of indices and values.
    """

    def __init__(self, graph: _Gradient, position: int, argument: Tensor, shares: list[Any]) -> None:
        self.position, self.argument = position, argument
        slices = [s for s in shares if isinstance(s, IndexedSlices)]
        self._is_sparse = len(slices) == len(shares)
        if not self._is_sparse:
            self.initial = [zeros_like(argument)]
            self.parameters = [graph.parameter(_spec_of_gradient(argument), "sum")]
            with graph:
                total = total_of([self.parameters[0], *shares], argument)
                self.results = [convert_to_tensor(total)]
            return
        self._slices = slices[0]
        with graph:
            total = total_of(slices, argument)
            parts = [total.indices, total.values]  # type: ignore[union-attr]
        self._parts = parts
        self.initial = [
            op_def("EmptyTensorList")(_element_shape(part), -1, element_dtype=part.dtype) for part in parts
        ]
        self.parameters = [
            graph.parameter(TensorSpec(dtypes.variant, part.spec.shape), "slices") for part in parts
        ]
        with graph:
            self.results = [
                op_def("TensorListPushBack")(p, part, element_dtype=part.dtype)
                for p, part in zip(self.parameters, parts, strict=True)
            ]

    def total(self, outputs: list[Tensor]) -> Any:
        """The gradient, from the loop's outputs."""
        if not self._is_sparse:
            return outputs[0]
        kind, shape = partial_value(self.argument.graph.node, self.argument.ref)
        joined = []
        for output, part in zip(outputs, self._parts, strict=True):
            tail = [-1 if d is None else d for d in (part.spec.shape or ())[1:]]
            joined.append(
                op_def("TensorListConcatV2")(output, [-1, *tail], [], element_dtype=part.dtype)[0]
            )
        del kind
        return IndexedSlices(joined[1], joined[0], convert_to_tensor(shape, dtypes.int32))


def _element_shape(tensor: Tensor) -> Any:
    shape = tensor.spec.shape
    return -1 if shape is None else [-1 if d is None else d for d in shape]


def _reached(roots: Sequence[Tensor]) -> set[Ref]:
    """The tensors that gradients of ``roots`` flow to."""
    found: set[Ref] = set()
    for op in ancestors([t.op for t in roots], set()):
        if vjp_rule(op) is not Rule.NONDIFFERENTIABLE:
            found.update(t.ref for t in op.inputs)
    found.update(t.ref for t in roots)
    return found


def while_vjp(op: Operation, *dys: Any) -> list[Any]:
    """The gradient of a loop: a loop over its iterations in reverse (see the module)."""
    if op.node.attrs.get("_stop_gradient"):
        return [None] * len(op.inputs)
    return _Loop(op, dys).run()


# --- tangents


def branches_jvp(op: Operation, *tangents: Any) -> Any:
    raise op.error(UnimplementedError, "has no tangents yet")


while_jvp = branches_jvp
