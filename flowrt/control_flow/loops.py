"""``while_loop``: a body is repeated while a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import flatten, pack_as
from flowrt.control_flow import functions
from flowrt.control_flow.signatures import joined, with_flow, without_source
from flowrt.control_flow.structures import difference, flow_of
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.effects import touches
from flowrt.graph.functions.control_flow import while_op
from flowrt.graph.node import TensorSpec
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.ops.elementwise.comparison import less, logical_and
from flowrt.graph.shapes import as_shape, compatible, format_shape, relax
from flowrt.graph.source import misuse
from flowrt.graph.typing import FunctionOf
from flowrt.nest import is_nested


def while_loop(
    cond: FunctionOf[Any],
    body: FunctionOf[Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: Any = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """The final ``loop_vars`` after repeating ``body(*loop_vars)`` while ``cond(*loop_vars)`` holds.

    ``loop_vars`` is a structure of tensors and TensorArrays; the body returns one like it, with the same
    dtypes and compatible shapes: a variable with a changing shape needs its ``shape_invariants`` (a structure
    of shapes, unknown dimensions None). ``maximum_iterations`` bounds the loop. A single variable is returned
    without its list, unless ``return_same_structure``. ``parallel_iterations`` is accepted; iterations of one
    device run in order. ``swap_memory`` keeps the values that gradients need from each iteration in host
    memory, if the loop is on a GPU; ``back_prop=False`` declares that there is no gradient.

    Raises `DTypeError` and `InvalidArgumentError`, naming the variable, if the body's result does not match.

    Example:
        >>> _, total = tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + i), (0, 0))
        >>> total.eval()
        np.int32(10)
    """
    functions.check_callable("while_loop", "cond", cond)
    functions.check_callable("while_loop", "body", body)
    if not flatten(loop_vars):
        raise misuse("while_loop: expected at least one loop variable; got none")
    if not isinstance(parallel_iterations, (int, np.integer)) or parallel_iterations < 1:
        message = f"while_loop: expected parallel_iterations of 1 or more; got {parallel_iterations!r}"
        raise misuse(message, DTypeError)
    with get_default_graph().name_scope(name or "while") as scope:
        loop = _Loop(scope, loop_vars, shape_invariants, maximum_iterations)
        options = {"parallel_iterations": int(parallel_iterations)}
        if not back_prop:
            options["_stop_gradient"] = True
        if swap_memory:
            options["_swap_memory"] = True
        packed = loop.build(cond, body, options)
    is_single = isinstance(loop_vars, (list, tuple)) and len(loop_vars) == 1
    return packed[0] if is_single and not return_same_structure else packed


class _Loop:
    """A While operation under construction."""

    def __init__(self, scope: str, loop_vars: Any, shape_invariants: Any, maximum_iterations: Any) -> None:
        self._outer, self._scope, self._structure = get_default_graph(), scope, loop_vars
        self._leaves = flatten(loop_vars)
        self._initial = [convert_to_tensor(flow_of(leaf)) for leaf in self._leaves]
        self._specs = [t.spec for t in self._initial]
        if shape_invariants is not None:
            self._widen(shape_invariants)
        self._limit = None
        if maximum_iterations is not None:
            self._limit = convert_to_tensor(maximum_iterations, name="maximum_iterations")
            if self._limit.spec.shape not in ((), None) or not self._limit.dtype.is_integer:
                raise misuse(f"while_loop: expected maximum_iterations to be an integer; got {self._limit!r}")

    def build(self, cond: FunctionOf[Any], body: FunctionOf[Any], options: dict[str, Any]) -> Any:
        what = repr(self._scope.rstrip("/"))
        condition = FuncGraph(self._outer, f"the condition of {what}")
        looped = FuncGraph(self._outer, f"the body of {what}")
        with condition:
            returned, count = self._called(cond, condition)
            holds = functions.as_predicate(convert_to_tensor(returned), "while_loop: cond")
            holds = condition.as_graph_element(holds)
            if count is not None:
                below = less(count, self._limit)
                holds = logical_and(below, holds)
        with looped:
            returned, count = self._called(body, looped)
            results = self._results(looped, body, returned)
            if count is not None:
                results = [add_v2(count, 1), *results]
        _lift_reads([condition, looped])
        inputs = functions.share_captures([condition, looped])
        captured = looped.parameters[len(looped.parameters) - len(inputs) :]
        initial = list(self._initial)
        if self._limit is not None:
            initial.insert(0, convert_to_tensor(0, self._limit.dtype))
        with self._outer.control_dependencies(functions.control_captures([condition, looped])):
            outputs = while_op(
                initial + inputs,
                cond=functions.without_placeholders(condition, condition.subgraph([holds])),
                body=functions.without_placeholders(looped, looped.subgraph([*results, *captured])),
                name=self._scope,
                **options,
            )
        condition.finalize()
        looped.finalize()
        first = 0 if self._limit is None else 1
        finals = outputs[first : first + len(self._leaves)]
        return self._packed(finals)

    def _called(self, function: Callable[..., Any], graph: FuncGraph) -> tuple[Any, Tensor | None]:
        """Call ``function`` with the loop variables inside ``graph``; its result, and a limit's counter."""
        arguments, count = self._parameters(graph)
        returned = function(*arguments) if isinstance(arguments, (list, tuple)) else function(arguments)
        functions.check_returned("while_loop", function, returned)
        return returned, count

    def _parameters(self, graph: FuncGraph) -> tuple[Any, Tensor | None]:
        """The loop variables inside ``graph``, and the counter of a loop with a limit."""
        count = None
        if self._limit is not None:
            count = graph.parameter(TensorSpec(self._limit.dtype, ()), "loop_counter")
        inside = [
            graph.parameter(spec, tensor.op.name.rpartition("/")[2])
            for spec, tensor in zip(self._specs, self._initial, strict=True)
        ]
        return self._packed(inside), count

    def _packed(self, tensors: Sequence[Tensor]) -> Any:
        leaves = [with_flow(leaf, t) for leaf, t in zip(self._leaves, tensors, strict=True)]
        return pack_as(self._structure, leaves)

    def _results(self, graph: FuncGraph, body: FunctionOf[Any], returned: Any) -> list[Tensor]:
        """The body's results, as tensors that match the loop variables."""
        structure = self._structure
        if isinstance(structure, (list, tuple)):
            returned = _as_items(structure, returned)
            if len(returned) != len(structure):
                raise misuse(
                    f"while_loop: expected {len(structure)} loop variable{'s' if len(structure) > 1 else ''}"
                    f" from {functions.described(body)}; got {len(returned)}"
                )
        elif isinstance(returned, (list, tuple)) and len(returned) == 1:
            returned = returned[0]
        leaves = flatten(returned)
        found = difference(structure, returned)
        if found is not None:
            raise misuse(
                f"while_loop: expected the structure of loop_vars from {functions.described(body)}:"
                f" {found.first}; got {found.second}{found.at}"
            )
        self._leaves = [joined(before, after) for before, after in zip(self._leaves, leaves, strict=True)]
        return [self._result(graph, position, leaf) for position, leaf in enumerate(leaves)]

    def _result(self, graph: FuncGraph, position: int, leaf: Any) -> Tensor:
        spec, name = self._specs[position], self._initial[position].name
        try:
            tensor = convert_to_tensor(flow_of(leaf), spec.dtype)
        except DTypeError as error:
            raise misuse(
                f"while_loop: expected the body to return {spec.dtype.name} for loop variable {position}"
                f" ({name!r}); {without_source(error)}",
                DTypeError,
            ) from None
        if tensor.graph is not graph:
            tensor = graph.as_graph_element(tensor)
        if relax(tensor.spec.shape, spec.shape) != spec.shape and spec.dtype is not dtypes.variant:
            raise misuse(
                f"while_loop: loop variable {position} ({name!r}) enters with shape"
                f" {format_shape(spec.shape)} and has shape {format_shape(tensor.spec.shape)} after one"
                " iteration. Pass shape_invariants, or call set_shape() in the body"
            )
        return tensor

    def _widen(self, shape_invariants: Any) -> None:
        shapes = _flat_shapes(self._structure, shape_invariants)
        for position, (spec, shape) in enumerate(zip(self._specs, shapes, strict=True)):
            if shape is None or spec.dtype is dtypes.variant:
                continue
            try:
                wanted = as_shape(shape)
            except InvalidArgumentError as error:
                message = f"while_loop: shape_invariants of loop variable {position}: {error.message}"
                raise misuse(message) from None
            if not compatible(spec.shape, wanted) or relax(spec.shape, wanted) != wanted:
                raise misuse(
                    f"while_loop: expected a shape invariant compatible with the initial value; got"
                    f" {format_shape(wanted)} for loop variable {position} of shape"
                    f" {format_shape(spec.shape)}"
                )
            self._specs[position] = TensorSpec(spec.dtype, wanted)


def _as_items(structure: Any, returned: Any) -> Any:
    """``returned`` as a list of loop variables like ``structure``; a single one may be returned without a
    list.
    """
    if not isinstance(returned, (list, tuple)):
        return [returned]
    is_one_nested = len(structure) == 1 and is_nested(structure[0])
    return [returned] if is_one_nested and len(returned) != 1 else returned


def _flat_shapes(structure: Any, shapes: Any) -> list[Any]:
    """One shape per leaf of ``structure``; a list of dimensions at a leaf is a shape."""
    if isinstance(structure, Mapping):
        fits = isinstance(shapes, Mapping) and shapes.keys() == structure.keys()
        pairs = [(structure[key], shapes[key]) for key in sorted(structure)] if fits else []
    elif isinstance(structure, (list, tuple)):
        fits = isinstance(shapes, (list, tuple)) and len(shapes) == len(structure)
        pairs = list(zip(structure, shapes, strict=True)) if fits else []
    else:
        return [shapes]
    if not fits:
        raise misuse(
            f"while_loop: expected shape_invariants with the structure of loop_vars, {structure!r:.80};"
            f" got {shapes!r:.80}"
        )
    return [s for a, b in pairs for s in _flat_shapes(a, b)]


def _lift_reads(graphs: Sequence[FuncGraph]) -> None:
    """Hoist reads of variables that the loop does not write, so gradients keep no value per iteration."""
    operations = [(graph, op) for graph in graphs for op in graph.get_operations()]
    handles = [{inner: outer for outer, inner in graph.captures.items()} for graph in graphs]
    outside = {inner.ref: outer for found in handles for inner, outer in found.items()}
    written = {
        outside[handle]
        for _, op in operations
        for handle, writes in touches(op.node)
        if writes and handle in outside
    }
    for graph, op in operations:
        if op.type == "ReadVariableOp" and outside.get(op.inputs[0].ref) not in (None, *written):
            graph.lift(op)
