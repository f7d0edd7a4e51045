"""SGD to Ftrl. A subclass of `Optimizer` has its hyper-parameters, slots and `_apply_dense`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import add, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.arithmetic import pow as power
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.ops.state import optimizer_updates
from flowrt.graph.ops.state.variable_ops import resource_scatter_sub
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.keras.optimizers.optimizer import Optimizer, scalar
from flowrt.train.optimizers.optimizer import densified, summed_rows
from flowrt.train.optimizers.standard_optimizers import shrinking
from flowrt.variables.variable import Variable


class SGD(Optimizer):
    """``v = momentum * v - learning_rate * g; w += v``, with ``nesterov`` ``w += momentum * v - learning_rate
    * g`` (Sutskever et al. 2013).
    """

    def __init__(
        self, learning_rate: Any = 0.01, momentum: Any = 0.0, nesterov: bool = False, name: str = "SGD",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "momentum": momentum}, options)
        self.nesterov = nesterov
        self._slot_names = ("momentum",) if callable(momentum) or not _is_zero(momentum) else ()

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        rate = self._rate_of(var)
        if not self._slot_names:
            return optimizer_updates.apply_gradient_descent(var.handle, rate, grad)
        return optimizer_updates.apply_momentum(
            var.handle, self._slot(var, "momentum").handle, constant(1.0, var.dtype), multiply(rate, grad),
            self._hyper("momentum", var), use_nesterov=self.nesterov,
        )  # fmt: skip  # the slot keeps -v

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        steps = multiply(self._rate_of(var), grad.values)
        if not self._slot_names:
            return resource_scatter_sub(var.handle, grad.indices, steps)
        return optimizer_updates.sparse_apply_momentum(
            var.handle, self._slot(var, "momentum").handle, constant(1.0, var.dtype), steps, grad.indices,
            self._hyper("momentum", var), use_nesterov=self.nesterov,
        )  # fmt: skip

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "nesterov": self.nesterov}


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


class RMSprop(Optimizer):
    """``ms = rho * ms + (1 - rho) * g^2; w -= learning_rate * g / (sqrt(ms) + epsilon)`` (Tieleman and Hinton
    2012); ``centered`` subtracts the square of the mean gradient under the root.
    """

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.9, momentum: float = 0.0,
        epsilon: float | None = 1e-7, centered: bool = False, name: str = "RMSprop", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "rho": rho, "momentum": momentum}, options)
        self.epsilon, self.centered = epsilon or 1e-7, centered
        self._has_momentum = not _is_zero(momentum)
        self._slot_names = (
            "rms",
            *(["momentum"] if self._has_momentum else []),
            *(["mg"] if centered else []),
        )

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        rho, rate = self._hyper("rho", var), self._rate_of(var)
        rms = self._average(var, "rms", square(grad), rho)
        spread = subtract(rms, square(self._average(var, "mg", grad, rho))) if self.centered else rms
        if not self._has_momentum:
            step = realdiv(multiply(rate, grad), add(sqrt(spread), self.epsilon))
            return var.assign_sub(step, read_value=False)
        slot = self._slot(var, "momentum")
        scaled = realdiv(multiply(rate, grad), sqrt(add(spread, self.epsilon)))
        moved = slot.assign(add(multiply(self._hyper("momentum", var), slot.read_value()), scaled))
        return var.assign_sub(moved, read_value=False)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        """Move the rows of ``grad`` only, with momentum; without, all averages, as if other rows were 0."""
        if not self._has_momentum:
            return super()._apply_sparse(grad, var)
        slots = ["mg", "rms", "momentum"] if self.centered else ["rms", "momentum"]
        rules = optimizer_updates
        rule = rules.sparse_apply_centered_rmsprop if self.centered else rules.sparse_apply_rmsprop
        return rule(
            var.handle, *(self._slot(var, slot).handle for slot in slots), self._rate_of(var),
            self._hyper("rho", var), self._hyper("momentum", var), constant(self.epsilon, var.dtype),
            grad.values, grad.indices,
        )  # fmt: skip

    def _average(self, var: Variable, slot: str, value: Tensor, rho: Tensor) -> Tensor:
        """The moving average after ``value``."""
        kept = self._slot(var, slot)
        return kept.assign(add(multiply(rho, kept.read_value()), multiply(subtract(1.0, rho), value)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon, "centered": self.centered}


class Adagrad(Optimizer):
    """``a += g^2; w -= learning_rate * g / (sqrt(a) + epsilon)`` (Duchi et al. 2011)."""

    _slot_names = ("accumulator",)

    def __init__(
        self, learning_rate: Any = 0.001, initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-7, name: str = "Adagrad", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate}, options)
        self.epsilon, self.initial_accumulator_value = epsilon or 1e-7, initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        self._fill("accumulator", self.initial_accumulator_value, var_list)
        super()._create_slots(var_list)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        total = self._slot(var, "accumulator").assign_add(square(grad))
        step = realdiv(multiply(self._rate_of(var), grad), add(sqrt(total), self.epsilon))
        return var.assign_sub(step, read_value=False)

    def get_config(self) -> dict[str, Any]:
        own = {"epsilon": self.epsilon, "initial_accumulator_value": self.initial_accumulator_value}
        return {**super().get_config(), **own}


class Adadelta(Optimizer):
    """Steps in proportion to the ratio of the moving averages of past updates and gradients (Zeiler 2012)."""

    _slot_names = ("accum_grad", "accum_var")

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float | None = 1e-7,
        name: str = "Adadelta", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "rho": rho}, options)
        self.epsilon = epsilon or 1e-7

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        return optimizer_updates.apply_adadelta(
            var.handle, self._slot(var, "accum_grad").handle, self._slot(var, "accum_var").handle,
            self._rate_of(var), self._hyper("rho", var), constant(self.epsilon, var.dtype), grad,
        )  # fmt: skip

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return optimizer_updates.sparse_apply_adadelta(
            var.handle, self._slot(var, "accum_grad").handle, self._slot(var, "accum_var").handle,
            self._rate_of(var), self._hyper("rho", var), constant(self.epsilon, var.dtype), grad.values,
            grad.indices,
        )  # fmt: skip

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


class Adam(Optimizer):
    """``w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`` with m and v
    moving averages of the gradient and its square (Kingma and Ba 2015); ``amsgrad`` takes the largest v so
    far (Reddi et al. 2018).
    """

    _slot_names: tuple[str, ...] = ("m", "v")

    def __init__(
        self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float | None = 1e-7, amsgrad: bool = False, name: str = "Adam", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2}, options)
        self.epsilon, self.amsgrad = epsilon or 1e-7, amsgrad
        if amsgrad:
            self._slot_names = ("m", "v", "vhat")

    def _prepare(self) -> None:
        super()._prepare()
        betas = self._get_hyper("beta_1"), self._get_hyper("beta_2")
        self._powers = [power(beta, cast(self._step, beta.dtype)) for beta in betas]

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        first, second = (cast(p, var.dtype) for p in self._powers)
        betas = self._hyper("beta_1", var), self._hyper("beta_2", var)
        m, v = self._slot(var, "m"), self._slot(var, "v")
        if not self.amsgrad:
            return optimizer_updates.apply_adam(
                var.handle, m.handle, v.handle, first, second, self._rate_of(var), *betas,
                constant(self.epsilon, var.dtype), grad,
            )  # fmt: skip
        rate = multiply(self._rate_of(var), realdiv(sqrt(subtract(1.0, second)), subtract(1.0, first)))
        new_m = m.assign(add(multiply(m.read_value(), betas[0]), multiply(grad, subtract(1.0, betas[0]))))
        squares = multiply(square(grad), subtract(1.0, betas[1]))
        new_v = v.assign(add(multiply(v.read_value(), betas[1]), squares))
        largest = self._slot(var, "vhat")
        spread = sqrt(largest.assign(maximum(largest.read_value(), new_v)))
        step = realdiv(multiply(rate, new_m), add(spread, self.epsilon))
        return var.assign_sub(step, read_value=False)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon, "amsgrad": self.amsgrad}


class Adamax(Optimizer):
    """Adam with the infinity norm in place of the squares (Kingma and Ba 2015, section 7.1)."""

    _slot_names = ("m", "v")

    def __init__(
        self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float | None = 1e-7, name: str = "Adamax", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2}, options)
        self.epsilon = epsilon or 1e-7

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        first, second = self._hyper("beta_1", var), self._hyper("beta_2", var)
        m, v = self._slot(var, "m"), self._slot(var, "v")
        new_m = m.assign(add(multiply(first, m.read_value()), multiply(subtract(1.0, first), grad)))
        new_v = v.assign(maximum(multiply(second, v.read_value()), absolute(grad)))
        rate = realdiv(self._rate_of(var), subtract(1.0, power(first, self._step_of(var))))
        step = multiply(rate, realdiv(new_m, add(new_v, self.epsilon)))
        return var.assign_sub(step, read_value=False)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        """Move the rows of ``grad`` only, in the slots, too."""
        first, second = self._hyper("beta_1", var), self._hyper("beta_2", var)
        m, v = self._slot(var, "m"), self._slot(var, "v")
        g, rows = summed_rows(grad)
        new_m = add(multiply(first, m.sparse_read(rows)), multiply(subtract(1.0, first), g))
        new_v = maximum(multiply(second, v.sparse_read(rows)), absolute(g))
        rate = realdiv(self._rate_of(var), subtract(1.0, power(first, self._step_of(var))))
        step = multiply(rate, realdiv(new_m, add(new_v, self.epsilon)))
        slots = [slot.scatter_update(IndexedSlices(new, rows)) for slot, new in ((m, new_m), (v, new_v))]
        return group(*slots, resource_scatter_sub(var.handle, rows, step))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


_SCHEDULE_DECAY = 0.004


class Nadam(Optimizer):
    """Adam with Nesterov's momentum, which grows by a schedule (Dozat 2015)."""

    _slot_names = ("m", "v")

    def __init__(
        self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.999,
        epsilon: float | None = 1e-7, name: str = "Nadam", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, {"learning_rate": learning_rate, "beta_1": beta_1, "beta_2": beta_2}, options)
        self.epsilon = epsilon or 1e-7

    def _prepare(self) -> None:
        super()._prepare()
        with get_default_graph().root.as_default():
            own = self._hyper_variables[get_default_graph()]
            if "schedule" not in own:
                own["schedule"] = scalar(1.0, f"{self._name}/momentum_cache")
        first = self._get_hyper("beta_1")
        step = cast(self._step, first.dtype)
        self._now, self._next = (self._momentum(first, step), self._momentum(first, add(step, 1.0)))
        self._product = own["schedule"].assign(multiply(own["schedule"].read_value(), self._now))

    def _momentum(self, first: Any, step: Tensor) -> Tensor:
        return multiply(first, subtract(1.0, multiply(0.5, power(0.96, multiply(step, _SCHEDULE_DECAY)))))

    def _apply_dense(self, grad: Tensor, var: Variable, rows: Tensor | None = None) -> Operation:
        first, second = self._hyper("beta_1", var), self._hyper("beta_2", var)
        now, following, product = (cast(x, var.dtype) for x in (self._now, self._next, self._product))
        m, v = self._slot(var, "m"), self._slot(var, "v")
        new_m = m.assign(add(multiply(first, m.read_value()), multiply(subtract(1.0, first), grad)))
        new_v = v.assign(add(multiply(second, v.read_value()), multiply(subtract(1.0, second), square(grad))))
        gradient = realdiv(grad, subtract(1.0, product))
        average = realdiv(new_m, subtract(1.0, multiply(product, following)))
        spread = realdiv(new_v, subtract(1.0, power(second, self._step_of(var))))
        ahead = add(multiply(subtract(1.0, now), gradient), multiply(following, average))
        step = realdiv(multiply(self._rate_of(var), ahead), add(sqrt(spread), self.epsilon))
        if rows is not None:
            return resource_scatter_sub(var.handle, rows, gather(step, rows))
        return var.assign_sub(step, read_value=False)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        """Move all averages, as if the other rows were 0, but the weights of these rows only."""
        return self._apply_dense(densified(grad, var), var, unique(grad.indices).y)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


class Ftrl(Optimizer):
    """Follow-the-regularised-leader, proximal (McMahan et al. 2013), see `flowrt.train.FtrlOptimizer`."""

    _slot_names = ("accumulator", "linear")

    def __init__(
        self, learning_rate: Any = 0.001, learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1, l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0, name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        hypers = {
            "learning_rate": learning_rate, "learning_rate_power": learning_rate_power,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
        }  # fmt: skip
        super().__init__(name, hypers, options)
        if learning_rate_power > 0:
            raise misuse(f"{name}: expected a learning_rate_power of at most 0; got {learning_rate_power}")
        self.initial_accumulator_value = initial_accumulator_value
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        least = self.get_config()
        for key in [key for key in least if key.startswith(("l1", "l2", "initial")) and least[key] < 0]:
            raise misuse(f"{name}: expected {key} of at least 0; got {least[key]}")

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        self._fill("accumulator", self.initial_accumulator_value, var_list)
        super()._create_slots(var_list)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        after = self._shrinking(grad, var)
        return optimizer_updates.apply_ftrl(*self._slots_of(var), after, *self._hypers(var))

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        after = self._shrinking(grad, var)
        return optimizer_updates.sparse_apply_ftrl(
            *self._slots_of(var), after.values, after.indices, *self._hypers(var)
        )

    def _shrinking(self, grad: Any, var: Variable) -> Any:
        return shrinking(grad, var, self._slot(var, "linear"), 2 * self.l2_shrinkage_regularization_strength)

    def _slots_of(self, var: Variable) -> list[Any]:
        return [each.handle for each in (var, *(self._slot(var, name) for name in self._slot_names))]

    def _hypers(self, var: Variable) -> list[Tensor]:
        names = ("l1_regularization_strength", "l2_regularization_strength", "learning_rate_power")
        return [self._rate_of(var), *(self._hyper(name, var) for name in names)]

    def get_config(self) -> dict[str, Any]:
        names = ("initial_accumulator_value", "l2_shrinkage_regularization_strength")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
