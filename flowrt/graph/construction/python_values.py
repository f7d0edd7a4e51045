"""Python protocols that need a tensor's value (``if``, ``for``, an index): errors that name alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from flowrt.base.in_notebook import InNotebook
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, OpError
from flowrt.graph.construction.defaults import default_graphs
from flowrt.graph.shapes import TensorShape, as_shape, format_shape, num_elements
from flowrt.graph.source import misuse

if TYPE_CHECKING:
    from flowrt.graph.construction.operation import Tensor
    from flowrt.graph.typing import Index, NumericLike, TensorLike


class Symbolic(InNotebook):
    """A tensor, or a variable: what Python asks of a value is an error that says what to use."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...
        @property
        def dtype(self) -> DType: ...
        @property
        def shape(self) -> TensorShape: ...

        # set by flowrt.graph.ops.surface.operators once the ops exist
        def _unary(self) -> Tensor: ...
        def _numeric(self, other: NumericLike, /) -> Tensor: ...
        def __getitem__(self, key: Index | tuple[Index, ...], /) -> Tensor: ...
        def __add__(self, other: TensorLike, /) -> Tensor: ...
        def __radd__(self, other: TensorLike, /) -> Tensor: ...

        __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _numeric
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _numeric
        __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _numeric
        __lt__ = __le__ = __gt__ = __ge__ = _numeric
        __neg__ = __abs__ = __invert__ = _unary

    def __bool__(self) -> NoReturn:
        what = "has no truth value"
        if not _may_be_one_element(self):
            raise value_error(
                self,
                f"{what}: {_expected_one(self)}. Use flowrt.where() for each element, or reduce_all() or"
                " reduce_any() of it",
            )
        dtype = self.dtype
        if not (dtype.is_bool or dtype.is_integer or dtype.is_floating):
            raise value_error(
                self, f"{what}: expected a bool or a number; got {dtype.name}. Use flowrt.equal() with it"
            )
        raise value_error(
            self,
            f"{what}: the graph has no values yet. Use flowrt.cond() or where() for if, while_loop() for"
            " while, logical_and(), logical_or() and logical_not() for and, or and"
            f" not{_or_conversion()}; 'is None' tests for None",
        )

    def __index__(self) -> NoReturn:
        what = "is not a Python integer"
        if not _may_be_one_element(self):
            raise value_error(self, f"{what}: {_expected_one(self)}")
        raise value_error(
            self,
            f"{what}: the graph has no values yet. Use flowrt.while_loop() or flowrt.range() for range(),"
            f" gather() or switch_case() for an index{_or_conversion()}",
        )

    def __iter__(self) -> NoReturn:
        raise value_error(
            self,
            "cannot be iterated: the graph has no values yet. Use flowrt.map_fn() or scan() for a loop over"
            f" its rows, unstack() for a list of them{_or_conversion()}",
        )

    def __len__(self) -> NoReturn:
        raise value_error(self, "has no len(): use .shape, or flowrt.shape() for the run-time value")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise value_error(
            self,
            "has no value yet: expected an array. Use flowrt's functions in place of NumPy's, or run it in a"
            " session first",
        )


def value_error(tensor: Symbolic, message: str) -> OpError:
    return misuse(f"{type(tensor).__name__} {tensor.name!r} {message}", DTypeError)


def _may_be_one_element(tensor: Symbolic) -> bool:
    return num_elements(as_shape(tensor.shape)) in (1, None)


def _expected_one(tensor: Symbolic) -> str:
    return f"expected one element; got shape {format_shape(as_shape(tensor.shape))}"


def _or_conversion() -> str:
    """Advice to have the code converted, unless already given."""
    graphs = default_graphs()
    if graphs and getattr(graphs[-1], "is_converted", False):
        return ", as autograph has not converted this line"
    return ", or flowrt.functions.function(autograph=True)"
