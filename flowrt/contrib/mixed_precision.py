"""``flowrt.contrib.mixed_precision``: loss scales as managers, older than `flowrt.train.experimental`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

from flowrt import dtypes
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import greater_equal, select_v2
from flowrt.graph.ops.elementwise.math import is_finite
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers.loss_scale import LossScale, all_finite
from flowrt.train.optimizers.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
from flowrt.variables.variable import Variable

__all__ = [
    "ExponentialUpdateLossScaleManager", "FixedLossScaleManager", "LossScaleManager", "LossScaleOptimizer",
]  # fmt: skip

__getattr__ = missing_from("contrib.mixed_precision")


class LossScaleManager(ABC):
    """The scale of a loss, and how it changes."""

    @abstractmethod
    def get_loss_scale(self) -> Tensor:
        """The current scale, a scalar of float32."""

    @abstractmethod
    def update_loss_scale(self, finite_grads: Tensor) -> Operation:
        """An operation that adapts the scale after a step; ``finite_grads`` is a bool scalar."""


class FixedLossScaleManager(LossScaleManager):
    """A scale that never changes; steps with infinite gradients are skipped all the same."""

    def __init__(self, loss_scale: float) -> None:
        self._loss_scale = loss_scale

    def get_loss_scale(self) -> Tensor:
        return constant(self._loss_scale, dtypes.float32)

    def update_loss_scale(self, finite_grads: Tensor) -> Operation:
        return no_op()


class ExponentialUpdateLossScaleManager(LossScaleManager):
    """A scale that is multiplied by ``incr_ratio`` after ``incr_every_n_steps`` finite steps in a row, and by
    ``decr_ratio``, down to 1, after ``decr_every_n_nan_or_inf`` others.
    """

    def __init__(
        self,
        init_loss_scale: float,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int = 2,
        incr_ratio: float = 2,
        decr_ratio: float = 0.8,
    ) -> None:
        self._increase = incr_every_n_steps, incr_ratio
        self._decrease = decr_every_n_nan_or_inf, decr_ratio
        self._scale = Variable(init_loss_scale, False, dtype=dtypes.float32, name="loss_scale")
        self._good, self._bad = (Variable(0, False, name=name) for name in ("good_steps", "bad_steps"))

    def get_loss_scale(self) -> Tensor:
        return self._scale.read_value()

    def update_loss_scale(self, finite_grads: Tensor) -> Operation:
        (good_steps, up), (bad_steps, down) = self._increase, self._decrease
        scale, bad = self._scale.read_value(), self._bad.read_value()
        good = select_v2(finite_grads, self._good.read_value() + 1, 0)
        bad = select_v2(finite_grads, bad, bad + 1)
        grows, shrinks = greater_equal(good, good_steps), greater_equal(bad, bad_steps)
        smaller = select_v2(shrinks, maximum(scale * down, 1.0), scale)
        counts = [select_v2(grows | shrinks, 0, count) for count in (good, bad)]
        return group(
            self._scale.assign(select_v2(grows & is_finite(scale * up), scale * up, smaller)).op,
            self._good.assign(counts[0]).op,
            self._bad.assign(counts[1]).op,
        )


class LossScaleOptimizer(MixedPrecisionLossScaleOptimizer):
    """``opt`` with the scale of ``loss_scale_manager``; steps with infinite gradients are skipped."""

    def __init__(self, opt: Any, loss_scale_manager: LossScaleManager) -> None:
        super().__init__(opt, _Managed(loss_scale_manager))


@final
class _Managed(LossScale):
    """The scale of a manager."""

    def __init__(self, manager: LossScaleManager) -> None:
        self._manager = manager

    def __call__(self) -> Tensor:
        return self._manager.get_loss_scale()

    def update(self, grads: Sequence[Any]) -> tuple[Operation, Tensor]:
        is_good = all_finite(grads)
        return self._manager.update_loss_scale(is_good), is_good

    def get_config(self) -> dict[str, Any]:
        return {"manager": self._manager}
