"""Operations on the elements of ragged tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_all
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import reshape, size
from flowrt.graph.ops.elementwise.arithmetic import add_v2 as add
from flowrt.graph.ops.elementwise.arithmetic import multiply, power, subtract
from flowrt.graph.ops.elementwise.comparison import (
    equal,
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
from flowrt.graph.ops.elementwise.division import floor_div as floordiv
from flowrt.graph.ops.elementwise.division import floormod, truediv
from flowrt.graph.ops.elementwise.math import neg
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.ops.text.assertions import Assert
from flowrt.graph.source import misuse


def map_flat_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``op`` of the arguments, with the `flat_values` in place of each ragged tensor; the rows of its result
    are theirs, which have to be equal. Without ragged arguments it is ``op`` of them.

    Example:
        >>> rows = tf.ragged.constant([[1, 2], [], [3]])
        >>> tf.ragged.map_flat_values(tf.square, rows).eval().to_list()
        [[1, 4], [], [9]]
    """
    given = [*args, *kwargs.values()]
    ragged = [value for value in _flat(given) if isinstance(value, RaggedTensor)]
    if not ragged:
        return op(*args, **kwargs)
    first = ragged[0]
    with get_default_graph().control_dependencies(same_rows(ragged)):
        elements = op(*map(_elements, args), **{key: _elements(value) for key, value in kwargs.items()})
        return first.with_flat_values(identity(convert_to_tensor(elements)))


def _flat(values: Any) -> list[Any]:
    return [
        each for value in values for each in (_flat(value) if isinstance(value, (list, tuple)) else [value])
    ]


def _elements(value: Any) -> Any:
    if isinstance(value, RaggedTensor):
        return value.flat_values
    if isinstance(value, (list, tuple)) and any(isinstance(v, RaggedTensor) for v in _flat(value)):
        return [_elements(v) for v in value]
    return value


def same_rows(ragged: Sequence[RaggedTensor]) -> list[Any]:
    """Assertions that all have the same rows. Raises `InvalidArgumentError` for different ragged ranks."""
    first = ragged[0]
    if any(each.ragged_rank != first.ragged_rank for each in ragged):
        raise misuse(
            f"expected ragged tensors of one ragged_rank; got {[each.ragged_rank for each in ragged]}"
        )
    return [
        _equal_splits(ours, theirs)
        for each in ragged[1:]
        for ours, theirs in zip(first.nested_row_splits, each.nested_row_splits, strict=True)
        if ours is not theirs
    ]


def _equal_splits(ours: Tensor, theirs: Tensor) -> Any:
    if ours.dtype is not theirs.dtype:
        ours, theirs = cast(ours, "int64"), cast(theirs, "int64")
    is_same_size = equal(size(ours), size(theirs))
    with get_default_graph().control_dependencies(
        [Assert(is_same_size, ["expected ragged tensors with the same rows; got splits", ours, theirs])]
    ):
        return Assert(
            reduce_all(equal(ours, theirs)),
            ["expected ragged tensors with the same rows; got splits", ours, theirs],
        )


def elementwise(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operation on single elements: dense arguments are scalars, or have one element for each row."""
    first = next(value for value in _flat(args) if isinstance(value, RaggedTensor))
    return map_flat_values(op, *[_beside(first, value) for value in args], **kwargs)


def _beside(rows: RaggedTensor, value: Any) -> Any:
    """``value`` as an element for each of the elements of ``rows``, unless it is a scalar."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, RaggedTensor) for v in _flat(value)):
        return [_beside(rows, each) for each in value]
    if isinstance(value, RaggedTensor) or (not isinstance(value, Tensor) and np.ndim(value) == 0):
        return value
    dense = convert_to_tensor(value, rows.dtype) if not isinstance(value, Tensor) else value
    sizes = dense.shape.as_list() if dense.shape.ndims is not None else None
    if sizes is None or (sizes and any(size != 1 for size in sizes[1:])) or len(sizes) == 1:
        raise misuse(
            f"expected a ragged tensor, a scalar, or one element for each row, [n, 1]; got {dense.spec}",
            UnimplementedError,
        )
    if not sizes:
        return dense
    found = reshape(dense, [-1])
    inner: Any = rows
    while isinstance(inner, RaggedTensor):
        found, inner = gather(found, inner.value_rowids()), inner.values
    return found


def _cast(x: RaggedTensor, dtype: Any, name: str | None = None) -> RaggedTensor:
    return x.with_flat_values(cast(x.flat_values, dtype, name))


def _zeros_like(
    tensor: RaggedTensor, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Any:
    return tensor.with_flat_values(zeros_like(tensor.flat_values, dtype, name))


def _ones_like(
    tensor: RaggedTensor, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Any:
    return tensor.with_flat_values(ones_like(tensor.flat_values, dtype, name))


RaggedTensor.own_functions.update({"cast": _cast, "zeros_like": _zeros_like, "ones_like": _ones_like})
RaggedTensor.own_elementwise = staticmethod(elementwise)


def _operator(function: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: RaggedTensor, *other: Any) -> Any:
        given = (*other, self) if is_reflected else (self, *other)
        return elementwise(function, given, {})

    return method


_BINARY: dict[str, Callable[..., Any]] = {
    "add": add, "sub": subtract, "mul": multiply, "truediv": truediv, "floordiv": floordiv, "mod": floormod,
    "pow": power, "and": logical_and, "or": logical_or, "xor": logical_xor,
}  # fmt: skip
_OTHERS: dict[str, Callable[..., Any]] = {
    "lt": less, "le": less_equal, "gt": greater, "ge": greater_equal, "neg": neg, "abs": absolute,
    "invert": logical_not,
}  # fmt: skip

for _key, _function in _BINARY.items():
    setattr(RaggedTensor, f"__{_key}__", _operator(_function))
    setattr(RaggedTensor, f"__r{_key}__", _operator(_function, is_reflected=True))
for _key, _function in _OTHERS.items():
    setattr(RaggedTensor, f"__{_key}__", _operator(_function))
