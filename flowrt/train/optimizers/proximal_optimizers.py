"""Optimizers that shrink variables towards zero: proximal steps, and dual averaging. Their l1 makes zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.dtypes import int64
from flowrt.errors import InvalidArgumentError
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.state import optimizer_updates
from flowrt.graph.source import user_line
from flowrt.graph.typing import NumericLike
from flowrt.train.optimizers.standard_optimizers import AdagradOptimizer, _constant_like, _RuleOptimizer
from flowrt.variables.variable import Variable

__all__ = ["AdagradDAOptimizer", "ProximalAdagradOptimizer", "ProximalGradientDescentOptimizer"]


class ProximalGradientDescentOptimizer(_RuleOptimizer):
    """``prox = var - learning_rate * grad; var = sign(prox) * max(|prox| - learning_rate * l1, 0) /
    (1 + learning_rate * l2)`` (Duchi and Singer 2009).
    """

    _dense_op = optimizer_updates.apply_proximal_gradient_descent
    _sparse_op = optimizer_updates.sparse_apply_proximal_gradient_descent

    def __init__(
        self,
        learning_rate: NumericLike,
        l1_regularization_strength: NumericLike = 0.0,
        l2_regularization_strength: NumericLike = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(
            name,
            use_locking,
            alpha=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
        )


class ProximalAdagradOptimizer(AdagradOptimizer):
    """`ProximalGradientDescentOptimizer` with the learning rate of `AdagradOptimizer`. Raises
    `InvalidArgumentError` unless ``initial_accumulator_value`` is positive.
    """

    _dense_op, _sparse_op = (
        optimizer_updates.apply_proximal_adagrad,
        optimizer_updates.sparse_apply_proximal_adagrad,
    )

    def __init__(
        self,
        learning_rate: NumericLike,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: NumericLike = 0.0,
        l2_regularization_strength: NumericLike = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        _check_positive(name, "initial_accumulator_value", initial_accumulator_value)
        super().__init__(learning_rate, initial_accumulator_value, use_locking, name)
        self._hypers |= {"l1": l1_regularization_strength, "l2": l2_regularization_strength}


class AdagradDAOptimizer(_RuleOptimizer):
    """Adagrad by dual averaging: a variable is a function of the sums of all its gradients and of their
    squares, so it starts at zero, ignoring its initializer (Duchi et al. 2011).

    ``global_step`` counts the steps: pass it to `minimize` too. Raises `InvalidArgumentError` unless
    ``initial_gradient_squared_accumulator_value`` is positive.
    """

    _dense_op, _sparse_op = optimizer_updates.apply_adagrad_da, optimizer_updates.sparse_apply_adagrad_da

    def __init__(
        self,
        learning_rate: NumericLike,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: NumericLike = 0.0,
        l2_regularization_strength: NumericLike = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        self._initial = initial_gradient_squared_accumulator_value
        _check_positive(name, "initial_gradient_squared_accumulator_value", self._initial)
        super().__init__(
            name,
            use_locking,
            lr=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
            global_step=global_step,
        )

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._zeros_slot(var, "gradient_accumulator", self._name)
            self._get_or_make_slot(
                var, _constant_like(var, self._initial), "gradient_squared_accumulator", self._name
            )

    def _hyper(self, name: str, var: Variable) -> Any:
        if name == "global_step":
            return cast(self._tensors[name], int64) + 1
        return super()._hyper(name, var)


def _check_positive(name: str, what: str, value: float) -> None:
    if value <= 0.0:
        raise InvalidArgumentError(f"{name}: expected a positive {what}; got {value}", source=user_line())
