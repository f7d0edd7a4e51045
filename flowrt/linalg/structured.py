"""Operators of one matrix that has a structure: full, diagonal, identity, zeros, a reflection."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import COMPLEX, FLOATING, DTypeLike, as_dtype, bfloat16, float32, int32
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.reductions import reduce_prod, reduce_sum
from flowrt.graph.ops.base.filling import ones, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.elementwise.arithmetic import minimum, pow
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.complex_parts import conj, imag, real
from flowrt.graph.ops.elementwise.math import log, sqrt
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag, matrix_diag_part, matrix_set_diag
from flowrt.graph.ops.nn.norms import norm
from flowrt.graph.ops.text.assertions import assert_equal, assert_non_negative, assert_positive
from flowrt.graph.ops.text.python_calls import no_op, with_dependencies
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.linalg.linear_operator import (
    PRODUCTS,
    SHARED_HINTS,
    SOLUTIONS,
    Hint,
    LinearOperator,
    LinearOperatorLowerTriangular,
    Rule,
    always,
    both,
    check_rank,
)

MATRICES = (FLOATING | COMPLEX) - {bfloat16}


class LinearOperatorFullMatrix(LinearOperator):
    """A matrix ``[..., m, n]`` as it is given. Raises `DTypeError` for integers and bfloat16."""

    def __init__(
        self,
        matrix: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorFullMatrix",
    ) -> None:
        self._matrix = convert_to_tensor(matrix)
        if self._matrix.dtype not in MATRICES:
            raise misuse(f"matrix: expected floats or complex; got {self._matrix.dtype.name}", DTypeError)
        check_rank("matrix", self._matrix, 2)
        super().__init__(
            self._matrix.dtype, [self._matrix], is_non_singular, is_self_adjoint, is_positive_definite,
            is_square, name,
        )  # fmt: skip

    def _shape(self) -> TensorShape:
        return self._matrix.shape

    def _shape_tensor(self) -> Tensor:
        return shape(self._matrix)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return matmul(self._matrix, x, adjoint_a=adjoint)

    def _to_dense(self) -> Any:
        return self._matrix


class _OnDiagonal(LinearOperator):
    """Base of operators with zeros beside the diagonal; ``_entries`` is the diagonal, ``[..., n or 1]``."""

    _entries: Tensor

    def _column(self, is_adjoint: bool) -> Tensor:
        return expand_dims(conj(self._entries) if is_adjoint else self._entries, -1)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._column(adjoint) * x

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return rhs / self._column(adjoint)

    def _add_to_tensor(self, x: Any) -> Any:
        return matrix_set_diag(x + zeros_like(self._column(False)), self._entries + matrix_diag_part(x))

    def _assert_non_singular(self) -> Any:
        return assert_positive(absolute(self._entries), message=f"{self.name}: singular")

    def _assert_positive_definite(self) -> Any:
        return assert_positive(real(self._entries), message=f"{self.name}: not positive definite")

    def _assert_self_adjoint(self) -> Any:
        parts = imag(self._entries) if self.dtype.is_complex else zeros_like(self._entries)
        return assert_equal(parts, zeros_like(parts), message=f"{self.name}: not its own adjoint")


class LinearOperatorDiag(_OnDiagonal):
    """Matrices with the diagonals ``diag``, ``[..., n]``."""

    def __init__(
        self,
        diag: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorDiag",
    ) -> None:
        self._entries = convert_to_tensor(diag)
        check_rank("diag", self._entries, 1)
        if not self._entries.dtype.is_complex:
            is_self_adjoint = always(is_self_adjoint, True, f"{name}: a real one is self-adjoint")
        super().__init__(
            self._entries.dtype, [self._entries], is_non_singular, is_self_adjoint, is_positive_definite,
            always(is_square, True, f"{name}: it is square"), name,
        )  # fmt: skip

    @property
    def diag(self) -> Tensor:
        return self._entries

    def _shape(self) -> TensorShape:
        known = self._entries.shape
        return known if known.ndims is None else known.concatenate(known[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = shape(self._entries)
        return concat([sizes, sizes[-1:]], 0)

    def _to_dense(self) -> Any:
        return matrix_diag(self._entries)

    def _diag_part(self) -> Any:
        return self._entries

    def _determinant(self) -> Any:
        return reduce_prod(self._entries, [-1])

    def _log_abs_determinant(self) -> Any:
        return cast(reduce_sum(log(absolute(self._entries)), [-1]), self.dtype)

    def _adjoint(self) -> LinearOperator:
        return self._with(conj(self._entries), self.is_positive_definite)

    def _inverse(self) -> LinearOperator:
        return self._with(1 / self._entries, self.is_positive_definite)

    def _cholesky(self) -> LinearOperator:
        return self._with(sqrt(self._entries), True)

    def _with(self, diagonal: Tensor, is_positive_definite: Hint) -> LinearOperator:
        return LinearOperatorDiag(
            diagonal, self.is_non_singular, self.is_self_adjoint, is_positive_definite, True
        )


class _Sized(LinearOperator):
    """Base of operators of a given size; ``_batch`` is the shape of the batch as a vector."""

    _rows: Tensor
    _columns: Tensor
    _batch: Tensor

    def _shape(self) -> TensorShape:
        matrix = [static_value(self._rows), static_value(self._columns)]
        return TensorShape(static_value(self._batch)).concatenate(matrix)

    def _shape_tensor(self) -> Tensor:
        return concat([self._batch, stack([self._rows, self._columns])], 0)

    def _over_batch(self, x: Any) -> Any:
        """``x`` for each matrix of the batch."""
        if self.batch_shape.ndims == 0:
            return x
        return x + zeros(concat([self._batch, [1, 1]], 0), self.dtype)

    def _diagonal(self, make: Any) -> Any:
        sizes = concat([self._batch, stack([minimum(self._rows, self._columns)])], 0)
        return make(sizes, self.dtype)


def _size(what: str, given: Any, rank: int, is_checked: bool) -> Tensor:
    """``given`` as an int32 tensor of ``rank`` dimensions, in a step found not to be negative if asked.

    Raises `DTypeError` for floats, `InvalidArgumentError` for another rank or a negative size.
    """
    if given is None or isinstance(given, TensorShape):
        given = [] if given is None else given.as_list()
    tensor = convert_to_tensor(given, int32 if isinstance(given, list) and not given else None)
    if not tensor.dtype.is_integer:
        raise misuse(f"{what}: expected integers; got {given!r}", DTypeError)
    if tensor.shape.ndims not in (rank, None):
        raise misuse(f"{what}: expected {rank} dimensions; got shape {tensor.shape}")
    known = static_value(tensor)
    if any(size is not None and size < 0 for size in ((known,) if rank == 0 else known or ())):
        raise misuse(f"{what}: expected numbers that are not negative; got {given!r}")
    tensor = cast(tensor, int32)
    return with_dependencies([assert_non_negative(tensor)], tensor) if is_checked else tensor


class LinearOperatorIdentity(_Sized):
    """Identity matrices ``batch_shape + [num_rows, num_rows]``."""

    def __init__(
        self,
        num_rows: Any,
        batch_shape: Any = None,
        dtype: DTypeLike | None = None,
        is_non_singular: Hint = True,
        is_self_adjoint: Hint = True,
        is_positive_definite: Hint = True,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorIdentity",
    ) -> None:
        self._rows = self._columns = _size("num_rows", num_rows, 0, assert_proper_shapes)
        self._batch = _size("batch_shape", batch_shape, 1, assert_proper_shapes)
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, is_square)
        for hint in hints:
            always(bool(hint), True, f"{name}: an identity has all hints")
        super().__init__(float32 if dtype is None else as_dtype(dtype), None, True, True, True, True, name)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._over_batch(x)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._over_batch(rhs)

    def _diag_part(self) -> Any:
        return self._diagonal(ones)

    def _determinant(self) -> Any:
        return ones(self._batch, self.dtype)

    def _log_abs_determinant(self) -> Any:
        return zeros(self._batch, self.dtype)

    def _add_to_tensor(self, x: Any) -> Any:
        return matrix_set_diag(x, matrix_diag_part(x) + 1)

    def _assert_non_singular(self) -> Any:
        return no_op()

    _assert_positive_definite = _assert_self_adjoint = _assert_non_singular

    def _inverse(self) -> LinearOperator:
        return self

    _cholesky = _inverse


class LinearOperatorScaledIdentity(_OnDiagonal, _Sized):
    """Identity matrices times ``multiplier``, ``[...]``."""

    def __init__(
        self,
        num_rows: Any,
        multiplier: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorScaledIdentity",
    ) -> None:
        self._multiplier = convert_to_tensor(multiplier)
        self._entries = expand_dims(self._multiplier, -1)
        self._rows = self._columns = _size("num_rows", num_rows, 0, assert_proper_shapes)
        self._batch = shape(self._multiplier)
        if not self._multiplier.dtype.is_complex:
            is_self_adjoint = always(is_self_adjoint, True, f"{name}: a real one is self-adjoint")
        super().__init__(
            self._multiplier.dtype, [self._multiplier], is_non_singular, is_self_adjoint,
            is_positive_definite, always(bool(is_square), True, f"{name}: it is square"), name,
        )  # fmt: skip

    @property
    def multiplier(self) -> Tensor:
        return self._multiplier

    def _diag_part(self) -> Any:
        return self._entries * self._diagonal(ones)

    def _trace(self) -> Any:
        return self._multiplier * cast(self._rows, self.dtype)

    def _determinant(self) -> Any:
        return pow(self._multiplier, cast(self._rows, self.dtype))

    def _log_abs_determinant(self) -> Any:
        return cast(self._rows, self.dtype.real_dtype) * log(absolute(self._multiplier))

    def _with(self, multiplier: Tensor) -> LinearOperator:
        hints = (self.is_non_singular, self.is_self_adjoint, self.is_positive_definite)
        return LinearOperatorScaledIdentity(self._rows, multiplier, *hints)

    def _adjoint(self) -> LinearOperator:
        return self._with(conj(self._multiplier))

    def _inverse(self) -> LinearOperator:
        return self._with(1 / self._multiplier)

    def _cholesky(self) -> LinearOperator:
        return self._with(sqrt(self._multiplier))


class LinearOperatorZeros(_Sized):
    """Zeros ``batch_shape + [num_rows, num_columns]``, by default square."""

    def __init__(
        self,
        num_rows: Any,
        num_columns: Any = None,
        batch_shape: Any = None,
        dtype: DTypeLike | None = None,
        is_non_singular: Hint = False,
        is_self_adjoint: Hint = True,
        is_positive_definite: Hint = False,
        is_square: Hint = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorZeros",
    ) -> None:
        self._rows = _size("num_rows", num_rows, 0, assert_proper_shapes)
        columns = num_rows if num_columns is None else num_columns
        self._columns = _size("num_columns", columns, 0, assert_proper_shapes)
        self._batch = _size("batch_shape", batch_shape, 1, assert_proper_shapes)
        always(bool(is_non_singular), False, f"{name}: zeros are singular")
        always(bool(is_positive_definite), False, f"{name}: zeros are not positive definite")
        if is_square:
            always(bool(is_self_adjoint), True, f"{name}: square zeros are self-adjoint")
        super().__init__(
            float32 if dtype is None else as_dtype(dtype), None, False,
            is_self_adjoint if is_square else None, False, is_square, name,
        )  # fmt: skip
        sizes = [self.range_dimension.value, self.domain_dimension.value]
        if is_square and None not in sizes and sizes[0] != sizes[1]:
            raise misuse(
                f"{name}: expected is_square=False for {sizes[0]} rows, {sizes[1]} columns; got True"
            )

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        sizes = shape(x)
        rows = self._columns if adjoint else self._rows
        return self._over_batch(zeros(concat([sizes[:-2], stack([rows]), sizes[-1:]], 0), self.dtype))

    def _to_dense(self) -> Any:
        return zeros(self.shape_tensor(), self.dtype)

    def _diag_part(self) -> Any:
        return self._diagonal(zeros)

    def _determinant(self) -> Any:
        return zeros(self._batch, self.dtype)

    def _add_to_tensor(self, x: Any) -> Any:
        return self._over_batch(x)

    def _assert_non_singular(self) -> Any:
        raise misuse(f"{self.name}: zeros are singular")

    def _assert_positive_definite(self) -> Any:
        raise misuse(f"{self.name}: zeros are not positive definite")

    def _assert_self_adjoint(self) -> Any:
        return no_op()


class LinearOperatorHouseholder(LinearOperator):
    """Reflections: ``I - 2 v v^H`` of ``reflection_axis`` v, ``[..., n]``, scaled to the length 1."""

    def __init__(
        self,
        reflection_axis: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorHouseholder",
    ) -> None:
        self._reflection_axis = convert_to_tensor(reflection_axis)
        check_rank("reflection_axis", self._reflection_axis, 1)
        super().__init__(
            self._reflection_axis.dtype, [self._reflection_axis],
            is_non_singular,
            always(is_self_adjoint, True, f"{name}: a reflection is self-adjoint"),
            always(is_positive_definite, False, f"{name}: a reflection is not positive definite"),
            always(is_square, True, f"{name}: a reflection is square"),
            name,
        )  # fmt: skip

    @property
    def reflection_axis(self) -> Tensor:
        return self._reflection_axis

    def _shape(self) -> TensorShape:
        known = self._reflection_axis.shape
        return known if known.ndims is None else known.concatenate(known[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = shape(self._reflection_axis)
        return concat([sizes, sizes[-1:]], 0)

    def _unit(self) -> Any:
        axis = self._reflection_axis
        return axis / norm(axis, axis=-1, keepdims=True)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        unit = expand_dims(self._unit(), -1)
        return x - 2 * unit * matmul(unit, x, adjoint_a=True)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs)

    def _diag_part(self) -> Any:
        unit = self._unit()
        return 1 - 2 * unit * conj(unit)

    def _determinant(self) -> Any:
        return -ones(self.batch_shape_tensor(), self.dtype)

    def _log_abs_determinant(self) -> Any:
        return zeros(self.batch_shape_tensor(), self.dtype)

    def _assert_non_singular(self) -> Any:
        return no_op()

    _assert_self_adjoint = _assert_non_singular

    def _assert_positive_definite(self) -> Any:
        raise misuse(f"{self.name}: a reflection is not positive definite")

    def _inverse(self) -> LinearOperator:
        return self


# --- products and solutions of two of them


def _diagonal(left: LinearOperator, right: LinearOperator, entries: Any) -> LinearOperator:
    hints: dict[str, Any] = {hint: both(hint, left, right) for hint in SHARED_HINTS}
    return LinearOperatorDiag(entries, **hints)


def _triangular(left: LinearOperator, right: LinearOperator, entries: Any) -> LinearOperator:
    return LinearOperatorLowerTriangular(entries, both("is_non_singular", left, right))


def _zeros_of(zeros: LinearOperator, other: LinearOperator) -> LinearOperator:
    if not (zeros.is_square and other.is_square):
        raise misuse(f"matmul: expected square operators; got {zeros.name} and {other.name}")
    return zeros


PRODUCTS[:0] = [
    Rule(LinearOperatorIdentity, LinearOperator, lambda a, b: b),
    Rule(LinearOperator, LinearOperatorIdentity, lambda a, b: a),
    Rule(LinearOperatorZeros, LinearOperator, _zeros_of),
    Rule(LinearOperator, LinearOperatorZeros, lambda a, b: _zeros_of(b, a)),
    Rule(LinearOperatorDiag, LinearOperatorDiag, lambda a, b: _diagonal(a, b, a.diag * b.diag)),
    Rule(
        LinearOperatorDiag,
        LinearOperatorLowerTriangular,
        lambda a, b: _triangular(a, b, expand_dims(a.diag, -1) * b.to_dense()),
    ),
    Rule(
        LinearOperatorLowerTriangular,
        LinearOperatorDiag,
        lambda a, b: _triangular(a, b, a.to_dense() * expand_dims(b.diag, -2)),
    ),
]

SOLUTIONS[:0] = [
    Rule(LinearOperatorIdentity, LinearOperator, lambda a, b: b),
    Rule(LinearOperatorDiag, LinearOperatorDiag, lambda a, b: _diagonal(a, b, b.diag / a.diag)),
    Rule(
        LinearOperatorDiag,
        LinearOperatorLowerTriangular,
        lambda a, b: _triangular(a, b, b.to_dense() / expand_dims(a.diag, -1)),
    ),
]
