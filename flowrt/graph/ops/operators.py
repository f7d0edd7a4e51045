"""Python's operators on tensors: ``x + y`` adds an operation named "add" to the graph, and so on.

Rules of this file: an operand that is no tensor becomes a constant of the tensor's dtype; ``==`` and ``!=``
compare identity, as in TensorFlow 1, so that tensors are keys of dicts (`equal` compares values).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

from flowrt.errors import DTypeError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Tensor
from flowrt.graph.ops.arithmetic import add_v2, multiply, power, subtract
from flowrt.graph.ops.bitwise import bitwise_and, bitwise_or, bitwise_xor, invert
from flowrt.graph.ops.comparison import (
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from flowrt.graph.ops.complex_parts import abs as absolute
from flowrt.graph.ops.division import floor_div, floormod, truediv
from flowrt.graph.ops.linalg import matmul
from flowrt.graph.ops.math import neg
from flowrt.graph.ops.slicing import getitem

Function = Callable[..., Any]


def _bits_or_truth(of_bits: Function, of_truth: Function) -> Function:
    def function(x: Any, y: Any, name: str) -> Any:
        tensor = x if isinstance(x, Tensor) else y
        return (of_truth if tensor.dtype.is_bool else of_bits)(x, y, name=name)

    return function


_BINARY: dict[str, tuple[Function, str]] = {
    "add": (add_v2, "add"),
    "sub": (subtract, "sub"),
    "mul": (multiply, "mul"),
    "truediv": (truediv, "truediv"),
    "floordiv": (floor_div, "floordiv"),
    "mod": (floormod, "mod"),
    "pow": (power, "pow"),
    "matmul": (matmul, "matmul"),
    "and": (_bits_or_truth(bitwise_and, logical_and), "and"),
    "or": (_bits_or_truth(bitwise_or, logical_or), "or"),
    "xor": (_bits_or_truth(bitwise_xor, logical_xor), "xor"),
}
"""By method name without underscores: the function and the name that its operations get."""

_COMPARISONS: dict[str, tuple[Function, str]] = {
    "__lt__": (less, "Less"),
    "__le__": (less_equal, "LessEqual"),
    "__gt__": (greater, "Greater"),
    "__ge__": (greater_equal, "GreaterEqual"),
}


def _forward(function: Function, name: str, reflected: str) -> Function:
    def method(self: Any, other: Any) -> Any:
        try:
            return function(convert_to_tensor(self), other, name=name)
        except DTypeError:
            if (
                isinstance(other, (Tensor, Number))
                or not hasattr(type(other), reflected)
                or hasattr(other, "dtype")
            ):
                raise
            return NotImplemented  # a foreign type that may know what to do

    return method


def _reflected(function: Function, name: str) -> Function:
    def method(self: Any, other: Any) -> Any:
        return function(other, convert_to_tensor(self), name=name)

    return method


def _invert(self: Any) -> Any:
    tensor = convert_to_tensor(self)
    return logical_not(tensor) if tensor.dtype.is_bool else invert(tensor)


def overload_operators(cls: type[Any]) -> None:
    """Give ``cls``, which is `Tensor` or converts to one, Python's operators and indexing."""
    for key, (function, name) in _BINARY.items():
        setattr(cls, f"__{key}__", _forward(function, name, f"__r{key}__"))
        setattr(cls, f"__r{key}__", _reflected(function, name))
    for method, (function, name) in _COMPARISONS.items():
        setattr(cls, method, _forward(function, name, method))
    unary: dict[str, Function] = {
        "__neg__": lambda self: neg(convert_to_tensor(self)),
        "__abs__": absolute,
        "__invert__": _invert,
        "__getitem__": lambda self, key: getitem(convert_to_tensor(self), key),
    }
    for method, function in unary.items():
        setattr(cls, method, function)


overload_operators(Tensor)
