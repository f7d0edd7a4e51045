"""``flowrt.contrib.estimator``: parts of estimators that were tried there first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.graph.construction.graph import Operation
from flowrt.graph.ops.nn.norms import clip_by_global_norm
from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.variables.variable import Variable

__all__ = ["clip_gradients_by_norm"]


class _Clipped(Optimizer):
    """``optimizer``, with gradients scaled down together to the norm ``clip_norm``."""

    def __init__(self, optimizer: Optimizer, clip_norm: Any) -> None:
        super().__init__(use_locking=False, name=optimizer.get_name())
        self._optimizer, self._clip_norm = optimizer, clip_norm

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = clip_by_global_norm(gradients, self._clip_norm)
        return self._optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step, name)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        return self._optimizer.variables()


def clip_gradients_by_norm(optimizer: Optimizer, clip_norm: Any) -> Optimizer:
    """``optimizer`` with the gradients of each step scaled down together, as by `clip_by_global_norm`.

    Example:
        >>> optimizer = tf.contrib.estimator.clip_gradients_by_norm(tf.train.AdamOptimizer(0.1), 1.0)
    """
    return _Clipped(optimizer, clip_norm)


__getattr__ = missing_from("contrib.estimator")
