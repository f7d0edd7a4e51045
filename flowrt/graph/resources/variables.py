"""Run-time state behind resource tensors: one object per handle node, which a session keeps between runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

from flowrt.dtypes import DType
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.shapes import Shape, compatible, format_shape, is_static


@final
class VariableResource:
    """A variable's value on its device.

    With a static shape, ``array`` is the same memory for the session's lifetime, allocated by `pin`, so that
    compiled programs read it in place; kernels update it in place, holding ``lock``. It is valid once
    ``is_initialized``. Updates by concurrent steps are atomic, and so is a fetch; but a kernel that reads it
    in place during another step's update may see a torn mix of old and new values, as with TensorFlow's
    reference variables.
    """

    __slots__ = ("array", "dtype", "is_initialized", "lock", "name", "shape")

    def __init__(self, name: str, dtype: DType, shape: Shape) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.array: Any = None
        self.is_initialized = False
        self.lock = threading.Lock()

    @property
    def is_pinned(self) -> bool:
        """Whether assignments keep the same memory."""
        return self.array is not None and is_static(self.shape)

    def pin(self, empty: Callable[[tuple[int, ...], Any], Any]) -> None:
        """Allocate the memory for the session's lifetime by ``empty(shape, dtype)``, for a fixed shape."""
        if is_static(self.shape) and self.dtype.np.kind != "O":
            self.array = empty(self.shape or (), self.dtype.np)

    def read(self) -> Any:
        """The value, without a copy. Raises `FailedPreconditionError` before the first assignment."""
        if not self.is_initialized:
            raise FailedPreconditionError(
                f"variable {self.name!r} has no value yet. Run global_variables_initializer(), or"
                " local_variables_initializer() for a local variable, or restore a checkpoint"
            )
        return self.array

    def assign(self, xp: Any, value: Any) -> None:
        """Set the value by copying. Raises `InvalidArgumentError` for a value of another shape, without
        changing anything.
        """
        if not compatible(value.shape, self.shape):
            expected, got = format_shape(self.shape), format_shape(value.shape)
            raise InvalidArgumentError(
                f"variable {self.name!r}: expected a value of shape {expected}; got {got}"
            )
        with self.lock:
            if self.is_pinned:
                xp.copyto(self.array, value)
            else:
                self.array = xp.array(value, order="C")  # optimizers update it through a flat view
            self.is_initialized = True
