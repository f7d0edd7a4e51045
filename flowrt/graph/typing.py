"""Types of arguments that convert to a tensor, for annotations.

    def scale(x: NumericLike, factor: float = 2.0) -> Tensor: ...

`flowrt.typing` has them for scripts, with `DTypeLike`. They tell a type checker what
`convert_to_tensor` accepts; nothing checks them when a script runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from flowrt.graph.shapes import Dimension, TensorShape

if TYPE_CHECKING:
    from flowrt.graph.construction.operation import Operation, Tensor


class SupportsTensor(Protocol):
    """A variable, a value of a strategy, or another object that stands for a tensor."""

    def __flowrt_tensor__(self) -> Tensor: ...


class SupportsFetch(Protocol):
    """An object that a session can fetch as one tensor or several."""

    def _as_graph_element(self) -> Any: ...


class SupportsArray(Protocol):
    """An object that NumPy converts to an array: an array, a scalar of NumPy's, a data frame."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


class ListLike(Protocol):
    """A list, a tuple or another sequence, of anything; no string, as ``in`` of a string takes strings only.

    Of anything, because mypy takes a variable that holds ``[tensor, 1]`` for a list of objects.
    """

    def __len__(self, /) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self, /) -> Iterator[Any]: ...
    def __reversed__(self, /) -> Iterator[Any]: ...


Number: TypeAlias = "Tensor | SupportsTensor | SupportsArray | Dimension | complex"
"""One number, or a tensor or an array of numbers. ``complex`` includes float, int and bool."""

NumericLike: TypeAlias = "Number | TensorShape | ListLike"
"""A value that converts to a tensor of numbers or bools: a tensor, a variable, an array, a number, or a list
of those, nested to any depth."""

TensorLike: TypeAlias = "NumericLike | str | bytes"
"""A value that converts to a tensor: as `NumericLike`, or with strings."""

ShapeLike: TypeAlias = "TensorShape | int | ListLike | None"
"""A static shape: see `flowrt.graph.shapes.as_shape`."""

ShapeTensorLike: TypeAlias = "NumericLike | ShapeLike"
"""A shape, or a vector of other integers that may contain dimensions: as a tensor, or as Python has it."""

Result = TypeVar("Result")

FunctionOf: TypeAlias = (
    Callable[[Any], Result]
    | Callable[[Any, Any], Result]
    | Callable[[Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any], Result]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any], Result]
)
"""A function of as many tensors as a structure has. With ``Callable[..., Result]``, checkers would not know
the types of a lambda's parameters, and say so.
"""

Ints: TypeAlias = int | Sequence[int]
"""One integer for all spatial dimensions, or one for each."""

Index: TypeAlias = "NumericLike | slice | EllipsisType | None"
"""One position of an index, as in ``x[..., 0, i:]``."""

Fetch: TypeAlias = "Tensor | Operation | SupportsTensor | SupportsFetch | str"
"""A tensor, an operation, or what stands for one: a variable, a sparse tensor, a name."""

FetchLike: TypeAlias = "Fetch | ListLike | Mapping[Any, Any]"
"""A structure of fetches for `Session.run`."""

PaddingName: TypeAlias = Literal["SAME", "VALID"]

Padding: TypeAlias = "PaddingName | Sequence[Sequence[int]]"
"""Padding of a convolution: by name, or the numbers before and after each dimension."""

LayerPadding: TypeAlias = Literal["valid", "same", "VALID", "SAME"]

LayerDataFormat: TypeAlias = Literal["channels_last", "channels_first"]

DataFormat: TypeAlias = Literal["NHWC", "NCHW"]
