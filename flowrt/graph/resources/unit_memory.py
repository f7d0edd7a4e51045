"""`UnitMemory`: one allocation, in which variables that are used together are stored one behind the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from flowrt.dtypes import DType

if TYPE_CHECKING:
    from flowrt.graph.node import Node


@final
class UnitMemory:
    """Memory of ``length`` elements, allocated by `pin`. The variables that have places in it keep it: it is
    freed with the last of them and this object.

    Each element is given once. What comes for a place that another variable has, as a copy of a graph under
    another name does, is refused, and has memory of its own.
    """

    __slots__ = ("_array", "dtype", "handles", "length")

    def __init__(self, dtype: DType, length: int) -> None:
        self.dtype, self.length = dtype, length
        self._array: Any = None
        self.handles: dict[range, Node] = {}
        """The handles of the variables in it, by the elements that each has."""

    def pin(self, empty: Callable[[tuple[int, ...], Any], Any]) -> None:
        """Allocate the memory by ``empty(shape, dtype)``."""
        self._array = empty((self.length,), self.dtype.np)

    def take(self, begin: int, handle: Node) -> Any:
        """An array for the variable of ``handle``, which has a static shape, in the elements from ``begin``,
        uninitialised; None if it is of another dtype, or not all of them are there and free.
        """
        shape = handle.attrs["shape"]
        end = begin + math.prod(shape)
        is_free = all(end <= taken.start or taken.stop <= begin for taken in self.handles)
        if handle.attrs["dtype"] is not self.dtype or end > self.length or not is_free:
            return None
        self.handles[range(begin, end)] = handle
        return self._array[begin:end].reshape(shape)
