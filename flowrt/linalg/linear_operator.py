"""`LinearOperator`: matrices that need not be stored, and what follows for all of them from a few methods.

A subclass has `_shape`, `_shape_tensor` and `_matmul`; everything else has a default, by the dense matrix
where nothing better follows, and is overridden where a structure gives it for less. The last two dimensions
of an operator are a matrix, the others a batch, which broadcasts against that of what it is applied to. Hints
(``is_self_adjoint`` and others) are the program's word: they choose the method, and only the ``assert_...``
methods look at numbers. What operators make of operators is at the end: adjoints, inverses, products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from flowrt.dtypes import as_dtype, int32
from flowrt.errors import DTypeError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.reductions import reduce_max, reduce_min, reduce_prod, reduce_sum
from flowrt.graph.ops.base.filling import broadcast_dynamic_shape, broadcast_static_shape
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, size, squeeze
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.complex_parts import conj
from flowrt.graph.ops.elementwise.math import exp, log
from flowrt.graph.ops.linalg.decompositions import (
    cholesky,
    cholesky_solve,
    matrix_determinant,
    matrix_solve,
    matrix_triangular_solve,
    slogdet,
)
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import adjoint, eye, matrix_band_part, matrix_diag_part
from flowrt.graph.ops.linalg.spectral import svd
from flowrt.graph.ops.text.assertions import assert_equal, assert_less, assert_positive
from flowrt.graph.shapes import Dimension, TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

Hint: TypeAlias = bool | None

SHARED_HINTS = ("is_non_singular", "is_self_adjoint", "is_positive_definite")
"""Hints of products of operators that commute, of blocks and of Kronecker products, if they hold of each."""


def always(given: Hint, fact: bool, what: str) -> bool:
    """``fact``, which the hint ``given`` must not deny. Raises `InvalidArgumentError`."""
    if given is (not fact):
        raise misuse(f"{what}; got the hint {given}")
    return fact


class LinearOperator:
    """Base of the operators, TensorFlow's and those of programs.

    Raises `InvalidArgumentError` for hints that contradict each other.
    """

    own_functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    """Public functions, by their names, as they are for operators: see `graph.construction.composites`."""

    def __init__(
        self,
        dtype: Any,
        graph_parents: Sequence[Any] | None = None,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        self._name = name or type(self).__name__
        if is_positive_definite:
            is_non_singular = always(
                is_non_singular, True, f"{self._name}: positive definite is non-singular"
            )
        if is_non_singular or is_self_adjoint:
            kind = "non-singular" if is_non_singular else "self-adjoint"
            is_square = always(is_square, True, f"{self._name}: a {kind} matrix is square")
        self._dtype, self._graph_parents = as_dtype(dtype), list(graph_parents or [])
        self._is_non_singular, self._is_self_adjoint = is_non_singular, is_self_adjoint
        self._is_positive_definite, self._is_square = is_positive_definite, is_square

    @contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        with get_default_graph().name_scope(self._name), get_default_graph().name_scope(name):
            yield

    # --- facts

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def graph_parents(self) -> list[Any]:
        """The tensors that it was made of."""
        return self._graph_parents

    @property
    def is_non_singular(self) -> Hint:
        return self._is_non_singular

    @property
    def is_self_adjoint(self) -> Hint:
        return self._is_self_adjoint

    @property
    def is_positive_definite(self) -> Hint:
        return self._is_positive_definite

    @property
    def is_square(self) -> Hint:
        """True or False by the hints or else by the shape; None where neither says it."""
        found = self.domain_dimension == self.range_dimension
        if self._is_square is False and found:
            raise misuse(
                f"{self._name}: expected is_square to be what the shape {self.shape} says; got False"
            )
        return found if self._is_square is None else self._is_square

    @property
    def shape(self) -> TensorShape:
        return self._shape()

    @property
    def batch_shape(self) -> TensorShape:
        return self.shape[:-2]

    @property
    def tensor_rank(self) -> int | None:
        return self.shape.ndims

    @property
    def range_dimension(self) -> Dimension:
        """The number of rows."""
        return Dimension(None) if self.shape.ndims is None else self.shape[-2]

    @property
    def domain_dimension(self) -> Dimension:
        """The number of columns."""
        return Dimension(None) if self.shape.ndims is None else self.shape[-1]

    def shape_tensor(self, name: str = "shape_tensor") -> Tensor:
        known = self.shape
        with self._scope(name):
            return constant(known.as_list(), int32) if known.is_fully_defined() else self._shape_tensor()

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        known = self.batch_shape
        with self._scope(name):
            return constant(known.as_list(), int32) if known.is_fully_defined() else self.shape_tensor()[:-2]

    def tensor_rank_tensor(self, name: str = "tensor_rank_tensor") -> Tensor:
        with self._scope(name):
            rank = self.tensor_rank
            return size(self.shape_tensor()) if rank is None else constant(rank, int32)

    def range_dimension_tensor(self, name: str = "range_dimension_tensor") -> Tensor:
        return self._dimension_tensor(self.range_dimension, -2, name)

    def domain_dimension_tensor(self, name: str = "domain_dimension_tensor") -> Tensor:
        return self._dimension_tensor(self.domain_dimension, -1, name)

    def _dimension_tensor(self, known: Dimension, place: int, name: str) -> Tensor:
        with self._scope(name):
            return self.shape_tensor()[place] if known.value is None else constant(known.value, int32)

    def _shape(self) -> TensorShape:
        raise misuse(f"{self._name} has no _shape", UnimplementedError)

    def _shape_tensor(self) -> Tensor:
        raise misuse(f"{self._name} has no _shape_tensor", UnimplementedError)

    # --- products and solutions

    def matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "matmul") -> Any:
        """The product with ``x``, ``[..., n, k]`` or another operator: a tensor or an operator.

        Raises `InvalidArgumentError` if the dimensions do not fit, `DTypeError` for another dtype.

        Example:
            >>> tf.linalg.LinearOperatorDiag([1.0, 2.0]).matmul([[3.0], [4.0]]).eval()
            array([[3.],
                   [8.]], dtype=float32)
        """
        with self._scope(name):
            if isinstance(x, LinearOperator):
                left, right = self.adjoint() if adjoint else self, x.adjoint() if adjoint_arg else x
                _check_fit(left, left.domain_dimension, right.range_dimension)
                return _by_kind(PRODUCTS, left, right)
            given = self._given(x, adjoint_arg)
            _check_fit(self, self.range_dimension if adjoint else self.domain_dimension, _rows(given))
            return self._matmul(given, adjoint=adjoint)

    def matvec(self, x: NumericLike, adjoint: bool = False, name: str = "matvec") -> Tensor:
        """The product with vectors ``[..., n]``."""
        with self._scope(name):
            return squeeze(self.matmul(expand_dims(self._given(x), -1), adjoint), [-1])

    def solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "solve") -> Any:
        """``x`` such that the product with it is ``rhs``, ``[..., n, k]`` or another operator.

        Raises `UnimplementedError` for an operator that is said to be singular or not square.
        """
        self._check_square("solve")
        if self.is_non_singular is False:
            raise misuse(f"solve: {self._name} is said to be singular", UnimplementedError)
        with self._scope(name):
            if isinstance(rhs, LinearOperator):
                left, right = self.adjoint() if adjoint else self, rhs.adjoint() if adjoint_arg else rhs
                _check_fit(left, left.domain_dimension, right.range_dimension)
                return _by_kind(SOLUTIONS, left, right)
            given = self._given(rhs, adjoint_arg)
            _check_fit(self, self.domain_dimension if adjoint else self.range_dimension, _rows(given))
            return self._solve(given, adjoint=adjoint)

    def solvevec(self, rhs: NumericLike, adjoint: bool = False, name: str = "solve") -> Tensor:
        """The solution for vectors ``[..., n]``."""
        with self._scope(name):
            return squeeze(self.solve(expand_dims(self._given(rhs), -1), adjoint), [-1])

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        raise misuse(f"{self._name} has no _matmul", UnimplementedError)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        if self._can_use_cholesky():
            return cholesky_solve(cholesky(self.to_dense()), rhs)
        return matrix_solve(self.to_dense(), rhs, adjoint=adjoint)

    def _given(self, value: Any, is_adjoint: bool = False) -> Tensor:
        given = convert_to_tensor(value)
        if given.dtype is not self.dtype:
            raise misuse(
                f"{self._name}: expected dtype {self.dtype.name}; got {given.dtype.name}", DTypeError
            )
        return adjoint(given) if is_adjoint else given

    def _check_square(self, what: str) -> None:
        if self.is_square is False:
            raise misuse(f"{what}: expected a square operator; got {self._name}", UnimplementedError)

    # --- parts

    def to_dense(self, name: str = "to_dense") -> Tensor:
        """The matrices themselves."""
        with self._scope(name):
            return self._to_dense()

    def diag_part(self, name: str = "diag_part") -> Tensor:
        """The main diagonals ``[..., min(m, n)]``."""
        with self._scope(name):
            return self._diag_part()

    def trace(self, name: str = "trace") -> Tensor:
        """The sums of the main diagonals, ``[...]``."""
        with self._scope(name):
            return self._trace()

    def add_to_tensor(self, x: NumericLike, name: str = "add_to_tensor") -> Tensor:
        """The matrices plus ``x``."""
        with self._scope(name):
            return self._add_to_tensor(self._given(x))

    def _to_dense(self) -> Any:
        known = self.batch_shape
        batch = known.as_list() if known.is_fully_defined() else self.batch_shape_tensor()
        columns: Any = self.domain_dimension.value
        columns = self.domain_dimension_tensor() if columns is None else columns
        return self.matmul(eye(columns, batch_shape=batch, dtype=self.dtype))

    def _diag_part(self) -> Any:
        return matrix_diag_part(self.to_dense())

    def _trace(self) -> Any:
        return reduce_sum(self.diag_part(), [-1])

    def _add_to_tensor(self, x: Any) -> Any:
        return self.to_dense() + x

    # --- determinants

    def determinant(self, name: str = "det") -> Tensor:
        """The determinants, ``[...]``. Raises `UnimplementedError` for an operator that is not square."""
        self._check_square("determinant")
        with self._scope(name):
            return self._determinant()

    def log_abs_determinant(self, name: str = "log_abs_det") -> Tensor:
        """The logarithms of the absolute values of the determinants, ``[...]``."""
        self._check_square("log_abs_determinant")
        with self._scope(name):
            return self._log_abs_determinant()

    def _determinant(self) -> Any:
        if self._can_use_cholesky():
            return exp(self.log_abs_determinant())
        return matrix_determinant(self.to_dense())

    def _log_abs_determinant(self) -> Any:
        if self._can_use_cholesky():
            return 2 * reduce_sum(log(matrix_diag_part(cholesky(self.to_dense()))), [-1])
        return slogdet(self.to_dense()).log_abs_determinant

    def _can_use_cholesky(self) -> bool:
        return bool(self.is_self_adjoint and self.is_positive_definite)

    # --- checks of numbers

    def assert_non_singular(self, name: str = "assert_non_singular") -> Any:
        """An operation that fails unless the condition number is below 1 / epsilon of the dtype."""
        with self._scope(name):
            return self._assert_non_singular()

    def assert_positive_definite(self, name: str = "assert_positive_definite") -> Any:
        """An operation that fails unless ``x^H A x`` has a positive real part for each ``x``."""
        with self._scope(name):
            return self._assert_positive_definite()

    def assert_self_adjoint(self, name: str = "assert_self_adjoint") -> Any:
        """An operation that fails unless the matrices are their own adjoints."""
        with self._scope(name):
            return self._assert_self_adjoint()

    def _assert_non_singular(self) -> Any:
        if self._can_use_cholesky():
            return self.assert_positive_definite()
        values = svd(self.to_dense(), compute_uv=False)
        condition = reduce_max(values, -1) / reduce_min(values, -1)
        real = self.dtype.real_dtype
        rows = cast(reduce_max(self.shape_tensor()[-2:]), real)
        largest = 1 / (reduce_max(stack([constant(100, real), rows])) * np.finfo(real.np).eps)
        return assert_less(condition, largest, message=f"{self._name}: singular up to precision")

    def _assert_positive_definite(self) -> Any:
        if not self.is_self_adjoint:
            raise misuse(f"assert_positive_definite: {self._name} is not self-adjoint", UnimplementedError)
        diagonal = matrix_diag_part(cholesky(self.to_dense()))
        return assert_positive(
            cast(diagonal, self.dtype.real_dtype), message=f"{self._name}: not positive definite"
        )

    def _assert_self_adjoint(self) -> Any:
        dense = self.to_dense()
        return assert_equal(dense, adjoint(dense), message=f"{self._name}: not its own adjoint")

    # --- other operators

    def adjoint(self, name: str = "adjoint") -> Any:
        """The operator of the transposed and conjugated matrices."""
        with self._scope(name):
            return self if self.is_self_adjoint else self._adjoint()

    H = property(adjoint)

    def inverse(self, name: str = "inverse") -> Any:
        """The operator that undoes this one. Raises `InvalidArgumentError` if a hint says there is none."""
        if self.is_square is False or self.is_non_singular is False:
            raise misuse(f"inverse: expected a square operator that is not singular; got {self._name}")
        with self._scope(name):
            return self._inverse()

    def cholesky(self, name: str = "cholesky") -> Any:
        """The lower triangular operator that, times its adjoint, is this one.

        Raises `InvalidArgumentError` unless it is said to be self-adjoint and positive definite.
        """
        if not self._can_use_cholesky():
            raise misuse(f"cholesky: {self._name} is not said to be self-adjoint and positive definite")
        with self._scope(name):
            return self._cholesky()

    def _adjoint(self) -> LinearOperator:
        return LinearOperatorAdjoint(self)

    def _inverse(self) -> LinearOperator:
        return LinearOperatorInversion(self)

    def _cholesky(self) -> LinearOperator:
        return LinearOperatorLowerTriangular(
            cholesky(self.to_dense()), is_non_singular=True, is_self_adjoint=False, is_square=True
        )


def _rows(x: Tensor) -> Dimension:
    return Dimension(None) if x.shape.ndims is None else x.shape[-2]


def _check_fit(operator: LinearOperator, expected: Dimension, got: Dimension) -> None:
    if None not in (expected.value, got.value) and expected.value != got.value:
        raise misuse(f"{operator.name}: expected {expected} rows; got {got}")


# --- operators of operators


class Rule(NamedTuple):
    """The operator that is made of two of these kinds."""

    left: type
    right: type
    made: Callable[[Any, Any], Any]


def _by_kind(rules: Sequence[Rule], left: LinearOperator, right: LinearOperator) -> LinearOperator:
    for rule in rules:
        if isinstance(left, rule.left) and isinstance(right, rule.right):
            return rule.made(left, right)
    raise AssertionError("the last rule is for all operators")


def both(hint: str, *operators: LinearOperator) -> Hint:
    """True where ``hint`` is true of all ``operators``; else unknown."""
    return True if all(getattr(operator, hint) for operator in operators) else None


class _OfOne(LinearOperator):
    """An operator made of another, of which the same hints hold."""

    _suffix: ClassVar[str]
    _needed: ClassVar[tuple[str, ...]] = ()
    """The hints that must not be False."""

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        given = {
            "is_non_singular": is_non_singular, "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite, "is_square": is_square,
        }  # fmt: skip
        for key, hint in given.items():
            if (fact := getattr(operator, key)) is not None:
                given[key] = always(hint, fact, f"{key} of {operator.name} is {fact}")
            if key in self._needed:
                always(given[key], True, f"{operator.name}: expected {key}")
        self._operator = operator
        name = name or f"{operator.name}{self._suffix}"
        super().__init__(operator.dtype, operator.graph_parents, **given, name=name)

    @property
    def operator(self) -> LinearOperator:
        return self._operator

    def _assert_non_singular(self) -> Any:
        return self._operator.assert_non_singular()

    def _assert_positive_definite(self) -> Any:
        return self._operator.assert_positive_definite()

    def _assert_self_adjoint(self) -> Any:
        return self._operator.assert_self_adjoint()


class LinearOperatorAdjoint(_OfOne):
    """The transposed and conjugated matrices of ``operator``."""

    _suffix = "_adjoint"

    def _shape(self) -> TensorShape:
        known = self._operator.shape
        return known if known.ndims is None else known[:-2].concatenate([known[-1], known[-2]])

    def _shape_tensor(self) -> Tensor:
        sizes = self._operator.shape_tensor()
        return concat([sizes[:-2], sizes[-1:], sizes[-2:-1]], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(x, adjoint=not adjoint)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(rhs, adjoint=not adjoint)

    def _to_dense(self) -> Any:
        return adjoint(self._operator.to_dense())

    def _diag_part(self) -> Any:
        return conj(self._operator.diag_part())

    def _determinant(self) -> Any:
        return conj(self._operator.determinant())

    def _log_abs_determinant(self) -> Any:
        return self._operator.log_abs_determinant()

    def _adjoint(self) -> LinearOperator:
        return self._operator


class LinearOperatorInversion(_OfOne):
    """The inverses of the matrices of ``operator``."""

    _suffix = "_inv"
    _needed = ("is_non_singular", "is_square")

    def _shape(self) -> TensorShape:
        return self._operator.shape

    def _shape_tensor(self) -> Tensor:
        return self._operator.shape_tensor()

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(x, adjoint=adjoint)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(rhs, adjoint=adjoint)

    def _determinant(self) -> Any:
        return 1 / self._operator.determinant()

    def _log_abs_determinant(self) -> Any:
        return -self._operator.log_abs_determinant()

    def _inverse(self) -> LinearOperator:
        return self._operator


class OfSeveral(LinearOperator):
    """Base of operators made of ``operators`` of one dtype.

    ``facts`` are the hints that hold if they hold of each; ``sign`` joins their names.
    """

    def __init__(
        self, operators: Sequence[Any], facts: Sequence[str], sign: str, name: str | None, **hints: Hint
    ) -> None:
        others = [type(each).__name__ for each in operators if not isinstance(each, LinearOperator)]
        if others:
            raise misuse(f"{type(self).__name__}: expected operators; got {', '.join(others)}", DTypeError)
        self._operators: list[LinearOperator] = list(operators)
        if not self._operators:
            raise misuse(f"{type(self).__name__}: expected operators; got none")
        dtypes = {operator.dtype: operator.dtype.name for operator in self._operators}
        if len(dtypes) > 1:
            raise misuse(f"expected operators of one dtype; got {', '.join(dtypes.values())}", DTypeError)
        for fact in facts:
            if both(fact, *self._operators):
                hints[fact] = always(hints[fact], True, f"{type(self).__name__}: {fact} of each operator")
        parents = [parent for operator in self._operators for parent in operator.graph_parents]
        name = name or sign.join(operator.name for operator in self._operators)
        super().__init__(self._operators[0].dtype, parents, **hints, name=name)

    @property
    def operators(self) -> list[LinearOperator]:
        return self._operators

    def _common_batch(self) -> TensorShape:
        found = TensorShape([])
        for operator in self._operators:
            found = broadcast_static_shape(found, operator.batch_shape)
        return found

    def _common_batch_tensor(self) -> Tensor:
        found: Any = constant([], int32)
        for operator in self._operators:
            found = broadcast_dynamic_shape(found, operator.batch_shape_tensor())
        return found


class LinearOperatorComposition(OfSeveral):
    """The product of ``operators``, the last of which is applied first.

    Raises `InvalidArgumentError` if their dimensions do not fit.
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            operators, ["is_non_singular"], "_o_", name, is_non_singular=is_non_singular,
            is_self_adjoint=is_self_adjoint, is_positive_definite=is_positive_definite, is_square=is_square,
        )  # fmt: skip
        for left, right in zip(self._operators, self._operators[1:], strict=False):
            _check_fit(left, left.domain_dimension, right.range_dimension)

    def _shape(self) -> TensorShape:
        first, last = self._operators[0], self._operators[-1]
        return self._common_batch().concatenate([first.range_dimension, last.domain_dimension])

    def _shape_tensor(self) -> Tensor:
        first, last = self._operators[0], self._operators[-1]
        sizes = stack([first.range_dimension_tensor(), last.domain_dimension_tensor()])
        return concat([self._common_batch_tensor(), sizes], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        for operator in self._operators if adjoint else reversed(self._operators):
            x = operator.matmul(x, adjoint=adjoint)
        return x

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        if not both("is_square", *self._operators):
            return super()._solve(rhs, adjoint=adjoint)
        for operator in reversed(self._operators) if adjoint else self._operators:
            rhs = operator.solve(rhs, adjoint=adjoint)
        return rhs

    def _determinant(self) -> Any:
        if not both("is_square", *self._operators):
            return super()._determinant()
        return product_of(operator.determinant() for operator in self._operators)

    def _log_abs_determinant(self) -> Any:
        if not both("is_square", *self._operators):
            return super()._log_abs_determinant()
        return sum(operator.log_abs_determinant() for operator in self._operators)


def product_of(factors: Any) -> Any:
    first, *others = factors
    for factor in others:
        first = first * factor
    return first


class LinearOperatorLowerTriangular(LinearOperator):
    """Lower triangular matrices: what ``tril``, ``[..., n, n]``, has above the diagonal is not read."""

    def __init__(
        self,
        tril: NumericLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorLowerTriangular",
    ) -> None:
        self._tril = convert_to_tensor(tril)
        check_rank("tril", self._tril, 2)
        super().__init__(
            self._tril.dtype, [self._tril], is_non_singular, is_self_adjoint, is_positive_definite,
            always(is_square, True, f"{name}: it is square"), name,
        )  # fmt: skip

    def _shape(self) -> TensorShape:
        return self._tril.shape

    def _shape_tensor(self) -> Tensor:
        return shape(self._tril)

    def _to_dense(self) -> Any:
        return matrix_band_part(self._tril, -1, 0)

    def _diag_part(self) -> Any:
        return matrix_diag_part(self._tril)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return matmul(self.to_dense(), x, adjoint_a=adjoint)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return matrix_triangular_solve(self.to_dense(), rhs, lower=True, adjoint=adjoint)

    def _determinant(self) -> Any:
        return reduce_prod(self.diag_part(), [-1])

    def _log_abs_determinant(self) -> Any:
        return reduce_sum(log(absolute(self.diag_part())), [-1])

    def _assert_non_singular(self) -> Any:
        return assert_positive(absolute(self.diag_part()), message=f"{self._name}: zeros on the diagonal")


def check_rank(what: str, tensor: Tensor, least: int) -> None:
    if tensor.shape.ndims is not None and tensor.shape.ndims < least:
        raise misuse(f"{what}: expected {least} dimensions or more; got shape {tensor.shape}")


def _composed(left: LinearOperator, right: LinearOperator) -> LinearOperator:
    is_square = both("is_square", left, right)
    non_singular = both("is_non_singular", left, right) if is_square else None
    return LinearOperatorComposition([left, right], non_singular, is_square=is_square)


PRODUCTS: list[Rule] = [Rule(LinearOperator, LinearOperator, _composed)]
"""The rules by which `LinearOperator.matmul` makes an operator of two: the first that fits holds."""

SOLUTIONS: list[Rule] = [
    Rule(LinearOperatorInversion, LinearOperator, lambda a, b: a.operator.matmul(b)),
    Rule(LinearOperator, LinearOperator, lambda a, b: _composed(LinearOperatorInversion(a), b)),
]
"""The rules of `LinearOperator.solve`."""


# --- functions of matrices, for operators


def _matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str = "matmul",
) -> Any:
    if transpose_a or transpose_b:
        raise misuse("matmul: expected adjoints of operators; got a transpose", UnimplementedError)
    if isinstance(a, LinearOperator):
        return a.matmul(b, adjoint_a, adjoint_b, name)
    return adjoint(b.matmul(a, not adjoint_b, not adjoint_a, name))  # a b is the adjoint of b^H a^H


def _matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Any:
    if not isinstance(matrix, LinearOperator):
        raise misuse("solve: expected an operator, or two tensors; got a tensor and an operator", DTypeError)
    return matrix.solve(rhs, adjoint, name=name or "solve")


def _matrix_inverse(input: LinearOperator, adjoint: bool = False, name: str | None = None) -> Any:
    inverse = input.inverse(name or "inverse")
    return inverse.adjoint() if adjoint else inverse


def _logdet(matrix: LinearOperator, name: str | None = None) -> Any:
    if not (matrix.is_positive_definite and matrix.is_self_adjoint):
        raise misuse(f"logdet: {matrix.name} is not said to be self-adjoint and positive definite")
    return matrix.log_abs_determinant(name or "logdet")


def _by_method(method: str) -> Callable[..., Any]:
    return lambda operator, name=None: getattr(operator, method)(name or method)


LinearOperator.own_functions.update({
    "matmul": _matmul, "MatrixSolve": _matrix_solve, "MatrixInverse": _matrix_inverse, "logdet": _logdet,
    "adjoint": _by_method("adjoint"), "trace": _by_method("trace"), "Cholesky": _by_method("cholesky"),
    "MatrixDeterminant": _by_method("determinant"), "MatrixDiagPart": _by_method("diag_part"),
})  # fmt: skip
