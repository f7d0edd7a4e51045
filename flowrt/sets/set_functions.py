"""Sets in the rows of tensors: differences, intersections, unions and sizes."""

from __future__ import annotations

from typing import Any

from flowrt.errors import DTypeError
from flowrt.functions.sparse_functions import convert_to_tensor_or_sparse_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.selection import where_op
from flowrt.graph.ops.array.sets import set_operation_op, set_size_op
from flowrt.graph.ops.base.filling import ones
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.source import misuse

__all__ = ["set_difference", "set_intersection", "set_size", "set_union"]


def set_size(a: Any, validate_indices: bool = True) -> Tensor:
    """The number of different values in each row of a `SparseTensor` with places in ascending order.

    Returns an int32 tensor of the shape of ``a`` without its last size. Raises `DTypeError` for what is no
    sparse tensor; a step `InvalidArgumentError` for places in another order, if ``validate_indices``.

    Example:
        >>> rows = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [7, 7, 8], [2, 2])
        >>> tf.sets.set_size(rows).eval()
        array([1, 1], dtype=int32)
    """
    sparse = convert_to_tensor_or_sparse_tensor(a)
    if not isinstance(sparse, SparseTensor):
        raise misuse(f"set_size: expected a SparseTensor; got {a!r}", DTypeError)
    return set_size_op(sparse.indices, sparse.values, sparse.dense_shape, validate_indices=validate_indices)


def set_intersection(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """The values that are in both rows; see `set_difference`."""
    return _operate(a, b, "intersection", validate_indices)


def set_difference(a: Any, b: Any, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:
    """The values of each row of ``a`` that are not in that of ``b``, or the other way round without
    ``aminusb``, as a `SparseTensor` with ascending values, as wide as the longest row.

    ``a`` and ``b`` are tensors or sparse tensors of whole numbers or strings, of shapes that differ in the
    last size only. A step raises `InvalidArgumentError` for other shapes, and, with ``validate_indices``, for
    places that are not in ascending order.

    Example:
        >>> found = tf.sets.set_difference([[1, 2], [3, 3]], [[2], [4]])
        >>> tf.sparse_tensor_to_dense(found).eval()
        array([[1],
               [3]], dtype=int32)
    """
    return _operate(a, b, "a-b" if aminusb else "b-a", validate_indices)


def set_union(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:
    """The values that are in one of both rows; see `set_difference`."""
    return _operate(a, b, "union", validate_indices)


def _operate(a: Any, b: Any, operation: str, validate_indices: bool) -> SparseTensor:
    parts: list[Tensor] = []
    for value in (a, b):
        sparse = _as_sparse(convert_to_tensor_or_sparse_tensor(value))
        parts += [sparse.indices, sparse.values, sparse.dense_shape]
    return SparseTensor(*set_operation_op(*parts, set_operation=operation, validate_indices=validate_indices))


def _as_sparse(value: Any) -> SparseTensor:
    """A tensor with all its elements as values."""
    if isinstance(value, SparseTensor):
        return value
    sizes = shape(value, out_type="int64")
    return SparseTensor(where_op(ones(sizes, "bool")), reshape(value, [-1]), sizes)
