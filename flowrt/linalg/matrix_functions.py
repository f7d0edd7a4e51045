"""Functions of matrices built from decompositions: exponential, pseudo-inverse, least squares, rank.

The last two dimensions are a matrix, the others a batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt.control_flow import while_loop
from flowrt.dtypes import float64, int32
from flowrt.errors import DTypeError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import greater, less, select_v2
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.math import ceil, log
from flowrt.graph.ops.linalg.decompositions import cholesky, cholesky_solve, matrix_solve
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag_part, matrix_set_diag
from flowrt.graph.ops.linalg.spectral import svd
from flowrt.graph.ops.nn.norms import norm
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

_PADE_DEGREE, _PADE_NORM = 13, 5.371920351148152
"""The degree of the Padé approximation, and the greatest 1-norm for which its error is below the precision
of float64 (N. Higham, *The scaling and squaring method for the matrix exponential revisited*, 2005).
"""
_MOST_SQUARINGS = 1100
"""Enough for the greatest float64; an infinite norm would ask for infinitely many."""


def matrix_exponential(input: NumericLike, name: str | None = None) -> Tensor:
    """The exponentials of square matrices, by scaling and squaring.

    Raises `DTypeError` for integers.

    Example:
        >>> tf.linalg.expm([[0.0, 1.0], [0.0, 0.0]]).eval()
        array([[1., 1.],
               [0., 1.]], dtype=float32)
    """
    with get_default_graph().name_scope(name or "matrix_exponential"):
        matrix = convert_to_tensor(input)
        if not (matrix.dtype.is_floating or matrix.dtype.is_complex):
            raise misuse(f"expm: expected floats or complex; got {matrix.dtype.name}", DTypeError)
        length = stop_gradient(reduce_max(reduce_sum(absolute(matrix), -2), -1))
        wanted = maximum(ceil(log(length / _PADE_NORM) / math.log(2)), 0)
        squarings = cast(minimum(wanted, _MOST_SQUARINGS), int32)
        scale = cast(0.5 ** cast(squarings, float64), matrix.dtype)
        even, odd = _pade(matrix * _spread(scale))
        first = matrix_solve(even - odd, even + odd)
        return _squared(first, squarings)


def _spread(x: Tensor) -> Tensor:
    """A number of each matrix, in two dimensions more."""
    return expand_dims(expand_dims(x, -1), -1)


def _pade(matrix: Any) -> tuple[Any, Any]:
    """The even and the odd part of the numerator, which with the odd one negated is the denominator."""
    degree = _PADE_DEGREE
    weights = [
        math.comb(degree, i) * math.factorial(2 * degree - i) / math.factorial(2 * degree)
        for i in range(degree + 1)
    ]
    square = matmul(matrix, matrix)
    even, odd = (_polynomial(square, weights[start::2]) for start in (0, 1))
    return even, matmul(matrix, odd)


def _polynomial(x: Any, weights: list[float]) -> Any:
    """``weights[0] I + weights[1] x + ...`` by Horner's rule."""
    found = _plus_identity(zeros_like(x), weights[-1])
    for weight in reversed(weights[:-1]):
        found = _plus_identity(matmul(found, x), weight)
    return found


def _plus_identity(x: Any, weight: Any) -> Any:
    return matrix_set_diag(x, matrix_diag_part(x) + weight)


def _squared(x: Any, times: Any) -> Any:
    """Each matrix squared as often as ``times`` says."""
    most = reduce_max(times)
    _, found = while_loop(
        lambda i, _: less(i, most),
        lambda i, y: (i + 1, select_v2(_spread(less(i, times)), matmul(y, y), y)),
        [np.int32(0), x],
    )
    return found


def matrix_solve_ls(
    matrix: NumericLike,
    rhs: NumericLike,
    l2_regularizer: Any = 0.0,
    fast: bool = True,
    name: str | None = None,
) -> Tensor:
    """The ``x`` with the least ``|matrix x - rhs|^2 + l2_regularizer |x|^2``: ``[..., n, k]`` for a matrix
    ``[..., m, n]`` and ``rhs`` ``[..., m, k]``.

    With ``fast`` the normal equations are solved by Cholesky decomposition: matrices must be of full rank.
    Without it the pseudo-inverse is used and ``l2_regularizer`` is not, as in TensorFlow. Raises
    `UnimplementedError` for complex128 with ``l2_regularizer``, `InvalidArgumentError` if it is not known
    whether there are more rows or columns.

    Example:
        >>> tf.linalg.lstsq([[1.0], [1.0]], [[2.0], [4.0]]).eval().round(3)
        array([[3.]], dtype=float32)
    """
    with get_default_graph().name_scope(name or "matrix_solve_ls"):
        matrix = convert_to_tensor(matrix)
        if matrix.dtype.name == "complex128" and not _is_zero(l2_regularizer):
            raise misuse("lstsq: complex128 with l2_regularizer is not supported", UnimplementedError)
        if not fast:
            return matmul(pinv(matrix), rhs)
        rows, columns = (size.value for size in matrix.shape[-2:])
        if rows is None or columns is None:
            raise misuse(f"lstsq: expected matrices of a known size; got shape {matrix.shape}")
        is_tall = rows >= columns
        gram = matmul(matrix, matrix, adjoint_a=is_tall, adjoint_b=not is_tall)
        factor = cholesky(_plus_identity(gram, cast(convert_to_tensor(l2_regularizer), gram.dtype)))
        if is_tall:
            return cholesky_solve(factor, matmul(matrix, rhs, adjoint_a=True))
        return matmul(matrix, cholesky_solve(factor, rhs), adjoint_a=True)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def pinv(a: NumericLike, rcond: Any = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The pseudo-inverses ``[..., n, m]`` of matrices ``[..., m, n]`` (R. Penrose, 1955).

    Singular values up to ``rcond`` times the greatest count as zero; the default of ``rcond`` is 10 max(m, n)
    epsilon. Raises `DTypeError` for other than floats.

    Example:
        >>> tf.linalg.pinv([[2.0, 0.0], [0.0, 0.0]]).eval()
        array([[0.5, 0. ],
               [0. , 0. ]], dtype=float32)
    """
    with get_default_graph().name_scope(name or "pinv"):
        matrix = _floats("pinv", a)
        if rcond is None:
            rcond = 10 * np.finfo(matrix.dtype.np).eps * cast(reduce_max(shape(matrix)[-2:]), matrix.dtype)
        values, left, right = svd(matrix)
        cutoff = convert_to_tensor(rcond, matrix.dtype) * reduce_max(values, -1)
        kept = select_v2(greater(values, expand_dims(cutoff, -1)), values, np.array(np.inf, matrix.dtype.np))
        return matmul(right / expand_dims(kept, -2), left, adjoint_b=True)


def matrix_rank(
    a: NumericLike, tol: Any = None, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The number of singular values above ``tol``, int32 ``[...]``.

    The default of ``tol`` is max(m, n) epsilon times the greatest. Raises `DTypeError` for other than floats.
    """
    with get_default_graph().name_scope(name or "matrix_rank"):
        matrix = _floats("matrix_rank", a)
        values = svd(matrix, compute_uv=False)
        if tol is None:
            sizes = cast(reduce_max(shape(matrix)[-2:]), matrix.dtype)
            tol = np.finfo(matrix.dtype.np).eps * sizes * reduce_max(values, -1, keepdims=True)
        return reduce_sum(cast(greater(values, tol), int32), -1)


def _floats(what: str, given: NumericLike) -> Tensor:
    matrix = convert_to_tensor(given)
    if not matrix.dtype.is_floating:
        raise misuse(f"{what}: expected floats; got {matrix.dtype.name}", DTypeError)
    return matrix


def normalize(
    tensor: NumericLike, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """``tensor`` divided by its norm along ``axis``, and that norm, with the dimensions kept: see `norm`."""
    with get_default_graph().name_scope(name or "normalize"):
        tensor = convert_to_tensor(tensor)
        length = cast(norm(tensor, ord, axis, keepdims=True), tensor.dtype)
        return tensor / length, length
