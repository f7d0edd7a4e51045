"""Ops on sparse tensors in three parts: indices ``[n, rank]``, values ``[n]``, shape ``[rank]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.dtypes import int64
from flowrt.errors import UnimplementedError
from flowrt.functions.sparse_arithmetic import sparse_add, sparse_concat, sparse_slice, sparse_softmax
from flowrt.functions.sparse_functions import sparse_reduce_sum, sparse_reorder, sparse_tensor_dense_matmul
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather, gather_nd
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, size
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from flowrt.graph.ops.elementwise.comparison import not_equal
from flowrt.graph.ops.elementwise.division import divide
from flowrt.graph.ops.elementwise.math import rsqrt
from flowrt.tf1.composed_ops.composition import composed, known

_PARTS = "sp_indices: int64, sp_values: T, sp_shape: int64"
_REDUCED = "input_indices: int64, input_values: T, input_shape: int64"
_MADE = "output_indices: int64, output_values: T, output_shape: int64"


@composed(
    "SparseTensorDenseMatMul",
    "a_indices: Tindices in INDEX, a_values: T, a_shape: int64, b: T -> product: T",
    "adjoint_a: bool = False, adjoint_b: bool = False",
)
def matmul(
    indices: Tensor, values: Tensor, dense_shape: Tensor, b: Tensor, adjoint_a: bool, adjoint_b: bool
) -> Tensor:
    sparse = SparseTensor(cast(indices, "int64"), values, dense_shape)
    return sparse_tensor_dense_matmul(sparse, b, adjoint_a, adjoint_b)


@composed("SparseReorder", f"{_REDUCED} -> output_indices: int64, output_values: T")
def reorder(indices: Tensor, values: Tensor, dense_shape: Tensor) -> list[Tensor]:
    made = sparse_reorder(SparseTensor(indices, values, dense_shape))
    return [made.indices, made.values]


@composed("SparseReduceSum", f"{_REDUCED}, reduction_axes: int32 -> output: T", "keep_dims: bool = False")
def total(indices: Tensor, values: Tensor, dense_shape: Tensor, axes: Tensor, keep_dims: bool) -> Tensor:
    sparse = SparseTensor(indices, values, dense_shape)
    return sparse_reduce_sum(sparse, known(axes, "reduction_axes"), keep_dims)


@composed("SparseSoftmax", f"{_PARTS} -> output: T")
def softmax(indices: Tensor, values: Tensor, dense_shape: Tensor) -> Tensor:
    return sparse_softmax(SparseTensor(indices, values, dense_shape)).values


def _parts(sparse: Any) -> list[Tensor]:
    return [sparse.indices, sparse.values, sparse.dense_shape]


def _with_dense(op: str, function: Callable[..., Any]) -> None:
    @composed(f"SparseDenseCwise{op}", f"{_PARTS}, dense: T -> output: T")
    def applied(indices: Tensor, values: Tensor, dense_shape: Tensor, dense: Tensor) -> Any:
        """The values, with those of ``dense``, which is broadcast to the shape of the sparse one."""
        rank = dense.shape.rank
        if rank is None:
            raise UnimplementedError(f"expected a dense tensor of known rank; got {dense!r}")
        first = size(dense_shape) - rank
        places = indices[:, first:] * cast(not_equal(shape(dense), 1), indices.dtype)
        return function(values, gather_nd(dense, places))


_with_dense("Add", add_v2)
_with_dense("Mul", multiply)
_with_dense("Div", divide)


@composed(
    "SparseTensorDenseAdd", "a_indices: Tindices in INDEX, a_values: T, a_shape: Tindices, b: T -> output: T"
)
def add_to_dense(indices: Tensor, values: Tensor, dense_shape: Tensor, b: Tensor) -> Any:
    return sparse_add(SparseTensor(cast(indices, int64), values, cast(dense_shape, int64)), b)


@composed(
    "SparseAdd",
    "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, b_shape: int64, "
    "thresh: Treal in REAL -> sum_indices: int64, sum_values: T, sum_shape: int64",
)
def add(
    a_indices: Tensor, a_values: Tensor, a_shape: Tensor,
    b_indices: Tensor, b_values: Tensor, b_shape: Tensor, threshold: Tensor,
) -> list[Tensor]:  # fmt: skip
    a, b = SparseTensor(a_indices, a_values, a_shape), SparseTensor(b_indices, b_values, b_shape)
    return _parts(sparse_add(a, b, threshold))


@composed(
    "SparseConcat", f"indices: N * int64, values: N * T, shapes: N * int64 -> {_MADE}", "concat_dim: int"
)
def concatenated(
    indices: Sequence[Tensor], values: Sequence[Tensor], shapes: Sequence[Tensor], concat_dim: int
) -> list[Tensor]:
    each = [SparseTensor(*parts) for parts in zip(indices, values, shapes, strict=True)]
    return _parts(sparse_concat(concat_dim, each))


@composed("SparseSlice", f"indices: int64, values: T, shape: int64, start: int64, size: int64 -> {_MADE}")
def sliced(
    indices: Tensor, values: Tensor, dense_shape: Tensor, start: Tensor, length: Tensor
) -> list[Tensor]:
    return _parts(sparse_slice(SparseTensor(indices, values, dense_shape), start, length))


# --- gradients, as training graphs have them


@composed(
    "SparseFillEmptyRowsGrad", "reverse_index_map: int64, grad_values: T -> d_values: T, d_default_value: T"
)
def fill_empty_rows_gradient(places: Tensor, gradient: Tensor) -> list[Any]:
    of_values = gather(gradient, places)
    return [of_values, reduce_sum(gradient) - reduce_sum(of_values)]


def _gradient_of_segments(kind: str) -> None:
    @composed(
        f"SparseSegment{kind}Grad",
        "grad: T, indices: Tidx in INDEX, segment_ids: Tsegmentids in INDEX, output_dim0: int32 -> output: T",
    )
    def gradient(grad: Tensor, indices: Tensor, segments: Tensor, count: Tensor) -> Any:
        rows = gather(grad, segments)
        if kind != "Sum":
            ones = ones_like(segments, dtype=grad.dtype)
            lengths = gather(unsorted_segment_sum(ones, segments, shape(grad)[0]), segments)
            weights = 1 / lengths if kind == "Mean" else rsqrt(lengths)
            rows *= reshape(weights, concat([[-1], ones_like(shape(rows)[1:])], 0))
        return unsorted_segment_sum(rows, indices, count)


for _kind in ("Sum", "Mean", "SqrtN"):
    _gradient_of_segments(_kind)
