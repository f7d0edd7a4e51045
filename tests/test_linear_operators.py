"""Linear operators against the dense matrices they stand for; `tests/twins` has TensorFlow's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.linalg import LinearOperatorBlockDiag as BlockDiag
from flowrt.linalg import LinearOperatorComposition as Composition
from flowrt.linalg import LinearOperatorDiag as Diag
from flowrt.linalg import LinearOperatorFullMatrix as FullMatrix
from flowrt.linalg import LinearOperatorKronecker as Kronecker
from flowrt.linalg import LinearOperatorLowerTriangular as LowerTriangular

Operator = tf.linalg.LinearOperator


def matrix(*dims: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=dims) + 2 * np.eye(dims[-2], dims[-1])


def definite(size: int) -> np.ndarray[Any, Any]:
    return matrix(size, size) @ matrix(size, size).T


MADE: dict[str, Callable[[], Operator]] = {
    "full": lambda: FullMatrix(matrix(2, 3, 3)),
    "complex": lambda: FullMatrix(matrix(3, 3) + 1j * matrix(3, 3).T),
    "definite": lambda: FullMatrix(definite(3), is_self_adjoint=True, is_positive_definite=True),
    "diag": lambda: Diag(matrix(2, 3)),
    "lower_triangular": lambda: LowerTriangular(matrix(2, 3, 3)),
    "identity": lambda: tf.linalg.LinearOperatorIdentity(3, [2], tf.float64),
    "scaled_identity": lambda: tf.linalg.LinearOperatorScaledIdentity(3, matrix(1, 2)[0]),
    "householder": lambda: tf.linalg.LinearOperatorHouseholder(matrix(2, 3)),
    "circulant": lambda: tf.linalg.LinearOperatorCirculant(matrix(2, 3), tf.complex128),
    "circulant_2d": lambda: tf.linalg.LinearOperatorCirculant2D(matrix(2, 3) + 1j, tf.complex128),
    "circulant_3d": lambda: tf.linalg.LinearOperatorCirculant3D(matrix(1, 2, 2) + 1j, tf.complex128),
    "toeplitz": lambda: tf.linalg.LinearOperatorToeplitz(matrix(1, 3)[0], matrix(1, 3)[0] * [1, 2, 3]),
    "composition": lambda: Composition([FullMatrix(matrix(2, 3, 3)), Diag(matrix(1, 3)[0])]),
    "of_wide_and_tall": lambda: Composition([FullMatrix(matrix(2, 3)), FullMatrix(matrix(3, 2))]),
    "block_diag": lambda: BlockDiag([FullMatrix(matrix(2, 2, 2)), Diag(matrix(1, 3)[0])]),
    "kronecker": lambda: Kronecker(
        [FullMatrix(matrix(2, 2, 2)), Diag(matrix(1, 3)[0]), FullMatrix(matrix(2, 2))]
    ),
    "low_rank_update": lambda: tf.linalg.LinearOperatorLowRankUpdate(
        FullMatrix(matrix(3, 3)), matrix(2, 3, 2), matrix(1, 2)[0], matrix(3, 2) + 1
    ),
    "adjoint": lambda: FullMatrix(matrix(3, 3) + 1j).adjoint(),
    "inversion": lambda: FullMatrix(matrix(3, 3)).inverse(),
}


@pytest.mark.parametrize("kind", MADE)
def test_an_operator_is_its_dense_matrix(kind: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        operator = MADE[kind]()
        dense = session.run(operator.to_dense())
        size = dense.shape[-1]
        x = matrix(size, 2).astype(dense.dtype)
        transposed = np.conj(np.swapaxes(dense, -1, -2))
        _, log_size = np.linalg.slogdet(dense)
        expected = {
            "matmul": (operator.matmul(x), dense @ x),
            "adjoint matmul": (operator.matmul(x, adjoint=True), transposed @ x),
            "adjoint_arg": (operator.matmul(np.conj(x.T), adjoint_arg=True), dense @ x),
            "matvec": (operator.matvec(x[:, 0]), dense @ x[:, 0]),
            "solve": (operator.solve(x), np.linalg.inv(dense) @ x),
            "adjoint solve": (operator.solve(x, adjoint=True), np.linalg.inv(transposed) @ x),
            "solvevec": (operator.solvevec(x[:, 0]), np.linalg.inv(dense) @ x[:, 0]),
            "diag_part": (operator.diag_part(), np.diagonal(dense, axis1=-2, axis2=-1)),
            "trace": (operator.trace(), np.trace(dense, axis1=-2, axis2=-1)),
            "determinant": (operator.determinant(), np.linalg.det(dense)),
            "log_abs_determinant": (operator.log_abs_determinant(), log_size),
            "add_to_tensor": (operator.add_to_tensor(dense), 2 * dense),
            "adjoint": (operator.adjoint().to_dense(), transposed),
            "inverse": (operator.inverse().to_dense(), np.linalg.inv(dense)),
            "product": (operator.matmul(operator).to_dense(), dense @ dense),
            "solved": (operator.solve(operator).to_dense(), np.broadcast_to(np.eye(size), dense.shape)),
            "shape": (operator.shape_tensor(), dense.shape),
            "rank": (operator.tensor_rank_tensor(), dense.ndim),
        }
        found = session.run({what: tensor for what, (tensor, _) in expected.items()})
        assert operator.shape.as_list() == list(dense.shape)
    for what, (_, value) in expected.items():
        assert np.shape(found[what]) == np.shape(value), what
        np.testing.assert_allclose(found[what], value, rtol=1e-9, atol=1e-9, err_msg=what)


def test_shapes_that_are_known_only_in_a_step() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.float64)
        vector = tf.placeholder(tf.float64)
        operators = [
            FullMatrix(given), LowerTriangular(given), Diag(vector), BlockDiag([Diag(vector), Diag(vector)]),
            Kronecker([FullMatrix(given), Diag(vector)]), tf.linalg.LinearOperatorToeplitz(vector, vector),
            tf.linalg.LinearOperatorIdentity(tf.shape(vector)[0], dtype=tf.float64),
            tf.linalg.LinearOperatorScaledIdentity(tf.shape(vector)[0], vector),
        ]  # fmt: skip
        feeds = {given: matrix(3, 3), vector: matrix(1, 3)[0]}
        for operator in operators:
            dense, sizes, trace = session.run(
                [operator.to_dense(), operator.shape_tensor(), operator.trace()], feeds
            )
            assert dense.shape == tuple(sizes)
            np.testing.assert_allclose(trace, np.trace(dense, axis1=-2, axis2=-1))


def test_structure_is_kept() -> None:
    diag, tril = Diag(matrix(1, 3)[0] ** 2, is_positive_definite=True), LowerTriangular(matrix(3, 3))
    identity = tf.linalg.LinearOperatorIdentity(3, dtype=tf.float64)
    assert type(diag.inverse()) is type(diag.cholesky()) is type(diag.matmul(diag)) is Diag
    assert type(diag.matmul(tril)) is type(diag.solve(tril)) is LowerTriangular
    assert identity.matmul(tril) is tril.matmul(identity) is identity.solve(tril) is tril
    assert diag.adjoint() is diag
    assert tril.adjoint().adjoint() is tril
    assert tril.inverse().inverse() is tril
    assert (diag.is_square, diag.is_non_singular, diag.is_self_adjoint) == (True, True, True)
    assert (tril.is_square, tril.is_non_singular, tril.is_self_adjoint) == (True, None, None)


def test_the_numbers_are_checked_when_asked() -> None:
    singular = FullMatrix(np.ones((2, 2)), is_self_adjoint=True)
    checks = [
        (Diag([1.0, 0.0]).assert_non_singular, "singular"),
        (Diag([1.0, -1.0]).assert_positive_definite, "not positive definite"),
        (Diag([1.0, 1j]).assert_self_adjoint, "not its own adjoint"),
        (singular.assert_non_singular, "singular up to precision"),
        (FullMatrix(matrix(2, 2)).assert_self_adjoint, "not its own adjoint"),
        (tf.linalg.LinearOperatorCirculant([0.0, 1.0]).assert_non_singular, "zeros in the spectrum"),
    ]
    with tf.Session() as session:
        session.run([Diag([1.0, -2.0]).assert_non_singular(), Diag([1.0, 2.0]).assert_positive_definite()])
        for check, message in checks:
            with pytest.raises(InvalidArgumentError, match=message):
                session.run(check())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Diag([1.0], is_self_adjoint=False), InvalidArgumentError, "a real one is self-adjoint"),
        (lambda: FullMatrix([[1.0]], is_positive_definite=True, is_non_singular=False), InvalidArgumentError,
         "positive definite is non-singular"),
        (lambda: FullMatrix([[1]]), DTypeError, "expected floats or complex; got int32"),
        (lambda: FullMatrix([1.0]), InvalidArgumentError, "expected 2 dimensions or more"),
        (lambda: FullMatrix(matrix(2, 3)).solve(np.zeros((2, 1))), UnimplementedError, "a square operator"),
        (lambda: FullMatrix(matrix(2, 3)).inverse(), InvalidArgumentError, "expected a square operator"),
        (lambda: FullMatrix(matrix(2, 3)).matmul(np.zeros((2, 1))), InvalidArgumentError, "expected 3 rows"),
        (lambda: FullMatrix(matrix(2, 3)).matmul(FullMatrix(matrix(2, 3))), InvalidArgumentError,
         "expected 3 rows; got 2"),
        (lambda: Diag([1.0]).matmul(np.zeros((1, 1))), DTypeError, "expected dtype float32; got float64"),
        (lambda: FullMatrix(matrix(2, 2)).cholesky(), InvalidArgumentError, "not said to be self-adjoint"),
        (lambda: Composition([]), InvalidArgumentError, "expected operators; got none"),
        (lambda: Composition([Diag([1.0]), Diag(matrix(1, 1)[0])]), DTypeError, "one dtype"),
        (lambda: BlockDiag([FullMatrix(matrix(2, 3))]), InvalidArgumentError,
         "expected square operators; got LinearOperatorFullMatrix, not known to be"),
        (lambda: tf.linalg.LinearOperatorZeros(2, 3), InvalidArgumentError, "expected is_square=False"),
        (lambda: tf.linalg.LinearOperatorIdentity(-1), InvalidArgumentError, "not negative"),
        (lambda: tf.linalg.LinearOperatorIdentity(1.0), DTypeError, "expected integers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_hints_and_shapes_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        make()


def test_a_program_can_have_its_own() -> None:
    class Shift(Operator):
        """Moves each element to the next place, the last to the first."""

        def _shape(self) -> Any:
            return tf.TensorShape([3, 3])

        def _shape_tensor(self) -> Any:
            return tf.constant([3, 3])

        def _matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
            return tf.roll(x, -1 if adjoint else 1, -2)

    with tf.Session() as session:
        dense, solved = session.run([Shift(tf.float32).to_dense(), Shift(tf.float32).solvevec([1.0, 2, 3])])
    assert dense.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert solved.tolist() == [2, 3, 1]


def test_operators_are_made_of_operators() -> None:
    with pytest.raises(DTypeError, match="LinearOperatorKronecker: expected operators; got ndarray"):
        tf.linalg.LinearOperatorKronecker([np.ones((2, 2))])


def test_functions_of_matrices_take_operators() -> None:
    """As in TensorFlow 1.15: those of `linalg` with a method that does the same."""
    numbers, vectors = matrix(3, 3) + 1j * matrix(3, 3).T, matrix(3, 2) + 0j
    operator, lin = FullMatrix(numbers), tf.linalg
    positive = FullMatrix(definite(3), is_self_adjoint=True, is_positive_definite=True)
    pairs = [
        (tf.matmul(operator, vectors), numbers @ vectors),
        (
            tf.matmul(operator, vectors.T, adjoint_a=True, adjoint_b=True),
            numbers.conj().T @ vectors.T.conj().T,
        ),
        (tf.matmul(vectors.T, operator), vectors.T @ numbers),
        (tf.matmul(vectors, operator, adjoint_a=True, adjoint_b=True), vectors.conj().T @ numbers.conj().T),
        (tf.matmul(operator, Diag(vectors[:, 0] + 2)).to_dense(), numbers * (vectors[:, 0] + 2)),
        (lin.solve(operator, vectors), np.linalg.solve(numbers, vectors)),
        (lin.inv(operator, adjoint=True).to_dense(), np.linalg.inv(numbers).conj().T),
        (lin.adjoint(operator).to_dense(), numbers.conj().T),
        (lin.det(operator), np.linalg.det(numbers)),
        (lin.trace(operator), np.trace(numbers)),
        (lin.diag_part(operator), np.diag(numbers)),
        (lin.logdet(positive), np.linalg.slogdet(definite(3))[1]),
        (lin.cholesky(positive).to_dense(), np.linalg.cholesky(definite(3))),
    ]
    with tf.Session() as session:
        for found, (_, expected) in zip(session.run([made for made, _ in pairs]), pairs, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_functions_that_operators_do_not_have_say_so() -> None:
    operator = FullMatrix(matrix(3, 3))
    with pytest.raises(UnimplementedError, match="expected adjoints of operators; got a transpose"):
        tf.matmul(operator, matrix(3, 3), transpose_a=True)
    with pytest.raises(DTypeError, match="solve: expected an operator, or two tensors"):
        tf.linalg.solve(matrix(3, 3), operator)
    with pytest.raises(InvalidArgumentError, match="not said to be self-adjoint"):
        tf.linalg.logdet(operator)
    with pytest.raises(UnimplementedError, match="Qr: expected tensors"):
        tf.linalg.qr(operator)
