"""Regularizers: functions from a variable to the loss that keeps it small, for ``kernel_regularizer`` and
similar arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.nn.losses import l2_loss
from flowrt.graph.source import misuse


def _checked(scale: Any, name: str) -> float:
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or scale < 0:
        raise misuse(f"{name}: expected a number >= 0; got {scale!r}")
    return float(scale)


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Tensor | None]:
    """``scale * sum(|w|)``; None for a scale of 0."""
    factor = _checked(scale, "l1_regularizer")
    return lambda w: (
        multiply(reduce_sum(absolute(w)), factor, name=scope or "l1_regularizer") if factor else None
    )


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Tensor | None]:
    """``scale * sum(w^2) / 2``; None for a scale of 0."""
    factor = _checked(scale, "l2_regularizer")
    return lambda w: multiply(l2_loss(w), factor, name=scope or "l2_regularizer") if factor else None


def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Callable[[Any], Tensor | None]:
    """`l1_regularizer` plus `l2_regularizer`."""
    parts = [l1_regularizer(scale_l1), l2_regularizer(scale_l2)]

    def regularize(w: Any) -> Tensor | None:
        losses = [loss for loss in (part(w) for part in parts) if loss is not None]
        return (
            add(losses[0], losses[1], name=scope or "l1_l2_regularizer")
            if len(losses) == 2
            else next(iter(losses), None)
        )

    return regularize
