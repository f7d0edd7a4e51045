"""LU decompositions with partial pivoting, and what they solve.

NumPy has no such decomposition, so the kernel eliminates column by column, for a whole batch at a time.
Columns are taken in blocks: what is right of a block is updated by one product. A decomposition is packed as
in LAPACK: U is the upper triangle, and L, with ones on the diagonal, what is below it. ``p`` has the places
of the rows: ``input[p[i]]`` is row i of ``L U``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import INDEX, DType, DTypeLike, as_dtype, int32, int64
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.array.ranges import one_hot
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, subtract
from flowrt.graph.ops.linalg.decompositions import (
    INVERTIBLE,
    matrix_triangular_solve,
    of_matrices,
    over_upper,
    well_conditioned,
)
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import (
    eye,
    matrix_band_part,
    matrix_diag_part,
    matrix_set_diag,
    matrix_shape,
)
from flowrt.graph.shapes import Shape
from flowrt.graph.typing import NumericLike

_BLOCK = 64
"""Columns between two updates by products: 1,000 columns take 0.3 s, with blocks of 1 they take 1.2 s."""


def _lu_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0], square=True)
    return [dims, None if dims is None else dims[:-1]]


def _lu(xp: Any, input: Any, output_idx_type: DType, out: Any = None) -> Any:
    size, count = input.shape[-1], math.prod(input.shape[:-2])
    factors = xp.array(input.reshape((count, size, size)))
    places = xp.array(xp.broadcast_to(xp.arange(size), (count, size)))
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        _eliminate(xp, factors, places, start, end)
        if end < size:
            lower = xp.tril(factors[:, start:end, start:end], -1) + xp.eye(end - start, dtype=input.dtype)
            factors[:, start:end, end:] = xp.linalg.solve(lower, factors[:, start:end, end:])
            factors[:, end:, end:] -= factors[:, end:, start:end] @ factors[:, start:end, end:]
    given = (None, None) if out is None else out
    return [
        delivered(xp, factors.reshape(input.shape), input.dtype, given[0]),
        delivered(xp, places.reshape(input.shape[:-1]), output_idx_type.np, given[1]),
    ]


def _eliminate(xp: Any, factors: Any, places: Any, start: int, end: int) -> None:
    """Eliminate columns ``start`` to ``end``, exchanging whole rows of ``factors`` and of ``places``."""
    batch = xp.arange(len(factors))
    for k in range(start, end):
        pivot = k + xp.argmax(xp.abs(factors[:, k:, k]), axis=1)
        for rows in (factors, places):
            chosen = rows[batch, pivot]
            rows[batch, pivot] = rows[:, k]
            rows[:, k] = chosen
        divisor = factors[:, k, k]
        if xp is np and not divisor.all():  # elsewhere a check would wait for the device
            raise InvalidArgumentError(f"expected {INVERTIBLE}")
        below = factors[:, k + 1 :, k]
        below /= divisor[:, None]
        factors[:, k + 1 :, k + 1 : end] -= below[:, :, None] * factors[:, None, k, k + 1 : end]


def _triangles(lower_upper: Any) -> tuple[Tensor, Tensor]:
    """L, with ones on its diagonal, and U."""
    lower = matrix_set_diag(matrix_band_part(lower_upper, -1, 0), ones_like(matrix_diag_part(lower_upper)))
    return lower, matrix_band_part(lower_upper, 0, -1)


def _strictly_lower(x: Tensor) -> Tensor:
    return subtract(x, matrix_band_part(x, 0, -1))


def _permutation(places: Tensor, dtype: DType) -> Tensor:
    """The matrices that put row ``places[i]`` in place i."""
    return one_hot(places, shape(places)[-1], dtype=dtype)


def _lu_vjp(op: Operation, dlu: Tensor, _: Any) -> list[Tensor]:
    lower, upper = _triangles(op.outputs[0])
    of_lower = matmul(lower, _strictly_lower(dlu), adjoint_a=True)
    of_upper = matmul(matrix_band_part(dlu, 0, -1), upper, adjoint_b=True)
    inner = add_v2(_strictly_lower(of_lower), matrix_band_part(of_upper, 0, -1))
    whole = over_upper(matrix_triangular_solve(lower, inner, adjoint=True), upper)
    return [matmul(_permutation(op.outputs[1], whole.dtype), whole, transpose_a=True)]


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(well_conditioned(rng, 3))
    yield sample(well_conditioned(rng, 2, 2), output_idx_type=int64)
    yield sample(well_conditioned(rng, 2).astype(np.float32))
    yield sample(well_conditioned(rng, 2) * (1 + 1j))
    yield sample(np.zeros((0, 2, 2), np.float32))


lu_op: OpDef[list[Tensor]] = define_op(
    "Lu",
    "input: T in LAPACK -> lu: T, p: output_idx_type",
    types={"output_idx_type": INDEX},
    attrs="output_idx_type: type = int32",
    shape=_lu_shape,
    kernel=_lu,
    vjp=_lu_vjp,
    samples=_samples,
    axes="..a m! n! -> ..a p q, ..a r",
    **of_matrices(0.7),
    doc="The LU decompositions of square matrices, and the places of their rows in them.",
)


class Lu(NamedTuple):
    """The result of `lu`."""

    lu: Tensor
    p: Tensor


def lu(input: NumericLike, output_idx_type: DTypeLike = int32, name: str | None = None) -> Lu:
    """The LU decompositions of square matrices ``[..., n, n]``.

    ``lu`` has their shape: U on and above the diagonal, and below it L, of which the diagonal is 1. ``p`` is
    ``[..., n]``: ``input[p[i]]`` is row i of the product.

    Raises `InvalidArgumentError`, when run, for a singular matrix.

    Example:
        >>> factors, places = tf.linalg.lu([[1.0, 2.0], [2.0, 2.0]])
        >>> session.run([factors, places])
        [array([[2. , 2. ],
               [0.5, 1. ]], dtype=float32), array([1, 0], dtype=int32)]
    """
    return Lu(*lu_op(input, output_idx_type=as_dtype(output_idx_type), name=name))


def lu_reconstruct(
    lower_upper: NumericLike, perm: NumericLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The matrices that `lu` decomposed. ``validate_args`` is accepted: shapes are always checked."""
    with get_default_graph().name_scope(name or "lu_reconstruct"):
        lower, upper = _triangles(convert_to_tensor(lower_upper))
        return matmul(
            _permutation(convert_to_tensor(perm), lower.dtype), matmul(lower, upper), transpose_a=True
        )


def lu_solve(
    lower_upper: NumericLike,
    perm: NumericLike,
    rhs: NumericLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """The X of ``matrix X = rhs`` ``[..., n, k]``, given what `lu` makes of the matrix.

    Example:
        >>> tf.linalg.lu_solve(*tf.linalg.lu([[1.0, 2.0], [2.0, 2.0]]), rhs=[[5.0], [6.0]]).eval()
        array([[1.],
               [2.]], dtype=float32)
    """
    with get_default_graph().name_scope(name or "lu_solve"):
        lower, upper = _triangles(convert_to_tensor(lower_upper))
        ordered = matmul(
            _permutation(convert_to_tensor(perm), lower.dtype), convert_to_tensor(rhs, lower.dtype)
        )
        return matrix_triangular_solve(upper, matrix_triangular_solve(lower, ordered), lower=False)


def lu_matrix_inverse(
    lower_upper: NumericLike, perm: NumericLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The inverses of the matrices that `lu` decomposed."""
    with get_default_graph().name_scope(name or "lu_matrix_inverse"):
        factors = convert_to_tensor(lower_upper)
        return lu_solve(factors, perm, eye(shape(factors)[-1], dtype=factors.dtype))
