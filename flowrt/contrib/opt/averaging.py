"""`MovingAverageOptimizer`: an optimizer, and averages of the variables that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowrt.errors import DTypeError, FailedPreconditionError
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse, user_line
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.optimizers.moving_averages import ExponentialMovingAverage
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.variables.variable import Variable, global_variables


class MovingAverageOptimizer(Optimizer):
    """``opt``, and after each of its steps the averages of the variables, with the decay ``average_decay``:
    see `flowrt.train.ExponentialMovingAverage`.

    `swapping_saver` saves each average under the name of its variable: a graph for evaluation restores
    averages with an ordinary saver. With ``sequential_update=False`` they may be of the variables before
    the step.

    Example:
        >>> v = tf.Variable(1.0)
        >>> optimizer = tf.contrib.opt.MovingAverageOptimizer(
        ...     tf.train.GradientDescentOptimizer(0.5), average_decay=0.5)
        >>> train = optimizer.minimize(2 * v)
        >>> saver = optimizer.swapping_saver()
    """

    def __init__(
        self,
        opt: Optimizer,
        average_decay: Any = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ) -> None:
        if not isinstance(opt, Optimizer):
            raise misuse(f"MovingAverageOptimizer: expected an optimizer; got {opt!r}", DTypeError)
        super().__init__(use_locking=False, name=opt.get_name())
        self._optimizer, self._is_sequential = opt, sequential_update
        self._averages = ExponentialMovingAverage(average_decay, num_updates)
        self._swapped: dict[str, Variable] = {}
        """The average by the name of its variable, and the variable by the name of its average."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        pairs = list(grads_and_vars)
        trained = [variable for gradient, variable in pairs if gradient is not None]
        train_op = self._optimizer.apply_gradients(pairs, global_step, name)
        with get_default_graph().control_dependencies([train_op] if self._is_sequential else []):
            averaged = self._averages.apply(trained)
        for variable in trained:
            average = self._averages.average(variable)
            assert average is not None
            self._swapped[variable.op.name], self._swapped[average.op.name] = average, variable
        return group(train_op, averaged, name="train_with_avg")

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        return self._optimizer.variables()

    def swapping_saver(self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any) -> Saver:
        """A saver of ``var_list`` (all global variables if None) with averages under the names of their
        variables, and the other way round. ``kwargs`` are `Saver`'s.

        Raises `FailedPreconditionError` before ``minimize`` or ``apply_gradients``.
        """
        if not self._swapped:
            raise FailedPreconditionError(
                "swapping_saver: expected a call after minimize or apply_gradients, which make the averages",
                source=user_line(),
            )
        chosen = global_variables() if var_list is None else var_list
        named: Mapping[str, Any] = chosen if isinstance(chosen, Mapping) else {v.op.name: v for v in chosen}
        swapped = {key: self._swapped.get(v.op.name, v) for key, v in named.items()}
        return Saver(swapped, name=name, **kwargs)
