"""Weights that decay apart from the optimizer's step (Loshchilov and Hutter 2019): before it,
``var -= weight_decay * var``. Unlike in `flowrt.train.AdamWOptimizer`, the decay is not multiplied by the
learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.state.variable_ops import resource_scatter_sub
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.train.optimizers.optimizer import Optimizer, on_device_of
from flowrt.train.optimizers.standard_optimizers import AdamOptimizer, MomentumOptimizer
from flowrt.variables.variable import Variable


class DecoupledWeightDecayExtension(Optimizer):
    """The first base of an optimizer that lets weights decay before each step; the second is the optimizer.

    ``minimize`` and ``apply_gradients`` take ``decay_var_list``, the variables that decay: all that are
    trained, if None or empty. (In TensorFlow 1.15 ``minimize`` forgets them, and all decay.) A sparse
    gradient decays the rows that it names.

    Example:
        >>> class Decayed(tf.contrib.opt.DecoupledWeightDecayExtension, tf.train.GradientDescentOptimizer):
        ...     pass
        >>> v = tf.Variable(1.0)
        >>> train = Decayed(0.5, learning_rate=0.1).minimize(v * 2)
        >>> session.run(v.initializer)
        >>> session.run(train)
        >>> v.eval()
        np.float32(0.3)
    """

    def __init__(self, weight_decay: NumericLike, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weight_decay = weight_decay
        self._decayed: frozenset[Variable] = frozenset()

    def minimize(
        self, *args: Any, decay_var_list: Iterable[Variable] | None = None, **kwargs: Any
    ) -> Operation:
        self._decayed = _variables(decay_var_list)
        return super().minimize(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
        decay_var_list: Iterable[Variable] | None = None,
    ) -> Operation:
        self._decayed = _variables(decay_var_list) or self._decayed
        train_op = super().apply_gradients(grads_and_vars, global_step, name)
        self._decayed = frozenset()
        return train_op

    def _decay(self, var: Variable) -> Tensor | None:
        """The share that ``var`` loses before a step; None if it does not decay."""
        if self._decayed and var not in self._decayed:
            return None
        rate: Any = self._weight_decay
        return cast(convert_to_tensor(rate() if callable(rate) else rate), var.dtype)

    def _update(self, variable: Variable, gradient: Any) -> Operation:
        decay = self._decay(variable)
        if decay is None:
            return super()._update(variable, gradient)
        if not isinstance(gradient, IndexedSlices):
            gradient = convert_to_tensor(gradient, variable.dtype)
        computed = gradient.values if isinstance(gradient, IndexedSlices) else gradient
        with get_default_graph().control_dependencies([computed]), on_device_of(variable):
            decayed = _decayed(variable, gradient, decay)
        with get_default_graph().control_dependencies([decayed]):
            return super()._update(variable, gradient)


def _variables(decay_var_list: Iterable[Variable] | None) -> frozenset[Variable]:
    given = list(decay_var_list or ())
    for each in given:
        if not isinstance(each, Variable):
            raise misuse(f"decay_var_list: expected variables; got {each!r}", DTypeError)
    return frozenset(given)


def _decayed(var: Variable, grad: Tensor | IndexedSlices, decay: Tensor) -> Operation:
    """The operation by which ``var``, or what a sparse gradient names of it, loses the share ``decay``."""
    if not isinstance(grad, IndexedSlices):
        return var.assign_sub(multiply(decay, var.read_value()), read_value=False)
    rows = unique(grad.indices).y
    return resource_scatter_sub(var.handle, rows, multiply(decay, var.sparse_read(rows)))


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Optimizer]:
    """The optimizer ``base_optimizer`` with weights that decay: its first argument is ``weight_decay``.

    Example:
        >>> Decayed = tf.contrib.opt.extend_with_decoupled_weight_decay(tf.train.AdamOptimizer)
        >>> optimizer = Decayed(weight_decay=0.001, learning_rate=0.01)
    """
    given: Any = base_optimizer
    if not (isinstance(given, type) and issubclass(given, Optimizer)):
        raise misuse(
            "extend_with_decoupled_weight_decay: expected a class of optimizers, such as"
            f" tf.train.AdamOptimizer; got {given!r}",
            DTypeError,
        )
    extension = DecoupledWeightDecayExtension
    names = {"__doc__": extension.__doc__}
    return type("OptimizerWithDecoupledWeightDecay", (extension, base_optimizer), names)


class MomentumWOptimizer(DecoupledWeightDecayExtension, MomentumOptimizer):
    """`flowrt.train.MomentumOptimizer` with weights that decay by ``weight_decay`` before each step."""

    def __init__(
        self,
        weight_decay: NumericLike,
        learning_rate: NumericLike,
        momentum: NumericLike,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(weight_decay, learning_rate, momentum, use_locking, name, use_nesterov)


class AdamWOptimizer(DecoupledWeightDecayExtension, AdamOptimizer):
    """`flowrt.train.AdamOptimizer` with weights that decay by ``weight_decay`` before each step, whatever the
    learning rate.
    """

    def __init__(
        self,
        weight_decay: NumericLike,
        learning_rate: NumericLike = 0.001,
        beta1: NumericLike = 0.9,
        beta2: NumericLike = 0.999,
        epsilon: NumericLike = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(weight_decay, learning_rate, beta1, beta2, epsilon, use_locking, name)
