"""The optimizers. Each docstring states the update rule and its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.base.filling import fill, ones_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import maximum, multiply
from flowrt.graph.ops.elementwise.comparison import greater, where
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.ops.nn.norms import norm
from flowrt.graph.ops.state import optimizer_updates
from flowrt.graph.ops.state.variable_ops import resource_scatter_add, resource_scatter_sub
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import passing_on
from flowrt.graph.typing import NumericLike
from flowrt.train.optimizers.optimizer import Optimizer, densified, on_device_of, summed_rows
from flowrt.variables.variable import Variable

__all__ = [
    "AdadeltaOptimizer", "AdagradOptimizer", "AdamOptimizer", "AdamWOptimizer", "FtrlOptimizer",
    "GradientDescentOptimizer", "LAMBOptimizer", "LARSOptimizer", "MomentumOptimizer", "RMSPropOptimizer",
]  # fmt: skip


class _RuleOptimizer(Optimizer):
    """An optimizer with one update op: slots and hyper-parameters, in the op's order, around the gradient."""

    _dense_op: OpDef[Operation]
    _sparse_op: OpDef[Operation] | None = None
    """None: a sparse gradient counts as zero in the rows that it does not name."""
    _slot_of: ClassVar[Mapping[str, str]] = {}
    """The slots' public names by the op's names of them, where they differ."""

    def __init__(self, name: str, use_locking: bool = False, **hypers: Any) -> None:
        super().__init__(use_locking, name)
        self._hypers = hypers
        self._starts: dict[str, float] = {}
        """Slots with an initial value other than zero; they precede those of `_slot_names`."""
        self._tensors: dict[str, Tensor] = {}
        self._attrs: dict[str, Any] = {"use_locking": use_locking}

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        if not self._starts:
            super()._create_slots(var_list)
            return
        for var in var_list:
            for name, value in self._starts.items():
                self._get_or_make_slot(var, _constant_like(var, value), name, self._name)
            super()._create_slots([var])

    def _prepare(self) -> None:
        self._tensors = {}
        for key, value in self._hypers.items():
            name = "learning_rate" if key in ("lr", "alpha") else key
            tensor = convert_to_tensor(value() if callable(value) else value, name=name)
            if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
                raise misuse(f"{self._name}: {name}: expected a real number; got {value!r}", DTypeError)
            self._tensors[key] = tensor

    def _hyper(self, name: str, var: Variable) -> Any:
        return cast(self._tensors[name], var.dtype)

    def _inputs(self, op: OpDef, var: Variable, grad: Any, indices: Any = None) -> list[Any]:
        own = {"var": var.handle, "grad": grad, "indices": indices}
        inputs: list[Any] = []
        for argument in op.inputs:
            if argument.name in own:
                inputs.append(own[argument.name])
            elif argument.dtype is not None and argument.dtype.name == "resource":
                inputs.append(self._slots[self._slot_of.get(argument.name, argument.name)][var].handle)
            else:
                inputs.append(self._hyper(argument.name, var))
        return inputs

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        op = self._dense_op
        return op(*self._inputs(op, var, grad), **self._attrs)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        op = self._sparse_op
        if op is None:
            return self._apply_dense(densified(grad, var), var)
        return op(*self._inputs(op, var, grad.values, grad.indices), **self._attrs)


class GradientDescentOptimizer(_RuleOptimizer):
    """``var -= learning_rate * grad``.

    Args:
        learning_rate: The size of a step, a number or a scalar tensor.
        use_locking: Accepted: updates are always atomic.
        name: The prefix of the names of its operations.

    Example:
        >>> v = tf.Variable(1.0)
        >>> train = tf.train.GradientDescentOptimizer(0.1).minimize(v ** 2)
        >>> session.run(v.initializer)
        >>> session.run(train)
        >>> v.eval()
        np.float32(0.8)
    """

    _dense_op = optimizer_updates.apply_gradient_descent

    def __init__(
        self, learning_rate: NumericLike, use_locking: bool = False, name: str = "GradientDescent"
    ) -> None:
        super().__init__(name, use_locking, alpha=learning_rate)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        steps = multiply(grad.values, self._hyper("alpha", var))
        return resource_scatter_sub(var.handle, grad.indices, steps)


class MomentumOptimizer(_RuleOptimizer):
    """``accum = momentum * accum + grad; var -= learning_rate * accum`` (Polyak 1964); with ``use_nesterov``
    the gradient is evaluated ahead (Sutskever et al. 2013).

    Example:
        >>> v = tf.Variable(1.0)
        >>> train = tf.train.MomentumOptimizer(0.1, momentum=0.9).minimize(v ** 2)
        >>> session.run(tf.global_variables_initializer())
        >>> session.run(train)
        >>> v.eval()
        np.float32(0.8)
    """

    _dense_op, _sparse_op = optimizer_updates.apply_momentum, optimizer_updates.sparse_apply_momentum
    _slot_of: ClassVar[Mapping[str, str]] = {"accum": "momentum"}
    _slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: NumericLike,
        momentum: NumericLike,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(name, use_locking, lr=learning_rate, momentum=momentum)
        self._attrs["use_nesterov"] = use_nesterov


class AdagradOptimizer(_RuleOptimizer):
    """``accum += grad^2; var -= learning_rate * grad / sqrt(accum)`` (Duchi et al. 2011)."""

    _dense_op, _sparse_op = optimizer_updates.apply_adagrad, optimizer_updates.sparse_apply_adagrad
    _slot_of: ClassVar[Mapping[str, str]] = {"accum": "accumulator"}

    def __init__(
        self,
        learning_rate: NumericLike,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        super().__init__(name, use_locking, lr=learning_rate)
        self._starts["accumulator"] = initial_accumulator_value


def _constant_like(var: Variable, value: float) -> Callable[[], Tensor]:
    def initial() -> Tensor:
        if not var.shape.is_fully_defined():
            return multiply(ones_like(var.initialized_value()), value)
        return fill(var.shape.as_list(), convert_to_tensor(value, var.dtype))

    return initial


class AdadeltaOptimizer(_RuleOptimizer):
    """Steps in proportion to the ratio of the moving averages of past updates and gradients (Zeiler 2012)."""

    _dense_op, _sparse_op = optimizer_updates.apply_adadelta, optimizer_updates.sparse_apply_adadelta
    _slot_names = ("accum", "accum_update")

    def __init__(
        self,
        learning_rate: NumericLike = 0.001,
        rho: NumericLike = 0.95,
        epsilon: NumericLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(name, use_locking, lr=learning_rate, rho=rho, epsilon=epsilon)


class RMSPropOptimizer(_RuleOptimizer):
    """``mom = momentum * mom + learning_rate * grad / sqrt(mean_square + epsilon); var -= mom`` (Tieleman and
    Hinton 2012).

    Args:
        learning_rate: The size of a step, a number or a scalar tensor.
        decay: The share of the average of squares that a step keeps.
        momentum: The share of the last step that is added to the next.
        epsilon: A small number, against division by zero.
        use_locking: Accepted: updates are always atomic.
        centered: Whether steps are divided by the estimated deviation instead.
        name: The prefix of the names of its operations.

    Example:
        >>> v = tf.Variable(1.0)
        >>> train = tf.train.RMSPropOptimizer(0.01).minimize(v ** 2)
        >>> session.run(tf.global_variables_initializer())
        >>> session.run(train)
        >>> bool(v.eval() < 1.0)
        True
    """

    _slot_of: ClassVar[Mapping[str, str]] = {"ms": "rms", "mom": "momentum"}

    def __init__(
        self,
        learning_rate: NumericLike,
        decay: NumericLike = 0.9,
        momentum: NumericLike = 0.0,
        epsilon: NumericLike = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(name, use_locking, lr=learning_rate, rho=decay, momentum=momentum, epsilon=epsilon)
        self._starts["rms"] = 1.0
        self._slot_names = ("mg", "momentum") if centered else ("momentum",)
        rules = optimizer_updates
        self._dense_op, self._sparse_op = (
            (rules.apply_centered_rmsprop, rules.sparse_apply_centered_rmsprop)
            if centered
            else (rules.apply_rmsprop, rules.sparse_apply_rmsprop)
        )


class AdamOptimizer(_RuleOptimizer):
    """``var -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)`` with m and v
    exponential moving averages of the gradient and its square (Kingma and Ba 2015, the form before section
    2.1). A sparse gradient counts as zero elsewhere.

    Args:
        learning_rate: The size of a step, a number or a scalar tensor.
        beta1: The share of the average of gradients that a step keeps.
        beta2: The share of the average of squares that a step keeps.
        epsilon: A small number, against division by zero.
        use_locking: Accepted: updates are always atomic.
        name: The prefix of the names of its operations.

    Example:
        >>> v = tf.Variable(1.0)
        >>> train = tf.train.AdamOptimizer(0.1).minimize(v ** 2)
        >>> session.run(tf.global_variables_initializer())
        >>> session.run(train)
        >>> v.eval()
        np.float32(0.9)
    """

    _dense_op = optimizer_updates.apply_adam
    _slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: NumericLike = 0.001,
        beta1: NumericLike = 0.9,
        beta2: NumericLike = 0.999,
        epsilon: NumericLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(name, use_locking, lr=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        first = min(var_list, key=lambda v: v.name)
        for beta in ("beta1", "beta2"):
            self._create_non_slot_variable(self._hypers[beta], f"{beta}_power", first)
        super()._create_slots(var_list)

    def _get_beta_accumulators(self) -> tuple[Variable, Variable]:
        return self._get_non_slot_variable("beta1_power"), self._get_non_slot_variable("beta2_power")

    def _prepare(self) -> None:
        super()._prepare()
        powers = self._get_beta_accumulators()
        self._tensors["beta1_power"], self._tensors["beta2_power"] = (p.read_value() for p in powers)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        """The powers of beta grow after all updates."""
        steps = []
        with get_default_graph().control_dependencies(update_ops):
            for beta, power in zip(("beta1", "beta2"), self._get_beta_accumulators(), strict=True):
                with on_device_of(power):
                    steps.append(power.assign(multiply(power, self._hyper(beta, power)), read_value=False))
        return group(*update_ops, *steps, name=name_scope)


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay: before the step, ``var -= learning_rate * weight_decay * var``
    (Loshchilov and Hutter 2019).
    """

    @passing_on(AdamOptimizer.__init__, name="AdamW")
    def __init__(self, weight_decay: NumericLike, **options: Any) -> None:
        super().__init__(**options)
        self._hypers["weight_decay"] = weight_decay

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        decay = multiply(self._hyper("lr", var), self._hyper("weight_decay", var))
        with get_default_graph().control_dependencies([grad]):
            decayed = var.assign_sub(multiply(decay, var), read_value=False)
        with get_default_graph().control_dependencies([decayed]):
            return super()._apply_dense(grad, var)


class FtrlOptimizer(_RuleOptimizer):
    """Follow-the-regularised-leader, proximal (McMahan et al. 2013).

    ``l2_shrinkage_regularization_strength`` adds ``2 * strength * var`` to the gradient, except in the sum of
    its squares; of a sparse gradient, to the rows that it names. ``accum_name`` and ``linear_name`` are the
    names of the slots' variables, by default ``name``.
    """

    _dense_op, _sparse_op = optimizer_updates.apply_ftrl, optimizer_updates.sparse_apply_ftrl
    _slot_names = ("linear",)

    def __init__(
        self,
        learning_rate: NumericLike,
        learning_rate_power: Any = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: NumericLike = 0.0,
        l2_regularization_strength: NumericLike = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        super().__init__(
            name,
            use_locking,
            lr=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
            lr_power=learning_rate_power,
        )
        if l2_shrinkage_regularization_strength < 0:
            raise misuse(
                f"l2_shrinkage_regularization_strength: expected at least 0; got "
                f"{l2_shrinkage_regularization_strength}",
                InvalidArgumentError,
            )
        self._start, self._shrinkage = initial_accumulator_value, 2 * l2_shrinkage_regularization_strength
        self._accum_name, self._linear_name = accum_name, linear_name

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._get_or_make_slot(
                var, _constant_like(var, self._start), "accum", self._accum_name or self._name
            )
            self._zeros_slot(var, "linear", self._linear_name or self._name)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        return super()._apply_dense(self._shrinking(grad, var), var)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return super()._apply_sparse(self._shrinking(grad, var), var)

    def _shrinking(self, grad: Any, var: Variable) -> Any:
        return shrinking(grad, var, self._slots["linear"][var], self._shrinkage)


def shrinking(grad: Any, var: Variable, linear: Variable, strength: float) -> Any:
    """``grad`` after ``strength * var`` has been added to `FtrlOptimizer`'s slot ``linear``: of a sparse
    gradient, to the rows that it names.
    """
    if not strength:
        return grad
    graph = get_default_graph()
    if not isinstance(grad, IndexedSlices):
        with graph.control_dependencies([grad]):
            added = linear.assign_add(multiply(strength, var.read_value()), read_value=False)
        with graph.control_dependencies([added]):
            return identity(grad)
    values, rows = summed_rows(grad)
    with graph.control_dependencies([values]):
        added = resource_scatter_add(linear.handle, rows, multiply(strength, gather(var, rows)))
    with graph.control_dependencies([added]):
        return IndexedSlices(identity(values), rows, grad.dense_shape)


class LARSOptimizer(_RuleOptimizer):
    """Momentum with a learning rate per layer: ``eeta * |w| / (|g| + weight_decay * |w| + epsilon)`` times
    the global rate (You et al. 2017, "Large Batch Training of Convolutional Networks"): ``w -= m`` with
    ``m = momentum * m + rate * (g + weight_decay * w)``.

    Variables with a name that contains an entry of ``skip_list`` get the plain rate and no decay. A sparse
    gradient moves the rows that it names as `MomentumOptimizer` does, as in TensorFlow.
    """

    _sparse_op = optimizer_updates.sparse_apply_momentum
    _slot_of: ClassVar[Mapping[str, str]] = {"accum": "momentum"}
    _slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: NumericLike,
        momentum: NumericLike = 0.9,
        weight_decay: NumericLike = 0.0001,
        eeta: Any = 0.001,
        epsilon: NumericLike = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            name, lr=learning_rate, momentum=momentum, weight_decay=weight_decay, eeta=eeta, epsilon=epsilon
        )
        self._skip_list = list(skip_list or ())
        self._attrs["use_nesterov"] = use_nesterov

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        hypers = ("lr", "momentum", "weight_decay", "eeta", "epsilon")
        rate, momentum, decay, eeta, epsilon = (self._hyper(name, var) for name in hypers)
        added: Any = grad
        if not any(word in var.op.name for word in self._skip_list):
            weights: Any = var.read_value()
            w, g = norm(weights), norm(grad)
            rate = multiply(rate, _where_positive(w, g, eeta * w / (g + decay * w + epsilon)))
            added = grad + decay * weights
        slot, one = self._slots["momentum"][var], convert_to_tensor(1.0, var.dtype)
        update = optimizer_updates.apply_momentum
        return update(var.handle, slot.handle, one, multiply(added, rate), momentum, **self._attrs)


def _where_positive(first: Any, second: Any, ratio: Any) -> Tensor:
    """``ratio`` where both norms are positive, else one."""
    one = ones_like(ratio)
    return where(greater(first, 0), where(greater(second, 0), ratio, one), one)


class LAMBOptimizer(_RuleOptimizer):
    """Adam's direction plus decoupled decay, scaled per layer by ``|w| / |update|`` (You et al. 2020).

    Variables with a name that contains an entry of ``exclude_from_weight_decay`` are not decayed. Sparse
    gradients count as zero elsewhere.
    """

    _slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: NumericLike = 0.001,
        weight_decay: NumericLike = 0.0,
        beta1: NumericLike = 0.9,
        beta2: NumericLike = 0.999,
        epsilon: NumericLike = 1e-6,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "LAMB",
    ) -> None:
        super().__init__(
            name, lr=learning_rate, weight_decay=weight_decay, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        self._exclude = list(exclude_from_weight_decay or ())

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        first = min(var_list, key=lambda v: v.name)
        self._create_non_slot_variable(0.0, "lamb_step", first)
        super()._create_slots(var_list)

    def _prepare(self) -> None:
        step = self._get_non_slot_variable("lamb_step")
        with on_device_of(step):
            self._step: Tensor = step.read_value() + 1.0
        super()._prepare()

    def _apply_dense(self, grad: Any, var: Variable) -> Operation:
        dtype: DType = var.dtype
        rate, decay, beta1, beta2, epsilon = (self._hyper(name, var) for name in self._hypers)
        step: Any = cast(self._step, dtype)
        weights: Any = var.read_value()
        m, v = self._slots["m"][var], self._slots["v"][var]
        mean, variance = _decayed(m, beta1, grad), _decayed(v, beta2, square(grad))
        update = mean / (1 - beta1**step) / (sqrt(variance / (1 - beta2**step)) + epsilon)
        if not any(word in var.op.name for word in self._exclude):
            update = update + decay * weights
        w: Any = norm(weights)
        u = norm(update)
        ratio = _where_positive(w, u, w / maximum(u, cast(1e-30, dtype)))
        return var.assign_sub(rate * ratio * update, read_value=False)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        """The step counts after all updates."""
        step = self._get_non_slot_variable("lamb_step")
        with get_default_graph().control_dependencies(update_ops), on_device_of(step):
            counted = step.assign_add(1.0, read_value=False)
        return group(*update_ops, counted, name=name_scope)


def _decayed(mean: Variable, beta: Any, value: Any) -> Any:
    """The mean's new value, after ``mean = beta * mean + (1 - beta) * value``."""
    return mean.assign(beta * mean + (1 - beta) * value)
