"""Derivatives of loops.

The gradient of a While is a While that runs backwards. The forward loop saves the values of each iteration
that the gradient reads: the body pushes them onto a list, an extra loop variable, and the gradient's body
pops them. The forward loop also counts its iterations. An invariant's gradient is summed over the iterations;
slices of one are collected in lists and concatenated after the loop.

In a nest of loops an inner loop continues its lists from one outer iteration to the next, so they are not
lists of lists: its gradient's loop pops as many values as it has pushed, the last first, which leaves the
values of the outer iterations before.

The tangents of a While are extra variables of the same loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.build import constant_tensor, convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.derivatives.gradients import ancestors, total_of, vjp_rule
from flowrt.graph.functions.function_gradients import (
    Gradient,
    Shares,
    is_differentiable,
    spec_of_gradient,
    tangents_of,
    zeros_like,
)
from flowrt.graph.layouts.attributes import STAGE
from flowrt.graph.node import Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Rule, op_def
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import shape_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2, subtract
from flowrt.graph.ops.elementwise.comparison import greater
from flowrt.graph.ops.lists.stacked_lists import tensor_list_concat
from flowrt.graph.ops.lists.tensor_lists import (
    STACK,
    empty_tensor_list,
    format_element_shape,
    swapping,
    tensor_list_pop_back,
    tensor_list_push_back,
)
from flowrt.graph.shapes import num_elements

_ON_STACK: dict[str, Any] = {STACK: True}

_COUNTER = "_counter"
"""Private attr of a loop with an iteration counter: the index of the counter variable."""

_STACKS = "_stacks"
"""Private attr of a loop with lists of saved values: the indices of these variables."""


class _Stack(NamedTuple):
    """A list that the body pushes onto, or a loop in it: its outer initial value, its parameter, the list
    after the pushes.
    """

    initial: Tensor
    parameter: Tensor
    pushed: Tensor


@contextlib.contextmanager
def _beside(loop: Operation) -> Iterator[None]:
    """Operations made inside are inputs of the forward ``loop``, at its stage; they are no derivatives."""
    graph, attrs = loop.graph, loop.node.attrs
    stage = {STAGE: attrs[STAGE]} if STAGE in attrs else {}
    with (
        graph, graph.control_dependencies(None), graph.name_scope(f"{loop.name}/"),
        graph.attributes_by(lambda made: stage), graph.derivatives_of(None),
    ):  # fmt: skip
        yield


class _Popped(NamedTuple):
    """A list in the gradient's loop: its parameter, and the list after the pop; None if a loop pops."""

    parameter: Tensor
    rest: Tensor | None


@final
class _Loop:
    """The gradient of a While."""

    def __init__(self, op: Operation, dys: Sequence[Any]) -> None:
        self._op, self._dys, self._swapping = op, dys, swapping(op)
        self._function: Subgraph = op.node.attrs["body"]
        self._forward = FuncGraph.of(self._function, op.graph, f"the body of {op.name!r}")
        self._parameters = list(self._forward.parameters)
        self._results = [self._forward.tensor(ref) for ref in self._function.fetches]
        self._is_invariant = [p is r for p, r in zip(self._parameters, self._results, strict=True)]
        self._position = {p: i for i, p in enumerate(self._parameters)}
        self._stacks = self._known_stacks()
        """Index among the loop variables of the list for each saved value of the body."""
        self._new_stacks: dict[Tensor, _Stack] = {}
        self._popped: dict[Tensor, _Popped] = {}
        self._outer = get_default_graph()
        self._graph = Gradient(self._outer, self._forward, op, self._keep)

    def run(self) -> list[Any]:
        found: list[Any] = [
            dy if stays else None for dy, stays in zip(self._dys, self._is_invariant, strict=True)
        ]
        active, reached = self._active()
        if not active:
            return found
        graph, parameters = self._graph, self._parameters
        count = graph.parameter(TensorSpec(dtypes.int32, ()), "remaining")
        seeds = [graph.parameter(spec_of_gradient(parameters[k]), "gradient") for k in active]
        shares = graph.backpropagate([self._results[k] for k in active], seeds, parameters)
        sums = [
            _sum(graph, i, self._op.inputs[i], shares[parameters[i].ref], joins=not self._swapping)
            for i in sorted(reached)
            if self._is_invariant[i] and shares.get(parameters[i].ref)
        ]
        with graph:
            gradients = [self._carried(parameters[k], shares) for k in active]
            results = [subtract(count, 1), *gradients, *[r for s in sums for r in s.results]]
        results += [_rest_of(parameter) if r is None else r for parameter, r in self._popped.values()]
        trips, lists = self._extend()
        initial = [trips, *[self._seed(k) for k in active], *[i for s in sums for i in s.initial], *lists]
        parameters_of_all = [count, *seeds, *[p for s in sums for p in s.parameters]]
        parameters_of_all += [popped.parameter for popped in self._popped.values()]
        outputs = iter(self._build(initial, parameters_of_all, results)[1:])
        for k in active:
            found[k] = next(outputs)
        for one in sums:
            i = one.position
            total, direct = one.total([next(outputs) for _ in one.initial]), found[i]
            found[i] = total if direct is None else total_of([direct, total], one.argument)
        return found

    def _active(self) -> tuple[list[int], set[int]]:
        """Indices of varying variables with gradients, and those of all variables that gradients reach."""
        varying = [k for k, stays in enumerate(self._is_invariant) if not stays]
        active = {
            k for k in varying if self._dys[k] is not None and is_differentiable(self._parameters[k].dtype)
        }
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

    def _known_stacks(self) -> dict[Tensor, int]:
        """The lists of values of the body that earlier gradients read."""
        found: dict[Tensor, int] = {}
        for i in self._op.node.attrs.get(_STACKS, ()):
            result = self._results[i]
            found[result if _is_stack(result) else result.op.inputs[1]] = i
        return found

    def _keep(self, tensor: Tensor) -> Tensor:
        """``tensor`` of the same iteration, in the gradient's loop."""
        invariant = self._recomputed(tensor)
        if invariant is not None:
            return invariant
        if tensor not in self._stacks:
            self._new_stacks[tensor] = self._new_stack(tensor)
        graph = self._graph
        parameter = graph.parameter(TensorSpec(dtypes.variant, tensor.spec.shape), "kept")
        if self._is_continued(tensor):
            self._popped[tensor] = _Popped(parameter, None)
            return parameter
        with graph, graph.control_dependencies(None):
            rest, value = tensor_list_pop_back(
                parameter,
                format_element_shape(tensor.spec.shape),
                element_dtype=tensor.dtype,
                **self._swapping,
            )
        self._popped[tensor] = _Popped(parameter, rest)
        return value

    def _new_stack(self, tensor: Tensor) -> _Stack:
        forward, dtype = self._forward, tensor.dtype
        is_continued = _is_stack(tensor) and not _has_readers(tensor)
        if is_continued:
            dtype = tensor.op.inputs[tensor.index].op.get_attr("element_dtype")
        with _beside(self._op):
            initial = empty_tensor_list(
                format_element_shape(tensor.spec.shape), -1, element_dtype=dtype, name="stack"
            )
        parameter = forward.parameter(initial.spec, "stack")
        if is_continued:
            inputs = list(tensor.op.node.inputs)
            inputs[tensor.index] = parameter.ref
            tensor.op.mutate(inputs=tuple(inputs))
            return _Stack(initial, parameter, tensor)
        with forward, forward.control_dependencies(None):
            pushed = tensor_list_push_back(
                parameter, tensor, element_dtype=tensor.dtype, **_ON_STACK, **self._swapping
            )
        return _Stack(initial, parameter, pushed)

    def _is_continued(self, tensor: Tensor) -> bool:
        """Whether ``tensor``, which is kept, is a list that an inner loop continues."""
        new = self._new_stacks.get(tensor)
        kept = self._results[self._stacks[tensor]] if new is None else new.pushed
        return kept is tensor

    def _recomputed(self, tensor: Tensor) -> Tensor | None:
        """``tensor`` recomputed in the gradient's loop, if it is loop-invariant."""
        op = tensor.op
        if not op.op_def.is_pure or op.control_inputs or not op.inputs or not self._is_constant(op):
            return None
        graph = self._graph
        inputs = [graph.capture(t) for t in op.inputs]
        with graph.control_dependencies(None):
            copied = graph.add(
                op.op_def,
                graph.unique_absolute(op.name),
                inputs,
                op.node.attrs,
                [t.dtype for t in op.outputs],
            )
        return copied.outputs[tensor.index]

    def _is_constant(self, op: Operation) -> bool:
        """Whether ``op`` is loop-invariant: it applies pure ops to invariants."""
        seen: set[Operation] = set()
        stack = [op]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current.type == "_Feed":
                if not self._is_invariant[self._position[current.outputs[0]]]:
                    return False
            elif not current.op_def.is_pure or current.control_inputs:
                return False
            stack += [t.op for t in current.inputs]
        return True

    def _extend(self) -> tuple[Tensor, list[Tensor]]:
        """Make the forward loop count its iterations and save the values that the gradient reads. Returns the
        number of iterations and the lists.
        """
        op, forward = self._op, self._forward
        new = self._new_stacks.values()
        counter = op.node.attrs.get(_COUNTER)
        inputs = [stack.initial for stack in new]
        added = [stack.pushed for stack in new]
        first = len(op.inputs)
        attrs: dict[str, Any] = {_STACKS: (*op.node.attrs.get(_STACKS, ()), *range(first, first + len(new)))}
        parameters = [*self._parameters, *[stack.parameter for stack in new]]
        if counter is None:
            attrs[_COUNTER] = counter = first + len(new)
            with _beside(op):
                inputs.append(constant_tensor(np.zeros((), np.int32), "count"))
            parameters.append(forward.parameter(TensorSpec(dtypes.int32, ()), "count"))
            with forward, forward.control_dependencies(None):
                added.append(add_v2(parameters[-1], 1))
        positions = self._stacks | {t: first + i for i, t in enumerate(self._new_stacks)}
        if inputs:
            forward.parameters = parameters
            _extend_loop(op, forward, inputs, [*self._results, *added], attrs)
        elif self._changed():
            op.mutate(attrs={**op.node.attrs, "body": forward.again(self._results, self._function)})
        lists = [op.outputs[positions[tensor]] for tensor in self._popped]
        return op.outputs[counter], lists

    def _changed(self) -> bool:
        """Whether gradients of inner operations have extended these with outputs."""
        return any(
            self._function.nodes.get(o.name) is not o.node
            for o in self._forward.get_operations()
            if o.name in self._function.nodes
        )

    # --- the gradient's loop

    def _build(self, initial: list[Tensor], parameters: list[Tensor], results: list[Tensor]) -> list[Tensor]:
        graph, outer = self._graph, self._outer
        condition = FuncGraph(outer, f"the gradient of {self._op.name!r}")
        with condition:
            inside = [condition.parameter(p.spec) for p in parameters]
            holds = greater(inside[0], 0)
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
            **self._swapping,
        )
        return list(outputs)


def _is_stack(tensor: Tensor) -> bool:
    """Whether it is a list of values that a loop has saved."""
    return tensor.op.type == "While" and tensor.index in tensor.op.node.attrs.get(_STACKS, ())


def _has_readers(tensor: Tensor) -> bool:
    """Whether an operation of the tensor's graph reads it."""
    return any(tensor.ref in op.node.inputs for op in tensor.graph.get_operations())


def _rest_of(parameter: Tensor) -> Tensor:
    """The list that a loop leaves, which pops from ``parameter``."""
    for op in parameter.graph.get_operations():
        if parameter.ref in op.node.inputs:
            return op.outputs[op.node.inputs.index(parameter.ref)]
    return parameter


class _Sum:
    """The sum of an invariant's gradient over all iterations, as extra variables of the gradient's loop.
    ``initial`` are their initial values, ``parameters`` and ``results`` those in its body.
    """

    def __init__(self, position: int, argument: Tensor) -> None:
        self.position, self.argument = position, argument
        self.initial: list[Tensor] = []
        self.parameters: list[Tensor] = []
        self.results: list[Tensor] = []

    def total(self, outputs: list[Tensor]) -> Any:
        """The gradient, from the final values of the variables."""
        return outputs[0]

    def add(self, graph: Gradient, shares: Sequence[Any]) -> _Sum:
        """Accumulate ``shares`` in each iteration, all at once: adding one element to a list is O(1)."""
        self.initial = [zeros_like(self.argument)]
        self.parameters = [graph.parameter(spec_of_gradient(self.argument), "sum")]
        with graph:
            self.results = [convert_to_tensor(total_of([self.parameters[0], *shares], self.argument))]
        return self

    def keep(self, graph: Gradient, parts: Sequence[Tensor]) -> None:
        """Save ``parts`` of each iteration in lists."""
        for part in parts:
            shape = format_element_shape(part.spec.shape)
            self.initial.append(empty_tensor_list(shape, -1, element_dtype=part.dtype))
            parameter = graph.parameter(TensorSpec(dtypes.variant, part.spec.shape), "parts")
            self.parameters.append(parameter)
            with graph, graph.control_dependencies(None):
                pushed = tensor_list_push_back(parameter, part, element_dtype=part.dtype, **_ON_STACK)
            self.results.append(pushed)


@final
class _SliceSum(_Sum):
    """Sum of `IndexedSlices`: indices and values are saved, and concatenated after the loop."""

    def __init__(self, position: int, argument: Tensor, graph: Gradient, slices: list[Any]) -> None:
        super().__init__(position, argument)
        with graph:
            total = total_of(slices, argument)
            self._parts = [total.indices, total.values]  # type: ignore[union-attr]
        self.keep(graph, self._parts)

    def total(self, outputs: list[Tensor]) -> Any:
        indices, values = [_joined(o, part) for o, part in zip(outputs, self._parts, strict=True)]
        if self.argument.dtype is dtypes.resource:
            shape = convert_to_tensor(spec_of_gradient(self.argument).shape, dtypes.int32)
        else:
            shape = shape_op(self.argument)
        return IndexedSlices(values, indices, shape)


@final
class _JointSum(_Sum):
    """Sum of results of an op that distributes over concatenation (`OpDef.joined`), such as a product of
    matrices: its inputs are saved, and it is computed once after the loop. One large product takes half the
    time of many small ones, and nothing is accumulated.
    """

    def __init__(self, position: int, argument: Tensor, graph: Gradient, op: Operation) -> None:
        super().__init__(position, argument)
        self._op = op
        self.keep(graph, op.inputs)

    def total(self, outputs: list[Tensor]) -> Any:
        inputs = [_joined(o, part) for o, part in zip(outputs, self._op.inputs, strict=True)]
        attrs = {key: self._op.node.attrs[key] for key in self._op.op_def.attrs}
        return self._op.op_def(*inputs, **attrs)


def _sum(graph: Gradient, position: int, argument: Tensor, shares: list[Any], joins: bool) -> _Sum:
    """Summation of an invariant's gradient, in each iteration the sum of ``shares``. ``joins``: there is
    enough memory to save parts of all iterations.
    """
    if all(isinstance(share, IndexedSlices) for share in shares):
        return _SliceSum(position, argument, graph, shares)
    if joins and len(shares) == 1 and _is_joint(graph, shares[0]):
        return _JointSum(position, argument, graph, shares[0].op)
    return _Sum(position, argument).add(graph, shares)


def _is_joint(graph: Gradient, share: Any) -> bool:
    """Whether ``share`` is better computed once: from varying parts that are smaller than it."""
    if not isinstance(share, Tensor) or share.graph is not graph or share.op.op_def.joined is None:
        return False
    inputs = share.op.inputs
    axes = share.op.op_def.joined(share.op.node.attrs)
    sizes = [num_elements(t.spec.shape) for t in (*inputs, share)]
    if None in sizes or any(axis != 0 for axis in axes):
        return False
    parameters = set(graph.parameters)
    return sum(sizes[:-1]) < sizes[-1] and not any(t in parameters for t in inputs)  # type: ignore[arg-type,operator]


def _joined(handle: Tensor, part: Tensor) -> Tensor:
    """The elements of a list, concatenated."""
    tail = [-1 if d is None else d for d in (part.spec.shape or ())[1:]]
    return tensor_list_concat(handle, [-1, *tail], [], element_dtype=part.dtype)[0]


def _reached(roots: Sequence[Tensor]) -> set[Ref]:
    """The tensors that the gradients of ``roots`` reach."""
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


def _extend_loop(
    op: Operation, body: FuncGraph, inputs: Sequence[Tensor], results: Sequence[Tensor], attrs: dict[str, Any]
) -> list[Tensor]:
    """Add variables with initial values ``inputs`` to the loop ``op``; ``body`` has parameters and
    ``results`` for them after its own. Returns their final values.
    """
    before = op.node.attrs
    condition = FuncGraph.of(before["cond"], op.graph, f"the condition of {op.name!r}")
    holds = condition.tensor(before["cond"].fetches[0])
    for tensor in inputs:
        condition.parameter(tensor.spec)
    changed = {
        **attrs,
        "body": body.again(results, before["body"]),
        "cond": condition.again([holds], before["cond"]),
        "T": (*before["T"], *[t.dtype for t in inputs]),
    }
    return op.extend(inputs, changed, [t.spec for t in inputs])


def while_jvp(op: Operation, *tangents: Any) -> list[Any]:
    """The tangents of a loop's variables, as extra variables of the loop."""
    function: Subgraph = op.node.attrs["body"]
    body = FuncGraph.of(function, op.graph, f"the body of {op.name!r}")
    parameters, outputs = list(body.parameters), list(op.outputs)
    results = [body.tensor(ref) for ref in function.fetches]
    moving = _moving(parameters, results, {i for i, t in enumerate(tangents) if t is not None})
    given = [body.parameter(spec_of_gradient(parameters[i]), "tangent") for i in moving]
    moved = tangents_of(body, results, [parameters[i] for i in moving], given)
    added = []
    for i, own in zip(moving, given, strict=True):
        stays = results[i] is parameters[i]
        with body:
            after = own if stays else moved[i]
            added.append(zeros_like(results[i]) if after is None else after)
    inputs = [
        zeros_like(op.inputs[i]) if tangents[i] is None else convert_to_tensor(tangents[i]) for i in moving
    ]
    finals = dict(zip(moving, _extend_loop(op, body, inputs, [*results, *added], {}), strict=True))
    return [finals.get(i) if outputs[i].dtype is not dtypes.resource else None for i in range(len(outputs))]


def _moving(parameters: Sequence[Tensor], results: Sequence[Tensor], given: set[int]) -> list[int]:
    """The variables with nonzero tangents in some iteration if those in ``given`` have them initially."""
    depends = [_reached([result]) for result in results]
    moving = set(given)
    while True:
        refs = {parameters[i].ref for i in moving}
        more = moving | {
            i
            for i, p in enumerate(parameters)
            if is_differentiable(p.dtype)
            and p.dtype is not dtypes.resource
            and not refs.isdisjoint(depends[i])
        }
        if more == moving:
            return sorted(moving)
        moving = more
