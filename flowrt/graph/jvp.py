"""Forward-mode differentiation of one op, from its ``jvp`` rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.build import convert_to_tensor
from flowrt.graph.gradients import apply_vjp, gradients
from flowrt.graph.graph import Operation, Tensor
from flowrt.graph.op_def import BY_VJP, LINEAR, NONDIFFERENTIABLE, op_def


def apply_jvp(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tangents of ``op``'s outputs, from those of its inputs; None is zero."""
    rule = op.op_def.jvp
    if rule is NONDIFFERENTIABLE or all(t is None for t in tangents):
        return [None] * len(op.outputs)
    if rule is LINEAR:
        return _apply_linear(op, tangents)
    if rule is BY_VJP:
        return _transpose_twice(op, tangents)
    result = rule(op, *tangents)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _apply_linear(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The op itself on the tangents; inputs that say how, and integer ones, stay as they are."""
    inputs: list[Any] = [
        x if not (x.dtype.is_floating or x.dtype.is_complex) else op_def("ZerosLike")(x) if t is None else t
        for x, t in zip(op.inputs, tangents, strict=True)
    ]
    arguments: list[Any] = []
    for argument in op.op_def.inputs:
        count = 1
        if argument.is_list:
            count = (
                op.get_attr(argument.number_attr)
                if argument.number_attr
                else len(op.get_attr(argument.type_attr or ""))
            )
        taken, inputs = inputs[:count], inputs[count:]
        arguments.append(taken if argument.is_list else taken[0])
    attrs = {key: op.node.attrs[key] for key in op.op_def.attrs}
    result = op.op_def(*arguments, **attrs)
    return list(result) if isinstance(result, list) else [result]


def _transpose_twice(op: Operation, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """J t as the gradient of v -> Jᵀ v, which is linear in v (J. Townsend, 2017)."""
    differentiable = [y.dtype.is_floating or y.dtype.is_complex for y in op.outputs]
    dummies = [op_def("ZerosLike")(y) if d else None for y, d in zip(op.outputs, differentiable, strict=True)]
    dxs = apply_vjp(op, dummies)
    pairs = [
        (convert_to_tensor(dx), t)
        for dx, t in zip(dxs, tangents, strict=True)
        if dx is not None and t is not None
    ]
    if not pairs:
        return [None] * len(op.outputs)
    wanted = [v for v in dummies if v is not None]
    found = iter(gradients([dx for dx, _ in pairs], wanted, [t for _, t in pairs]))
    return [next(found) if d else None for d in differentiable]
