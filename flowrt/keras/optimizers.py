"""``flowrt.keras.optimizers``: Keras's update rules and defaults over `flowrt.train`'s optimizers.

Learning rates and the other hyper-parameters are variables, so that callbacks and ``K.set_value`` change them
between steps. ``decay`` divides the rate by ``1 + decay * iterations``; ``clipnorm`` and ``clipvalue`` bound
each gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flowrt.dtypes import as_dtype, int64
from flowrt.errors import nearest
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.sorting import unique
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add, clip_by_value, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.arithmetic import pow as power
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.ops.nn.norms import clip_by_norm
from flowrt.graph.ops.state import optimizer_updates
from flowrt.graph.ops.state.variable_ops import resource_scatter_sub
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.keras.identifiers import deserialize_object, lookup_in
from flowrt.keras.state.graph_state import graph_state, tracked
from flowrt.keras.state.sessions import batch_get_value, batch_set_value
from flowrt.train.optimizers import optimizer as base
from flowrt.train.optimizers.optimizer import densified, on_device_of, summed_rows
from flowrt.variables.variable import Variable


class Optimizer(base.Optimizer):
    """Base of the optimizers: a subclass has `_slot_names`, its hyper-parameters and `_apply_dense`."""

    _slot_names: tuple[str, ...] = ()
    _old_names: ClassVar[Mapping[str, str]] = {"lr": "learning_rate"}

    def __init__(self, name: str, hypers: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        super().__init__(False, name)
        given = dict(options)
        self._values = {**hypers, "decay": given.pop("decay", 0.0)}
        for old, new in self._old_names.items():
            if old in given:
                self._values[new] = given.pop(old)
        self.clipnorm, self.clipvalue = given.pop("clipnorm", None), given.pop("clipvalue", None)
        if given:
            unknown = next(iter(given))
            known = [*self._values, "clipnorm", "clipvalue"]
            raise misuse(f"{name}: expected {', '.join(known)}; got {unknown!r}.{nearest(unknown, known)}")
        self._hyper_variables: dict[Any, dict[str, Any]] = {}
        self._rate: Any = None
        self._made_slots: list[Variable] = []

    # --- hyper-parameters

    def _get_hyper(self, name: str) -> Any:
        """The variable of a hyper-parameter in this graph; a schedule is a function of the iterations."""
        root = get_default_graph().root
        own = self._hyper_variables.setdefault(root, {})
        if name not in own:
            value = self._values[name]
            if callable(value):
                value = value(self.iterations) if hasattr(value, "get_config") else value()
            own[name] = (
                value if isinstance(value, (Tensor, Variable)) else _scalar(value, f"{self._name}/{name}")
            )
        return own[name]

    def _hyper(self, name: str, var: Variable) -> Tensor:
        return cast(self._get_hyper(name), var.dtype)

    def __getattr__(self, name: str) -> Any:
        """A hyper-parameter by its name: a variable."""
        found = self._old_names.get(name, name)
        if not name.startswith("_") and found in self.__dict__.get("_values", {}):
            return self._get_hyper(found)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        found = self._old_names.get(name, name)
        if found in self.__dict__.get("_values", {}):
            self._values[found] = value
            for own in self._hyper_variables.values():
                if isinstance(own.get(found), Variable):
                    batch_set_value([(own[found], value)])
        else:
            super().__setattr__(name, value)

    @property
    def iterations(self) -> Variable:
        """The number of updates so far, in the default graph."""
        root = get_default_graph().root
        own = self._hyper_variables.setdefault(root, {})
        if "iterations" not in own:
            own["iterations"] = _scalar(0, f"{self._name}/iter", int64)
        return own["iterations"]

    @iterations.setter
    def iterations(self, variable: Variable) -> None:
        """Count the updates in ``variable``, such as the global step."""
        self._hyper_variables.setdefault(get_default_graph().root, {})["iterations"] = variable

    # --- updates

    def get_gradients(self, loss: Any, params: Sequence[Variable]) -> list[Any]:
        """The gradients of ``loss``, clipped. Raises `InvalidArgumentError` for a weight without one."""
        found = gradients(loss, list(params))
        for gradient, weight in zip(found, params, strict=True):
            if gradient is None:
                raise misuse(
                    f"{self._name}: expected a loss that depends on {weight.name!r}; it has no gradient. An"
                    " operation on the way, such as argmax or round, has none"
                )
        return [self._clipped(gradient) for gradient in found]

    def _clipped(self, gradient: Any) -> Any:
        """``gradient`` in its bounds: of rows, each of them before those of one index are added up."""
        if isinstance(gradient, IndexedSlices):
            return IndexedSlices(self._clipped(gradient.values), gradient.indices, gradient.dense_shape)
        if self.clipnorm:
            gradient = clip_by_norm(gradient, self.clipnorm)
        if self.clipvalue:
            gradient = clip_by_value(gradient, -self.clipvalue, self.clipvalue)
        return gradient

    def get_updates(self, loss: Any, params: Sequence[Variable]) -> list[Operation]:
        """The operations of one update of ``params``."""
        pairs = list(zip(self.get_gradients(loss, params), params, strict=True))
        return [self.apply_gradients(pairs)] if pairs else []

    def compute_gradients(  # type: ignore[override]  # options are passed on
        self, loss: Any, var_list: Iterable[Variable] | None = None, **options: Any
    ) -> list[tuple[Any, Variable]]:
        pairs = super().compute_gradients(loss, var_list, **options)
        return [(None if g is None else self._clipped(g), v) for g, v in pairs]

    def _prepare(self) -> None:
        iterations = self.iterations
        rate = self._get_hyper("learning_rate")
        if self._values["decay"]:
            share = multiply(self._get_hyper("decay"), cast(iterations.read_value(), rate.dtype))
            rate = realdiv(rate, add(share, 1.0))
        self._rate = rate
        self._step = add(iterations.read_value(), 1)

    def _rate_of(self, var: Variable) -> Tensor:
        return cast(self._rate, var.dtype)

    def _step_of(self, var: Variable) -> Tensor:
        """The number of this update, from 1."""
        return cast(self._step, var.dtype)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        iterations = self.iterations
        with get_default_graph().control_dependencies(update_ops), on_device_of(iterations):
            counted = iterations.assign_add(constant(1, int64), read_value=False)
        return group(*update_ops, counted, name=name_scope)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        super()._create_slots(var_list)
        known = {id(variable) for variable in graph_state(var_list[0].graph).variables}
        for variable in self._slot_variables():
            if id(variable) not in known:
                self._made_slots.append(tracked(variable))

    def _slot_variables(self) -> list[Variable]:
        return [slot for by_variable in self._slots.values() for slot in by_variable.values()]

    def _slot(self, var: Variable, name: str) -> Variable:
        return self._slots[name][var]

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        return self._apply_dense(densified(grad, var), var)

    # --- values

    @property
    def weights(self) -> list[Variable]:
        """The number of updates and the slots."""
        return [self.iterations, *self._made_slots]

    def variables(self) -> list[Variable]:
        return self.weights

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        return batch_get_value(self.weights)

    def set_weights(self, weights: Sequence[Any]) -> None:
        own = self.weights
        if len(own) != len(weights):
            raise misuse(f"{self._name}: set_weights: expected {len(own)} arrays; got {len(weights)}")
        batch_set_value(list(zip(own, weights, strict=True)))

    def get_config(self) -> dict[str, Any]:
        """The hyper-parameters, with their values now where they are variables."""
        own = self._hyper_variables.get(get_default_graph().root, {})
        config: dict[str, Any] = {"name": self._name}
        for name, value in self._values.items():
            known = own.get(name)
            config[name] = float(batch_get_value([known])[0]) if isinstance(known, Variable) else value
        return config | {k: v for k in ("clipnorm", "clipvalue") if (v := getattr(self, k)) is not None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        return cls(**config)


def _scalar(value: Any, name: str, dtype: Any = "float32") -> Variable:
    root = get_default_graph().root
    with root.name_scope(None), root.device(None):
        return tracked(Variable(constant(value, as_dtype(dtype)), trainable=False, name=name))


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
        for var in var_list:
            start = fill(shape(var), cast(self.initial_accumulator_value, var.dtype))
            self._get_or_make_slot(var, start, "accumulator", self._name)
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
                own["schedule"] = _scalar(1.0, f"{self._name}/momentum_cache")
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


_find = lookup_in({
    name: optimizer
    for optimizer in (SGD, RMSprop, Adagrad, Adadelta, Adam, Adamax, Nadam)
    for name in (optimizer.__name__, optimizer.__name__.lower())
})  # fmt: skip


def get(identifier: Any) -> Any:
    """The optimizer of this name, or one of `flowrt.train`. Raises `InvalidArgumentError` for others."""
    found = deserialize_object(identifier, _find, "optimizer")
    if not isinstance(found, base.Optimizer):
        raise misuse(f"optimizer: expected a name or an optimizer; got {identifier!r}")
    return found


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "optimizer", custom_objects)


def serialize(optimizer: Any) -> Any:
    return {"class_name": type(optimizer).__name__, "config": optimizer.get_config()}
