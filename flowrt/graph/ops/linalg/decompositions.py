"""Inverses, solves, determinants and decompositions of matrices.

Rules of this file: a matrix is the last two dimensions, the others are a batch; LAPACK is used, through
``xp.linalg``, which has no ``out``: the result is copied there; a matrix without the decomposition raises
`InvalidArgumentError`. Gradients: M. Giles, *Collected matrix derivative results for forward and reverse mode
algorithmic differentiation* (2008); J. Townsend, *Differentiating the singular value decomposition* (2016);
S. Walter and L. Lehmann (2010) for QR.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.batching_rules import broadcasting, leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import BatchRule
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import unbroadcast, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import all_delivered, delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, matrix_transpose
from flowrt.graph.ops.elementwise.arithmetic import add_v2, conjugated, multiply, subtract
from flowrt.graph.ops.elementwise.math import log, neg
from flowrt.graph.ops.linalg.matmul import conjugate_transposed, matmul
from flowrt.graph.ops.linalg.matrix_parts import (
    diagonal_length,
    matrix_band_part,
    matrix_diag_part,
    matrix_set_diag,
    matrix_shape,
)
from flowrt.graph.shapes import Shape, broadcast, merge
from flowrt.graph.typing import NumericLike

__all__ = [
    "cholesky", "cholesky_solve", "matrix_determinant", "matrix_inverse", "matrix_solve",
    "matrix_triangular_solve", "qr",
]  # fmt: skip


def adjoint_of(x: Tensor) -> Tensor:
    """The adjoints of matrices."""
    return matrix_transpose(x, conjugate=True)


def square(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0], square=True)
    return [None if dims is None else merge(dims, (*dims[:-2], dims[-1], dims[-2]))]


def lapack(function: Any, expected: str) -> Any:
    """``function`` with an error that names the ``expected`` input in place of LAPACK's."""

    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except np.linalg.LinAlgError as error:
            raise InvalidArgumentError(f"expected {expected} ({error})") from None

    return run


def of_matrices(flops: float, batch: BatchRule = leading) -> dict[str, Any]:
    """Rules of an op of matrices that takes ``flops * n**3`` operations for each matrix of input 0."""

    def cost(inputs: Any, outputs: Any) -> float:
        dims = [d or 1 for d in inputs[0].shape or (1, 1)]
        return flops * float(np.prod(dims)) * dims[-1]

    return {"cost": cost, "batch": batch}


INVERTIBLE = "an invertible matrix; got a singular one"


def well_conditioned(rng: np.random.Generator, *dims: int) -> Any:
    return rng.standard_normal((*dims, dims[-1])) + 3 * np.eye(dims[-1])


def _positive_definite(rng: np.random.Generator, *dims: int) -> Any:
    x = rng.standard_normal((*dims, dims[-1]))
    return x @ x.swapaxes(-1, -2) + np.eye(dims[-1])


def _square_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(well_conditioned(rng, 3))
    yield sample(well_conditioned(rng, 2, 2))
    yield sample(well_conditioned(rng, 2).astype(np.float32))
    yield sample(well_conditioned(rng, 2) * (1 + 1j))
    yield sample(np.zeros((2, 0, 0)))
    yield sample(np.zeros((0, 2, 2), np.float32))


# --- inverse and determinants


def _inverse_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    inverse, adjoint = op.outputs[0], op.get_attr("adjoint")
    right = matmul(dy, inverse, adjoint_a=adjoint, adjoint_b=not adjoint)
    return [neg(matmul(inverse, right, adjoint_a=not adjoint))]


def _inverse(xp: Any, input: Any, adjoint: bool, out: Any = None) -> Any:
    inverse = lapack(xp.linalg.inv, INVERTIBLE)(conjugate_transposed(xp, input) if adjoint else input)
    return delivered(xp, inverse, input.dtype, out)


matrix_inverse: OpDef[Tensor] = define_op(
    "MatrixInverse",
    "input: T in LAPACK -> T",
    attrs="adjoint: bool = False",
    shape=square,
    kernel=_inverse,
    vjp=_inverse_vjp,
    samples=lambda rng: (*_square_samples(rng), sample(well_conditioned(rng, 3), adjoint=True)),
    axes="..a m! n! -> ..a m n",
    **of_matrices(2.0),
    doc="The inverses of square matrices, or of their adjoints; of a singular one an `InvalidArgumentError`.",
)


def _scaled_inverse(op: Operation, factor: Tensor) -> Tensor:
    """``factor * input**-H`` with a factor per matrix, as in the gradients of determinants."""
    spread = expand_dims(expand_dims(factor, -1), -1)
    return multiply(spread, matrix_inverse(op.inputs[0], adjoint=True))


def _scalar_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0], square=True)
    return [None if dims is None else dims[:-2]] * len(s.op.outputs)


matrix_determinant = define_op(
    "MatrixDeterminant",
    "input: T in LAPACK -> T",
    shape=_scalar_shape,
    kernel=lambda xp, input, out=None: delivered(xp, xp.asarray(xp.linalg.det(input)), input.dtype, out),
    vjp=lambda op, dy: [_scaled_inverse(op, multiply(dy, conjugated(op.outputs[0])))],
    samples=_square_samples,
    axes="..a m! n! -> ..a",
    **of_matrices(0.7),
    doc="The determinants of square matrices.",
)


def _slogdet(xp: Any, input: Any, out: Any = None) -> Any:
    return all_delivered(xp, map(xp.asarray, xp.linalg.slogdet(input)), input.dtype, out)


def _slogdet_vjp(op: Operation, dsign: Tensor | None, dlog: Tensor | None) -> list[Tensor | None]:
    return [None if dlog is None else _scaled_inverse(op, dlog)]  # the sign of a real determinant is constant


log_matrix_determinant: OpDef[list[Tensor]] = define_op(
    "LogMatrixDeterminant",
    "input: T in LAPACK -> sign: T, log_abs_determinant: T",
    shape=_scalar_shape,
    kernel=_slogdet,
    vjp=_slogdet_vjp,
    samples=_square_samples,
    axes="..a m! n! -> ..a, ..a",
    **of_matrices(0.7),
    doc="The signs and the logarithms of the absolute values of the determinants of square matrices.",
)


class LogMatrixDeterminant(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    log_abs_determinant: Tensor


def slogdet(input: NumericLike, name: str | None = None) -> LogMatrixDeterminant:
    """The sign of the determinants of square matrices, and the logarithm of their absolute value."""
    return LogMatrixDeterminant(*log_matrix_determinant(input, name=name))


@takes_composites
def logdet(matrix: NumericLike, name: str | None = None) -> Tensor:
    """The logarithm of the determinants of Hermitian positive definite matrices, by Cholesky
    decomposition.
    """
    with get_default_graph().name_scope(name or "logdet"):
        diagonal = matrix_diag_part(cholesky(matrix))
        total = reduce_sum(log(cast(diagonal, diagonal.dtype.real_dtype)), [-1])
        return multiply(total, 2.0)


# --- Cholesky and solves


def _cholesky(xp: Any, input: Any, out: Any = None) -> Any:
    factor = lapack(xp.linalg.cholesky, "a positive definite matrix; got one that is not")(input)
    return delivered(xp, factor, input.dtype, out)


def _cholesky_vjp(op: Operation, dl: Tensor) -> list[Tensor]:
    """The symmetric gradient, which is right for every way to compute a symmetric input."""
    factor = op.outputs[0]
    inner = matmul(factor, dl, adjoint_a=True)
    lower = matrix_band_part(matrix_set_diag(inner, multiply(matrix_diag_part(inner), 0.5)), -1, 0)
    left = matrix_triangular_solve(factor, lower, lower=True, adjoint=True)  # L**-H P
    right = matrix_triangular_solve(factor, adjoint_of(left), lower=True, adjoint=True)
    whole = adjoint_of(right)  # L**-H P L**-1
    return [multiply(add_v2(whole, adjoint_of(whole)), np.array(0.5, whole.dtype.np))]


cholesky = define_op(
    "Cholesky",
    "input: T in LAPACK -> T",
    shape=square,
    kernel=_cholesky,
    vjp=_cholesky_vjp,
    # differences of a symmetric function in directions that are not symmetric mean nothing
    samples=lambda rng: (
        sample(_positive_definite(rng, 3), differentiable=False),
        sample(_positive_definite(rng, 2, 2).astype(np.float32)),
        sample(np.array([[2, 1j], [-1j, 3]])),
        sample(np.zeros((0, 2, 2))),
    ),
    axes="..a m! n! -> ..a m n",
    **of_matrices(1 / 3),
    doc="Lower triangular L with L L**H = input, of which only the lower triangle is read.",
)


def _solve_shape(s: ShapeContext) -> Sequence[Shape]:
    matrix, rhs = matrix_shape(s.shapes[0], square=True), matrix_shape(s.shapes[1])
    if matrix is None or rhs is None:
        return [None]
    merge(matrix[-2:-1], rhs[-2:-1])
    batch = broadcast(matrix[:-2], rhs[:-2])
    assert batch is not None
    return [(*batch, merge(matrix[-1:], rhs[-2:-1])[0], rhs[-1])]  # type: ignore[index]


def _solve_samples(rng: np.random.Generator) -> Iterable[Sample]:
    draw = rng.standard_normal
    for adjoint in (False, True):
        yield sample(well_conditioned(rng, 3), draw((3, 2)), adjoint=adjoint)
        yield sample(well_conditioned(rng, 2, 2) * (1 + 1j), draw((2, 2, 1)) * (1 - 2j), adjoint=adjoint)
    yield sample(well_conditioned(rng, 2, 2), draw((2, 2, 3)))
    yield sample(well_conditioned(rng, 2).astype(np.float32), draw((2, 0)).astype(np.float32))


def _solve(xp: Any, matrix: Any, rhs: Any, adjoint: bool, out: Any = None) -> Any:
    if matrix.shape[:-2] != rhs.shape[:-2]:  # NumPy would broadcast them, CuPy does not
        batch = np.broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
        matrix, rhs = (xp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (matrix, rhs))
    x = lapack(xp.linalg.solve, INVERTIBLE)(conjugate_transposed(xp, matrix) if adjoint else matrix, rhs)
    return delivered(xp, x, rhs.dtype, out)


def _solve_gradients(op: Operation, db: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of ``x = a**-1 b`` (or ``a**-H b``) from ``db``, that of b."""
    x = op.outputs[0]
    da = matmul(x, db, adjoint_b=True) if op.get_attr("adjoint") else matmul(db, x, adjoint_b=True)
    return neg(da), db


def _solve_vjp(op: Operation, dx: Tensor) -> list[Tensor]:
    matrix, rhs = op.inputs
    da, db = _solve_gradients(op, matrix_solve(matrix, dx, adjoint=not op.get_attr("adjoint")))
    return [unbroadcast(da, matrix), unbroadcast(db, rhs)]


matrix_solve: OpDef[Tensor] = define_op(
    "MatrixSolve",
    "matrix: T in LAPACK, rhs: T -> T",
    attrs="adjoint: bool = False",
    shape=_solve_shape,
    kernel=_solve,
    vjp=_solve_vjp,
    samples=_solve_samples,
    axes="..a m! n!, ..a p! r -> ..a p r",
    **of_matrices(0.7),
    doc="""The X of ``matrix X = rhs``, or with ``adjoint`` of ``matrix**H X = rhs``.

    Raises `InvalidArgumentError` for shapes that do not fit and, when run, for a singular matrix.
    """,
)


def _triangular_solve(xp: Any, matrix: Any, rhs: Any, lower: bool, adjoint: bool, out: Any = None) -> Any:
    """Solution by LU decomposition, as neither NumPy nor CuPy has a batched triangular solve."""
    return _solve(xp, (xp.tril if lower else xp.triu)(matrix), rhs, adjoint, out)


def _triangular_vjp(op: Operation, dx: Tensor) -> list[Tensor]:
    matrix, rhs = op.inputs
    lower, adjoint = op.get_attr("lower"), op.get_attr("adjoint")
    da, db = _solve_gradients(op, matrix_triangular_solve(matrix, dx, lower=lower, adjoint=not adjoint))
    part = matrix_band_part(da, -1, 0) if lower else matrix_band_part(da, 0, -1)
    return [unbroadcast(part, matrix), unbroadcast(db, rhs)]


matrix_triangular_solve: OpDef[Tensor] = define_op(
    "MatrixTriangularSolve",
    "matrix: T in LAPACK, rhs: T -> T",
    attrs="lower: bool = True, adjoint: bool = False",
    shape=_solve_shape,
    kernel=_triangular_solve,
    vjp=_triangular_vjp,
    samples=lambda rng: (
        *_solve_samples(rng),
        sample(well_conditioned(rng, 3), rng.standard_normal((2, 3, 2)), lower=False),
    ),
    axes="... m! n!, ... p! r -> ... p r",
    **of_matrices(0.7, broadcasting),
    doc="""The X of ``matrix X = rhs`` (with ``adjoint`` of ``matrix**H X = rhs``) for triangular matrices;
    batches broadcast.

    Raises `InvalidArgumentError` for shapes that do not fit and, when run, for a zero on the diagonal.
    """,
)


def cholesky_solve(chol: NumericLike, rhs: NumericLike, name: str | None = None) -> Tensor:
    """The X of ``A X = rhs``, given the Cholesky factor ``chol`` of A."""
    with get_default_graph().name_scope(name or "cholesky_solve"):
        chol = convert_to_tensor(chol, name="chol")
        return matrix_triangular_solve(chol, matrix_triangular_solve(chol, rhs), adjoint=True)


# --- QR


def _qr_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0])
    if dims is None:
        return [None, None]
    *batch, m, n = dims
    k = m if s.attrs["full_matrices"] else diagonal_length(dims)
    return [(*batch, m, k), (*batch, k, n)]


def _qr(xp: Any, input: Any, full_matrices: bool, out: Any = None) -> Any:
    factors = xp.linalg.qr(input, "complete" if full_matrices else "reduced")
    return all_delivered(xp, factors, input.dtype, out)


def _qr_vjp(op: Operation, dq: Tensor | None, dr: Tensor | None) -> list[Tensor]:
    q, r = op.outputs
    rows, columns = (op.inputs[0].spec.shape or (None, None))[-2:]
    if (
        q.dtype.is_complex
        or op.get_attr("full_matrices")
        or rows is None
        or columns is None
        or rows < columns
    ):
        raise op.error(
            UnimplementedError, "has a gradient for real [m, n] with static m >= n and no full_matrices"
        )
    dq, dr = zeros_like(q) if dq is None else dq, zeros_like(r) if dr is None else dr
    skew = _minus_adjoint(matmul(q, dq, adjoint_a=True))
    skew = add_v2(skew, _minus_adjoint(matmul(r, dr, adjoint_b=True)))
    orthogonal = subtract(dq, matmul(q, matmul(q, dq, adjoint_a=True)))
    return [
        add_v2(matmul(q, add_v2(dr, over_upper(matrix_band_part(skew, -1, 0), r))), over_upper(orthogonal, r))
    ]


def _minus_adjoint(x: Tensor) -> Tensor:
    return subtract(x, adjoint_of(x))


def over_upper(x: Tensor, upper: Tensor) -> Tensor:
    """``x upper**-H``."""
    return adjoint_of(matrix_triangular_solve(upper, adjoint_of(x), lower=False))


qr_op: OpDef[list[Tensor]] = define_op(
    "Qr",
    "input: T in LAPACK -> q: T, r: T",
    attrs="full_matrices: bool = False",
    shape=_qr_shape,
    kernel=_qr,
    vjp=_qr_vjp,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 3))),
        sample(rng.standard_normal((2, 4, 2))),
        sample(rng.standard_normal((2, 4)), differentiable=False),
        sample(rng.standard_normal((4, 2)), full_matrices=True, differentiable=False),
        sample(rng.standard_normal((3, 2)) * (1 + 1j)),
        sample(rng.standard_normal((3, 2)).astype(np.float32)),
    ),
    axes="..a m! n! -> ..a q k, ..a l r",
    **of_matrices(2.0),
    doc="Matrices as a product of orthonormal columns q and an upper triangle r.",
)


def qr(input: NumericLike, full_matrices: bool = False, name: str | None = None) -> tuple[Tensor, Tensor]:
    """q ``[..., m, k]`` with orthonormal columns and upper triangular r ``[..., k, n]``: input = q r, k =
    min(m, n).
    """
    q, r = qr_op(input, full_matrices=full_matrices, name=name)
    return q, r
