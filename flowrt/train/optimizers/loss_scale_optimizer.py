"""`MixedPrecisionLossScaleOptimizer`: an optimizer for gradients that would vanish in float16.

    compute_gradients    those of the scaled loss, divided by the scale
    apply_gradients      the update of the optimizer inside, in a branch that runs if all gradients are finite

There is one decision for all devices. With `LayoutStrategy`, the check sums the counts of all parts; with
replicas, it looks at the sums of the replicas' gradients, which all of them get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.control_flow.branches import cond
from flowrt.distribute.strategies.values.distributed_values import select
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.layouts.attributes import LAYOUT, as_stored
from flowrt.graph.ops.base.identities import cast, relayout_op
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import scalar_mul
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.source import user_line
from flowrt.train.optimizers.loss_scale import as_loss_scale
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.variables.variable import GraphKeys, Variable

__all__ = ["MixedPrecisionLossScaleOptimizer"]


class MixedPrecisionLossScaleOptimizer(Optimizer):
    """``opt`` with a scaled loss: a `flowrt.train.experimental.LossScale`, a number, or "dynamic".

    Gradients are those of the loss as it is; only their computation is scaled. With a dynamic scale, a step
    with a gradient that is not finite changes nothing but the scale.

    >>> with tf.Graph().as_default():
    ...     loss = tf.square(tf.Variable(3.0))
    ...     opt = MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(0.1), "dynamic")
    ...     train = opt.minimize(loss)

    Raises `DTypeError` for an ``opt`` that is no optimizer, or that scales the loss already, and
    `InvalidArgumentError` for another ``loss_scale``.
    """

    def __init__(self, opt: Any, loss_scale: Any) -> None:
        if not isinstance(opt, Optimizer) or isinstance(opt, MixedPrecisionLossScaleOptimizer):
            raise DTypeError(
                f"MixedPrecisionLossScaleOptimizer: expected an optimizer that does not scale its loss; got "
                f"{opt!r}",
                source=user_line(),
            )
        super().__init__(opt._use_locking, opt.get_name())
        self._optimizer, self._loss_scale = opt, as_loss_scale(loss_scale)

    # --- gradients

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        """The gradients of ``opt``, computed from the scaled loss and then divided by the scale."""
        scale = self._loss_scale()
        value = convert_to_tensor(loss() if callable(loss) else loss)
        scaled = value * cast(scale, value.dtype) if value.dtype.is_floating else value
        pairs = self._optimizer.compute_gradients(scaled, *args, **kwargs)
        inverse = 1.0 / scale
        return [
            (None if g is None else scalar_mul(cast(inverse, g.dtype), g), variable) for g, variable in pairs
        ]

    def _apply(
        self, pairs: Sequence[tuple[Any, Variable]], global_step: Variable | None, name: str | None
    ) -> Operation:
        for _, variable in pairs:
            variable.check_updated_here()
        self._create_slots([variable for _, variable in pairs])
        pairs = [(_as_kept(gradient, variable), variable) for gradient, variable in pairs]
        return self._if_finite(
            [gradient for gradient, _ in pairs],
            lambda: self._optimizer.apply_gradients(pairs, global_step, name),
            name,
        )

    def _apply_sums(
        self,
        extended: Any,
        sums: Sequence[Any],
        variables: Sequence[Variable],
        global_step: Variable | None,
        name: str | None,
    ) -> Operation:
        self._create_slots(variables)
        return self._if_finite(
            [select(0, total) for total in sums],
            lambda: self._optimizer._apply_sums(extended, sums, variables, global_step, name),
            name,
        )

    def _if_finite(
        self, gradients: Sequence[Any], apply: Callable[[], Operation], name: str | None
    ) -> Operation:
        """``apply()`` in a branch that runs if ``gradients`` are finite, and the update of the scale."""
        graph = get_default_graph()
        with graph.name_scope(f"{name or self._name}/loss_scale"):
            updated, is_good = self._loss_scale.update(gradients)
            applied = cond(is_good, apply, no_op)
        train_op = group(applied, updated, name=name or self._name)
        graph.add_to_collections(GraphKeys.TRAIN_OP, train_op)
        return train_op

    # --- of the optimizer inside

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        with get_default_graph().control_dependencies(None):
            self._optimizer._create_slots(var_list)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        return self._optimizer.variables()


def _as_kept(gradient: Any, variable: Variable) -> Any:
    """``gradient`` in the layout in which ``variable`` is kept and updated: the check is the first to read it
    and would need it whole.
    """
    attrs = variable.op.node.attrs
    if LAYOUT not in attrs or isinstance(gradient, IndexedSlices):
        return gradient
    found: Tensor = relayout_op(gradient, **as_stored(attrs))
    return found
