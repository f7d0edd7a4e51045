"""``flowrt.keras.constraints``: what weights are mapped to after each step of an optimizer."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import add, clip_by_value, maximum, multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object
from flowrt.keras.state.settings import epsilon


class Constraint:
    """Base of the constraints: called with a weight, it returns the allowed one."""

    def __call__(self, w: Any) -> Any:
        return w

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


def _norms(w: Any, axis: Any) -> Tensor:
    return sqrt(reduce_sum(square(w), axis, keepdims=True))


class MaxNorm(Constraint):
    """Norms along ``axis`` of at most ``max_value``."""

    def __init__(self, max_value: float = 2, axis: Any = 0) -> None:
        self.max_value, self.axis = max_value, axis

    def __call__(self, w: Any) -> Tensor:
        norms = _norms(w, self.axis)
        return multiply(w, realdiv(clip_by_value(norms, 0.0, self.max_value), add(norms, epsilon())))


class NonNeg(Constraint):
    """No negative elements."""

    def __call__(self, w: Any) -> Tensor:
        return maximum(w, cast(0.0, w.dtype))


class UnitNorm(Constraint):
    """Norms along ``axis`` of 1."""

    def __init__(self, axis: Any = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> Tensor:
        return realdiv(w, add(_norms(w, self.axis), epsilon()))


class MinMaxNorm(Constraint):
    """Norms along ``axis`` moved by the share ``rate`` into a range."""

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: Any = 0
    ) -> None:
        self.min_value, self.max_value, self.rate, self.axis = min_value, max_value, rate, axis

    def __call__(self, w: Any) -> Tensor:
        norms = _norms(w, self.axis)
        clipped = clip_by_value(norms, self.min_value, self.max_value)
        wanted = add(multiply(clipped, self.rate), multiply(norms, 1 - self.rate))
        return multiply(w, realdiv(wanted, add(norms, epsilon())))


max_norm, non_neg, unit_norm, min_max_norm = MaxNorm, NonNeg, UnitNorm, MinMaxNorm

_find = lookup_in({
    "MaxNorm": MaxNorm, "NonNeg": NonNeg, "UnitNorm": UnitNorm, "MinMaxNorm": MinMaxNorm,
    "max_norm": MaxNorm, "non_neg": NonNeg, "unit_norm": UnitNorm, "min_max_norm": MinMaxNorm,
})  # fmt: skip


def get(identifier: Any) -> Any:
    """The constraint of this name, or a function. Raises `InvalidArgumentError` for an unknown name."""
    return deserialize_object(identifier, _find, "constraint")


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "constraint", custom_objects)


def serialize(constraint: Any) -> Any:
    return serialize_object(constraint)
