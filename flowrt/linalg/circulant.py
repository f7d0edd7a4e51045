"""Operators of convolutions, applied by Fourier transforms: circulant matrices in up to three nested levels,
and Toeplitz matrices, which are a part of a circulant one of twice the size.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from flowrt.dtypes import DTypeLike, as_dtype, complex64, complex128, float64
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.reductions import reduce_prod, reduce_sum
from flowrt.graph.ops.array.tile_and_reverse import reverse
from flowrt.graph.ops.base.filling import broadcast_dynamic_shape, broadcast_static_shape, ones, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, matrix_transpose, reshape, shape
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.complex_parts import conj, imag, real
from flowrt.graph.ops.elementwise.math import log
from flowrt.graph.ops.linalg.fourier import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from flowrt.graph.ops.text.assertions import assert_equal, assert_less, assert_positive
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.linalg.linear_operator import (
    PRODUCTS,
    SHARED_HINTS,
    SOLUTIONS,
    Hint,
    LinearOperator,
    Rule,
    always,
    both,
    check_rank,
)

_TRANSFORMS: dict[int, tuple[Any, Any]] = {1: (fft, ifft), 2: (fft2d, ifft2d), 3: (fft3d, ifft3d)}


def _complex(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return x
    return cast(x, complex128 if x.dtype is float64 else complex64)


class _Circulant(LinearOperator):
    """Base: ``spectrum`` is ``[..., n_1, ... n_depth]``, the number of rows the product of these sizes."""

    block_depth: ClassVar[int]

    def __init__(
        self,
        spectrum: NumericLike,
        input_output_dtype: DTypeLike = complex64,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        name: str | None = None,
    ) -> None:
        name = name or type(self).__name__
        self._spectrum = convert_to_tensor(spectrum)
        check_rank("spectrum", self._spectrum, self.block_depth)
        if not self._spectrum.dtype.is_complex:
            is_self_adjoint = always(is_self_adjoint, True, f"{name}: one of a real spectrum is self-adjoint")
        super().__init__(
            as_dtype(input_output_dtype), [self._spectrum], is_non_singular, is_self_adjoint,
            is_positive_definite, always(is_square, True, f"{name}: it is square"), name,
        )  # fmt: skip

    @property
    def spectrum(self) -> Tensor:
        return self._spectrum

    @property
    def block_shape(self) -> TensorShape:
        return self._spectrum.shape[-self.block_depth :]

    def block_shape_tensor(self) -> Tensor:
        return shape(self._spectrum)[-self.block_depth :]

    def convolution_kernel(self, name: str = "convolution_kernel") -> Tensor:
        """The vector that others are convolved with: the inverse transform of the spectrum."""
        with self._scope(name):
            return cast(_TRANSFORMS[self.block_depth][1](_complex(self._spectrum)), self.dtype)

    def assert_hermitian_spectrum(self, name: str = "assert_hermitian_spectrum") -> Any:
        """An operation that fails unless the convolution kernel is real."""
        with self._scope(name):
            kernel = imag(self.convolution_kernel())
            largest = np.finfo(self.dtype.real_dtype.np).eps * cast(
                self.domain_dimension_tensor(), kernel.dtype
            )
            return assert_less(
                absolute(kernel), largest, message=f"{self.name}: the spectrum is not Hermitian"
            )

    def _shape(self) -> TensorShape:
        known = self._spectrum.shape
        if known.ndims is None:
            return known
        sizes = known.as_list()[-self.block_depth :]
        total = None if None in sizes else math.prod(sizes)  # type: ignore[arg-type]
        return known[: -self.block_depth].concatenate([total, total])

    def _shape_tensor(self) -> Tensor:
        sizes = shape(self._spectrum)
        total = reduce_prod(sizes[-self.block_depth :])
        return concat([sizes[: -self.block_depth], stack([total, total])], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._filtered(x, self._factors(adjoint))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._filtered(rhs, 1 / self._factors(adjoint))

    def _factors(self, adjoint: bool) -> Any:
        spectrum = _complex(self._spectrum)
        return conj(spectrum) if adjoint else spectrum

    def _filtered(self, x: Any, factors: Any) -> Any:
        """The columns of ``x``, transformed, times ``factors``, and transformed back."""
        there, back = _TRANSFORMS[self.block_depth]
        columns = cast(matrix_transpose(x), factors.dtype)
        blocks = reshape(columns, concat([shape(columns)[:-1], self.block_shape_tensor()], 0))
        found = back(there(blocks) * expand_dims(factors, -self.block_depth - 1))
        rows = reshape(found, concat([shape(found)[: -self.block_depth], [-1]], 0))
        result = cast(matrix_transpose(rows), self.dtype)
        if x.shape.ndims is not None:
            batch = broadcast_static_shape(x.shape[:-2], self.batch_shape)
            result.set_shape(batch.concatenate([self.range_dimension, x.shape[-1]]))
        return result

    @property
    def _axes(self) -> list[int]:
        return list(range(-self.block_depth, 0))

    def _determinant(self) -> Any:
        return cast(reduce_prod(self._spectrum, self._axes), self.dtype)

    def _log_abs_determinant(self) -> Any:
        return cast(reduce_sum(log(absolute(self._spectrum)), self._axes), self.dtype)

    def _trace(self) -> Any:
        return cast(reduce_sum(self._spectrum, self._axes), self.dtype)

    def _diag_part(self) -> Any:
        each = self.trace() / cast(self.domain_dimension_tensor(), self.dtype)
        return expand_dims(each, -1) * ones(self.shape_tensor()[:-1], self.dtype)

    def _assert_non_singular(self) -> Any:
        return assert_positive(absolute(self._spectrum), message=f"{self.name}: zeros in the spectrum")

    def _assert_positive_definite(self) -> Any:
        return assert_positive(real(self._spectrum), message=f"{self.name}: not positive definite")

    def _assert_self_adjoint(self) -> Any:
        parts = imag(_complex(self._spectrum))
        return assert_equal(parts, zeros_like(parts), message=f"{self.name}: the spectrum is not real")


class LinearOperatorCirculant(_Circulant):
    """Circulant matrices with the eigenvalues ``spectrum``, ``[..., n]``: convolutions of vectors.

    Example:
        >>> operator = tf.linalg.LinearOperatorCirculant([6.0, 0.0, 0.0], input_output_dtype=tf.float32)
        >>> operator.matvec([1.0, 2.0, 3.0]).eval()
        array([12., 12., 12.], dtype=float32)
    """

    block_depth = 1

    def _with(self, spectrum: Any) -> LinearOperator:
        hints = (self.is_non_singular, self.is_self_adjoint, self.is_positive_definite)
        return LinearOperatorCirculant(spectrum, self.dtype, *hints)

    def _adjoint(self) -> LinearOperator:
        return self._with(conj(self._spectrum))

    def _inverse(self) -> LinearOperator:
        return self._with(1 / self._spectrum)


class LinearOperatorCirculant2D(_Circulant):
    """Block circulant matrices of circulant blocks: ``spectrum`` is ``[..., n_1, n_2]``."""

    block_depth = 2


class LinearOperatorCirculant3D(_Circulant):
    """Circulant matrices in three nested levels: ``spectrum`` is ``[..., n_1, n_2, n_3]``."""

    block_depth = 3


def _circulant(left: _Circulant, right: _Circulant, spectrum: Any) -> LinearOperator:
    hints: dict[str, Any] = {hint: both(hint, left, right) for hint in SHARED_HINTS}
    return LinearOperatorCirculant(spectrum, left.dtype, **hints)


PRODUCTS.insert(
    0,
    Rule(
        LinearOperatorCirculant,
        LinearOperatorCirculant,
        lambda a, b: _circulant(a, b, a.spectrum * b.spectrum),
    ),
)
SOLUTIONS.insert(
    0,
    Rule(
        LinearOperatorCirculant,
        LinearOperatorCirculant,
        lambda a, b: _circulant(a, b, b.spectrum / a.spectrum),
    ),
)


class LinearOperatorToeplitz(LinearOperator):
    """Matrices with equal numbers along each diagonal, given by first column and first row, ``[..., n]``.

    The number in the corner is the column's.
    """

    def __init__(
        self,
        col: NumericLike,
        row: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorToeplitz",
    ) -> None:
        self._col, self._row = convert_to_tensor(col), convert_to_tensor(row)
        for what, vector in (("col", self._col), ("row", self._row)):
            check_rank(what, vector, 1)
        lengths = [vector.shape[-1].value for vector in (self._col, self._row)]
        if None not in lengths and lengths[0] != lengths[1]:
            raise misuse(f"{name}: expected a row of the column's length {lengths[0]}; got {lengths[1]}")
        super().__init__(
            self._row.dtype, [self._row, self._col], is_non_singular, is_self_adjoint, is_positive_definite,
            always(is_square, True, f"{name}: it is square"), name,
        )  # fmt: skip
        first = concat([self._col, zeros_like(self._col[..., :1]), reverse(self._row[..., 1:], [-1])], -1)
        self._circulant = LinearOperatorCirculant(fft(_complex(first)), self.dtype)

    @property
    def col(self) -> Tensor:
        return self._col

    @property
    def row(self) -> Tensor:
        return self._row

    def _shape(self) -> TensorShape:
        known = broadcast_static_shape(self._row.shape, self._col.shape)
        return known if known.ndims is None else known.concatenate(known[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = broadcast_dynamic_shape(shape(self._row), shape(self._col))
        return concat([sizes, sizes[-1:]], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        found = self._circulant.matmul(concat([x, zeros_like(x)], -2), adjoint=adjoint)
        return found[..., : shape(x)[-2], :]

    def _trace(self) -> Any:
        return cast(self.domain_dimension_tensor(), self.dtype) * self._col[..., 0]

    def _diag_part(self) -> Any:
        return self._col[..., :1] * ones(stack([self.domain_dimension_tensor()]), self.dtype)

    def _assert_self_adjoint(self) -> Any:
        return assert_equal(self._row, conj(self._col), message=f"{self.name}: row and column differ")
