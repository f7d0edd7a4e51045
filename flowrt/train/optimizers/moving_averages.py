"""`ExponentialMovingAverage`: averages of variables, for use in their place in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.filling import zeros, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import minimum, subtract
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import user_line
from flowrt.graph.typing import NumericLike
from flowrt.train.optimizers.optimizer import on_device_of
from flowrt.variables.distribution_context import distribution_context
from flowrt.variables.variable import (
    GraphKeys,
    Variable,
    global_variables,
    moving_average_variables,
    trainable_variables,
)


def assign_moving_average(
    variable: Variable, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Tensor:
    """``variable = decay * variable + (1 - decay) * value``. Returns the new value.

    With ``zero_debias`` the variable is the average divided by ``1 - decay ** steps``, as if it had not begun
    at zero (Kingma and Ba 2015, section 3); the plain average and the steps are kept in variables
    "<variable>/biased" and "<variable>/local_step".
    """
    context = distribution_context()
    if context is not None and context.replica is not None:
        return context.replica.merge_call(_assign_merged, (variable, value, decay, zero_debias, name))
    return _assign(variable, value, decay, _debiasing(variable) if zero_debias else None, name)


def _assign_merged(
    strategy: Any, variable: Variable, value: Any, decay: Any, zero_debias: bool, name: str | None
) -> Any:
    """`assign_moving_average` of all replicas, with the mean of their values."""
    debiasing = _debiasing(variable) if zero_debias else None
    is_shared = isinstance(value, Variable | Tensor)
    mean = value if is_shared else strategy.extended.reduce_to("MEAN", value, variable)
    arguments = (mean, decay, debiasing, name)
    return strategy.extended.update(variable, _assign, arguments, group=False)


def _assign(
    variable: Variable, value: Any, decay: Any, debiasing: _Debiasing | None, name: str | None
) -> Tensor:
    with variable.graph.name_scope(name or "AssignMovingAvg"), on_device_of(variable):
        rate: Any = cast(subtract(1.0, convert_to_tensor(decay)), variable.dtype)
        target: Any = convert_to_tensor(value, variable.dtype)
        if debiasing is not None:
            return _debiased(variable, debiasing, target, rate)
        return variable.assign_sub((variable.read_value() - target) * rate)


class _Debiasing(NamedTuple):
    """The plain average of a variable that begins at zero, and its steps."""

    biased: Variable
    local_step: Variable


def _debiasing(variable: Variable) -> _Debiasing:
    shape, dtype, name = variable.shape, variable.dtype, variable.op.name
    with variable.graph.name_scope(None):
        return _Debiasing(
            Variable(lambda: zeros(shape, dtype), trainable=False, name=f"{name}/biased"),
            Variable(lambda: zeros([], dtype), trainable=False, name=f"{name}/local_step"),
        )


def _debiased(variable: Variable, debiasing: _Debiasing, target: Any, rate: Any) -> Tensor:
    biased, local_step = debiasing
    average: Any = biased.assign_sub((biased.read_value() - target) * rate)
    steps: Any = local_step.assign_add(cast(1, variable.dtype))
    return variable.assign(average / (1 - (1 - rate) ** steps))


class ExponentialMovingAverage:
    """Averages of variables and tensors that forget by ``decay`` at each step: ``shadow -= (1 - decay) *
    (shadow - value)``.

    With ``num_updates`` the decay is at most ``(1 + num_updates) / (10 + num_updates)``, so that the first
    steps count more. ``zero_debias`` corrects the averages of tensors for their start at zero; those of
    variables start at the variables' initial values.

    Example:
        >>> v = tf.Variable(1.0)
        >>> average = tf.train.ExponentialMovingAverage(0.5)
        >>> update = average.apply([v])
        >>> session.run(tf.global_variables_initializer())
        >>> session.run(v.assign(2.0))
        np.float32(2.0)
        >>> session.run(update)
        >>> average.average(v).eval()
        np.float32(1.5)
    """

    def __init__(
        self,
        decay: NumericLike,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates, self._zero_debias, self.name = decay, num_updates, zero_debias, name
        self._averages: dict[Any, Variable] = {}

    def apply(self, var_list: Iterable[Any] | None = None) -> Operation:
        """An operation that updates the averages of ``var_list`` (variables and tensors; all trainable
        variables if None).

        The averages are made at the first call with a variable; the variables join the collection
        MOVING_AVERAGE_VARIABLES. Raises `DTypeError` unless all are floating, `InvalidArgumentError` when
        something is averaged by this object already.
        """
        elements = list(trainable_variables() if var_list is None else var_list)
        for element in elements:
            self._make_average(element)
        graph = get_default_graph()
        with graph.name_scope(self.name) as scope:
            decay: Any = convert_to_tensor(self._decay, name="decay")
            if self._num_updates is not None:
                updates: Any = cast(self._num_updates, decay.dtype)
                decay = minimum(decay, (1.0 + updates) / (10.0 + updates))
            moves = []
            for element in elements:
                debias = self._zero_debias and not isinstance(element, Variable)
                moves.append(assign_moving_average(self._averages[element], element, decay, debias))
            return group(*moves, name=scope)

    def _make_average(self, element: Any) -> None:
        if not isinstance(element, (Variable, Tensor)) or not element.dtype.is_floating:
            raise DTypeError(
                f"{self.name}: expected floating variables and tensors; got {element!r}", source=user_line()
            )
        if element in self._averages:
            if _is_later_replica():
                return
            raise InvalidArgumentError(
                f"{self.name}: expected variables without an average; got {element.name!r} again",
                source=user_line(),
            )
        graph = get_default_graph()
        with graph.control_dependencies(None), graph.name_scope(None):
            with graph.colocate_with(element.op, ignore_existing=True):
                name = f"{element.name.rpartition(':')[0]}/{self.name}"
                self._averages[element] = Variable(_start(element), trainable=False, name=name)
        if isinstance(element, Variable):
            graph.add_to_collections(GraphKeys.MOVING_AVERAGE_VARIABLES, element)

    def average(self, var: Any) -> Variable | None:
        """The average of ``var``, or None before `apply` was called with it."""
        return self._averages.get(var)

    def average_name(self, var: Any) -> str:
        """The name of the average of ``var`` in checkpoints, whether it exists or not."""
        found = self._averages.get(var)
        return f"{var.op.name}/{self.name}" if found is None else found.op.name

    def variables_to_restore(
        self, moving_avg_variables: Iterable[Variable] | None = None
    ) -> dict[str, Variable]:
        """``{name in the checkpoint: variable}`` for a Saver that restores each variable from its average.

        ``moving_avg_variables`` are those with averages, by default all trainable ones and those in the
        collection MOVING_AVERAGE_VARIABLES; other global variables keep their names.
        """
        given = moving_avg_variables
        averaged = dict.fromkeys(
            trainable_variables() + moving_average_variables() if given is None else given
        )
        names = {self.average_name(v): v for v in averaged}
        taken = set(names) | {v.op.name for v in averaged}
        return {**names, **{v.op.name: v for v in global_variables() if v.op.name not in taken}}


def _is_later_replica() -> bool:
    """Whether a replica is being built for which the first one has done the same."""
    context = distribution_context()
    return context is not None and context.replica is not None and context.replica.local_replica_id > 0


def _start(element: Any) -> Callable[[], Tensor] | Tensor:
    if isinstance(element, Variable):
        return element.initialized_value()
    static = element.shape.is_fully_defined()
    return lambda: zeros(element.shape, element.dtype) if static else zeros_like(element)
