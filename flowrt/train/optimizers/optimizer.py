"""`Optimizer`: gradients of a loss, and an update of each variable from its gradient.

``minimize`` is ``compute_gradients`` followed by ``apply_gradients``; a script may change the gradients in
between. Options are passed by name, so that an override may take them as ``**kwargs``. A subclass defines its
slots (variables of a variable's shape), its hyper-parameters and its update rule; the methods to override and
those that create slots have TensorFlow's names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flowrt import dtypes
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import size
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import user_line
from flowrt.graph.typing import NumericLike
from flowrt.train.optimizers.sharded_gradients import as_updates_need
from flowrt.train.optimizers.slot_creator import OPTIMIZER_VARIABLES, create_slot, zeros_of
from flowrt.variables.distribution_context import (
    distribution_context,
    layout_strategy,
    warn_of_unopened_strategies,
)
from flowrt.variables.variable import GraphKeys, Variable, trainable_variables


class Optimizer:
    """Base of the optimizers. ``name`` is the name of the slots and of the update operation."""

    GATE_NONE, GATE_OP, GATE_GRAPH = range(3)

    _slot_names: Sequence[str] = ()
    """Slots that begin as zeros."""

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise InvalidArgumentError("Optimizer: expected a name; got an empty one", source=user_line())
        self._use_locking, self._name = use_locking, name
        self._slots: dict[str, dict[Variable, Variable]] = {}
        self._non_slots: dict[tuple[str, Graph], Variable] = {}

    def get_name(self) -> str:
        return self._name

    def minimize(
        self,
        loss: NumericLike | Callable[[], NumericLike],
        global_step: Variable | None = None,
        var_list: Iterable[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Tensor | None = None,
    ) -> Operation:
        """An operation that updates ``var_list`` (all trainable variables if None) against the gradient of
        ``loss``, and adds one to ``global_step``.

        Raises `InvalidArgumentError` when no variable has a gradient, naming them.
        """
        pairs = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        if all(g is None for g, _ in pairs):
            names = ", ".join(v.op.name for _, v in pairs)
            message = (
                f"minimize: expected a loss that depends on a variable; got {loss!r}, which depends on"
                f" none of {names}"
            )
            raise InvalidArgumentError(message, source=user_line())
        return self.apply_gradients(pairs, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: NumericLike | Callable[[], NumericLike],
        var_list: Iterable[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Tensor | None = None,
    ) -> list[tuple[Any, Variable]]:
        """``[(gradient, variable)]``; a gradient is a tensor, an `IndexedSlices`, or None if the loss does
        not depend on the variable.

        ``loss`` may be a function without arguments that returns it. Raises `DTypeError` for a loss that is
        not floating and for non-variables, `InvalidArgumentError` for no variables.
        """
        loss = convert_to_tensor(loss() if callable(loss) else loss)
        if not loss.dtype.is_floating:
            raise DTypeError(f"compute_gradients: expected a floating loss; got {loss!r}", source=user_line())
        chosen: Any = trainable_variables() if var_list is None else var_list
        variables = [chosen] if isinstance(chosen, Variable) else list(chosen)
        if not variables:
            raise InvalidArgumentError(
                "compute_gradients: expected variables to train; got none", source=user_line()
            )
        for variable in variables:
            if not isinstance(variable, Variable):
                raise DTypeError(
                    f"compute_gradients: expected variables; got {variable!r}", source=user_line()
                )
        found = gradients(
            loss,
            variables,
            grad_loss,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
        )
        return list(zip(as_updates_need(found, variables), variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """An operation that updates each variable from its gradient. Pairs without a gradient are left out.

        In a replica of a strategy the gradients are summed over all replicas, and every copy of a variable is
        updated with the sum: a mean loss must be divided by the global batch size. Raises
        `InvalidArgumentError` if no pair has a gradient, `DTypeError` if a gradient's dtype differs from its
        variable's, and `FailedPreconditionError` in a strategy's scope outside its replicas, in a replica for
        a variable of another strategy, and outside for a variable with copies.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise InvalidArgumentError(
                "apply_gradients: expected at least one gradient; got none", source=user_line()
            )
        context, layouts = distribution_context(), layout_strategy()
        if layouts is not None:
            trained = [variable for _, variable in pairs]
            layouts.settle(trained, len(self._slot_names))
            layouts.check_trained(trained)
        if context is None:
            warn_of_unopened_strategies()
            return self._apply(pairs, global_step, name)
        if context.replica is None:
            raise FailedPreconditionError(
                "apply_gradients: expected a call in a replica context; got one in the cross-replica context."
                " Call it in the function that is passed to strategy.run()",
                source=user_line(),
            )
        extended = context.strategy.extended
        return extended.apply_gradients(self, pairs, global_step, name)

    def _apply_merged(
        self,
        strategy: Any,
        pairs: Sequence[tuple[Any, Variable]],
        global_step: Variable | None,
        name: str | None,
    ) -> Operation:
        """`apply_gradients` for all replicas of ``strategy``, in the cross-replica context: the gradients
        differ.
        """
        sums = strategy.extended.batch_reduce_to("SUM", pairs)
        return self._apply_sums(strategy.extended, sums, [v for _, v in pairs], global_step, name)

    def _apply_sums(
        self,
        extended: Any,
        sums: Sequence[Any],
        variables: Sequence[Variable],
        global_step: Variable | None,
        name: str | None,
    ) -> Operation:
        """The updates of all copies of ``variables`` from ``sums``, those of the replicas' gradients."""
        graph = get_default_graph()
        with graph.control_dependencies(None):
            self._create_slots(variables)
        with graph.name_scope(name or self._name) as scope:
            self._prepare()
            updates = [
                extended.update(variable, self._update, (total,), group=False)
                for total, variable in zip(sums, variables, strict=True)
            ]
            ends = extended.non_slot_devices(variables)
            finished = extended.update_non_slot(ends, self._finish, (updates, "update"))
            train_op = (
                group(finished, name=scope)
                if global_step is None
                else _increment(global_step, finished, scope)
            )
        graph.add_to_collections(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def _apply(
        self, pairs: Sequence[tuple[Any, Variable]], global_step: Variable | None, name: str | None
    ) -> Operation:
        graph = get_default_graph()
        variables = [v for _, v in pairs]
        for variable in variables:
            variable.check_updated_here()
        with graph.control_dependencies(None):
            self._create_slots(variables)
        with graph.name_scope(name or self._name) as scope:
            self._prepare()
            updates = [self._update(variable, gradient) for gradient, variable in pairs]
            if global_step is None:
                train_op = self._finish(updates, scope)
            else:
                train_op = _increment(global_step, self._finish(updates, "update"), scope)
        graph.add_to_collections(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def _update(self, variable: Variable, gradient: Any) -> Operation:
        graph = variable.graph.building
        if variable.dtype not in self._valid_dtypes():
            names = ", ".join(sorted(d.name for d in self._valid_dtypes()))
            raise DTypeError(
                f"apply_gradients: expected variables of {names}; got {variable!r}", source=user_line()
            )
        sparse = isinstance(gradient, IndexedSlices)
        if not sparse:
            gradient = convert_to_tensor(gradient, variable.dtype)
        with graph.name_scope(f"update_{variable.op.name}"), on_device_of(variable):
            update = (
                self._apply_sparse(gradient, variable) if sparse else self._apply_dense(gradient, variable)
            )
            if variable.constraint is None:
                return update
            with graph.control_dependencies([update]):
                value = variable.constraint(variable.read_value())
                return variable.assign(value, read_value=False)

    # --- for subclasses

    def _valid_dtypes(self) -> frozenset[dtypes.DType]:
        """The dtypes that a variable may have."""
        return dtypes.FLOATING

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for variable in var_list:
            for name in self._slot_names:
                self._zeros_slot(variable, name, self._name)

    def _prepare(self) -> None:
        """Make tensors of the hyper-parameters, once for all variables."""

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        raise UnimplementedError(
            f"{type(self).__name__}: expected an optimizer with _apply_dense; it has none", source=user_line()
        )

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return self._apply_dense(densified(grad, var), var)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        """The operation called ``name_scope`` that ends a step."""
        return group(*update_ops, name=name_scope)

    # --- slots

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot ``name`` of ``var``, or None."""
        return self._slots.get(name, {}).get(var)

    def get_slot_names(self) -> list[str]:
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """All variables the optimizer made for the default graph, by name."""
        graph = get_default_graph()
        slots = [slot for by_variable in self._slots.values() for slot in by_variable.values()]
        return sorted(
            (v for v in [*self._non_slots.values(), *slots] if v.graph is graph), key=lambda v: v.name
        )

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        return self._get_or_make_slot(var, lambda: zeros_of(var), slot_name, op_name)

    def _get_or_make_slot(
        self, var: Variable, val: Callable[[], Any] | Any, slot_name: str, op_name: str
    ) -> Variable:
        """The slot, created on first use: colocated with ``var`` and named after it and ``op_name``."""
        slots = self._slots.setdefault(slot_name, {})
        if var not in slots:
            slots[var] = create_slot(var, val, op_name)
        return slots[var]

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Variable) -> Variable:
        """A variable shared by all slots, such as the power of Adam's beta1; one per graph."""
        graph = colocate_with.graph
        if (name, graph) not in self._non_slots:
            with graph.colocate_with(colocate_with.op, ignore_existing=True):
                self._non_slots[name, graph] = Variable(initial_value, trainable=False, name=name)
            graph.add_to_collection(OPTIMIZER_VARIABLES, self._non_slots[name, graph])
        return self._non_slots[name, graph]

    def _get_non_slot_variable(self, name: str, graph: Graph | None = None) -> Variable:
        return self._non_slots[name, graph or get_default_graph().root]


@contextlib.contextmanager
def on_device_of(variable: Variable) -> Iterator[None]:
    """Place new operations on the variable's device, ignoring the open device scope."""
    graph = variable.graph.building
    with graph.device(None), graph.device(variable.device or None):
        yield


def densified(grad: IndexedSlices, var: Variable) -> Tensor:
    """A gradient of ``var`` with zeros in the rows that it does not name."""
    if grad.dense_shape is None and var.shape.is_fully_defined():
        grad = IndexedSlices(grad.values, grad.indices, convert_to_tensor(var.shape.as_list()))
    return convert_to_tensor(grad)


def summed_rows(grad: IndexedSlices) -> tuple[Tensor, Tensor]:
    """The rows of a gradient with those of one index added up, and the indices."""
    rows, place = unique(grad.indices)
    return unsorted_segment_sum(grad.values, place, size(rows)), rows


def _increment(global_step: Variable, after: Operation, scope: str) -> Operation:
    graph = global_step.graph.building
    with graph.control_dependencies([after]), on_device_of(global_step):
        one = convert_to_tensor(1, global_step.dtype, "one")
        return global_step.assign_add(one, read_value=False, name=scope)
