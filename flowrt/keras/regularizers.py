"""``flowrt.keras.regularizers``: losses of weights, without the factor 1/2 of `flowrt.layers`."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.math import square
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object


class Regularizer:
    """Base of the regularizers: called with a weight, it returns a scalar."""

    def __call__(self, x: Any) -> Any:
        return 0.0

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Regularizer:
        return cls(**config)


class L1L2(Regularizer):
    """``l1 * sum(|x|) + l2 * sum(x^2)``."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1, self.l2 = float(l1 or 0), float(l2 or 0)

    def __call__(self, x: Any) -> Tensor:
        loss: Any = None
        if self.l1:
            loss = multiply(reduce_sum(absolute(x)), self.l1)
        if self.l2:
            squares = multiply(reduce_sum(square(x)), self.l2)
            loss = squares if loss is None else add(loss, squares)
        return constant(0.0) if loss is None else loss

    def get_config(self) -> dict[str, Any]:
        return {"l1": self.l1, "l2": self.l2}


def l1(l: float = 0.01) -> L1L2:  # noqa: E741  Keras's name
    return L1L2(l1=l)


def l2(l: float = 0.01) -> L1L2:  # noqa: E741  Keras's name
    return L1L2(l2=l)


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    return L1L2(l1, l2)


_find = lookup_in({"L1L2": L1L2, "l1": l1, "l2": l2, "l1_l2": l1_l2})


def get(identifier: Any) -> Any:
    """The regularizer of this name, or a function. Raises `InvalidArgumentError` for an unknown name."""
    found = deserialize_object(identifier, _find, "regularizer")
    return found() if isinstance(identifier, str) and not isinstance(found, Regularizer) else found


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "regularizer", custom_objects)


def serialize(regularizer: Any) -> Any:
    return serialize_object(regularizer)
