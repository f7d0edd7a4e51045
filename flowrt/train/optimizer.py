"""`Optimizer`: gradients of a loss, and an update of each variable from its gradient.

``minimize`` is ``compute_gradients`` followed by ``apply_gradients``; a script may change the gradients in between. A
subclass says which slots (variables of a variable's shape) and hyper-parameters it has, and which op updates from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.gradients import gradients
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.ops.filling import zeros_like
from flowrt.graph.ops.identities import cast
from flowrt.graph.ops.script import group
from flowrt.variables import GraphKeys, Variable, trainable_variables


class Optimizer:
    """Base of the optimizers. ``name`` is the name of the slots and of the update operation."""

    GATE_NONE, GATE_OP, GATE_GRAPH = range(3)

    _slot_names: ClassVar[Sequence[str]] = ()

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise InvalidArgumentError("Optimizer: expected a name; got an empty one")
        self._use_locking, self._name = use_locking, name
        self._slots: dict[str, dict[Variable, Variable]] = {}
        self._extra: dict[tuple[str, Graph], Variable] = {}

    def get_name(self) -> str:
        return self._name

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Iterable[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Tensor | None = None,
    ) -> Operation:
        """An operation that updates ``var_list`` (all trainable variables if None) against the gradient of ``loss``, and
        adds one to ``global_step``.

        Raises `InvalidArgumentError` when no variable has a gradient, naming them.
        """
        pairs = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        if all(g is None for g, _ in pairs):
            names = ", ".join(v.op.name for _, v in pairs)
            message = f"minimize: expected a loss that depends on a variable; got {loss!r}, which depends on none of {names}"
            raise InvalidArgumentError(message)
        return self.apply_gradients(pairs, global_step, name)

    def compute_gradients(
        self,
        loss: Any,
        var_list: Iterable[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Tensor | None = None,
    ) -> list[tuple[Any, Variable]]:
        """``[(gradient, variable)]``; a gradient is a tensor, an `IndexedSlices`, or None where the loss does not depend."""
        loss = loss() if callable(loss) else loss
        self._check_loss(loss)
        if var_list is None:
            collected = get_default_graph().get_collection("trainable_resource_variables")
            variables = list(dict.fromkeys([*trainable_variables(), *collected]))
        else:
            variables = list(var_list) if isinstance(var_list, Iterable) else [var_list]
        if not variables:
            raise InvalidArgumentError("compute_gradients: expected variables to train; got none")
        for variable in variables:
            if not hasattr(variable, "handle"):
                raise DTypeError(f"compute_gradients: expected variables; got {variable!r}")
        found = gradients(
            loss,
            variables,
            grad_loss,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
        )
        return list(zip(found, variables, strict=True))

    def _check_loss(self, loss: Any) -> None:
        if not isinstance(loss, Tensor):
            raise DTypeError(f"compute_gradients: expected the loss as a Tensor; got {loss!r}")
        if not loss.dtype.is_floating:
            raise DTypeError(f"compute_gradients: expected a floating loss; got {loss!r}")

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Variable]], global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """An operation that updates each variable from its gradient. Pairs without a gradient are left out.

        Raises `InvalidArgumentError` when no pair has a gradient.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise InvalidArgumentError("apply_gradients: expected at least one gradient; got none")
        graph = get_default_graph()
        variables = [v for _, v in pairs]
        with graph.control_dependencies(None):
            self._create_slots(variables)
        with graph.name_scope(name or self._name) as scope:
            self._prepare()
            updates = [self._update(gradient, variable) for gradient, variable in pairs]
            updates += self._finish(updates)
            if global_step is None:
                train_op: Operation = group(*updates, name=scope)
            else:
                with graph.control_dependencies(updates):
                    train_op = _increment(global_step, scope)
        if train_op not in graph.get_collection_ref(GraphKeys.TRAIN_OP):
            graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def _update(self, gradient: Any, variable: Variable) -> Operation:
        graph = variable.graph
        if not isinstance(gradient, IndexedSlices):
            gradient = convert_to_tensor(gradient, variable.dtype)
        with graph.name_scope(f"update_{variable.op.name.replace('/', '_')}"), on_device_of(variable):
            if isinstance(gradient, IndexedSlices):
                update = self._apply_sparse(gradient, variable)
            else:
                update = self._apply_dense(gradient, variable)
            if variable.constraint is None:
                return update
            with graph.control_dependencies([update]):
                constrained: Operation = variable.assign(variable.constraint(variable.read_value()), read_value=False)
                return constrained

    # --- for subclasses

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for name in self._slot_names:
            for variable in var_list:
                self._zeros_slot(variable, name, self._name)

    def _prepare(self) -> None:
        """Make tensors of the hyper-parameters, once for all variables."""

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        raise NotImplementedError

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return self._apply_dense(convert_to_tensor(grad), var)

    def _finish(self, updates: Sequence[Operation]) -> list[Operation]:
        """Further operations of a step, after all updates."""
        return []

    # --- slots

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot ``name`` of ``var``, or None."""
        return self._slots.get(name, {}).get(var)

    def get_slot_names(self) -> list[str]:
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """All variables the optimizer made for the default graph."""
        graph = get_default_graph()
        own = [v for (_, g), v in self._extra.items() if g is graph]
        slots = [slot for by_variable in self._slots.values() for slot in by_variable.values() if slot.graph is graph]
        return sorted(own + slots, key=lambda v: v.name)

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        return self._make_slot(var, lambda: zeros_like(var.initialized_value()), slot_name, op_name)

    def _make_slot(self, var: Variable, initial: Callable[[], Any], slot_name: str, op_name: str) -> Variable:
        slots = self._slots.setdefault(slot_name, {})
        if var not in slots:
            with on_device_of(var), var.graph.name_scope(None):
                slots[var] = Variable(initial, trainable=False, name=f"{var.op.name}/{op_name}")
        return slots[var]

    def _scalar(self, name: str, initial: Callable[[], float], beside: Variable) -> Variable:
        """A variable of the optimizer's own, one a graph."""
        key = (name, beside.graph)
        if key not in self._extra:
            with on_device_of(beside), beside.graph.name_scope(None):
                self._extra[key] = Variable(lambda: convert_to_tensor(initial(), beside.dtype), trainable=False, name=name)
        return self._extra[key]


@contextlib.contextmanager
def on_device_of(variable: Variable) -> Iterator[None]:
    """New operations go to the variable's device, whatever device scope is open."""
    graph = variable.graph
    with graph.device(None), graph.device(variable.device or None):
        yield


def _increment(global_step: Variable, scope: str) -> Operation:
    with on_device_of(global_step):
        one = cast(1, global_step.dtype)
        step: Operation = global_step.assign_add(one, read_value=False, name=scope)
        return step
