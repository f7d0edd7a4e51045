"""The sharding rule of an operation: of its op's ``axes``, or derived from other facts of the op.

    elementwise     all inputs and outputs share their dimensions, as they broadcast
    reduction       the reduced dimensions are contracted
    view            Reshape, Squeeze, ExpandDims: the dimensions are split into factors of matching sizes

An op with none of these has no rule: its inputs must be whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flowrt.dtypes import INEXACT
from flowrt.graph.layouts.sharding_rule import Dims, ShardingRule, bind_rule
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import Argument, OpDef, PartialValue, ShapeContext
from flowrt.graph.op_facets import LoopPattern
from flowrt.graph.shapes import is_static


def arguments_of(op: OpDef, attrs: Mapping[str, Any]) -> Sequence[Argument]:
    """The argument of each flattened input of a call with ``attrs``."""
    if not any(argument.is_list for argument in op.inputs):
        return op.inputs
    return [argument for argument in op.inputs for _ in range(argument.length(attrs))]


def rule_of(
    op: OpDef,
    attrs: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    value: Callable[[int], PartialValue],
) -> ShardingRule | None:
    """The rule of a call with these tensors; ``value(i)`` is the known part of host input i. Host inputs
    have no factors. None if there is no rule, or a shape is not static.
    """
    on_host = [argument.on_host for argument in arguments_of(op, attrs)]
    given = [spec.shape for spec, host in zip(inputs, on_host, strict=True) if not host]
    made = [spec.shape for spec in outputs]
    if not all(map(is_static, [*given, *made])):
        return None
    context = ShapeContext(op, attrs, [s.shape for s in inputs], [s.dtype for s in inputs], value)
    text = _text(context, given, made)
    rule = None if text is None else bind_rule(text, tuple(given), tuple(made))
    if rule is None:
        return None
    on_device = iter(rule.inputs)
    nothing: Sequence[Dims] = [((),) * len(spec.shape or ()) for spec in inputs]
    dims = tuple(none if host else next(on_device) for none, host in zip(nothing, on_host, strict=True))
    return ShardingRule(rule.factors, dims, rule.outputs)


@lru_cache(maxsize=1024)
def is_view(op: OpDef) -> bool:
    """Whether the output has the elements of input 0, in their order, in another shape."""
    return op.loop is not None and op.loop.pattern is LoopPattern.RESHAPE


def _text(s: ShapeContext, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    op = s.op
    if op.axes is not None:
        return op.axes if isinstance(op.axes, str) else op.axes(s)
    if op.elementwise:
        return f"{', '.join(['...'] * len(inputs))} -> {', '.join(['...'] * len(outputs))}"
    if op.reduction:
        return _reduced(op.reduction, s)
    if is_view(op):
        return reshaped(inputs[0], outputs[0])
    return None


def _reduced(reduction: str, s: ShapeContext) -> str | None:
    """The rule of a reduction; a mean is a sum, divided by the count of all elements: of integers, it is
    rounded, and only that of the whole.
    """
    axes, rank, keeps = s.value(1), len(s.shapes[0] or ()), s.attrs["keep_dims"]
    if axes is None:
        return None
    gone = {axis % rank for axis in ((axes,) if isinstance(axes, int) else axes)}
    mark = "|sum" if reduction == "mean" else f"|{reduction}"
    if reduction == "mean" and s.dtypes[0] not in INEXACT:
        mark = "!"
    left = [f"d{i}{mark}" if i in gone else f"d{i}" for i in range(rank)]
    right = [f"r{i}" if i in gone else f"d{i}" for i in range(rank) if keeps or i not in gone]
    return f"{' '.join(left)} -> {' '.join(right)}"


def reshaped(source: Sequence[int], target: Sequence[int]) -> str | None:
    """The rule of a view of ``source`` as ``target``, of as many elements: factors of matching sizes, the
    major one first.

    >>> reshaped((8, 6), (2, 4, 6))
    '(f0 f1) f2 -> f0 f1 f2'
    """
    if 0 in source:
        return None
    groups: tuple[list[list[str]], list[list[str]]] = ([[] for _ in source], [[] for _ in target])
    rest = [list(source), list(target)]
    i = j = count = 0
    while i < len(source) and j < len(target):
        if rest[0][i] == 1 or rest[1][j] == 1:
            i, j = i + (rest[0][i] == 1), j + (rest[1][j] == 1)
            continue
        smaller, larger = sorted((rest[0][i], rest[1][j]))
        factor = smaller if larger % smaller == 0 else math.gcd(smaller, larger)
        if factor == 1 or (factor != smaller):
            return None
        for side, dim in ((0, i), (1, j)):
            groups[side][dim].append(f"f{count}")
            rest[side][dim] //= factor
        count += 1
    return " -> ".join(
        " ".join(_dim(names, f"{side}{d}") for d, names in enumerate(groups[number]))
        for number, side in enumerate("xy")
    )


def _dim(names: Sequence[str], whole: str) -> str:
    """A dimension of factors ``names``; one of size 1 has none and is ``whole``."""
    if not names:
        return f"{whole}!"
    return names[0] if len(names) == 1 else f"({' '.join(names)})"
