"""The variables of converted code: whether they have a value, and its form in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, final

import numpy as np

from flowrt.control_flow.signatures import TensorSpec
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import user_line

Block: TypeAlias = Callable[[], Any]
"""A block of the user's code, which changes the variables around it."""

State: TypeAlias = tuple[Any, ...]
"""The values of the variables that a block changes and that matter outside."""

GetState: TypeAlias = Callable[[], State]
SetState: TypeAlias = Callable[[State], Any]


def is_symbolic(value: Any) -> bool:
    """Whether it has no value before the graph runs."""
    return isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__")


@final
class Undefined:
    """The value of a variable that has none yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> NoReturn:
        raise UnboundLocalError(f"variable {self.name!r} is used before it has a value ({user_line()})")

    def __repr__(self) -> str:
        return "no value"


@final
class UndefinedReturnValue:
    """The return value before any ``return`` was executed."""

    def __repr__(self) -> str:
        return "no value"


def ld(value: Any) -> Any:
    """``value``, which a variable has. Raises `UnboundLocalError` if it has none."""
    return value.read() if isinstance(value, Undefined) else value


def ldu(load: Block, name: str) -> Any:
    """The result of ``load``, an attribute or item, or `Undefined` if it does not exist."""
    try:
        return load()
    except (KeyError, AttributeError, NameError):
        return Undefined(name)


@final
class FunctionScope:
    """Around the body of each converted function."""

    def __init__(self, name: str, scope_name: str, options: Any) -> None:
        self._name = name

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ret(self, value: Any, did_return: Any) -> Any:
        """Return the function's result."""
        if is_symbolic(did_return):
            raise InvalidArgumentError(
                f"function {self._name!r}: expected a return on every path; got one on only some paths, which"
                " depend on a tensor. Add a return at the end",
                source=user_line(),
            )
        return None if isinstance(value, UndefinedReturnValue) else value


def with_function_scope(body: Callable[[FunctionScope], Any], scope_name: str, options: Any) -> Any:
    """The body of a converted lambda."""
    return body(FunctionScope("<lambda>", scope_name, options))


# --- values in a graph


def is_value(leaf: Any) -> bool:
    """Whether it can become a tensor."""
    return is_symbolic(leaf) or hasattr(leaf, "_with_flow") or isinstance(leaf, _NUMBERS)


_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def is_same(a: Any, b: Any) -> bool:
    """Whether both are equal, so that no branch is needed."""
    if a is b:
        return not is_symbolic(a)
    if isinstance(a, (Undefined, UndefinedReturnValue)):
        return type(a) is type(b)
    return type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b


def spec_of(leaf: Any) -> TensorSpec:
    """The spec of the leaf as a tensor."""
    if isinstance(leaf, TensorSpec):
        return leaf
    if is_symbolic(leaf) or hasattr(leaf, "_with_flow"):
        return TensorSpec.from_tensor(convert_to_tensor(leaf.flow if hasattr(leaf, "_with_flow") else leaf))
    array = as_array(leaf)
    return TensorSpec(array.shape, array.dtype)


def zeros(spec: TensorSpec) -> Tensor:
    """Placeholder values, never read; unknown dimensions are 1."""
    shape = [1 if d is None else d for d in as_shape(spec.shape) or ()]
    return convert_to_tensor(np.zeros(shape, spec.dtype.np))


def as_tensor(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "_with_flow") else convert_to_tensor(leaf)
