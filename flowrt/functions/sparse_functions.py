"""Functions of sparse tensors, composed of operations on their three parts; so they have their gradients."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DTypeLike, as_dtype, int64, string
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.gather_scatter import gather, gather_nd, scatter_nd
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.scans import cumprod
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.array.selection import boolean_mask, sparse_to_dense
from flowrt.graph.ops.array.sorting import argsort
from flowrt.graph.ops.array.sparse_rows import sparse_fill_empty_rows_op, sparse_reshape_op
from flowrt.graph.ops.array.tile_and_reverse import reverse
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, size, transpose
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.complex_parts import conj
from flowrt.graph.ops.text.splitting import string_split_v1
from flowrt.graph.shapes import as_shape, is_static
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike, TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "convert_to_tensor_or_sparse_tensor", "sparse_fill_empty_rows", "sparse_placeholder", "sparse_reduce_sum",
    "sparse_reorder", "sparse_reshape", "sparse_retain", "sparse_tensor_dense_matmul",
    "sparse_tensor_to_dense", "sparse_transpose", "string_split",
]  # fmt: skip


def as_sparse(function: str, value: Any) -> SparseTensor:
    if not isinstance(value, (SparseTensor, SparseTensorValue)):
        raise misuse(f"{function}: expected a SparseTensor; got {value!r}", DTypeError)
    return SparseTensor.from_value(value)


def convert_to_tensor_or_sparse_tensor(
    value: Any, dtype: DTypeLike | None = None, name: str | None = None
) -> Any:
    """A sparse tensor as it is, a `SparseTensorValue` as one, anything else as a tensor. Raises `DTypeError`
    for a sparse tensor of another dtype.
    """
    if not isinstance(value, (SparseTensor, SparseTensorValue)):
        return convert_to_tensor(value, dtype, name=name)
    sparse = SparseTensor.from_value(value)
    if dtype is not None and as_dtype(dtype) is not sparse.dtype:
        raise misuse(
            f"expected a SparseTensor of {as_dtype(dtype).name}; got {sparse.dtype.name}", DTypeError
        )
    return sparse


def sparse_placeholder(
    dtype: DTypeLike, shape: ShapeTensorLike = None, name: str | None = None
) -> SparseTensor:
    """A sparse tensor that is fed, with a `SparseTensorValue` or a tuple; of any shape if ``shape`` is None.
    A known ``shape`` is a constant, or a vector tensor; a value is fed with it all the same.
    """
    prefix = "" if name is None else f"{name}/"
    if isinstance(shape, Tensor):
        sizes, rank = cast(shape, int64), shape.shape.as_list()[0]
    else:
        asked = as_shape(shape)
        rank = None if asked is None else len(asked)
        sizes = (
            constant(asked, int64, [rank], name=f"{prefix}shape")
            if asked is not None and is_static(asked)
            else placeholder(int64, [rank], name=f"{prefix}shape")
        )
    return SparseTensor(
        placeholder(int64, [None, rank], name=f"{prefix}indices"),
        placeholder(dtype, [None], name=f"{prefix}values"),
        sizes,
    )


def sparse_tensor_to_dense(
    sp_input: Any,
    default_value: TensorLike | None = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """The dense tensor, with ``default_value`` (None: zeros or empty strings) where there is no value.

    A step raises `InvalidArgumentError` for a place outside of the shape, and, with ``validate_indices``, for
    places that are not in ascending order or come twice.
    """
    sparse = as_sparse("sparse_tensor_to_dense", sp_input)
    missing: Any = (b"" if sparse.dtype is string else 0) if default_value is None else default_value
    return sparse_to_dense(
        sparse.indices, sparse.dense_shape, sparse.values, missing, validate_indices, name=name
    )


def sparse_tensor_dense_matmul(
    sp_a: Any, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """The product of a sparse matrix and a dense one, each transposed (and conjugated) if told to. Places may
    be in any order and come several times: then their values add up.
    """
    sparse = as_sparse("sparse_tensor_dense_matmul", sp_a)
    with name_scope(name, "SparseTensorDenseMatMul", [sparse.values, b]):
        dense = convert_to_tensor(b, sparse.dtype)
        values = conj(sparse.values) if adjoint_a else sparse.values
        row, column = (1, 0) if adjoint_a else (0, 1)
        if adjoint_b:
            dense = conj(transpose(dense, [1, 0]))
        picked = gather_nd(dense, expand_dims(sparse.indices[:, column], 1))  # its gradient is dense
        rows = picked * expand_dims(values, 1)
        return unsorted_segment_sum(rows, sparse.indices[:, row], sparse.dense_shape[row])


def sparse_reduce_sum(
    sp_input: Any,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The sums over ``axis`` (None: over all) as a dense tensor."""
    sparse = as_sparse("sparse_reduce_sum", sp_input)
    dense = scatter_nd(sparse.indices, sparse.values, sparse.dense_shape)
    keep = bool(keepdims if keep_dims is None else keep_dims)
    return reduce_sum(dense, reduction_axes if axis is None else axis, keepdims=keep)


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The same tensor with its places in ascending order."""
    sparse = as_sparse("sparse_reorder", sp_input)
    with name_scope(name, "SparseReorder", [sparse.values]):
        strides = cumprod(sparse.dense_shape, exclusive=True, reverse=True)
        order = argsort(reduce_sum(sparse.indices * strides, 1), stable=True)
        return SparseTensor(gather(sparse.indices, order), gather(sparse.values, order), sparse.dense_shape)


def sparse_transpose(sp_input: Any, perm: NumericLike | None = None, name: str | None = None) -> SparseTensor:
    """The tensor with its dimensions permuted (None: in reverse order), its places in ascending order."""
    sparse = as_sparse("sparse_transpose", sp_input)
    with name_scope(name, "SparseTranspose", [sparse.values]):
        order = reverse(range(size(sparse.dense_shape)), [0]) if perm is None else perm
        places = gather(sparse.indices, order, axis=1)
        return sparse_reorder(SparseTensor(places, sparse.values, gather(sparse.dense_shape, order)))


def sparse_retain(sp_input: Any, to_retain: Any) -> SparseTensor:
    """The values for which ``to_retain``, [n] of bool, is true."""
    sparse = as_sparse("sparse_retain", sp_input)
    kept = reshape(convert_to_tensor(to_retain), [-1])  # its rank may be unknown
    return SparseTensor(
        boolean_mask(sparse.indices, kept), boolean_mask(sparse.values, kept), sparse.dense_shape
    )


def sparse_reshape(sp_input: Any, shape: ShapeTensorLike, name: str | None = None) -> SparseTensor:
    """The tensor in another shape, of which one dimension may be -1."""
    sparse = as_sparse("sparse_reshape", sp_input)
    places, sizes = sparse_reshape_op(
        sparse.indices, sparse.dense_shape, convert_to_tensor(shape, int64), name=name
    )
    return SparseTensor(places, sparse.values, sizes)


def sparse_fill_empty_rows(
    sp_input: Any, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """The tensor with ``default_value`` in the first place of each empty row, and which rows were empty."""
    sparse = as_sparse("sparse_fill_empty_rows", sp_input)
    missing = convert_to_tensor(default_value, sparse.dtype)
    places, values, empty, _ = sparse_fill_empty_rows_op(
        sparse.indices, sparse.values, sparse.dense_shape, missing, name=name
    )
    return SparseTensor(places, values, sparse.dense_shape), empty


def string_split(
    source: Any, sep: Any = None, skip_empty: bool = True, delimiter: Any = " ", name: str | None = None
) -> SparseTensor:
    """A vector of strings, each split at every character of ``delimiter`` (``sep`` is its newer name): row i
    has the parts of string i. With ``skip_empty`` empty parts are left out.
    """
    marks = delimiter if sep is None else sep
    texts, marks = convert_to_tensor(source, string), convert_to_tensor(marks, string)
    return SparseTensor(*string_split_v1(texts, marks, skip_empty=skip_empty, name=name))
