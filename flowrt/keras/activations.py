"""``flowrt.keras.activations``: functions between layers."""

from __future__ import annotations

from typing import Any

from flowrt import nn
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise import math
from flowrt.graph.ops.elementwise.arithmetic import add, clip_by_value, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater, less
from flowrt.graph.ops.nn import softmax as softmaxes
from flowrt.graph.source import misuse
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object

__all__ = [
    "elu", "exponential", "hard_sigmoid", "linear", "relu", "selu", "sigmoid", "softmax", "softplus",
    "softsign", "swish", "tanh",
]  # fmt: skip


def linear(x: Any) -> Any:
    """``x``."""
    return x


def softmax(x: Any, axis: int = -1) -> Tensor:
    """Positive numbers with the sum 1 along ``axis``. Raises `InvalidArgumentError` for a vector."""
    x = convert_to_tensor(x)
    if x.shape.ndims == 1:
        raise misuse(f"softmax: expected a tensor of rank 2 or more; got {x!r}")
    return softmaxes.softmax(x, axis)


def relu(x: Any, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Tensor:
    """``max(x, 0)``; below ``threshold`` ``alpha * (x - threshold)``, at most ``max_value``."""
    x = convert_to_tensor(x)
    if not threshold:
        result = nn.leaky_relu(x, alpha) if alpha else nn.relu(x)
    else:
        result = multiply(x, cast(greater(x, threshold), x.dtype))
        if alpha:
            below = multiply(subtract(x, threshold), cast(less(x, threshold), x.dtype))
            result = add(result, multiply(below, alpha))
    return result if max_value is None else minimum(result, float(max_value))


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """``x``, or for negative ones ``alpha * (exp(x) - 1)``."""
    result = nn.elu(x)
    if alpha == 1:
        return result
    return add(nn.relu(x), multiply(minimum(result, 0.0), alpha))


def hard_sigmoid(x: Any) -> Tensor:
    """``0.2 x + 0.5``, between 0 and 1."""
    return clip_by_value(add(multiply(x, 0.2), 0.5), 0.0, 1.0)


def exponential(x: Any) -> Tensor:
    return math.exp(x)


selu, softplus, softsign, swish = nn.selu, nn.softplus, nn.softsign, nn.swish
sigmoid, tanh = math.sigmoid, math.tanh


def get(identifier: Any) -> Any:
    """The activation of this name, or a function; None means `linear`.

    Raises `InvalidArgumentError` for an unknown name.
    """
    found = deserialize_object(identifier, _find, "activation")
    if found is not None and not callable(found):
        raise misuse(f"activation: expected a name or a function; got {found!r}")
    return linear if found is None else found


def deserialize(name: str, custom_objects: Any = None) -> Any:
    return deserialize_object(name, _find, "activation", custom_objects)


def serialize(activation: Any) -> Any:
    return serialize_object(activation)


_find = lookup_in(
    {**{name: globals()[name] for name in __all__}, "leaky_relu": nn.leaky_relu, "relu6": nn.relu6}
)
