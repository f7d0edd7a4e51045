"""``flowrt.contrib.estimator``: parts of estimators that were tried there first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.estimator.added_metrics import add_metrics
from flowrt.estimator.canned import DNNEstimator, DNNLinearCombinedEstimator, LinearEstimator
from flowrt.estimator.early_stopping import (
    InMemoryEvaluatorHook,
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from flowrt.estimator.eval_summaries import read_eval_metrics
from flowrt.estimator.heads import BinaryLogisticHead as binary_classification_head
from flowrt.estimator.heads import Head, RegressionHead
from flowrt.estimator.heads import MultiClassHead as multi_class_head
from flowrt.graph.construction.graph import Operation
from flowrt.graph.ops.nn.norms import clip_by_global_norm
from flowrt.losses import Reduction
from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.variables.variable import Variable

__all__ = [
    "DNNEstimator", "DNNLinearCombinedEstimator", "InMemoryEvaluatorHook", "LinearEstimator", "add_metrics",
    "binary_classification_head", "clip_gradients_by_norm", "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook", "multi_class_head", "read_eval_metrics", "regression_head",
    "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook", "stop_if_no_increase_hook",
]  # fmt: skip


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


def regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: Any = Reduction.SUM_OVER_BATCH_SIZE,
    loss_fn: Any = None,
    inverse_link_fn: Any = None,
    name: str | None = None,
) -> Head:
    """`estimator.RegressionHead`."""
    return RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, inverse_link_fn, name)


__getattr__ = missing_from("contrib.estimator")
