"""The shape lattice: partial shapes, and how they merge, relax and broadcast.

Rule of this file: inside flowrt a shape is a plain tuple of ``int | None`` (an unknown dimension), or None
(unknown rank). `TensorShape` and `Dimension` present the same information under TensorFlow's names, for users
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard, final

from flowrt.errors import InvalidArgumentError

Shape: TypeAlias = tuple[int | None, ...] | None


def is_static(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    """Whether every dimension is known."""
    return shape is not None and None not in shape


def num_elements(shape: Shape) -> int | None:
    """The product of the dimensions, or None if one is unknown."""
    if shape is None or None in shape:
        return None
    count = 1
    for dim in shape:
        count *= dim  # type: ignore[operator]
    return count


def compatible(a: Shape, b: Shape) -> bool:
    """Whether some fully defined shape matches both."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y or x is None or y is None for x, y in zip(a, b, strict=True))


def merge(a: Shape, b: Shape) -> Shape:
    """The most specific shape that both imply. Raises `InvalidArgumentError` if they are incompatible."""
    if a == b or b is None:
        return a
    if a is None:
        return b
    if not compatible(a, b):
        raise InvalidArgumentError(
            f"expected two compatible shapes; got {format_shape(a)} and {format_shape(b)}"
        )
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def relax(a: Shape, b: Shape) -> Shape:
    """The most specific shape that matches both (the widening of a loop variable)."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def broadcast(a: Shape, b: Shape) -> Shape:
    """NumPy broadcasting on partial shapes. Raises `InvalidArgumentError` for incompatible dimensions."""
    if b == () or (a == b and (a is None or None not in a)):
        return a
    if a == ():
        return b
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    return tuple(_broadcast_dim(x, y, a, b) for x, y in zip(left, right, strict=True))


def _broadcast_dim(x: int | None, y: int | None, a: Shape, b: Shape) -> int | None:
    if x == 1:
        return y
    if y == 1 or x == y:
        return x
    if x is None:
        return y  # it has to be y or 1
    if y is None:
        return x
    raise InvalidArgumentError(
        f"expected shapes that broadcast together; got {format_shape(a)} and {format_shape(b)}"
    )


def normalize_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front. Raises `InvalidArgumentError` outside ``[-rank, rank)``."""
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"expected an axis in [{-rank}, {rank}); got {axis}")
    return axis + rank if axis < 0 else axis


def format_shape(shape: Shape) -> str:
    """``[2, ?]``; an unknown rank is ``<unknown>``."""
    if shape is None:
        return "<unknown>"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def as_shape(value: Any) -> Shape:
    """A shape from user input: None, an int, a sequence of ints, None, -1 or `Dimension`, or a `TensorShape`.

    Raises `InvalidArgumentError`.
    """
    if value is None or isinstance(value, TensorShape):
        return None if value is None else value.dims_tuple
    try:
        dims = tuple(value) if isinstance(value, Iterable) else (value,)
        return tuple(_as_dim(d) for d in dims)
    except TypeError:
        raise InvalidArgumentError(f"expected a shape (a sequence of ints and None); got {value!r}") from None


def _as_dim(value: Any) -> int | None:
    if value is None or (isinstance(value, Dimension) and value.value is None):
        return None
    dim = (
        value.value
        if isinstance(value, Dimension)
        else value.__index__()
        if hasattr(value, "__index__")
        else None
    )
    if dim is None or dim < -1:
        raise InvalidArgumentError(f"expected a dimension of at least 0, -1 or None; got {value!r}")
    return None if dim == -1 else int(dim)


def _compared(operation: Callable[[int, int], Any]) -> Callable[[Dimension, Any], Any]:
    """The operator of `Dimension` that is ``operation`` of known values, and None otherwise."""

    def operate(self: Dimension, other: Any) -> Any:
        theirs = Dimension(other).value
        return None if self.value is None or theirs is None else operation(self.value, theirs)

    return operate


def _combined(operation: Callable[[int, int], int]) -> Callable[[Dimension, Any], Dimension]:
    """The same as a `Dimension`."""
    compute = _compared(operation)
    return lambda self, other: Dimension(compute(self, other))


@final
class Dimension:
    """One dimension under TensorFlow 1's interface; ``value`` is an int, or None when unknown.

    Arithmetic with an unknown dimension is unknown; comparing with one gives None, as in TensorFlow.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: int | None = (
            value.value if isinstance(value, Dimension) else None if value is None else int(value)
        )

    def __index__(self) -> int:
        return self.__int__()

    def __int__(self) -> int:
        if self.value is None:
            raise InvalidArgumentError(
                "expected a known dimension; got an unknown one. Feed it, or use flowrt.shape()"
            )
        return self.value

    __add__, __radd__ = _combined(int.__add__), _combined(int.__radd__)
    __sub__, __rsub__ = _combined(int.__sub__), _combined(int.__rsub__)
    __mul__, __rmul__ = _combined(int.__mul__), _combined(int.__rmul__)
    __floordiv__, __rfloordiv__ = _combined(int.__floordiv__), _combined(int.__rfloordiv__)
    __mod__ = _combined(int.__mod__)

    def __truediv__(self, other: Any) -> float:
        return int(self) / int(Dimension(other))

    def __eq__(self, other: object) -> Any:
        theirs = other.value if isinstance(other, Dimension) else other
        return None if self.value is None or theirs is None else self.value == theirs

    def __ne__(self, other: object) -> Any:
        equal = self == other
        return None if equal is None else not equal

    __lt__, __gt__ = _compared(int.__lt__), _compared(int.__gt__)
    __le__, __ge__ = _compared(int.__le__), _compared(int.__ge__)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Dimension({self.value})"

    def __str__(self) -> str:
        return "?" if self.value is None else str(self.value)


@final
class TensorShape:
    """A partial shape under TensorFlow 1's interface. Immutable.

    Args:
        dims: A list of ints and None, another shape, or None for an unknown rank.

    Example:
        >>> shape = tf.TensorShape([None, 3])
        >>> shape.as_list(), shape.ndims, shape.is_fully_defined()
        ([None, 3], 2, False)
    """

    __slots__ = ("dims_tuple",)

    def __init__(self, dims: Any) -> None:
        self.dims_tuple: Shape = as_shape(dims)

    @property
    def dims(self) -> list[Dimension] | None:
        return None if self.dims_tuple is None else [Dimension(d) for d in self.dims_tuple]

    _dims = dims  # TensorFlow's attribute, which copies of Keras' backend read

    @property
    def rank(self) -> int | None:
        return None if self.dims_tuple is None else len(self.dims_tuple)

    ndims = rank

    def as_list(self) -> list[int | None]:
        """The dimensions as ints and None. Raises `InvalidArgumentError` for an unknown rank."""
        return list(self._known_rank("as_list()"))

    def num_elements(self) -> int | None:
        return num_elements(self.dims_tuple)

    def is_fully_defined(self) -> bool:
        return is_static(self.dims_tuple)

    def assert_is_fully_defined(self) -> None:
        if not self.is_fully_defined():
            raise InvalidArgumentError(f"expected a fully defined shape; got {self}")

    def is_compatible_with(self, other: Any) -> bool:
        return compatible(self.dims_tuple, as_shape(other))

    def assert_is_compatible_with(self, other: Any) -> None:
        merge(self.dims_tuple, as_shape(other))

    def assert_has_rank(self, rank: int) -> None:
        if self.rank not in (None, rank):
            raise InvalidArgumentError(f"expected a shape of rank {rank}; got {self}")

    def with_rank(self, rank: int) -> TensorShape:
        return self.merge_with(TensorShape([None] * rank))

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape. Raises `InvalidArgumentError` if it has fewer dimensions."""
        if self.rank is not None and self.rank < rank:
            raise InvalidArgumentError(f"expected a shape of rank {rank} or more; got {self}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape. Raises `InvalidArgumentError` if it has more dimensions."""
        if self.rank is not None and self.rank > rank:
            raise InvalidArgumentError(f"expected a shape of rank {rank} or less; got {self}")
        return self

    def merge_with(self, other: Any) -> TensorShape:
        """The merged shape. Raises `InvalidArgumentError` if they are incompatible."""
        return TensorShape(merge(self.dims_tuple, as_shape(other)))

    def concatenate(self, other: Any) -> TensorShape:
        theirs = as_shape(other)
        return TensorShape(None if self.dims_tuple is None or theirs is None else self.dims_tuple + theirs)

    def _known_rank(self, what: str) -> tuple[int | None, ...]:
        if self.dims_tuple is None:
            raise InvalidArgumentError(f"{what}: expected a shape of known rank; got <unknown>")
        return self.dims_tuple

    def __len__(self) -> int:
        return len(self._known_rank("len()"))

    def __iter__(self) -> Iterator[Dimension]:
        return iter([Dimension(d) for d in self._known_rank("iter()")])

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return TensorShape(None if self.dims_tuple is None else self.dims_tuple[key])
        return Dimension(None if self.dims_tuple is None else self.dims_tuple[key])

    def __bool__(self) -> bool:
        return self.dims_tuple is not None

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        try:
            return self.dims_tuple == as_shape(other)
        except InvalidArgumentError:
            return False

    def __hash__(self) -> int:
        return hash(self.dims_tuple)

    def __repr__(self) -> str:
        return f"TensorShape({None if self.dims_tuple is None else list(self.dims_tuple)})"

    def __str__(self) -> str:
        text = format_shape(self.dims_tuple).replace("[", "(").replace("]", ")")
        return text if self.rank != 1 else f"{text[:-1]},)"


def unknown_shape(rank: int | None = None) -> TensorShape:
    """A shape of ``rank`` unknown dimensions, or of unknown rank."""
    return TensorShape(None if rank is None else [None] * rank)


def concat(parts: Sequence[Shape]) -> Shape:
    """Concatenation of shapes; unknown if any rank is unknown."""
    whole: tuple[int | None, ...] = ()
    for part in parts:
        if part is None:
            return None
        whole += part
    return whole
