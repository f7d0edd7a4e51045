"""Python's operators on tensors: ``x + y`` adds an operation named "add" to the graph, and so on.

Rules of this file: an operand that is not a tensor becomes a constant of the tensor's dtype; ``==`` and
``!=`` compare identity, as in TensorFlow 1, so that tensors are keys of dicts (`equal` compares values). An
array to the left of an operator arrives here as a call of its ufunc. Other uses of a tensor's value raise
`DTypeError`, unless a function being traced knows it (`FuncGraph.observe`).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from operator import index
from typing import Any, NoReturn

from flowrt.errors import DTypeError, OpError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.construction.python_values import value_error
from flowrt.graph.op_def import registered_ops
from flowrt.graph.ops.array.gather_scatter import gather_nd
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, power, subtract
from flowrt.graph.ops.elementwise.bitwise import bitwise_and, bitwise_or, bitwise_xor, invert
from flowrt.graph.ops.elementwise.comparison import (
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.division import div, floor_div, floormod, truediv
from flowrt.graph.ops.elementwise.math import neg
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.surface.slice_assignment import assignment

Function = Callable[..., Any]

_REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
"""The operator that ``array <op> tensor`` means, by the ufunc that NumPy calls for it."""


def _bits_or_truth(of_bits: Function, of_truth: Function) -> Function:
    def function(x: Any, y: Any, name: str) -> Any:
        tensor = x if isinstance(x, Tensor) else y
        return (of_truth if tensor.dtype.is_bool else of_bits)(x, y, name=name)

    return function


_BINARY: dict[str, Function] = {
    "add": add_v2,
    "sub": subtract,
    "mul": multiply,
    "truediv": truediv,
    "div": div,
    "floordiv": floor_div,
    "mod": floormod,
    "pow": power,
    "matmul": matmul,
    "and": _bits_or_truth(bitwise_and, logical_and),
    "or": _bits_or_truth(bitwise_or, logical_or),
    "xor": _bits_or_truth(bitwise_xor, logical_xor),
}
"""Map from method names without underscores, which operations have too, to functions."""

_COMPARISONS: dict[str, tuple[Function, str]] = {
    "__lt__": (less, "Less"),
    "__le__": (less_equal, "LessEqual"),
    "__gt__": (greater, "Greater"),
    "__ge__": (greater_equal, "GreaterEqual"),
}


def _forward(function: Function, name: str, reflected: str) -> Function:
    def method(self: Any, other: Any) -> Any:
        try:
            return function(self if type(self) is Tensor else convert_to_tensor(self), other, name=name)
        except DTypeError:
            if (
                isinstance(other, (Tensor, Number))
                or not hasattr(type(other), reflected)
                or hasattr(other, "dtype")
            ):
                raise
            return NotImplemented  # a foreign type that may handle it

    return method


def _reflected(function: Function, name: str) -> Function:
    def method(self: Any, other: Any) -> Any:
        return function(other, self if type(self) is Tensor else convert_to_tensor(self), name=name)

    return method


def _invert(self: Any) -> Any:
    tensor = convert_to_tensor(self)
    return logical_not(tensor) if tensor.dtype.is_bool else invert(tensor)


def _no_value(self: Any, hint: str) -> OpError:
    return value_error(self, f"has no value yet: expected an array. {hint}")


_FUNCTIONS = {
    ("add", "reduce"): "reduce_sum",
    ("multiply", "reduce"): "reduce_prod",
    ("maximum", "reduce"): "reduce_max",
    ("minimum", "reduce"): "reduce_min",
    ("logical_and", "reduce"): "reduce_all",
    ("logical_or", "reduce"): "reduce_any",
    ("add", "accumulate"): "cumsum",
    ("multiply", "accumulate"): "cumprod",
}
"""flowrt's function for a method of a ufunc: ``np.sum`` calls ``np.add.reduce``."""


def _replacement(ufunc: Any, method: str) -> str:
    """Advice to use flowrt's function in place of ``ufunc`` if there is one, and otherwise a session."""
    op_name = "".join(part.capitalize() for part in ufunc.__name__.split("_"))
    same_name = ufunc.__name__ if method == "__call__" and op_name in registered_ops() else None
    name = _FUNCTIONS.get((ufunc.__name__, method), same_name)
    return f"Use flowrt.{name}(), or run it in a session first" if name else "Run it in a session first"


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
    """``array <op> self`` by the reflected operator; every other call of a ufunc needs a value."""
    if method == "__call__" and len(inputs) == 2 and inputs[1] is self:
        if ufunc.__name__ in ("equal", "not_equal"):  # by identity, and an array is not a tensor
            return ufunc.__name__ == "not_equal"
        if ufunc.__name__ in _REFLECTED:
            return getattr(self, _REFLECTED[ufunc.__name__])(inputs[0])
    raise _no_value(self, _replacement(ufunc, method))


def _to_number(self: Any) -> NoReturn:
    raise _no_value(self, "Use flowrt.cast() to change its dtype, or run it in a session first")


def _setitem(self: Any, key: Any, value: Any) -> NoReturn:
    raise value_error(self, "is immutable: use flowrt.tensor_scatter_nd_update(), or assign() of a variable")


def overload_operators(cls: type[Any]) -> None:
    """Give ``cls``, which is `Tensor` or converts to one, Python's operators and indexing."""
    for key, function in _BINARY.items():
        setattr(cls, f"__{key}__", _forward(function, key, f"__r{key}__"))
        setattr(cls, f"__r{key}__", _reflected(function, key))
    for method, (function, name) in _COMPARISONS.items():
        setattr(cls, method, _forward(function, name, method))
    others: dict[str, Function] = {
        "__neg__": lambda self: neg(convert_to_tensor(self)),
        "__abs__": absolute,
        "__invert__": _invert,
        "__getitem__": lambda self, key: getitem(convert_to_tensor(self), key),
        "__setitem__": _setitem,
        "__float__": _to_number,
        "__int__": _to_number,
        "__array_ufunc__": _array_ufunc,
    }
    for method, function in others.items():
        setattr(cls, method, function)


def _observing(otherwise: Function, kind: Function) -> Function:
    """The method that returns a tensor's value to a function being traced, or does ``otherwise``."""

    def method(self: Tensor) -> Any:
        observe = getattr(get_default_graph(), "observe", None)
        value = None if observe is None else observe(self)
        return otherwise(self) if value is None else kind(value)

    return method


overload_operators(Tensor)
Tensor.assign = property(assignment)  # type: ignore[attr-defined]


def _on_values(function: Function) -> Function:
    """``sparse <op> dense``: the values, each with the element of the dense tensor at its place."""

    def method(self: SparseTensor, other: Any) -> SparseTensor:
        dense = convert_to_tensor(other, self.dtype)
        if dense.shape.ndims != 0:
            dense = gather_nd(broadcast_to(dense, self.dense_shape), self.indices)
        return SparseTensor(self.indices, function(self.values, dense), self.dense_shape)

    return method


for _name, _function in (("__mul__", multiply), ("__truediv__", truediv)):
    setattr(SparseTensor, _name, _on_values(_function))
Tensor.OVERLOADABLE_OPERATORS = frozenset(  # type: ignore[attr-defined]
    {f"__{prefix}{key}__" for key in _BINARY for prefix in ("", "r")}
    | _COMPARISONS.keys()
    | {"__neg__", "__abs__", "__invert__", "__getitem__", "__eq__", "__ne__"}
)
_KINDS: dict[str, Function] = {"__bool__": bool, "__int__": int, "__float__": float, "__index__": index}
for _name, _kind in _KINDS.items():
    setattr(Tensor, _name, _observing(getattr(Tensor, _name), _kind))
