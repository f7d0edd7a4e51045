"""The leaves of a dataset tree: tensors, their rows, ranges, Python generators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure, flatten, flatten_up_to, leaf_paths
from flowrt.data.node import Array, DeclaredSpec, Element, Iteration, Node, Rows, Stream, known_int
from flowrt.data.spec import TensorSpec, row_spec, spec_of
from flowrt.errors import DTypeError, InvalidArgumentError, OpError, UnknownError
from flowrt.graph.shapes import compatible, format_shape


@final
@dataclass(frozen=True, eq=False)
class Tensors(Node):
    """One element: the tensors unchanged."""

    tensors: Structure

    @cached_property
    def spec(self) -> Structure:
        return spec_of(self.tensors)

    def open(self, iteration: Iteration) -> Stream[Element]:
        yield _read_only(self.tensors)


@final
@dataclass(frozen=True, eq=False)
class TensorSlices(Node):
    """One element per row (index of the first dimension) of the tensors, which must have equal numbers of
    rows.
    """

    tensors: Structure

    def __post_init__(self) -> None:
        _ = self.spec  # differing row counts are found now

    @cached_property
    def spec(self) -> Structure:
        return row_spec(spec_of(self.tensors))

    @cached_property
    def rows(self) -> Rows:
        arrays = _read_only(self.tensors)
        return Rows(arrays, lambda iteration, first: (i for i in range(first, len(arrays[0]))))

    def open(self, iteration: Iteration) -> Stream[Element]:
        return self.rows.open(iteration)


def _read_only(tensors: Structure) -> tuple[Array, ...]:
    views = tuple(np.asarray(tensor).view() for tensor in flatten(tensors))
    for view in views:
        view.flags.writeable = False  # elements are views: a consumer must not change the next epoch
    return views


@final
@dataclass(frozen=True, eq=False)
class Range(Node):
    """int64 scalars from ``start`` to before ``stop``."""

    start: Any
    stop: Any
    step: Any = 1

    def __post_init__(self) -> None:
        if known_int(self.step) == 0:
            raise InvalidArgumentError("range: expected a step other than 0; got 0")

    @property
    def spec(self) -> Structure:
        return TensorSpec((), dtypes.int64)

    def open(self, iteration: Iteration) -> Stream[Element]:
        for i in range(*map(operator.index, (self.start, self.stop, self.step))):
            yield (np.int64(i),)


@final
@dataclass(frozen=True, eq=False)
class FromGenerator(DeclaredSpec):
    """The elements of ``generator(*args)``, converted to and checked against ``returns``: a structure of
    `TensorSpec`.

    Integers and bools must survive the conversion unchanged; floats may lose precision.
    """

    generator: Callable[..., Iterable[Any]]
    returns: Structure
    args: tuple[Any, ...] = ()

    def open(self, iteration: Iteration) -> Stream[Element]:
        leaves = list(zip(leaf_paths(self.returns), flatten(self.returns), strict=True))
        with ExitStack() as stack:
            with _users_errors():
                values = iter(self.generator(*[_as_argument(arg) for arg in self.args]))
            if close := getattr(values, "close", None):
                stack.callback(close)
            for index in count():
                with _users_errors():
                    value = next(values, _END)
                if value is _END:
                    return
                where = f"from_generator: element {index}"
                parts = zip(leaves, self._parts(value, where), strict=True)
                yield tuple([_convert(part, spec, where + path) for (path, spec), part in parts])

    def _parts(self, value: Any, where: str) -> list[Any]:
        try:
            return flatten_up_to(self.returns, value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error}") from None


def _as_argument(value: Any) -> Any:
    """A scalar in the form that Python functions get in TensorFlow, too: NumPy's, or bytes."""
    return value[()] if isinstance(value, np.ndarray) else value


_END = object()


@contextmanager
def _users_errors() -> Iterator[None]:
    """Attribute errors to the user's generator; the traceback is in the cause."""
    try:
        yield
    except Exception as error:
        is_argument = isinstance(error, (ValueError, TypeError))
        kind = (
            type(error)
            if isinstance(error, OpError)
            else InvalidArgumentError
            if is_argument
            else UnknownError
        )
        raise kind(f"generator raised {type(error).__name__}: {error}") from error


def _convert(value: Any, spec: TensorSpec, where: str) -> Array:
    try:
        array = _strings(value) if spec.dtype is dtypes.string else _numbers(value, spec.dtype)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{where}: expected {spec}; got {value!r:.60}: {error}") from None
    if not compatible(array.shape, spec.shape):
        raise InvalidArgumentError(
            f"{where}: expected shape {format_shape(spec.shape)}; got {format_shape(array.shape)}"
        )
    return array


def _numbers(value: Any, dtype: dtypes.DType) -> Array:
    given = np.asarray(value)
    if given.dtype == dtype.np:
        return given.copy()  # a generator may fill the same array again
    if dtypes.as_dtype(given.dtype) is dtypes.string or (given.dtype.kind == "c" and not dtype.is_complex):
        raise TypeError(f"{given.dtype} does not convert to {dtype.name}")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = given.astype(dtype.np)
    if (dtype.is_integer or dtype.is_bool) and not np.array_equal(cast, given):
        raise TypeError(f"{given.dtype} does not convert to {dtype.name} without loss")
    return cast


def _strings(value: Any) -> Array:
    # never through NumPy's own bytes type, which cuts trailing zero bytes off
    return np.asarray(np.frompyfunc(_encoded, 1, 1)(np.asarray(value, object)), object)


def _encoded(text: Any) -> bytes:
    if not isinstance(text, str | bytes):
        raise TypeError(f"{type(text).__name__} is not a string")
    return text.encode() if isinstance(text, str) else text
