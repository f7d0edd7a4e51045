"""Square roots and logarithms of matrices: the principal ones, of matrices without eigenvalues that are zero
or negative.

NumPy has no Schur decomposition, by which LAPACK's users compute them. Roots are iterated here: the product
form of Denman and Beavers's iteration, scaled by determinants (N. Higham, *Functions of Matrices*, 2008,
section 6.3), converges quadratically and takes a batch at a time; the relative error is about the condition
number times the precision. Logarithms are those of a root that is near the identity, which are a sum of
rational functions (S. Cheng, N. Higham, C. Kenney and A. Laub, *Approximating the logarithm of a matrix to
specified accuracy*, 2001). Both are computed with 64-bit numbers. Gradients: the function of the block matrix
``[[A, E], [0, A]]`` has the derivative at A in direction E in its corner (R. Mathias, 1996).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, Sample, define_op, sample
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.linalg.decompositions import adjoint_of, lapack, of_matrices, square

_EXPECTED = "a matrix without eigenvalues that are zero or negative"
_ITERATIONS = 24
"""Twice what matrices with a condition number of 1e14 need."""
_CONVERGED = 1e-6
_DEGREE, _NEAR = 7, 0.264
"""The degree of the Padé approximation, and how far from the identity it has float64's precision (Higham
2008, table 11.1).
"""
_MOST_ROOTS = 60


def _wide(xp: Any, x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _root(xp: Any, x: Any) -> Any:
    """The square roots of ``x``, of 64-bit numbers: the iterates' squares times ``rest`` stay ``x``."""
    size = x.shape[-1]
    identity, rest, found = xp.eye(size, dtype=x.dtype), x, x
    for _ in range(_ITERATIONS if x.size else 0):
        _, log_determinant = xp.linalg.slogdet(rest)
        scale = xp.exp(log_determinant / (-2 * size))[..., None, None]
        inverse = lapack(xp.linalg.inv, _EXPECTED)(rest) / scale**2
        found = 0.5 * scale * found @ (identity + inverse)
        rest = 0.5 * (identity + 0.5 * (scale**2 * rest + inverse))
    if xp is np and x.size and np.abs(rest - identity).max() > _CONVERGED:
        raise InvalidArgumentError(f"expected {_EXPECTED}; its square root is not found")
    return found


def _square_root(xp: Any, input: Any, out: Any = None) -> Any:
    return delivered(xp, _root(xp, _wide(xp, input)), input.dtype, out)


def _logarithm(xp: Any, input: Any, out: Any = None) -> Any:
    root, identity, doublings = _wide(xp, input), xp.eye(input.shape[-1]), 0
    while input.size and xp.abs(root - identity).sum(-2).max() > _NEAR and doublings < _MOST_ROOTS:
        root, doublings = _root(xp, root), doublings + 1
    rest = root - identity
    points, weights = np.polynomial.legendre.leggauss(_DEGREE)  # on [-1, 1]
    total = sum(
        0.5 * weight * xp.linalg.solve(identity + 0.5 * (1 + point) * rest, rest)
        for point, weight in zip(points.tolist(), weights.tolist(), strict=True)
    )
    return delivered(xp, 2.0**doublings * total, input.dtype, out)


def _vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    """The derivative at the adjoint in direction ``dy``, by the function of a block matrix."""
    x, size = adjoint_of(op.inputs[0]), shape(dy)[-1]
    blocks = concat([concat([x, dy], -1), concat([zeros_like(x), x], -1)], -2)
    return [op.op_def(blocks)[..., :size, size:]]


def _samples(rng: np.random.Generator, *dtypes: Any) -> Iterable[Sample]:
    for size, dtype in ((3, dtypes[0]), (2, dtypes[-1])):
        x = rng.standard_normal((size, size)) + 3 * np.eye(size)
        yield sample((x * (1 + 0.5j) if np.dtype(dtype).kind == "c" else x).astype(dtype))
    yield sample((rng.standard_normal((2, 2, 2)) + 3 * np.eye(2)).astype(dtypes[0]))
    yield sample(np.zeros((0, 2, 2), dtypes[0]))


matrix_square_root: OpDef[Tensor] = define_op(
    "MatrixSquareRoot",
    "input: T in LAPACK -> T",
    shape=square,
    kernel=_square_root,
    vjp=_vjp,
    samples=lambda rng: [*_samples(rng, np.float64, np.float32), *_samples(rng, np.complex128, np.complex64)],
    axes="..a m! n! -> ..a m n",
    **of_matrices(150.0),
    doc="""The principal square roots of square matrices.

    Raises `InvalidArgumentError`, when run, for a matrix with an eigenvalue that is zero or negative.
    """,
)

matrix_logarithm: OpDef[Tensor] = define_op(
    "MatrixLogarithm",
    "input: T in COMPLEX -> T",
    shape=square,
    kernel=_logarithm,
    vjp=_vjp,
    samples=lambda rng: _samples(rng, np.complex128, np.complex64),
    axes="..a m! n! -> ..a m n",
    **of_matrices(1000.0),
    doc="""The principal logarithms of square complex matrices.

    Raises `InvalidArgumentError`, when run, for a matrix with an eigenvalue that is zero or negative.
    """,
)
