"""`GradientAccumulator`: one update from the gradients of several steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.errors import FailedPreconditionError
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import user_line
from flowrt.train.optimizers.optimizer import Optimizer, densified
from flowrt.train.optimizers.slot_creator import zeros_of
from flowrt.variables.variable import Variable, VariableAggregation, VariableSynchronization


class GradientAccumulator:
    """Adds up gradients until ``optimizer`` applies their sum: a large batch in several small steps.

        accumulate = accumulator.accumulate(loss)     run it for each part of the batch
        train = accumulator.apply_gradients()         then this: one update, and the sums are zero again

    With losses that are divided by the size of the large batch this is the step of the large batch. In a
    strategy's replicas each replica has its own sums, and only ``apply_gradients`` communicates.
    """

    def __init__(self, optimizer: Optimizer, name: str = "GradientAccumulator") -> None:
        self._optimizer, self._name = optimizer, name
        self._sums: dict[Variable, Variable] = {}

    def accumulate(self, loss: Any, var_list: Iterable[Variable] | None = None) -> Operation:
        """An operation that adds the gradients of ``loss`` to the sums. Raises as
        `Optimizer.compute_gradients`.
        """
        pairs = self._optimizer.compute_gradients(loss, var_list=var_list)
        added = [self._add(gradient, variable) for gradient, variable in pairs if gradient is not None]
        return group(*added, name=f"{self._name}/accumulate")

    def _add(self, gradient: Any, variable: Variable) -> Operation:
        if isinstance(gradient, IndexedSlices):
            gradient = densified(gradient, variable)
        return self._sum_of(variable).assign_add(gradient, read_value=False)

    def _sum_of(self, variable: Variable) -> Variable:
        """The running sum for ``variable``: each copy is one replica's sum; its value as a whole is the sum
        of all replicas.
        """
        if variable not in self._sums:
            with get_default_graph().control_dependencies(None):
                self._sums[variable] = Variable(
                    lambda: zeros_of(variable),
                    trainable=False,
                    name=f"{variable.op.name}/{self._name}",
                    synchronization=VariableSynchronization.ON_READ,
                    aggregation=VariableAggregation.SUM,
                )
        return self._sums[variable]

    def apply_gradients(self, global_step: Variable | None = None, name: str | None = None) -> Operation:
        """An operation that applies the sums, then makes them zero. Raises `FailedPreconditionError` before
        the first `accumulate`.
        """
        if not self._sums:
            raise FailedPreconditionError(
                "GradientAccumulator.apply_gradients: expected accumulate() to be called first; it was not",
                source=user_line(),
            )
        pairs = [(total.read_value(), variable) for variable, total in self._sums.items()]
        applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with get_default_graph().control_dependencies([applied]):
            emptied = [
                total.assign(zeros_like(gradient), read_value=False)
                for (gradient, _), total in zip(pairs, self._sums.values(), strict=True)
            ]
        return group(*emptied, name=f"{self._name}/apply")
