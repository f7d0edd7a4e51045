"""Singular values and eigenvalues of matrices.

Rules of this file: a matrix is the last two dimensions, the others are a batch. The gradients (J. Townsend,
*Differentiating the singular value decomposition*, 2016) divide by differences of singular values or
eigenvalues: they are infinite or NaN where two are equal, unless only the values and not the vectors are
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, leading
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import all_delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.math import reciprocal
from flowrt.graph.ops.linalg.decompositions import adjoint_of
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import (
    diagonal_length,
    matrix_band_part,
    matrix_diag,
    matrix_diag_part,
    matrix_set_diag,
    matrix_shape,
)
from flowrt.graph.shapes import Shape
from flowrt.graph.typing import NumericLike


def _columns_times(x: Tensor, factors: Tensor) -> Tensor:
    """Column j of ``x`` times element j of ``factors``."""
    return multiply(x, expand_dims(factors, -2))


def _inverse_gaps(values: Tensor) -> Tensor:
    """The matrix of ``1 / (values[j] - values[i])``, with zeros on the diagonal."""
    gaps = subtract(expand_dims(values, -2), expand_dims(values, -1))
    ones = ones_like(values)
    inverse = reciprocal(matrix_set_diag(gaps, ones))
    return matrix_set_diag(inverse, zeros_like(values))


# --- singular values


def _svd_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0])
    without = (0,)
    if dims is None:
        return [None, *([None, None] if s.attrs["compute_uv"] else [without, without])]
    *batch, m, n = dims
    k = diagonal_length(dims)
    if not s.attrs["compute_uv"]:
        return [(*batch, k), without, without]
    full = s.attrs["full_matrices"]
    return [(*batch, k), (*batch, m, m if full else k), (*batch, n, n if full else k)]


def _svd(xp: Any, input: Any, compute_uv: bool, full_matrices: bool, out: Any = None) -> Any:
    if not compute_uv:
        empty = xp.zeros((0,), input.dtype)
        found = xp.linalg.svd(input, compute_uv=False), empty, empty
    else:
        u, values, vh = xp.linalg.svd(input, full_matrices=full_matrices)
        v = xp.swapaxes(vh, -1, -2)
        found = values, u, v.conj() if input.dtype.kind == "c" else v
    return all_delivered(xp, found, input.dtype, out)


def _svd_vjp(op: Operation, ds: Tensor | None, du: Tensor | None, dv: Tensor | None) -> list[Tensor]:
    if not op.get_attr("compute_uv"):
        assert ds is not None
        _, u, v = svd_op(op.inputs[0])
        return [matmul(_columns_times(u, ds), v, adjoint_b=True)]
    s, u, v = op.outputs
    if s.dtype.is_complex or op.get_attr("full_matrices"):
        raise op.error(
            UnimplementedError,
            "has a gradient for real matrices without full_matrices, and for compute_uv=False",
        )
    du, dv = zeros_like(u) if du is None else du, zeros_like(v) if dv is None else dv
    gaps = _inverse_gaps(multiply(s, s))
    inner = _columns_times(_skew(u, du, gaps), s)
    inner = add_v2(inner, multiply(expand_dims(s, -1), _skew(v, dv, gaps)))
    if ds is not None:
        inner = add_v2(inner, matrix_diag(ds))
    dx = matmul(matmul(u, inner), v, adjoint_b=True)
    dx = add_v2(dx, matmul(_outside(u, du, s), v, adjoint_b=True))
    return [add_v2(dx, matmul(u, _outside(v, dv, s), adjoint_b=True))]


def _skew(u: Tensor, du: Tensor, gaps: Tensor) -> Tensor:
    inner = matmul(u, du, adjoint_a=True)
    return multiply(gaps, subtract(inner, adjoint_of(inner)))


def _outside(u: Tensor, du: Tensor, s: Tensor) -> Tensor:
    """The part of ``du`` outside the span of ``u``, over the singular values."""
    rest = subtract(du, matmul(u, matmul(u, du, adjoint_a=True)))
    return _columns_times(rest, reciprocal(s))


def _batch_decomposition(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    """Vectors that were not requested are empty, of one dimension."""
    found = leading(b, op, values)
    is_asked = op.node.attrs.get("compute_uv", op.node.attrs.get("compute_v"))
    return found if is_asked else [found[0], *[v._replace(is_batched=False) for v in found[1:]]]


svd_op: OpDef[list[Tensor]] = define_op(
    "Svd",
    "input: T in LAPACK -> s: T, u: T, v: T",
    attrs="compute_uv: bool = True, full_matrices: bool = False",
    shape=_svd_shape,
    kernel=_svd,
    vjp=_svd_vjp,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 3))),
        sample(rng.standard_normal((2, 4, 2))),
        sample(rng.standard_normal((2, 3))),
        sample(rng.standard_normal((3, 2)), compute_uv=False),
        sample(rng.standard_normal((3, 2)), full_matrices=True, differentiable=False),
        sample(rng.standard_normal((3, 2)) * (1 + 1j)),
        sample(rng.standard_normal((2, 2)).astype(np.float32)),
    ),
    cost=lambda inputs, outputs: 20.0 * float(np.prod([d or 1 for d in inputs[0].shape or (1,)])) ** 1.5,
    axes=lambda s: f"..a m! n! -> ..a k, {'..a p q, ..a r t' if s.attrs['compute_uv'] else 'z, z'}",
    batch=_batch_decomposition,
    traits=Traits(up_to_phase=True),
    doc="Singular values (largest first), left and right singular vectors (columns): input = u diag(s) v**H.",
)


def svd(
    tensor: NumericLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Any:
    """``(s, u, v)`` with ``tensor = u diag(s) v**H``, or only ``s`` without ``compute_uv``. ``s`` is real.

    Shapes: tensor ``[..., m, n]``, s ``[..., k]``, u ``[..., m, k]``, v ``[..., n, k]`` with k = min(m, n);
    with ``full_matrices`` u and v are square.
    """
    s, u, v = svd_op(tensor, full_matrices=full_matrices, compute_uv=compute_uv, name=name)
    s = cast(s, s.dtype.real_dtype)
    return (s, u, v) if compute_uv else s


# --- eigenvalues


def _eigh_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = matrix_shape(s.shapes[0], square=True)
    vectors = dims if s.attrs["compute_v"] else (0,)
    return [None if dims is None else dims[:-1], vectors]


def _eigh(xp: Any, input: Any, compute_v: bool, out: Any = None) -> Any:
    found = xp.linalg.eigh(input) if compute_v else (xp.linalg.eigvalsh(input), xp.zeros((0,), input.dtype))
    return all_delivered(xp, found, input.dtype, out)


def _eigh_vjp(op: Operation, de: Tensor | None, dv: Tensor | None) -> list[Tensor]:
    """Gradient of the lower triangle, the only part read: twice the symmetric one below the diagonal."""
    with_vectors = op.get_attr("compute_v")
    e, v = op.outputs if with_vectors else self_adjoint_eig_op(op.inputs[0])
    inner = zeros_like(v) if de is None else matrix_diag(de)
    if with_vectors and dv is not None:
        inner = add_v2(inner, multiply(_inverse_gaps(e), matmul(v, dv, adjoint_a=True)))
    whole = matmul(v, matmul(inner, v, adjoint_b=True))
    lower = matrix_band_part(add_v2(whole, adjoint_of(whole)), -1, 0)
    return [matrix_set_diag(lower, multiply(matrix_diag_part(lower), np.array(0.5, lower.dtype.np)))]


self_adjoint_eig_op: OpDef[list[Tensor]] = define_op(
    "SelfAdjointEigV2",
    "input: T in LAPACK -> e: T, v: T",
    attrs="compute_v: bool = True",
    shape=_eigh_shape,
    kernel=_eigh,
    vjp=_eigh_vjp,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 3))),
        sample(rng.standard_normal((2, 2, 2)), compute_v=False),
        sample(np.array([[2, 1j], [-1j, 3]])),
        sample(rng.standard_normal((2, 2)).astype(np.float32)),
    ),
    cost=lambda inputs, outputs: 9.0 * float(np.prod([d or 1 for d in inputs[0].shape or (1,)])) ** 1.5,
    axes=lambda s: f"..a m! n! -> ..a k, {'..a p q' if s.attrs['compute_v'] else 'z'}",
    batch=_batch_decomposition,
    traits=Traits(up_to_phase=True),
    doc="Eigenvalues (smallest first) and eigenvectors (columns) of Hermitian matrices (lower triangle).",
)


def self_adjoint_eig(tensor: NumericLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[..., n]``, smallest first, and eigenvectors (columns of ``[..., n, n]``) of Hermitian
    matrices.

    Only the lower triangle is read, and only it gets a gradient.
    """
    values, vectors = self_adjoint_eig_op(tensor, name=name)
    return values, vectors


def self_adjoint_eigvals(tensor: NumericLike, name: str | None = None) -> Tensor:
    """The eigenvalues of `self_adjoint_eig` alone."""
    return self_adjoint_eig_op(tensor, compute_v=False, name=name)[0]
