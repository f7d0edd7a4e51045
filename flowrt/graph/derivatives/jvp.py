"""Forward-mode differentiation of one op, from its ``jvp`` rule.

`flowrt.graph.derivatives.forward_mode` propagates tangents through a whole graph, with one call of
`apply_jvp` per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from flowrt.dtypes import INEXACT
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.derivatives.gradients import apply_vjp, as_list, gradients
from flowrt.graph.op_def import BY_VJP, LINEAR, NONDIFFERENTIABLE, Rule
from flowrt.graph.op_facets import Jvp
from flowrt.graph.ops.base.filling import zeros_like_op


@final
class TangentRule:
    """The derivative of one operation, given by a function ``jvp(op, *input_tangents)`` that is linear in the
    tangents.

    Called as a ``vjp`` rule, it is the transpose of that function. ``Graph.gradient_functions`` may hold one.
    """

    def __init__(self, jvp: Jvp) -> None:
        self.jvp = jvp

    def __call__(self, op: Operation, *dys: Tensor | None) -> list[Any]:
        dummies = [zeros_like_op(x) if x.dtype in INEXACT else None for x in op.inputs]
        moved = as_list(self.jvp(op, *dummies))
        return _transpose(op, moved, dummies, dys)


def jvp_rule(op: Operation) -> Jvp | Rule:
    """The rule for ``op``: that of its definition, or that of the gradient that overrides it."""
    override = op.node.attrs.get("_gradient_op_type")
    if override is None:
        return op.op_def.jvp
    given = op.graph.gradient_functions.get(override)
    return given.jvp if isinstance(given, TangentRule) else BY_VJP


def apply_jvp(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tangents of ``op``'s outputs, from those of its inputs; None is zero.

    Raises `InvalidArgumentError` if the number of tangents from the rule is not that of ``op``'s outputs, and
    what the rule raises.
    """
    rule = jvp_rule(op)
    if rule is NONDIFFERENTIABLE or all(t is None for t in tangents):
        return [None] * len(op.outputs)
    if rule is LINEAR:
        return _apply_linear(op, tangents)
    if isinstance(rule, Rule):
        return _transpose_twice(op, tangents)
    count = len(op.outputs)  # an operation that owns functions may have more of them afterwards
    moved = as_list(rule(op, *tangents))
    if len(moved) != count:
        raise op.error(InvalidArgumentError, f"its jvp: expected {count} tangents; got {len(moved)}")
    return moved


def _apply_linear(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The op applied to the tangents; host inputs and integer inputs stay unchanged."""
    inputs: list[Any] = [
        x if x.dtype not in INEXACT else zeros_like_op(x) if t is None else t
        for x, t in zip(op.inputs, tangents, strict=True)
    ]
    arguments: list[Any] = []
    for argument in op.op_def.inputs:
        count = argument.length(op.node.attrs)
        taken, inputs = inputs[:count], inputs[count:]
        arguments.append(taken if argument.is_list else taken[0])
    attrs = {key: op.node.attrs[key] for key in op.op_def.attrs}
    return as_list(op.op_def(*arguments, **attrs))


def _transpose_twice(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """J t as the gradient of v -> Jᵀ v, which is linear in v (J. Townsend, 2017)."""
    dummies = [zeros_like_op(y) if y.dtype in INEXACT else None for y in op.outputs]
    return _transpose(op, apply_vjp(op, dummies), dummies, tangents)


def _transpose(
    op: Operation, results: Sequence[Any], arguments: list[Tensor | None], along: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The transpose at ``along`` of the linear function that was built from ``arguments`` to ``results``.

    Inputs and outputs of ``op`` are constants in it. Marking them as such bounds the search for paths, which
    would otherwise visit all ancestors of ``op``: a sweep over n operations would take n² steps.
    """
    pairs = [
        (convert_to_tensor(result), t)
        for result, t in zip(results, along, strict=True)
        if result is not None and t is not None
    ]
    if not pairs:
        return [None] * len(arguments)
    ys, dys = ([pair[i] for pair in pairs] for i in range(2))
    xs = [x for x in arguments if x is not None]
    found = iter(gradients(ys, xs, dys, stop_gradients=[*op.inputs, *op.outputs]))
    shares = [None if x is None else next(found) for x in arguments]
    return [None if share is None else convert_to_tensor(share) for share in shares]
