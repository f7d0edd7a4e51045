"""Run-time state behind resource tensors: one object per handle node, which a session keeps between runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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

    __slots__ = (
        "__weakref__", "_has_value", "_rows", "_whole", "array", "begin", "dtype", "lock", "name", "shape",
    )  # fmt: skip

    def __init__(self, name: str, dtype: DType, shape: Shape, whole: VariableResource | None = None) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self._whole, self.begin = whole, 0
        self.array: Any = None
        self.lock: threading.Lock = threading.Lock() if whole is None else whole.lock
        """The lock of the memory: rows and their whole have one."""
        self._has_value = False
        self._rows: weakref.WeakValueDictionary[tuple[int, int], VariableResource]
        self._rows = weakref.WeakValueDictionary()  # no cycle: memory is freed when the session forgets it

    @property
    def whole(self) -> VariableResource:
        """The variable of which these are rows, from ``begin``; itself, unless `rows` made it."""
        return self._whole or self

    @property
    def is_initialized(self) -> bool:
        return self.whole._has_value

    @is_initialized.setter
    def is_initialized(self, value: bool) -> None:
        self.whole._has_value = value

    @property
    def all_rows(self) -> Sequence[VariableResource]:
        """The rows of it that are variables of their own."""
        return list(self._rows.values())

    def rows(self, begin: int, end: int) -> VariableResource:
        """The rows from ``begin`` to before ``end`` as a variable of their own, in the memory of this one,
        which is pinned. One object for the same rows.
        """
        with self.lock:
            found = self._rows.get((begin, end))
            if found is None:
                array = self.array[begin:end]
                found = VariableResource(f"{self.name}[{begin}:{end}]", self.dtype, array.shape, self)
                found.array, found.begin = array, begin
                self._rows[begin, end] = found
            return found

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
        if not (self._whole or self)._has_value:  # in every step: without the call of a property
            raise FailedPreconditionError(
                f"variable {self.name!r} has no value yet. Run global_variables_initializer(), or"
                " local_variables_initializer() for a local variable, or restore a checkpoint"
            )
        return self.array

    def assign_around(self, xp: Any, rows: VariableResource, value: Any) -> None:
        """Set all other rows than ``rows`` to those of ``value``, which has the shape of the whole."""
        end = rows.begin + rows.array.shape[0]
        with self.lock:
            xp.copyto(self.array[: rows.begin], value[: rows.begin])
            xp.copyto(self.array[end:], value[end:])

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
            (self._whole or self)._has_value = True


def locks_of(variables: Iterable[VariableResource]) -> list[threading.Lock]:
    """The locks of ``variables``, in one order for all, so that no two updates wait for each other."""
    return sorted({variable.lock for variable in variables}, key=id)


@contextmanager
def held(locks: Iterable[threading.Lock]) -> Iterator[None]:
    """Hold ``locks``, which are acquired in this order."""
    taken: list[threading.Lock] = []
    try:
        for lock in locks:
            lock.acquire()
            taken.append(lock)
        yield
    finally:
        for lock in taken:
            lock.release()
