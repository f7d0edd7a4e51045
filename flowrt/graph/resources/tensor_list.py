"""`TensorList`: the run-time value of a list tensor (dtype `variant`), an immutable list of arrays.

Every change returns a new list, yet a loop that continues with the newest version changes it in O(1): the
versions share one array of elements, which the newest *owns*; an older one stores its difference from the
next newer version (shallow binding: Baker 1978; Conchon and Filliatre, "A persistent union-find data
structure", 2007).

Rules of this file:

  1. Neighbouring versions differ by one element: one is set, or the last is added or removed. The lengths
     determine which.
  2. An older version that is used reverses the differences on the path to the owner, up to `NEAR` of them,
     and becomes the owner. From further away it makes a copy, once: two programs that continue from one
     version thus separate after a few steps instead of reversing differences back and forth.
  3. Only this file writes the array of elements, under one lock, held for the duration of rule 2. So any
     thread may use any version at any time.
  4. An element never changes once it is in a list.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, NoReturn, final

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.shapes import Shape, compatible, format_shape

NEAR = 16
"""Maximum number of differences reversed: one costs 0.4 us, a copy 1 ns per element."""

_lock = threading.Lock()


class ListSpec(NamedTuple):
    """Properties of a list and of all lists derived from it: the elements' dtype, their static shape, and the
    maximum length, if there is one.
    """

    dtype: DType
    shape: Shape = None
    limit: int | None = None


class AwayElement:
    """An element stored elsewhere than where it is read, such as in host memory for a GPU.

    Not an `ABC`: every element read is tested for this type, in 30 ns; with an ABC it takes 220.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape

    def bring(self) -> Any:
        """A new array of it on the reader's side. To be called like a kernel."""
        raise NotImplementedError


@final
class TensorList:
    """A list of arrays or of lists; None is an element that is not set and counts as zeros. An array may be
    an `AwayElement`, which readers get as the array that it represents.

    ``length`` is the number of elements. Indices outside ``[0, length)`` raise `InvalidArgumentError`, as
    does an element with a shape that does not match ``spec``.
    """

    __slots__ = ("_elements", "_index", "_newer", "_value", "length", "rows", "spec")

    def __init__(self, spec: ListSpec, elements: Iterable[Any] = ()) -> None:
        self.spec = spec
        self._elements: list[Any] | None = list(elements)
        for dtype, shape in {(e.dtype, e.shape) for e in self._elements if e is not None}:
            self._check(dtype, shape)
        self.length = len(self._elements)
        self._newer: TensorList | None = None
        self._index, self._value = 0, None
        self.rows: Any = None
        """All elements as one array, if given as such; read-only."""

    @classmethod
    def of_rows(cls, spec: ListSpec, rows: Any) -> TensorList:
        """The list of the rows of an array that will not change. It is split lazily: a view costs 0.1 us."""
        made = cls(spec)
        made._check(rows.dtype, rows.shape[1:])
        made.rows, made.length, made._elements = rows, len(rows), None
        return made

    # --- as an element of another list

    dtype: ClassVar[Any] = np.dtype(object)

    @property
    def shape(self) -> Shape:
        """The static shape of its elements."""
        return self.spec.shape

    # --- reading

    def get(self, index: int) -> Any:
        """The element at ``index``, or None if it is not set."""
        self._check_index(index)
        with _lock:
            value = self._own()[index]
        return _brought(value)

    def elements(self) -> list[Any]:
        """All elements, in a new list."""
        return [value.bring() if isinstance(value, AwayElement) else value for value in self.kept()]

    def kept(self) -> list[Any]:
        """The same as `elements`, without fetching `AwayElement` values."""
        with _lock:
            return list(self._own())

    # --- changing: each gives a new list

    def set(self, index: int, value: Any) -> TensorList:
        """The list with ``value`` (an array that will not be modified, or None) at ``index``."""
        self._check_index(index)
        if value is not None:
            self._check(value.dtype, value.shape)
        return self._changed(self.length, index, value)

    def push(self, value: Any) -> TensorList:
        """The list with ``value`` appended. Raises `InvalidArgumentError` if it is full."""
        if value is not None:
            self._check(value.dtype, value.shape)
        if self.length == self.spec.limit:
            raise InvalidArgumentError(
                f"expected a list with fewer than {self.length} elements; got a full one"
            )
        return self._changed(self.length + 1, self.length, value)

    def pop(self) -> tuple[TensorList, Any]:
        """The list without its last element, and that element. Raises `InvalidArgumentError` if empty."""
        if not self.length:
            raise InvalidArgumentError("expected a list with elements; got an empty one")
        with _lock:
            value = self._own()[-1]
        return self._changed(self.length - 1, 0, None), _brought(value)

    def resized(self, length: int) -> TensorList:
        """The list truncated to ``length``, or extended by elements that are not set."""
        if length < 0:
            raise InvalidArgumentError(f"expected a length of at least 0; got {length}")
        kept = self.kept()[:length]
        return TensorList(self.spec, kept + [None] * (length - len(kept)))

    def copy(self) -> TensorList:
        """The list itself: it is immutable."""
        return self

    # --- versions

    def _changed(self, length: int, index: int, value: Any) -> TensorList:
        """A newer version of this one, which becomes the owner."""
        changed = TensorList.__new__(TensorList)
        changed.spec, changed.length = self.spec, length
        changed._elements, changed._newer = None, self
        changed._index, changed._value, changed.rows = index, value, None
        with _lock:
            self._own()
            changed._take_over()
        return changed

    def _own(self) -> list[Any]:
        """The elements, after making this version the owner. The lock is held."""
        if self._elements is not None:
            return self._elements
        if self._newer is None:
            self._elements = [self.rows[i, ...] for i in range(self.length)]
            return self._elements
        path = self._path()
        if len(path) > NEAR:
            self._elements = _replayed(path)
            self._newer, self._value = None, None
            return self._elements
        for version in reversed(path[1:]):
            version._take_over()
        return self._take_over()

    def _path(self) -> list[TensorList]:
        """The versions from this one to the last before the owner."""
        path = [self]
        while (newer := path[-1]._newer) is not None and newer._elements is None:
            path.append(newer)
        return path

    def _take_over(self) -> list[Any]:
        """Become the owner in place of the next version, which then stores its difference from this one."""
        newer = self._newer
        assert newer is not None
        assert newer._elements is not None
        elements, newer._elements = newer._elements, None
        newer._value = _exchange(elements, self)
        newer._index, newer._newer = self._index, self
        self._elements, self._newer, self._value = elements, None, None
        return elements

    # --- checks

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.length:
            raise InvalidArgumentError(f"expected an index in [0, {self.length}); got {index}")

    def _check(self, dtype: Any, shape: Shape) -> None:
        if dtype != self.spec.dtype.np:
            raise DTypeError(f"expected elements of dtype {self.spec.dtype.name}; got {dtype}")
        if not compatible(shape, self.spec.shape):
            expected, got = format_shape(self.spec.shape), format_shape(shape)
            raise InvalidArgumentError(f"expected elements of shape {expected}; got {got}")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise DTypeError("a list of tensors is not an array. Use flowrt.TensorArray.stack()")

    def __repr__(self) -> str:
        return f"<TensorList {self.spec.dtype.name}{format_shape(self.spec.shape)} length={self.length}>"


def _brought(value: Any) -> Any:
    return value.bring() if isinstance(value, AwayElement) else value


def _exchange(elements: list[Any], version: TensorList) -> Any:
    """Change ``elements``, a neighbour's, to those of ``version``. Returns the difference that undoes it."""
    if len(elements) < version.length:
        elements.append(version._value)
        return None
    if len(elements) > version.length:
        return elements.pop()
    replaced, elements[version._index] = elements[version._index], version._value
    return replaced


def _replayed(path: list[TensorList]) -> list[Any]:
    """A copy of the elements of the first version in ``path``; the owner follows the last."""
    owner = path[-1]._newer
    assert owner is not None
    assert owner._elements is not None
    elements = list(owner._elements)
    for version in reversed(path):
        _exchange(elements, version)
    return elements
