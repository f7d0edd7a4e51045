"""The optimizers. Each docstring gives the rule and its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.dtypes import DType
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Operation, Tensor, get_default_graph
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops import training
from flowrt.graph.ops.arithmetic import maximum
from flowrt.graph.ops.comparison import where
from flowrt.graph.ops.filling import fill, ones_like
from flowrt.graph.ops.identities import cast
from flowrt.graph.ops.norms import norm
from flowrt.graph.ops.math import sqrt, square
from flowrt.train.optimizer import Optimizer, on_device_of
from flowrt.variables import Variable


class _RuleOptimizer(Optimizer):
    """An optimizer whose step is one op: slots and hyper-parameters, in the op's order, around the gradient."""

    _ops: tuple[OpDef, OpDef]

    def __init__(self, use_locking: bool, name: str, **hypers: Any) -> None:
        super().__init__(use_locking, name)
        self._hypers = hypers
        self._tensors: dict[str, Tensor] = {}
        self._attrs: dict[str, Any] = {}

    def _prepare(self) -> None:
        self._tensors = {
            key: convert_to_tensor(value() if callable(value) else value, name=key) for key, value in self._hypers.items()
        }

    def _hyper(self, name: str, var: Variable) -> Any:
        return cast(self._tensors[name], var.dtype)

    def _inputs(self, grad: Tensor, var: Variable, op: OpDef) -> list[Any]:
        inputs: list[Any] = []
        for argument in op.inputs:
            if argument.name == "var":
                inputs.append(var.handle)
            elif argument.name == "grad":
                inputs.append(grad)
            elif argument.dtype is not None and argument.dtype.name == "resource":
                slot = self.get_slot(var, argument.name)
                assert slot is not None
                inputs.append(slot.handle)
            elif argument.name != "indices":
                inputs.append(self._hyper(argument.name, var))
        return inputs

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        op = self._ops[0]
        updated: Operation = op(*self._inputs(grad, var, op), **self._attrs)
        return updated

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        op = self._ops[1]
        updated: Operation = op(*self._inputs(grad.values, var, op), grad.indices, **self._attrs)
        return updated


class GradientDescentOptimizer(_RuleOptimizer):
    """``var -= learning_rate * grad``."""

    _ops = (training.apply_gradient_descent, training.sparse_apply_gradient_descent)

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name, alpha=learning_rate)


class MomentumOptimizer(_RuleOptimizer):
    """``accum = momentum * accum + grad; var -= learning_rate * accum`` (Polyak 1964); with ``use_nesterov`` the
    gradient is taken ahead (Sutskever et al. 2013).
    """

    _ops = (training.apply_momentum, training.sparse_apply_momentum)

    def __init__(
        self, learning_rate: Any, momentum: Any, use_locking: bool = False, name: str = "Momentum", use_nesterov: bool = False
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, momentum=momentum)
        self._attrs = {"use_nesterov": use_nesterov}

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._slots["momentum"] = self._slots.setdefault("accum", {})
            self._zeros_slot(var, "accum", self._name)

    def get_slot_names(self) -> list[str]:
        return ["momentum"]


class AdagradOptimizer(_RuleOptimizer):
    """``accum += grad^2; var -= learning_rate * grad / sqrt(accum)`` (Duchi et al. 2011)."""

    _ops = (training.apply_adagrad, training.sparse_apply_adagrad)

    def __init__(
        self, learning_rate: Any, initial_accumulator_value: float = 0.1, use_locking: bool = False, name: str = "Adagrad"
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate)
        self._initial = initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._make_slot(var, _constant_like(var, self._initial), "accum", self._name)


def _constant_like(var: Variable, value: float) -> Callable[[], Tensor]:
    return lambda: fill(var.shape.as_list(), cast(value, var.dtype))


class AdadeltaOptimizer(_RuleOptimizer):
    """Steps in proportion to the ratio of decaying means of past updates and gradients (Zeiler 2012)."""

    _ops = (training.apply_adadelta, training.sparse_apply_adadelta)
    _slot_names = ("accum", "accum_update")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, rho=rho, epsilon=epsilon)


class RMSPropOptimizer(_RuleOptimizer):
    """``mom = momentum * mom + learning_rate * grad / sqrt(mean_square + epsilon); var -= mom`` (Tieleman and Hinton
    2012); ``centered`` divides by the estimated deviation instead.
    """

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, rho=decay, momentum=momentum, epsilon=epsilon)
        self._centered = centered
        plain = (training.apply_rmsprop, training.sparse_apply_rmsprop)
        self._ops = (training.apply_centered_rmsprop, training.sparse_apply_centered_rmsprop) if centered else plain

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._make_slot(var, lambda var=var: ones_like(var.initialized_value()), "ms", self._name)  # type: ignore[misc]
            if self._centered:
                self._zeros_slot(var, "mg", self._name)
            self._zeros_slot(var, "mom", self._name)


class AdamOptimizer(_RuleOptimizer):
    """``var -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)`` with decaying means m of the
    gradient and v of its square (Kingma and Ba 2015, the form before section 2.1). A sparse gradient counts as zero elsewhere.
    """

    _ops = (training.apply_adam, training.sparse_apply_adam)
    _slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
        self._attrs = {"use_nesterov": False}

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        first = min(var_list, key=lambda v: v.name)
        for beta in ("beta1", "beta2"):
            value = self._hypers[beta]
            self._scalar(f"{beta}_power", value if callable(value) else lambda value=value: value, first)  # type: ignore[misc]
        super()._create_slots(var_list)

    def _power(self, beta: str) -> Variable:
        return self._extra[f"{beta}_power", get_default_graph()]

    def _prepare(self) -> None:
        super()._prepare()
        for beta in ("beta1", "beta2"):
            self._tensors[f"{beta}_power"] = self._power(beta).read_value()

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return self._apply_dense(convert_to_tensor(grad), var)

    def _finish(self, updates: Sequence[Operation]) -> list[Operation]:
        with get_default_graph().control_dependencies(updates):
            steps = []
            for beta in ("beta1", "beta2"):
                power = self._power(beta)
                with on_device_of(power):
                    steps.append(power.assign(power * self._hyper(beta, power), read_value=False))
            return steps

    def _get_beta_accumulators(self) -> tuple[Variable, Variable]:
        return self._power("beta1"), self._power("beta2")


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay: before the step, ``var -= learning_rate * weight_decay * var`` (Loshchilov and
    Hutter 2019).
    """

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._hypers["weight_decay"] = weight_decay

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        decay = self._hyper("lr", var) * self._hyper("weight_decay", var)
        with get_default_graph().control_dependencies([grad]):
            decayed = var.assign_sub(decay * var, read_value=False)
        with get_default_graph().control_dependencies([decayed]):
            return super()._apply_dense(grad, var)


class FtrlOptimizer(_RuleOptimizer):
    """Follow-the-regularised-leader, proximal (McMahan et al. 2013)."""

    _ops = (training.apply_ftrl, training.sparse_apply_ftrl)

    def __init__(
        self,
        learning_rate: Any,
        learning_rate_power: Any = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Any = 0.0,
        l2_regularization_strength: Any = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
    ) -> None:
        super().__init__(
            use_locking,
            name,
            lr=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
            lr_power=learning_rate_power,
        )
        self._initial = initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            self._make_slot(var, _constant_like(var, self._initial), "accum", self._name)
            self._zeros_slot(var, "linear", f"{self._name}_1")


class LARSOptimizer(_RuleOptimizer):
    """Momentum with a learning rate a layer: ``eeta * |w| / (|g| + weight_decay * |w| + epsilon)`` times the global one (You
    et al. 2017). Variables whose name contains an entry of ``skip_list`` get the plain rate and no decay.
    """

    _ops = (training.apply_momentum, training.sparse_apply_momentum)

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: Any = 0.0001,
        eeta: Any = 0.001,
        epsilon: Any = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            False, name, lr=learning_rate, momentum=momentum, weight_decay=weight_decay, eeta=eeta, epsilon=epsilon
        )
        self._skip_list = list(skip_list or ())
        self._attrs = {"use_nesterov": use_nesterov}
        self._rates: dict[Variable, Tensor] = {}

    _slot_names = ("accum",)

    def _hyper(self, name: str, var: Variable) -> Any:
        return self._rates[var] if name == "lr" and var in self._rates else super()._hyper(name, var)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        if not any(word in var.op.name for word in self._skip_list):
            weights = var.read_value()
            w, g = norm(weights), norm(grad)
            decay = self._hyper("weight_decay", var)
            trust = self._hyper("eeta", var) * w / (g + decay * w + self._hyper("epsilon", var))
            self._rates[var] = super()._hyper("lr", var) * _where_positive(w, g, trust)
            grad = grad + decay * weights
        return super()._apply_dense(grad, var)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return self._apply_dense(convert_to_tensor(grad), var)


def _where_positive(w: Tensor, g: Tensor, ratio: Tensor) -> Tensor:
    """``ratio`` where both norms are positive, else one."""
    one = ones_like(ratio)
    chosen: Tensor = where(w > 0, where(g > 0, ratio, one), one)
    return chosen


class LAMBOptimizer(Optimizer):
    """Adam's direction plus decoupled decay, scaled a layer by ``|w| / |update|`` (You et al. 2020)."""

    _slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: Any = 0.0,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-6,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "LAMB",
    ) -> None:
        super().__init__(False, name)
        self._settings = {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
        }
        self._exclude = list(exclude_from_weight_decay or ())

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        first = min(var_list, key=lambda v: v.name)
        self._scalar("lamb_step", lambda: 0.0, first)
        super()._create_slots(var_list)

    def _prepare(self) -> None:
        step = self._extra["lamb_step", get_default_graph()]
        with on_device_of(step):
            self._step: Tensor = step.assign_add(1.0)

    def _setting(self, name: str, dtype: DType) -> Tensor:
        value = self._settings[name]
        return cast(convert_to_tensor(value() if callable(value) else value), dtype)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        dtype = var.dtype
        rate, decay, beta1, beta2, epsilon = (self._setting(key, dtype) for key in self._settings)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        assert m is not None and v is not None
        step = cast(self._step, dtype)
        weights = var.read_value()
        mean = m.assign(beta1 * m + (1 - beta1) * grad)
        variance = v.assign(beta2 * v + (1 - beta2) * square(grad))
        corrected = mean / (1 - beta1**step)
        update = corrected / (sqrt(variance / (1 - beta2**step)) + epsilon)
        if not any(word in var.op.name for word in self._exclude):
            update = update + decay * weights
        w, u = norm(weights), norm(update)
        ratio = _where_positive(w, u, w / maximum(u, cast(1e-30, dtype)))
        updated: Operation = var.assign_sub(rate * ratio * update, read_value=False)
        return updated
