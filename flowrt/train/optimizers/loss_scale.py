"""Loss scales: the factor that keeps small gradients above the smallest numbers of float16.

A loss is multiplied by the scale, its gradients are divided by it. Where a gradient is not finite the scale
was too large, and the update is skipped: see `flowrt.train.optimizers.loss_scale_optimizer`. The names and
defaults are TensorFlow's; Micikevicius et al. 2018 (Mixed Precision Training) have the idea.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.layouts.attributes import LAYOUT
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import add_n, maximum
from flowrt.graph.ops.elementwise.comparison import equal, greater_equal, logical_not
from flowrt.graph.ops.elementwise.comparison import select_v2 as where
from flowrt.graph.ops.elementwise.math import is_finite
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.source import user_line
from flowrt.variables.distribution_context import distribution_context
from flowrt.variables.variable import Variable, VariableAggregation

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale"]

_LARGEST = float(np.finfo(np.float32).max)


class LossScale(ABC):
    """A scale of losses, one value per graph. A call returns it, a scalar of float32."""

    @abstractmethod
    def __call__(self) -> Tensor:
        """The current scale."""

    @abstractmethod
    def update(self, grads: Sequence[Any]) -> tuple[Operation, Tensor]:
        """An operation that adapts the scale to ``grads``, tensors or `IndexedSlices` of one step, and a bool
        scalar: whether the step's update may be made.
        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal scale."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The scale that `get_config` describes."""
        return cls(**config)


class FixedLossScale(LossScale):
    """A scale that never changes; every update is made.

    >>> with tf.Graph().as_default(), tf.Session() as session:
    ...     print(session.run(FixedLossScale(128.0)()))
    128.0

    Raises `InvalidArgumentError` for a scale below 1, and for one that float32 does not hold.
    """

    def __init__(self, loss_scale_value: float) -> None:
        self._value = _at_least_one("FixedLossScale: loss_scale_value", loss_scale_value)

    def __call__(self) -> Tensor:
        return constant(self._value, dtypes.float32)

    def update(self, grads: Sequence[Any]) -> tuple[Operation, Tensor]:
        return no_op(), constant(True)

    def get_config(self) -> dict[str, Any]:
        return {"loss_scale_value": self._value}


class _State:
    """The variables of a `DynamicLossScale` in one graph."""

    def __init__(self, initial_loss_scale: float) -> None:
        kind: dict[str, Any] = {"trainable": False, "aggregation": VariableAggregation.MEAN}
        self.scale = Variable(initial_loss_scale, dtype=dtypes.float32, name="current_loss_scale", **kind)
        self.good_steps = Variable(0, dtype=dtypes.int64, name="good_steps", **kind)


class DynamicLossScale(LossScale):
    """A scale that is multiplied by ``multiplier`` after ``increment_period`` steps in a row with finite
    gradients. At each other step it is divided by it, down to 1, and the update is not made.

    The scale and the count of steps are variables, made at first use, that checkpoints include.

    Raises `InvalidArgumentError` for a scale or a multiplier below 1, for one that float32 does not hold, and
    for a period that is no positive number of steps.
    """

    def __init__(
        self, initial_loss_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        self.initial_loss_scale = _at_least_one("DynamicLossScale: initial_loss_scale", initial_loss_scale)
        self.increment_period = _steps(increment_period)
        self.multiplier = _at_least_one("DynamicLossScale: multiplier", multiplier)
        self._states: dict[Graph, _State] = {}

    def __call__(self) -> Tensor:
        return self._state().scale.read_value()

    def update(self, grads: Sequence[Any]) -> tuple[Operation, Tensor]:
        state, is_good = self._state(), all_finite(grads)
        scale, steps = state.scale.read_value(), state.good_steps.read_value() + 1
        has_grown = greater_equal(steps, constant(self.increment_period, dtypes.int64))
        larger, smaller = scale * self.multiplier, maximum(scale / self.multiplier, 1.0)
        grown = where(has_grown & is_finite(larger), larger, scale)
        new_steps = where(has_grown | logical_not(is_good), constant(0, dtypes.int64), steps)
        updated = group(
            state.scale.assign(where(is_good, grown, smaller), read_value=False),
            state.good_steps.assign(new_steps, read_value=False),
        )
        return updated, is_good

    def get_config(self) -> dict[str, Any]:
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def _state(self) -> _State:
        graph, context = get_default_graph().root, distribution_context()
        if graph in self._states:
            return self._states[graph]
        if context is not None and context.replica is not None:  # all replicas come here before one goes on
            context.replica.merge_call(lambda strategy: self._state())
        else:
            self._states[graph] = _State(self.initial_loss_scale)
        return self._states[graph]


def as_loss_scale(value: Any) -> LossScale:
    """``value``, a `LossScale`, a number for a fixed one, or "dynamic". Raises `InvalidArgumentError`."""
    if isinstance(value, LossScale):
        return value
    if isinstance(value, str) and value == "dynamic":
        return DynamicLossScale()
    if _is_number(value):
        return FixedLossScale(value)
    raise InvalidArgumentError(
        f"loss_scale: expected a LossScale, a number or 'dynamic'; got {value!r}", source=user_line()
    )


def all_finite(grads: Sequence[Any]) -> Tensor:
    """A bool scalar: whether all elements of ``grads`` are finite.

    What is not is counted. Counts of parts on several devices are added up there, for all gradients in one
    layout, and then to one number that all devices get.
    """
    by_layout: dict[str, list[Tensor]] = {}
    for grad in grads:
        elements = grad.values if isinstance(grad, IndexedSlices) else grad
        count = reduce_sum(cast(logical_not(is_finite(elements)), dtypes.float32))
        by_layout.setdefault(elements.op.node.attrs.get(LAYOUT, ""), []).append(count)
    return equal(add_n([add_n(counts) for counts in by_layout.values()]), 0.0)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _at_least_one(what: str, value: Any) -> float:
    if not _is_number(value) or not 1 <= value <= _LARGEST:
        raise InvalidArgumentError(
            f"{what}: expected a number of at least 1 that float32 holds; got {value!r}", source=user_line()
        )
    return float(value)


def _steps(value: Any) -> int:
    if not _is_number(value) or value % 1 or not 1 <= value <= np.iinfo(np.int64).max:
        raise InvalidArgumentError(
            f"DynamicLossScale: increment_period: expected a positive number of steps; got {value!r}",
            source=user_line(),
        )
    return int(value)
