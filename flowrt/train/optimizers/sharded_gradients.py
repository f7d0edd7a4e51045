"""Gradients of variables that are kept in parts, in the layouts in which their updates need them.

A gradient is a sum over the coordinates that share the batch. Its update needs only the part that a
coordinate keeps, so it is brought to that layout where it is made, by one ReduceScatter, and all that comes
after, such as clipping by a global norm, is computed on parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.layouts.attributes import LAST, UNIT, attributes_of_gradient
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.ops.text.python_calls import group
from flowrt.variables.variable import Variable


def as_updates_need(gradients: Sequence[Any], variables: Sequence[Variable]) -> list[Any]:
    """``gradients`` of ``variables``, each in the layout of its variable's parts; sparse ones, and those of
    variables that are no unit's, as they are.
    """
    last = [v for v in variables if LAST in v.op.node.attrs]
    made = [group(*[g for g in gradients if isinstance(g, Tensor)])] if last else []

    def needed(gradient: Any, variable: Variable) -> Any:
        attrs = variable.op.node.attrs
        if UNIT not in attrs or not isinstance(gradient, Tensor):
            return gradient
        with get_default_graph().control_dependencies(made if LAST in attrs else []):
            return relayout_op(gradient, **attributes_of_gradient(attrs))

    return [needed(g, v) for g, v in zip(gradients, variables, strict=True)]
