"""Branches and loops in the graph: ``cond``, ``case``, ``switch_case``, ``while_loop``, under TensorFlow's
names.

A branch or body is a Python function, called once while the graph is built. What it makes becomes a function
of the graph (`flowrt.graph.func_graph`), owned by one If, Case or While operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.data.structure import flatten, pack_as, same_structure
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.effects import touches
from flowrt.graph.func_graph import FuncGraph
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import op_def
from flowrt.graph.ops.identities import identity
from flowrt.graph.ops.script import group
from flowrt.graph.shapes import Shape, as_shape, compatible, format_shape, relax
from flowrt.graph.source import user_line

# --- branches


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """``true_fn()`` if ``pred`` (a bool scalar) holds, else ``false_fn()``: only that one runs.

    Both return the same structure of tensors with the same dtypes; a list or tuple of one tensor comes back
    as the tensor, unless ``strict``. Operations may stand for results: they run with their branch. Raises
    `DTypeError` for a Python bool, for what is not callable and for dtypes that differ, and
    `InvalidArgumentError` for structures that differ.
    """
    true_fn, false_fn = fn1 if true_fn is None else true_fn, fn2 if false_fn is None else false_fn
    if isinstance(pred, bool):
        raise DTypeError(
            "cond: expected pred to be a tensor; got a Python bool. Use Python's if", source=user_line()
        )
    _check_callable("cond", "true_fn", true_fn)
    _check_callable("cond", "false_fn", false_fn)
    graph = get_default_graph()
    with graph.name_scope(name or "cond") as scope:
        predicate = graph.as_graph_element(_predicate(convert_to_tensor(pred, name="pred")))
        branches = {"true_fn": true_fn, "false_fn": false_fn}
        traced = _trace_branches("cond", branches, scope)
        return _branch_op(
            "If",
            traced,
            strict,
            lambda inputs, functions, kinds: op_def("If")(
                predicate, inputs, then_branch=functions[0], else_branch=functions[1], Tout=kinds, name=scope
            ),
        )


def switch_case(
    branch_index: Any,
    branch_fns: Any,
    default: Callable[[], Any] | None = None,
    name: str = "switch_case",
) -> Any:
    """``branch_fns[branch_index]()``, or ``default()`` (the last branch if None) for an index that has none.

    ``branch_fns`` are callables, or pairs ``(index, callable)``, or a dict of them. Raises as `cond`.
    """
    functions = _indexed(branch_fns)
    if default is None:
        default = functions[max(functions)]
    _check_callable("switch_case", "default", default)
    graph = get_default_graph()
    with graph.name_scope(name) as scope:
        index = _scalar(convert_to_tensor(branch_index, dtypes.int32, name="branch_index"), "branch_index")
        index = graph.as_graph_element(index)
        count = max(functions) + 1
        ordered: dict[str, Any] = {f"branch {i}": functions.get(i, default) for i in range(count)}
        ordered["default"] = default
        less, select = op_def("Less"), op_def("SelectV2")
        negative = less(index, 0)
        index = select(negative, count, index)
        traced = _trace_branches("switch_case", ordered, scope)
        return _branch_op(
            "Case",
            traced,
            False,
            lambda inputs, subgraphs, kinds: op_def("Case")(
                index, inputs, branches=subgraphs, Tout=kinds, name=scope
            ),
        )


def _indexed(branch_fns: Any) -> dict[int, Callable[[], Any]]:
    items = _items("switch_case: expected branch_fns", branch_fns)
    if not items:
        raise InvalidArgumentError("switch_case: expected at least one branch; got none", source=user_line())
    pairs = items if all(isinstance(i, tuple) and len(i) == 2 for i in items) else list(enumerate(items))
    found: dict[int, Callable[[], Any]] = {}
    for index, function in pairs:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0 or index in found:
            raise InvalidArgumentError(
                f"switch_case: expected different indices from 0 on; got {index!r}", source=user_line()
            )
        _check_callable("switch_case", f"branch {index}", function)
        found[index] = function
    return found


def _items(expected: str, given: Any) -> list[Any]:
    """The items of a list or of a dict. Raises `DTypeError`, which begins with ``expected``."""
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, (list, tuple)):
        raise DTypeError(f"{expected} to be a list or a dict; got {given!r:.80}", source=user_line())
    return list(given)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """The result of the first function whose predicate holds, or of ``default``.

    ``pred_fn_pairs`` are pairs ``(bool scalar, callable)`` or a dict of them. With ``exclusive`` at most one
    predicate may hold, and without a ``default`` at least one must: a step fails with `InvalidArgumentError`
    otherwise. Raises as `cond`.
    """
    pairs = _items("case: expected pred_fn_pairs", pred_fn_pairs)
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise DTypeError(
            f"case: expected pairs (predicate, callable); got {pred_fn_pairs!r:.80}", source=user_line()
        )
    for position, (_, function) in enumerate(pairs):
        _check_callable("case", f"function {position}", function)
    graph = get_default_graph()
    with graph.name_scope(name):
        predicates = [_predicate(convert_to_tensor(p)) for p, _ in pairs]
        checks = (
            [_check_cases(predicates, exclusive, default is None)] if exclusive or default is None else []
        )
        with graph.control_dependencies(checks):
            predicates = [identity(p) for p in predicates]
        functions = [function for _, function in pairs]
        if default is None:
            default = functions.pop()
            predicates.pop()
        _check_callable("case", "default", default)
        return _nested_conds(list(zip(predicates, functions, strict=True)), default, strict)


def _nested_conds(pairs: list[tuple[Tensor, Any]], default: Callable[[], Any], strict: bool) -> Any:
    if not pairs:
        return default()
    (predicate, function), rest = pairs[0], pairs[1:]
    return cond(predicate, function, lambda: _nested_conds(rest, default, strict), strict=strict)


def _check_cases(predicates: list[Tensor], exclusive: bool, is_total: bool) -> Operation:
    """Fails the step unless at most (``exclusive``) and at least (``is_total``) one predicate holds."""
    held = op_def("Sum")(op_def("Cast")(op_def("Pack")(predicates), DstT=dtypes.int32), 0)
    checks = []
    if exclusive:
        message = "case: expected at most one predicate to hold, because exclusive=True; got"
        checks.append(op_def("Assert")(op_def("LessEqual")(held, 1), [message, *predicates]))
    if is_total:
        message = "case: expected one of the predicates to hold, because there is no default; got"
        checks.append(op_def("Assert")(op_def("GreaterEqual")(held, 1), [message, *predicates]))
    checked: Operation = group(*checks)
    return checked


class _Branch(NamedTuple):
    """A traced branch: its name in errors, its graph, what it returned, and that as tensors."""

    name: str
    graph: FuncGraph
    result: Any
    tensors: list[Tensor]


def _trace_branches(what: str, functions: Mapping[str, Any], scope: str) -> list[_Branch]:
    outer = get_default_graph()
    branches = [_trace(f"{what}: {name}", function, outer, scope) for name, function in functions.items()]
    first = branches[0]
    for other in branches[1:]:
        _check_same_structure(what, first, other)
    return branches


def _trace(name: str, function: Callable[[], Any], outer: Graph, scope: str) -> _Branch:
    graph = FuncGraph(outer, f"a branch of {scope.rstrip('/')!r}")
    with graph:
        result = function()
        tensors = [_as_result(graph, leaf) for leaf in flatten(result)] if result is not None else []
    return _Branch(name, graph, result, tensors)


def _as_result(graph: FuncGraph, leaf: Any) -> Tensor:
    """A leaf of what a branch returned as a tensor of ``graph``; an operation becomes a tensor behind it."""
    if isinstance(leaf, Operation):
        with graph.control_dependencies([leaf]):
            return convert_to_tensor(True)
    tensor = convert_to_tensor(_flow(leaf))
    return tensor if tensor.graph is graph else graph.as_graph_element(tensor)


def _check_same_structure(what: str, first: _Branch, other: _Branch) -> None:
    is_same = (first.result is None) == (other.result is None)  # None is no result, not a leaf
    if not is_same or not same_structure(_shallow(first.result), _shallow(other.result)):
        raise InvalidArgumentError(
            f"{what}: expected branches that return one structure; got {first.result!r:.100}"
            f" from {first.name}"
            f" and {other.result!r:.100} from {other.name}",
            source=user_line(),
        )
    for a, b in zip(first.tensors, other.tensors, strict=True):
        if a.dtype is not b.dtype:
            raise DTypeError(
                f"{what}: expected branches that return the same dtypes; got {a.name!r} of"
                f" {a.dtype.name} from"
                f" {first.name} and {b.name!r} of {b.dtype.name} from {other.name}. Use flowrt.cast()",
                source=user_line(),
            )


def _shallow(result: Any) -> Any:
    """A list and a tuple count as the same, as in TensorFlow."""
    if type(result) in (list, tuple):
        return [_shallow(item) for item in result]
    return result


def _branch_op(kind: str, branches: list[_Branch], strict: bool, build: Callable[..., Any]) -> Any:
    """The operation over traced branches, and its outputs in their structure."""
    outer = get_default_graph()
    inputs = _share_captures([branch.graph for branch in branches])
    functions = [branch.graph.subgraph(branch.tensors) for branch in branches]
    first = branches[0]
    kinds = tuple(t.dtype for t in first.tensors)
    with outer.control_dependencies(_control_captures([branch.graph for branch in branches])):
        outputs = build(inputs, functions, kinds)
    for branch in branches:
        branch.graph.finalize()
    if first.result is None:
        return outputs
    leaves = [_with_flow(leaf, output) for leaf, output in zip(flatten(first.result), outputs, strict=True)]
    packed = pack_as(first.result, leaves)
    if not strict and isinstance(first.result, (list, tuple)) and len(first.result) == 1:
        return packed[0]
    return packed


def _share_captures(graphs: Sequence[FuncGraph]) -> list[Tensor]:
    """Give all functions the same parameters, in the same order: what any of them captured."""
    captured = list(dict.fromkeys(tensor for graph in graphs for tensor in graph.captured()))
    for graph in graphs:
        own = graph.parameters[: len(graph.parameters) - len(graph.captured())]
        graph.parameters = own + [graph.capture(tensor) for tensor in captured]
    return captured


def _lift_reads(graphs: Sequence[FuncGraph]) -> None:
    """Read a variable that the loop does not write in front of it: once, and its gradient need not keep the
    value of every iteration.
    """
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


def _control_captures(graphs: Sequence[FuncGraph]) -> list[Operation]:
    return list(dict.fromkeys(op for graph in graphs for op in graph.control_captures))


# --- loops


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: Any = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """``loop_vars``, replaced by ``body(*loop_vars)`` as long as ``cond(*loop_vars)`` holds.

    ``loop_vars`` is a structure of tensors and TensorArrays; the body returns one like it, with the same
    dtypes and with shapes that fit: a variable whose shape changes needs its ``shape_invariants`` (a
    structure of shapes, unknown dimensions None). ``maximum_iterations`` ends the loop in any case. One
    variable comes back as it is, unless ``return_same_structure``. ``parallel_iterations`` is accepted;
    iterations of one device run in order. ``swap_memory`` keeps what the gradient needs in host memory,
    ``back_prop=False`` says that there will be no gradient.

    Raises `DTypeError` and `InvalidArgumentError`, which name the variable, for what the body returns.
    """
    _check_callable("while_loop", "cond", cond)
    _check_callable("while_loop", "body", body)
    if not flatten(loop_vars):
        raise InvalidArgumentError(
            "while_loop: expected at least one loop variable; got none", source=user_line()
        )
    if not isinstance(parallel_iterations, (int, np.integer)) or parallel_iterations < 1:
        message = f"while_loop: expected parallel_iterations of 1 or more; got {parallel_iterations!r}"
        raise DTypeError(message, source=user_line())
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
        self._initial = [convert_to_tensor(_flow(leaf)) for leaf in self._leaves]
        self._specs = [t.spec for t in self._initial]
        if shape_invariants is not None:
            self._widen(shape_invariants)
        self._limit = None
        if maximum_iterations is not None:
            self._limit = convert_to_tensor(maximum_iterations, name="maximum_iterations")
            if self._limit.spec.shape not in ((), None) or not self._limit.dtype.is_integer:
                raise InvalidArgumentError(
                    f"while_loop: expected maximum_iterations to be an integer; got {self._limit!r}",
                    source=user_line(),
                )

    def build(self, cond: Callable[..., Any], body: Callable[..., Any], options: dict[str, Any]) -> Any:
        what = repr(self._scope.rstrip("/"))
        condition = FuncGraph(self._outer, f"the condition of {what}")
        looped = FuncGraph(self._outer, f"the body of {what}")
        with condition:
            arguments, count = self._parameters(condition)
            holds = _predicate(convert_to_tensor(self._call(cond, arguments)), "while_loop: cond")
            holds = condition.as_graph_element(holds)
            if count is not None:
                below = op_def("Less")(count, self._limit)
                holds = op_def("LogicalAnd")(below, holds)
        with looped:
            arguments, count = self._parameters(looped)
            results = self._results(looped, self._call(body, arguments))
            if count is not None:
                results = [op_def("AddV2")(count, 1), *results]
        _lift_reads([condition, looped])
        inputs = _share_captures([condition, looped])
        captured = looped.parameters[len(looped.parameters) - len(inputs) :]
        initial = list(self._initial)
        if self._limit is not None:
            initial.insert(0, convert_to_tensor(0, self._limit.dtype))
        with self._outer.control_dependencies(_control_captures([condition, looped])):
            outputs = op_def("While")(
                initial + inputs,
                cond=condition.subgraph([holds]),
                body=looped.subgraph([*results, *captured]),
                name=self._scope,
                **options,
            )
        condition.finalize()
        looped.finalize()
        first = 0 if self._limit is None else 1
        finals = outputs[first : first + len(self._leaves)]
        return self._packed(finals)

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
        leaves = [_with_flow(leaf, t) for leaf, t in zip(self._leaves, tensors, strict=True)]
        return pack_as(self._structure, leaves)

    def _call(self, function: Callable[..., Any], arguments: Any) -> Any:
        if isinstance(arguments, (list, tuple)):
            return function(*arguments)
        return function(arguments)

    def _results(self, graph: FuncGraph, returned: Any) -> list[Tensor]:
        """What the body returned, as tensors that fit the loop variables."""
        structure = self._structure
        if isinstance(structure, (list, tuple)) and len(structure) == 1:
            if not (isinstance(returned, (list, tuple)) and len(returned) == 1):
                returned = [returned]
        elif not isinstance(structure, (list, tuple)):
            returned = returned[0] if isinstance(returned, (list, tuple)) and len(returned) == 1 else returned
        if returned is None or not same_structure(_shallow(structure), _shallow(returned)):
            raise InvalidArgumentError(
                f"while_loop: expected a body that returns the structure of loop_vars,"
                f" {structure!r:.100}; got"
                f" {returned!r:.100}",
                source=user_line(),
            )
        leaves = flatten(returned)
        return [self._result(graph, position, leaf) for position, leaf in enumerate(leaves)]

    def _result(self, graph: FuncGraph, position: int, leaf: Any) -> Tensor:
        spec, name = self._specs[position], self._initial[position].name
        try:
            tensor = convert_to_tensor(_flow(leaf), spec.dtype)
        except DTypeError as error:
            raise DTypeError(
                f"while_loop: expected the body to return {spec.dtype.name} for loop variable {position}"
                f" ({name!r}); {error.message}",
                source=user_line(),
            ) from None
        if tensor.graph is not graph:
            tensor = graph.as_graph_element(tensor)
        if not _is_within(tensor.spec.shape, spec.shape) and spec.dtype is not dtypes.variant:
            raise InvalidArgumentError(
                f"while_loop: loop variable {position} ({name!r}) enters with shape"
                f" {format_shape(spec.shape)}"
                f" and has shape {format_shape(tensor.spec.shape)} after one iteration. Give"
                f" shape_invariants,"
                " or use set_shape() in the body",
                source=user_line(),
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
                raise InvalidArgumentError(message, source=user_line()) from None
            if not compatible(spec.shape, wanted) or not _is_within(relax(spec.shape, wanted), wanted):
                raise InvalidArgumentError(
                    f"while_loop: expected a shape invariant that the first value fits; got"
                    f" {format_shape(wanted)} for loop variable {position} of shape"
                    f" {format_shape(spec.shape)}",
                    source=user_line(),
                )
            self._specs[position] = TensorSpec(spec.dtype, wanted)


def _flat_shapes(structure: Any, shapes: Any) -> list[Any]:
    """One shape a leaf of ``structure``; lists of dimensions are shapes where it has a leaf."""
    if isinstance(structure, Mapping):
        fits = isinstance(shapes, Mapping) and shapes.keys() == structure.keys()
        pairs = [(structure[key], shapes[key]) for key in sorted(structure)] if fits else []
    elif isinstance(structure, (list, tuple)):
        fits = isinstance(shapes, (list, tuple)) and len(shapes) == len(structure)
        pairs = list(zip(structure, shapes, strict=True)) if fits else []
    else:
        return [shapes]
    if not fits:
        raise InvalidArgumentError(
            f"while_loop: expected shape_invariants like loop_vars, {structure!r:.80}; got {shapes!r:.80}",
            source=user_line(),
        )
    return [s for a, b in pairs for s in _flat_shapes(a, b)]


def _is_within(shape: Shape, wider: Shape) -> bool:
    """Whether every tensor of ``shape`` is one of ``wider``."""
    if wider is None:
        return True
    if shape is None or len(shape) != len(wider):
        return False
    return all(w is None or s == w for s, w in zip(shape, wider, strict=True))


# --- what both need


def _predicate(tensor: Tensor, what: str = "pred") -> Tensor:
    """``tensor`` as the bool scalar that decides. Raises `DTypeError` and `InvalidArgumentError`."""
    if tensor.dtype is not dtypes.bool_:
        raise DTypeError(f"{what}: expected a bool tensor; got {tensor!r}", source=user_line())
    return _scalar(tensor, what)


def _scalar(tensor: Tensor, what: str) -> Tensor:
    """``tensor``, of one element, as a scalar. Raises `InvalidArgumentError`."""
    shape = tensor.spec.shape
    if shape is not None and any(d not in (1, None) for d in shape):
        raise InvalidArgumentError(f"{what}: expected a scalar; got {tensor!r}", source=user_line())
    return tensor if shape == () else op_def("Reshape")(tensor, [])


def _check_callable(what: str, name: str, function: Any) -> None:
    if not callable(function):
        raise DTypeError(f"{what}: expected {name} to be callable; got {function!r}", source=user_line())


def _flow(leaf: Any) -> Any:
    """The tensor behind a leaf: a TensorArray's is its list."""
    return leaf.flow if hasattr(leaf, "_with_flow") else leaf


def _with_flow(leaf: Any, tensor: Tensor) -> Any:
    """A leaf like ``leaf`` around ``tensor``."""
    return leaf._with_flow(tensor) if hasattr(leaf, "_with_flow") else tensor
