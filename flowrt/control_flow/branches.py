"""``cond``, ``case``, ``switch_case``: one of several functions runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowrt import dtypes
from flowrt.base.structure import flatten, pack_as
from flowrt.control_flow.functions import (
    as_predicate,
    as_scalar,
    check_callable,
    control_captures,
    share_captures,
    without_placeholders,
)
from flowrt.control_flow.signatures import joined, with_flow
from flowrt.control_flow.structures import Difference, difference, flow_of
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.functions.control_flow import case_op, if_op
from flowrt.graph.ops.array.concat_and_split import pack
from flowrt.graph.ops.array.reductions import sum_op
from flowrt.graph.ops.base.identities import cast_op, identity
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, less_equal, select_v2
from flowrt.graph.ops.text.assertions import assert_op
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.graph.typing import TensorLike


def cond(
    pred: TensorLike,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """``true_fn()`` if ``pred`` holds, else ``false_fn()``: only that one runs.

    Args:
        pred: A scalar tensor of bool.
        true_fn: A function without arguments, which returns a structure of tensors, or operations, which run
            with their branch.
        false_fn: One that returns the same structure, with the same dtypes.
        strict: Whether a list or tuple of one tensor stays one, instead of the tensor.

    Returns:
        What the functions return.

    Raises:
        DTypeError: ``pred`` is a Python bool, ``true_fn`` or ``false_fn`` cannot be called, or the dtypes
            differ.
        InvalidArgumentError: The structures differ.

    Example:
        >>> x = tf.constant(3.0)
        >>> tf.cond(x > 2.0, lambda: x * 10.0, lambda: x).eval()
        np.float32(30.0)
    """
    true_fn, false_fn = fn1 if true_fn is None else true_fn, fn2 if false_fn is None else false_fn
    if isinstance(pred, bool):
        raise misuse("cond: expected pred to be a tensor; got a Python bool. Use Python's if", DTypeError)
    check_callable("cond", "true_fn", true_fn)
    check_callable("cond", "false_fn", false_fn)
    graph = get_default_graph()
    with graph.name_scope(name or "cond") as scope:
        predicate = graph.as_graph_element(as_predicate(convert_to_tensor(pred, name="pred")))
        branches = {"true_fn": true_fn, "false_fn": false_fn}
        traced = _trace_branches("cond", branches, scope)
        return _branch_op(
            traced,
            strict,
            lambda inputs, functions, kinds: if_op(
                predicate, inputs, then_branch=functions[0], else_branch=functions[1], Tout=kinds, name=scope
            ),
        )


def switch_case(
    branch_index: TensorLike,
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
    check_callable("switch_case", "default", default)
    graph = get_default_graph()
    with graph.name_scope(name) as scope:
        index = as_scalar(convert_to_tensor(branch_index, dtypes.int32, name="branch_index"), "branch_index")
        index = graph.as_graph_element(index)
        count = max(functions) + 1
        ordered: dict[str, Any] = {f"branch {i}": functions.get(i, default) for i in range(count)}
        ordered["default"] = default
        index = select_v2(less(index, 0), count, index)
        traced = _trace_branches("switch_case", ordered, scope)
        return _branch_op(
            traced,
            False,
            lambda inputs, subgraphs, kinds: case_op(
                index, inputs, branches=subgraphs, Tout=kinds, name=scope
            ),
        )


def _indexed(branch_fns: Any) -> dict[int, Callable[[], Any]]:
    items = _items("switch_case: expected branch_fns", branch_fns)
    if not items:
        raise misuse("switch_case: expected at least one branch; got none")
    pairs = items if all(isinstance(i, tuple) and len(i) == 2 for i in items) else list(enumerate(items))
    found: dict[int, Callable[[], Any]] = {}
    for index, function in pairs:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0 or index in found:
            raise misuse(f"switch_case: expected distinct indices >= 0; got {index!r}")
        check_callable("switch_case", f"branch {index}", function)
        found[index] = function
    return found


def _items(expected: str, given: Any) -> list[Any]:
    """The items of a list or of a dict. Raises `DTypeError`, which begins with ``expected``."""
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, (list, tuple)):
        raise misuse(f"{expected} to be a list or a dict; got {given!r:.80}", DTypeError)
    return list(given)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """The result of the function of the first predicate that holds, or of ``default``.

    ``pred_fn_pairs`` are pairs ``(bool scalar, callable)`` or a dict of them. With ``exclusive`` at most one
    predicate may hold, and without a ``default`` at least one must: a step fails with `InvalidArgumentError`
    otherwise. Raises the errors of `cond`.

    Example:
        >>> x = tf.constant(2)
        >>> few, some, many = (lambda text=text: tf.constant(text) for text in ('few', 'some', 'many'))
        >>> tf.case([(x < 1, few), (x < 9, some)], default=many).eval()
        b'some'
    """
    pairs = _items("case: expected pred_fn_pairs", pred_fn_pairs)
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise misuse(f"case: expected pairs (predicate, callable); got {pred_fn_pairs!r:.80}", DTypeError)
    for position, (_, function) in enumerate(pairs):
        check_callable("case", f"function {position}", function)
    if default is not None:
        check_callable("case", "default", default)
    graph = get_default_graph()
    with graph.name_scope(name) as scope:
        predicates = [as_predicate(convert_to_tensor(p)) for p, _ in pairs]
        checks = _check_cases(predicates, exclusive, default is None)
        functions = [function for _, function in pairs]
        if default is None and len(functions) == 1:
            return _behind(checks, functions[0], strict, scope)
        with graph.control_dependencies(checks):
            predicates = [identity(p) for p in predicates]
        if default is None:
            predicates, default = predicates[:-1], functions.pop()
        return _nested_conds(list(zip(predicates, functions, strict=True)), default, strict)


def _behind(checks: list[Operation], function: Callable[[], Any], strict: bool, scope: str) -> Any:
    """``function()`` in a step that passes ``checks``: a Case of one branch."""
    traced = _trace_branches("case", {"function 0": function}, scope)
    with get_default_graph().control_dependencies(checks):
        return _branch_op(
            traced,
            strict,
            lambda inputs, functions, kinds: case_op(0, inputs, branches=functions, Tout=kinds, name=scope),
        )


def _nested_conds(pairs: list[tuple[Tensor, Any]], default: Callable[[], Any], strict: bool) -> Any:
    if not pairs:
        return default()
    (predicate, function), rest = pairs[0], pairs[1:]
    return cond(predicate, function, lambda: _nested_conds(rest, default, strict), strict=strict)


def _check_cases(predicates: list[Tensor], exclusive: bool, is_total: bool) -> list[Operation]:
    """Fail the step unless at most (``exclusive``) and at least (``is_total``) one predicate holds."""
    if not exclusive and not is_total:
        return []
    held = sum_op(cast_op(pack(predicates), DstT=dtypes.int32), 0)
    checks = []
    if exclusive:
        message = "case: expected at most one predicate to hold, because exclusive=True; got"
        checks.append(assert_op(less_equal(held, 1), [message, *predicates]))
    if is_total:
        message = "case: expected one of the predicates to hold, because there is no default; got"
        checks.append(assert_op(greater_equal(held, 1), [message, *predicates]))
    return [group(*checks)]


class _Branch(NamedTuple):
    """A traced branch: its name in errors, its graph, its result, and the result as tensors."""

    name: str
    graph: FuncGraph
    result: Any
    tensors: list[Tensor]


def _trace_branches(what: str, functions: Mapping[str, Any], scope: str) -> list[_Branch]:
    outer = get_default_graph()
    branches = [_trace(name, function, outer, scope) for name, function in functions.items()]
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
    """A leaf of a branch's result as a tensor of ``graph``; an operation becomes a dependent tensor."""
    if isinstance(leaf, Operation):
        with graph.control_dependencies([leaf]):
            return convert_to_tensor(True)
    tensor = convert_to_tensor(flow_of(leaf))
    return tensor if tensor.graph is graph else graph.as_graph_element(tensor)


def _check_same_structure(what: str, first: _Branch, other: _Branch) -> None:
    found = difference(first.result, other.result)
    if found is None and (first.result is None) != (other.result is None):
        found = Difference("", *(f"{result!r:.100}" for result in (first.result, other.result)))
    if found is not None:
        is_forgotten = first.result is None or other.result is None
        raise misuse(
            f"{what}: expected all branches to return the same structure; got {found.first} from {first.name}"
            f" and {found.second} from {other.name}{found.at}{'. Missing return?' if is_forgotten else ''}"
        )
    for a, b in zip(first.tensors, other.tensors, strict=True):
        if a.dtype is not b.dtype:
            raise misuse(
                f"{what}: expected all branches to return the same dtypes; got {a.name!r} of {a.dtype.name}"
                f" from {first.name} and {b.name!r} of {b.dtype.name} from {other.name}. Use flowrt.cast()",
                DTypeError,
            )


def _branch_op(branches: list[_Branch], strict: bool, build: Callable[..., Any]) -> Any:
    """The operation over traced branches, and its outputs in their structure."""
    outer = get_default_graph()
    inputs = share_captures([branch.graph for branch in branches])
    functions = [without_placeholders(b.graph, b.graph.subgraph(b.tensors)) for b in branches]
    first = branches[0]
    kinds = tuple(t.dtype for t in first.tensors)
    with outer.control_dependencies(control_captures([branch.graph for branch in branches])):
        outputs = build(inputs, functions, kinds)
    for branch in branches:
        branch.graph.finalize()
    if first.result is None:
        return outputs
    alternatives = zip(*(flatten(branch.result) for branch in branches), strict=True)
    leaves = [with_flow(joined(*each), output) for each, output in zip(alternatives, outputs, strict=True)]
    packed = pack_as(first.result, leaves)
    if not strict and isinstance(first.result, (list, tuple)) and len(first.result) == 1:
        return packed[0]
    return packed
