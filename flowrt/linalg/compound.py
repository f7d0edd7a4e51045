"""Operators made of several: blocks on the diagonal, Kronecker products, updates of low rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split, stack
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import broadcast_dynamic_shape, broadcast_static_shape, broadcast_to
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, matrix_transpose, reshape, shape, squeeze
from flowrt.graph.ops.elementwise.arithmetic import pow
from flowrt.graph.ops.elementwise.complex_parts import abs as absolute
from flowrt.graph.ops.elementwise.math import exp, log
from flowrt.graph.ops.linalg.decompositions import cholesky, cholesky_solve, matrix_determinant, matrix_solve
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag_part
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.shapes import Dimension, TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.linalg.linear_operator import (
    SHARED_HINTS,
    Hint,
    LinearOperator,
    OfSeveral,
    always,
    both,
    product_of,
)
from flowrt.linalg.structured import LinearOperatorDiag, LinearOperatorIdentity


class _Independent(OfSeveral):
    """Base of operators of which each acts on its own part: adjoints and inverses are of each."""

    def _of_each(self, operators: Sequence[LinearOperator], **hints: Hint) -> LinearOperator:
        return type(self)(operators, **hints)  # type: ignore[arg-type]

    def _hints(self) -> dict[str, Hint]:
        return {hint: getattr(self, hint) for hint in (*SHARED_HINTS, "is_square")}

    def _adjoint(self) -> LinearOperator:
        return self._of_each([operator.adjoint() for operator in self._operators], **self._hints())

    def _inverse(self) -> LinearOperator:
        if not both("is_square", *self._operators):
            return super()._inverse()
        return self._of_each([operator.inverse() for operator in self._operators], **self._hints())

    def _cholesky(self) -> LinearOperator:
        if not all(operator._can_use_cholesky() for operator in self._operators):
            return super()._cholesky()
        return self._of_each([operator.cholesky() for operator in self._operators], is_non_singular=True)

    def _assert_non_singular(self) -> Any:
        return self._asserted("assert_non_singular")

    def _assert_self_adjoint(self) -> Any:
        return self._asserted("assert_self_adjoint")

    def _asserted(self, check: str) -> Any:
        if not both("is_square", *self._operators):
            raise misuse(f"{check}: expected square operators; got {self.name}")
        return group(*(getattr(operator, check)() for operator in self._operators))


class LinearOperatorBlockDiag(_Independent):
    """Square ``operators`` along the diagonal, with zeros beside them."""

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        name: str | None = None,
    ) -> None:
        others = [operator.name for operator in operators if not operator.is_square]
        if others or not is_square:
            got = f"{', '.join(others)}, not known to be" if others else f"is_square={is_square}"
            raise misuse(f"LinearOperatorBlockDiag: expected square operators; got {got}")
        super().__init__(
            operators, SHARED_HINTS, "_ds_", name, is_non_singular=is_non_singular,
            is_self_adjoint=is_self_adjoint, is_positive_definite=is_positive_definite, is_square=True,
        )  # fmt: skip

    def _shape(self) -> TensorShape:
        sizes = [operator.domain_dimension.value for operator in self._operators]
        total = None if None in sizes else sum(sizes)  # type: ignore[arg-type]
        return self._common_batch().concatenate([total, total])

    def _shape_tensor(self) -> Tensor:
        total: Any = sum(operator.domain_dimension_tensor() for operator in self._operators)
        return concat([self._common_batch_tensor(), stack([total, total])], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._by_blocks(x, lambda operator, part: operator.matmul(part, adjoint=adjoint))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._by_blocks(rhs, lambda operator, part: operator.solve(part, adjoint=adjoint))

    def _by_blocks(self, x: Any, apply: Callable[[LinearOperator, Any], Any]) -> Any:
        known = [operator.domain_dimension.value for operator in self._operators]
        sizes = [operator.domain_dimension_tensor() for operator in self._operators]
        parts = split(x, stack(sizes) if None in known else known, axis=-2, num=len(known))
        return _rows_of(list(map(apply, self._operators, parts)))

    def _diag_part(self) -> Any:
        return squeeze(_rows_of([expand_dims(each.diag_part(), -1) for each in self._operators]), [-1])

    def _trace(self) -> Any:
        return sum(operator.trace() for operator in self._operators)

    def _determinant(self) -> Any:
        return product_of(operator.determinant() for operator in self._operators)

    def _log_abs_determinant(self) -> Any:
        return sum(operator.log_abs_determinant() for operator in self._operators)

    def _assert_positive_definite(self) -> Any:
        return self._asserted("assert_positive_definite")


def _rows_of(parts: list[Any]) -> Any:
    """``parts``, matrices of batches that broadcast, below each other."""
    if len({tuple(part.shape[:-2].as_list()) for part in parts if part.shape.ndims is not None}) > 1 or any(
        not part.shape[:-2].is_fully_defined() for part in parts
    ):
        batch = shape(parts[0])[:-2]
        for part in parts[1:]:
            batch = broadcast_dynamic_shape(batch, shape(part)[:-2])
        parts = [broadcast_to(part, concat([batch, shape(part)[-2:]], 0)) for part in parts]
    return concat(parts, -2)


class LinearOperatorKronecker(_Independent):
    """The Kronecker product of ``operators``: each is applied along one of as many axes of a vector."""

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
            operators, SHARED_HINTS, "_x_", name, is_non_singular=is_non_singular,
            is_self_adjoint=is_self_adjoint, is_positive_definite=is_positive_definite, is_square=is_square,
        )  # fmt: skip

    def _shape(self) -> TensorShape:
        rows, columns = Dimension(1), Dimension(1)
        for operator in self._operators:
            rows, columns = rows * operator.range_dimension, columns * operator.domain_dimension
        return self._common_batch().concatenate([rows, columns])

    def _shape_tensor(self) -> Tensor:
        rows = product_of(operator.range_dimension_tensor() for operator in self._operators)
        columns = product_of(operator.domain_dimension_tensor() for operator in self._operators)
        return concat([self._common_batch_tensor(), stack([rows, columns])], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._along_axes(x, adjoint, lambda operator, part: operator.matmul(part, adjoint=adjoint))

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._along_axes(
            rhs, not adjoint, lambda operator, part: operator.solve(part, adjoint=adjoint)
        )

    def _along_axes(self, x: Any, of_rows: bool, apply: Callable[[LinearOperator, Any], Any]) -> Any:
        """``apply`` along each axis in turn: the first is brought last, so the columns of ``x`` end first."""
        columns, known = shape(x)[-1], x.shape
        for operator in self._operators:
            length = operator.range_dimension_tensor() if of_rows else operator.domain_dimension_tensor()
            x = reshape(x, concat([shape(x)[:-2], stack([length, -1])], 0))
            x = matrix_transpose(apply(operator, x))
        found = matrix_transpose(reshape(x, concat([shape(x)[:-2], stack([columns, -1])], 0)))
        if known.ndims is not None:
            rows = self.domain_dimension if of_rows else self.range_dimension
            batch = broadcast_static_shape(known[:-2], self.batch_shape)
            found.set_shape(batch.concatenate([rows, known[-1]]))
        return found

    def _trace(self) -> Any:
        if not both("is_square", *self._operators):
            return super()._trace()
        return product_of(operator.trace() for operator in self._operators)

    def _power_of(self, operator: LinearOperator) -> Any:
        """The number of times that the determinant of ``operator`` is a factor of the product's."""
        times = self.domain_dimension_tensor() // operator.domain_dimension_tensor()
        return cast(times, self.dtype)

    def _determinant(self) -> Any:
        if not both("is_square", *self._operators):
            return super()._determinant()
        return product_of(pow(each.determinant(), self._power_of(each)) for each in self._operators)

    def _log_abs_determinant(self) -> Any:
        if not both("is_square", *self._operators):
            return super()._log_abs_determinant()
        return sum(each.log_abs_determinant() * self._power_of(each) for each in self._operators)


class LinearOperatorLowRankUpdate(LinearOperator):
    """``base_operator + u D v^H``, of ``u`` and ``v`` ``[..., n, r]`` and the diagonal D, ``diag_update``.

    By default D is the identity, and ``v`` is ``u``. Solutions are by the Woodbury formula, determinants by
    the matrix determinant lemma: they cost a solution of size r beside those of the base operator.
    """

    def __init__(
        self,
        base_operator: LinearOperator,
        u: NumericLike,
        diag_update: NumericLike | None = None,
        v: NumericLike | None = None,
        is_diag_update_positive: Hint = None,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorLowRankUpdate",
    ) -> None:
        if diag_update is None:
            is_diag_update_positive = always(is_diag_update_positive, True, f"{name}: 1 is positive")
        is_symmetric = base_operator.is_self_adjoint and v is None
        self._use_cholesky = bool(
            is_symmetric and base_operator.is_positive_definite and is_diag_update_positive
        )
        if is_symmetric and (self._use_cholesky or not base_operator.dtype.is_complex):
            is_self_adjoint = always(is_self_adjoint, True, f"{name}: it is self-adjoint")
        if self._use_cholesky:
            is_positive_definite = always(is_positive_definite, True, f"{name}: it is positive definite")
            is_non_singular = always(is_non_singular, True, f"{name}: it is not singular")
        self._base_operator, self._is_diag_update_positive = base_operator, is_diag_update_positive
        self._u = convert_to_tensor(u)
        self._v = self._u if v is None else convert_to_tensor(v)
        self._diag_update = None if diag_update is None else convert_to_tensor(diag_update)
        self._check_sizes(name)
        parents = [*base_operator.graph_parents, self._u, self._diag_update, self._v]
        super().__init__(
            base_operator.dtype, [parent for parent in parents if parent is not None], is_non_singular,
            is_self_adjoint, is_positive_definite, is_square, name,
        )  # fmt: skip
        rank = shape(self._u)[-1] if self._u.shape[-1].value is None else self._u.shape[-1].value
        self._diag_operator: LinearOperator = (
            LinearOperatorIdentity(rank, dtype=self.dtype)
            if self._diag_update is None
            else LinearOperatorDiag(self._diag_update, is_positive_definite=is_diag_update_positive)
        )

    def _check_sizes(self, name: str) -> None:
        both_shapes = broadcast_static_shape(self._u.shape, self._v.shape)
        rows, size = both_shapes[-2].value, self._base_operator.domain_dimension.value
        if None not in (rows, size) and rows != size:
            raise misuse(f"{name}: expected u and v of {size} rows; got {rows}")
        if self._diag_update is not None:
            rank, own = both_shapes[-1].value, self._diag_update.shape[-1].value
            if None not in (rank, own) and rank != own:
                raise misuse(f"{name}: expected a diag_update of {rank} numbers; got {own}")

    @property
    def base_operator(self) -> LinearOperator:
        return self._base_operator

    @property
    def u(self) -> Tensor:
        return self._u

    @property
    def v(self) -> Tensor:
        return self._v

    @property
    def is_diag_update_positive(self) -> Hint:
        return self._is_diag_update_positive

    @property
    def diag_update(self) -> Tensor | None:
        return self._diag_update

    @property
    def diag_operator(self) -> LinearOperator:
        return self._diag_operator

    def _shape(self) -> TensorShape:
        base = self._base_operator
        return broadcast_static_shape(base.batch_shape, self._u.shape[:-2]).concatenate(base.shape[-2:])

    def _shape_tensor(self) -> Tensor:
        base = self._base_operator
        batch = broadcast_dynamic_shape(base.batch_shape_tensor(), shape(self._u)[:-2])
        return concat([batch, base.shape_tensor()[-2:]], 0)

    def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        u, v = (self._v, self._u) if adjoint else (self._u, self._v)
        small = self._diag_operator.matmul(matmul(v, x, adjoint_a=True), adjoint=adjoint)
        return self._base_operator.matmul(x, adjoint=adjoint) + matmul(u, small)

    def _capacitance(self) -> Any:
        """``D^-1 + v^H L^-1 u`` of the base operator L."""
        inner = matmul(self._v, self._base_operator.solve(self._u), adjoint_a=True)
        return self._diag_operator.inverse().add_to_tensor(inner)

    def _solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        base, (u, v) = self._base_operator, (self._v, self._u) if adjoint else (self._u, self._v)
        solved = base.solve(rhs, adjoint=adjoint)
        inner, small = self._capacitance(), matmul(v, solved, adjoint_a=True)
        if self._use_cholesky:
            small = cholesky_solve(cholesky(inner), small)
        else:
            small = matrix_solve(inner, small, adjoint=adjoint)
        return solved - base.solve(matmul(u, small), adjoint=adjoint)

    def _determinant(self) -> Any:
        if self.is_positive_definite:
            return exp(self.log_abs_determinant())
        own = self._diag_operator.determinant() * self._base_operator.determinant()
        return matrix_determinant(self._capacitance()) * own

    def _log_abs_determinant(self) -> Any:
        if self._use_cholesky:
            inner = 2 * reduce_sum(log(matrix_diag_part(cholesky(self._capacitance()))), [-1])
        else:
            inner = cast(log(absolute(matrix_determinant(self._capacitance()))), self.dtype)
        others = self._diag_operator.log_abs_determinant() + self._base_operator.log_abs_determinant()
        return inner + others
