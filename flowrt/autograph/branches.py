"""``if``, conditional expressions, ``and``, ``or``, ``not``, comparisons and ``assert``.

Rules of this file:
  1. A variable has one structure and dtype after both branches. Numbers and arrays become tensors if the
     branches differ; any other difference is an error with the user's line.
  2. A Python value that is the same after both branches stays one. Inside a branch the predicate is known: so
     ``if c: return x`` followed by ``return y`` has no path without a return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt import dtypes
from flowrt.autograph.outer_names import keeps_outside
from flowrt.autograph.variables import (
    Block,
    GetState,
    SetState,
    State,
    Undefined,
    UndefinedReturnValue,
    is_same,
    is_symbolic,
    is_value,
    spec_of,
    zeros,
)
from flowrt.base.structure import flatten, map_structure, pack_as, same_structure
from flowrt.control_flow import cond
from flowrt.control_flow.signatures import Signature
from flowrt.control_flow.trace import trace
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.functions.control_flow import call_op
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2, maximum, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, logical_and, logical_not, logical_or, not_equal
from flowrt.graph.ops.elementwise.math import abs_op, neg
from flowrt.graph.ops.text.assertions import Assert
from flowrt.graph.source import user_line


def if_stmt(
    pred: Any,
    body: Block,
    orelse: Block,
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    outputs: int,
) -> None:
    """``if pred: body`` ``else: orelse``. The first ``outputs`` of the variables are read afterwards."""
    if not is_symbolic(pred):
        if pred:
            body()
        else:
            orelse()
        return
    both = (keeps_outside("if", block, get_state) for block in (body, orelse))
    _If(convert_to_tensor(pred), get_state, set_state, names[:outputs]).run(*both)


class _MissingReturn(Exception):
    """One branch returned a value like ``like``, the other none."""

    def __init__(self, position: int, like: Any) -> None:
        self.position, self.like = position, like


@final
class _If:
    """An ``if`` over a tensor."""

    def __init__(self, pred: Tensor, get_state: GetState, set_state: SetState, names: Sequence[str]) -> None:
        self._pred, self._get, self._set, self._names = pred, get_state, set_state, names
        self._before = get_state()
        self._found: list[State] = []
        """The variables after each branch."""
        self._blanks: dict[int, Any] = {}
        """Specs of the placeholder values of a branch without a return."""

    def run(self, body: Block, orelse: Block) -> None:
        try:
            outputs = self._cond(body, orelse)
        except _MissingReturn as missing:
            self._blanks[missing.position] = missing.like
            outputs = self._cond(body, orelse)
        first, second = self._found
        leaves = zip(flatten(first), flatten(second), outputs, strict=True)
        after = [a if is_same(a, b) else out for a, b, out in leaves]  # cond has wrapped TensorArrays
        self._set((*pack_as(first, after), *self._before[len(first) :]))

    def _cond(self, body: Block, orelse: Block) -> list[Any]:
        self._found = []
        outputs = cond(
            self._pred, self._traced(body, True), self._traced(orelse, False), strict=True, name="if"
        )
        return list(outputs)

    def _traced(self, block: Block, holds: bool) -> Callable[[], list[Any]]:
        def branch() -> list[Any]:
            self._set(tuple(_given(value, self._pred, holds) for value in self._before))
            block()
            after = self._get()[: len(self._names)]
            self._found.append(tuple(self._blank(i, value) for i, value in enumerate(after)))
            if len(self._found) == 2:
                self._check(*self._found)
            return [leaf if is_value(leaf) else False for leaf in flatten(self._found[-1])]

        return branch

    def _blank(self, position: int, value: Any) -> Any:
        if isinstance(value, UndefinedReturnValue) and position in self._blanks:
            return map_structure(zeros, self._blanks[position])
        return value

    def _check(self, first: State, second: State) -> None:
        """Raises unless every variable has one form after both branches."""
        for position, (name, a, b) in enumerate(zip(self._names, first, second, strict=True)):
            missing = [isinstance(value, UndefinedReturnValue) for value in (a, b)]
            if missing[0] != missing[1]:
                raise _MissingReturn(position, map_structure(spec_of, b if missing[0] else a))
            if isinstance(a, Undefined) != isinstance(b, Undefined):
                raise InvalidArgumentError(
                    f"if: expected a value for variable {name!r} in both branches or before the if, as it is"
                    f" used afterwards; got {a!r:.60} and {b!r:.60}",
                    source=user_line(),
                )
            if not same_structure(a, b) or not all(
                is_same(x, y) or (is_value(x) and is_value(y))
                for x, y in zip(flatten(a), flatten(b), strict=True)
            ):
                raise InvalidArgumentError(
                    f"if: expected variable {name!r} to be convertible to tensors after both branches; got"
                    f" {a!r:.60} and {b!r:.60}",
                    source=user_line(),
                )
            for x, y in zip(flatten(a), flatten(b), strict=True):
                if not is_same(x, y) and spec_of(x).dtype is not spec_of(y).dtype:
                    raise DTypeError(
                        f"if: expected one dtype for variable {name!r} after both branches; got"
                        f" {spec_of(x).dtype.name} and {spec_of(y).dtype.name}. Use flowrt.cast()",
                        source=user_line(),
                    )


def _given(value: Any, pred: Tensor, holds: bool) -> Any:
    """``value`` where ``pred`` is known to hold, or not."""
    if value is pred:
        return holds
    if pred.op.op_def is logical_not and value is pred.op.inputs[0]:
        return not holds
    return value


def if_exp(pred: Any, if_true: Block, if_false: Block, text: str) -> Any:
    """``if_true() if pred else if_false()``."""
    if is_symbolic(pred):
        return cond(convert_to_tensor(pred), if_true, if_false, strict=True, name="if")
    return if_true() if pred else if_false()


# --- expressions


def and_(a: Block, b: Block) -> Any:
    """``a() and b()``; b runs only if a holds, or if that is not known."""
    left = a()
    return _connected(left, b, logical_and, decided=False) if is_symbolic(left) else left and b()


def or_(a: Block, b: Block) -> Any:
    """``a() or b()``; b runs only if a does not hold, or if that is not known."""
    left = a()
    return _connected(left, b, logical_or, decided=True) if is_symbolic(left) else left or b()


def _connected(left: Any, b: Block, op: Callable[..., Any], decided: bool) -> Any:
    """``op(left, b())``; if ``left`` is ``decided``, so is the result, and b does not run."""

    def truth() -> Tensor:
        return convert_to_tensor(b(), dtypes.bool_)

    signature = Signature(truth, "truth")
    right = trace(truth, "truth", signature, signature.bind((), {}), ())
    if _is_harmless(right.function):
        return op(left, right.call(()))
    outcomes = [lambda: decided, lambda: right.call(())]
    if_true, if_false = outcomes if decided else reversed(outcomes)
    return cond(convert_to_tensor(left), if_true, if_false, name="or" if decided else "and")


_TOTAL = frozenset((add_v2, subtract, multiply, neg, abs_op, minimum, maximum, cast_op))
"""Elementwise operations that are defined for all integers: division is not."""


def _is_harmless(function: Subgraph) -> bool:
    """Whether it is cheap and cannot fail, so that it may run without a branch."""
    return all(_is_harmless_node(node) for node in function)


def _is_harmless_node(node: Node) -> bool:
    op = node.op
    if op is call_op:
        return all(_is_harmless(called) for called in owned_subgraphs(node.attrs))
    if op in _TOTAL or op.name in ("_Feed", "Const"):
        return True
    is_total = all(spec.dtype.is_floating or spec.dtype.is_bool for spec in node.outputs)
    return op.is_pure and op.elementwise and is_total


def not_(a: Any) -> Any:
    return logical_not(a) if is_symbolic(a) else not a


def eq(a: Any, b: Any) -> Any:
    """``a == b``: of tensors by value."""
    return equal(a, b) if is_symbolic(a) or is_symbolic(b) else a == b


def not_eq(a: Any, b: Any) -> Any:
    return not_equal(a, b) if is_symbolic(a) or is_symbolic(b) else a != b


def assert_stmt(holds: Any, message: Block) -> None:
    """``assert holds, message``; of a tensor at run time."""
    if is_symbolic(holds):
        Assert(holds, [message() or "assertion failed"])
    elif not holds:
        raise AssertionError(message())
