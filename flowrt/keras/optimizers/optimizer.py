"""The base of Keras's optimizers.

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
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add, clip_by_value, multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.nn.norms import clip_by_norm
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.keras.optimizers.schedules import LearningRateSchedule, deserialize, serialize
from flowrt.keras.state.graph_state import graph_state, tracked
from flowrt.keras.state.sessions import batch_get_value, batch_set_value
from flowrt.train.optimizers import optimizer as base
from flowrt.train.optimizers.optimizer import densified, on_device_of
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
                value if isinstance(value, (Tensor, Variable)) else scalar(value, f"{self._name}/{name}")
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
            own["iterations"] = scalar(0, f"{self._name}/iter", int64)
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

    def _fill(self, name: str, value: float, var_list: Sequence[Variable]) -> None:
        """Make the slots ``name`` with ``value`` in each element."""
        for var in var_list:
            self._get_or_make_slot(var, fill(shape(var), cast(value, var.dtype)), name, self._name)

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
            if isinstance(value, LearningRateSchedule):
                config[name] = serialize(value)
            else:
                config[name] = float(batch_get_value([known])[0]) if isinstance(known, Variable) else value
        return config | {k: v for k in ("clipnorm", "clipvalue") if (v := getattr(self, k)) is not None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        """An optimizer of these hyper-parameters; one that is a mapping is a schedule's `get_config`."""
        return cls(**{k: deserialize(v) if isinstance(v, Mapping) else v for k, v in config.items()})


def scalar(value: Any, name: str, dtype: Any = "float32") -> Variable:
    """A variable of the default graph that is not trained."""
    root = get_default_graph().root
    with root.name_scope(None), root.device(None):
        return tracked(Variable(constant(value, as_dtype(dtype)), trainable=False, name=name))
