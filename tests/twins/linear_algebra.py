"""Products, decompositions and solutions of matrices."""

import numpy as np


def from_eigenvalues(tf, values, vectors):
    return tf.matmul(vectors * values[:, None], vectors, adjoint_b=True)


def from_singular_values(tf, values, left, right):
    return tf.matmul(left * values[:, None], right, adjoint_b=True)


def tridiagonal_calls(tf, rng):
    solve, product = tf.linalg.tridiagonal_solve, tf.linalg.tridiagonal_matmul
    diagonals, right = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4, 3))
    whole = rng.normal(size=(2, 4, 4))
    complex_ = diagonals + 1j * rng.normal(size=(2, 3, 4))

    def of_three(function, t, u):
        parts = [t[:, 0], t[:, 1], t[:, 2]]
        return function(parts, u, diagonals_format="sequence")

    def shorter(t, u):
        return solve([t[:, 0, :-1], t[:, 1], t[:, 2, 1:]], u, diagonals_format="sequence")

    return {
        "tridiagonal_solve": (solve, diagonals, right),
        "tridiagonal_solve_complex_value": (solve, complex_[0], right[0] * (1 + 1j)),
        "tridiagonal_solve_vector": (solve, diagonals, right[..., 0]),
        "tridiagonal_solve_without_pivoting": (
            lambda t, u: solve(t, u, partial_pivoting=False), diagonals, right,
        ),
        "tridiagonal_solve_conjugate_value": (
            lambda t, u: solve(t, u, conjugate_rhs=True), complex_[0], right[0] * (1 + 1j),
        ),
        "tridiagonal_solve_sequence": (lambda t, u: of_three(solve, t, u), diagonals, right),
        "tridiagonal_solve_shorter": (shorter, diagonals, right),
        "tridiagonal_solve_matrix": (lambda t, u: solve(t, u, diagonals_format="matrix"), whole, right),
        "tridiagonal_matmul": (product, diagonals, right),
        "tridiagonal_matmul_sequence": (lambda t, u: of_three(product, t, u), diagonals, right),
        "tridiagonal_matmul_matrix": (lambda t, u: product(t, u, diagonals_format="matrix"), whole, right),
    }  # fmt: skip


def calls(tf):
    rng = np.random.default_rng(13)
    a, b = rng.normal(size=(2, 2, 3, 3))
    tall = rng.normal(size=(2, 4, 3))
    definite = a @ np.swapaxes(a, 1, 2) + np.eye(3)
    lower = np.tril(a) + 2 * np.eye(3)
    complex_ = a + 1j * b
    hermitian = complex_ @ np.conj(np.swapaxes(complex_, 1, 2)) + np.eye(3)
    right = rng.normal(size=(2, 3, 2))
    row = rng.normal(size=3)
    products = {
        f"matmul_{key}{i}": (lambda t, u, f=flag: tf.matmul(t, u, **f), first, second)
        for key, first, second in (("real", a, b), ("complex", complex_, complex_[::-1].copy()))
        for i, flag in enumerate(
            (
                {},
                {"transpose_a": True},
                {"transpose_b": True},
                {"adjoint_a": True},
                {"adjoint_b": True},
                {"transpose_a": True, "transpose_b": True},
            )
        )
    }
    norms = {
        f"norm_{order}_{'flat' if axis is None else axis}": (
            lambda t, o=order, n=axis: tf.norm(t, o, n, keepdims=o == 1),
            a,
        )
        for order in ("euclidean", 1, 2, 3.5, np.inf)
        for axis in (None, 1, (1, 2))
        if not (order in (2, 3.5) and axis == (1, 2))
    }
    return {
        **products,
        **norms,
        "matmul_broadcast": (tf.matmul, tall[:, None], a),
        "matmul_int": (tf.matmul, np.int32(a * 5), np.int32(b * 5)),
        "matvec": (tf.linalg.matvec, tall, right[..., 0]),
        "matvec_transposed": (lambda t, u: tf.linalg.matvec(t, u, transpose_a=True), a, right[..., 0]),
        "adjoint": (tf.linalg.adjoint, complex_),
        "transpose": (lambda t: tf.linalg.transpose(t, conjugate=True), complex_),
        "cholesky": (tf.cholesky, definite),
        "cholesky_complex_value": (tf.cholesky, hermitian),
        "cholesky_solve": (tf.cholesky_solve, lower, right),
        "cross": (tf.cross, a, b),
        "determinant": (tf.matrix_determinant, a),
        "inverse": (tf.matrix_inverse, a),
        "inverse_adjoint": (lambda t: tf.matrix_inverse(t, adjoint=True), complex_),
        "solve": (tf.matrix_solve, a, right),
        "solve_adjoint": (lambda t, u: tf.matrix_solve(t, u, adjoint=True), a, right),
        "triangular": (tf.matrix_triangular_solve, lower, right),
        "triangular_upper": (
            lambda t, u: tf.matrix_triangular_solve(t, u, lower=False, adjoint=True),
            np.swapaxes(lower, 1, 2).copy(),
            right,
        ),
        "logdet": (tf.linalg.logdet, definite),
        "slogdet": (tf.linalg.slogdet, a),
        "eigh_values": (tf.self_adjoint_eigvals, definite),
        "eigh": (lambda t: tf.self_adjoint_eig(t)[0], definite),
        "eigh_product": (lambda t: from_eigenvalues(tf, *tf.self_adjoint_eig(t)), definite),
        "svd_values": (lambda t: tf.svd(t, compute_uv=False), tall),
        "svd_product": (lambda t: from_singular_values(tf, *tf.svd(t)), a),
        "svd_sizes_value": (lambda t: [tf.shape(p) for p in tf.svd(t, full_matrices=True)], tall),
        "qr_product": (lambda t: (tf.matmul(*tf.qr(t)), tf.abs(tf.qr(t)[1])), tall),
        "qr_full_value": (lambda t: [tf.abs(p[..., :3, :3]) for p in tf.qr(t, full_matrices=True)], tall),
        "tensordot": (lambda t, u: tf.tensordot(t, u, [[1], [2]]), a, b),
        "tensordot_number": (lambda t, u: tf.tensordot(t, u, 1), tall, a[0]),
        "trace": (tf.trace, tall),
        "einsum": (lambda t, u: tf.einsum("bij,bjk->bik", t, u), tall, a),
        "einsum_sum": (lambda t, u: tf.einsum("bij,kl->kb", t, u), tall, a[0]),
        "einsum_trace": (lambda t: tf.einsum("bii->bi", t), a),
        "einsum_dots": (lambda t, u: tf.einsum("...ij,jk->...ik", t, u), tall, a[0]),
        "einsum_implicit": (lambda t, u: tf.einsum("ij,jk", t, u), a[0], b[0]),
        "diag": (lambda t: (tf.linalg.diag(t), tf.linalg.tensor_diag(t)), row),
        "diag_part": (lambda t: (tf.linalg.diag_part(t), tf.linalg.tensor_diag_part(t[0])), a),
        "set_diag": (tf.linalg.set_diag, a, right[..., 0]),
        "band_part": (lambda t: tf.linalg.band_part(t, 0, -1), tall),
        "eye": (lambda t: tf.linalg.eye(2, dtype=tf.float64) * t, row[0]),
        "l2_normalize": (lambda t: tf.linalg.l2_normalize(t, -1), a),
        "normalize": (lambda t: tf.linalg.normalize(t, axis=-1), a),
        "normalize_ones": (lambda t: tf.linalg.normalize(t, 1, [0, 2]), a),
        "normalize_all": (lambda t: tf.linalg.normalize(t, 3), tall),
        "expm": (tf.linalg.expm, a),
        "expm_large": (tf.linalg.expm, 4 * a),
        "expm_complex": (tf.linalg.expm, complex_),
        "lstsq": (tf.linalg.lstsq, tall, rng.normal(size=(2, 4, 2))),
        "lstsq_shrunk": (lambda t, u: tf.linalg.lstsq(t, u, 0.3), tall, rng.normal(size=(2, 4, 2))),
        "matrix_rank_value": (tf.linalg.matrix_rank, np.stack([a[0], np.outer(row, row)])),
        "pinv": (tf.linalg.pinv, tall),
        "pinv_of_few": (lambda t: tf.linalg.pinv(t, rcond=0.5), a),
        "lu_value": (tf.linalg.lu, a + 2 * np.eye(3)),
        "lu_complex_value": (lambda t: tf.linalg.lu(t, tf.int64), complex_),
        "lu_large_value": (tf.linalg.lu, rng.normal(size=(70, 70))),
        "lu_solve_value": (lambda t, u: tf.linalg.lu_solve(*tf.linalg.lu(t), rhs=u), a, right),
        "lu_reconstruct_value": (lambda t: tf.linalg.lu_reconstruct(*tf.linalg.lu(t)), a),
        "lu_matrix_inverse_value": (lambda t: tf.linalg.lu_matrix_inverse(*tf.linalg.lu(t)), a),
        "sqrtm": (tf.linalg.sqrtm, definite),
        "sqrtm_turned": (tf.linalg.sqrtm, a + 3 * np.eye(3)),
        "sqrtm_complex_value": (tf.linalg.sqrtm, complex_),
        "logm_value": (tf.linalg.logm, complex_),
        **tridiagonal_calls(tf, rng),
        "global_norm": (lambda t, u: tf.linalg.global_norm([t, u]), a, b),
    }
