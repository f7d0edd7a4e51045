"""Linear operators: products, solutions, parts and determinants, with gradients by what they are made of."""

import numpy as np

RNG = np.random.default_rng(5)


def definite(*dims):
    a = RNG.normal(size=dims)
    return a @ np.swapaxes(a, -1, -2) + np.eye(dims[-1])


def operators(tf):
    """For each name a function of arrays that makes the operator, and the arrays."""
    lin = tf.linalg
    square, wide = RNG.normal(size=(2, 3, 3)) + 2 * np.eye(3), RNG.normal(size=(2, 4, 3))
    complex_ = RNG.normal(size=(3, 3)) + 1j * RNG.normal(size=(3, 3)) + 2 * np.eye(3)
    diag, other = RNG.uniform(1, 2, size=(2, 3)), RNG.uniform(1, 2, size=3)
    hints = {"is_self_adjoint": True, "is_positive_definite": True}
    spectrum = RNG.uniform(1, 2, size=(2, 3)) + 0.3j * RNG.normal(size=(2, 3))
    full, diagonal, tril = (
        lin.LinearOperatorFullMatrix,
        lin.LinearOperatorDiag,
        lin.LinearOperatorLowerTriangular,
    )
    return {
        "full": (full, square),
        "full_complex": (full, complex_),
        "full_definite": (lambda m: full(m, **hints), definite(2, 3, 3)),
        "diag": (diagonal, diag),
        "diag_complex": (diagonal, np.diag(complex_).copy()),
        "tril": (tril, square),
        "tril_complex": (tril, complex_),
        "identity": (lambda m: lin.LinearOperatorIdentity(3, [2], tf.float64),),
        "scaled": (lambda m: lin.LinearOperatorScaledIdentity(3, m), other[:2].copy()),
        "householder": (lin.LinearOperatorHouseholder, diag),
        "householder_definite": (lin.LinearOperatorHouseholder, other),
        "circulant": (lambda m: lin.LinearOperatorCirculant(m, tf.complex128), spectrum),
        "circulant_real": (lambda m: lin.LinearOperatorCirculant(m, tf.complex128), diag),
        "circulant_2d": (
            lambda m: lin.LinearOperatorCirculant2D(m, tf.complex128),
            RNG.uniform(1, 2, size=(3, 2)) + 0.1j,
        ),
        "circulant_3d": (
            lambda m: lin.LinearOperatorCirculant3D(m, tf.complex128),
            RNG.uniform(1, 2, size=(2, 1, 3)) + 0.1j,
        ),
        "toeplitz": (lin.LinearOperatorToeplitz, np.r_[5, other[1:]], np.r_[5, diag[0, 1:]]),
        "adjoint": (lambda m: lin.LinearOperatorAdjoint(full(m)), complex_),
        "inversion": (lambda m: lin.LinearOperatorInversion(full(m)), square),
        "composition": (lambda m, d: lin.LinearOperatorComposition([full(m), diagonal(d)]), square, other),
        "composition_wide": (
            lambda m, d: lin.LinearOperatorComposition([full(m), full(d)]),
            np.swapaxes(wide, 1, 2).copy(),
            wide,
        ),
        "blocks": (
            lambda m, d: lin.LinearOperatorBlockDiag([full(m, is_non_singular=True), diagonal(d)]),
            square,
            other[:2].copy(),
        ),
        "kronecker": (
            lambda m, d: lin.LinearOperatorKronecker([full(m), diagonal(d)]),
            square,
            other[:2].copy(),
        ),
        "update": (
            lambda d, u, v, k: lin.LinearOperatorLowRankUpdate(
                diagonal(d, is_positive_definite=True), u, k, v, is_diag_update_positive=True
            ),
            other,
            RNG.normal(size=(2, 3, 2)) / 3,
            RNG.normal(size=(2, 3, 2)) / 3,
            other[:2].copy(),
        ),
        "update_definite": (
            lambda d, u: lin.LinearOperatorLowRankUpdate(diagonal(d, is_positive_definite=True), u),
            diag,
            RNG.normal(size=(2, 3, 2)),
        ),
    }


def calls(tf):
    found = {}
    for name, (make, *arrays) in operators(tf).items():
        is_complex = "complex" in name or "circulant" in name or name == "adjoint"
        arrays = arrays or [np.float64(1)]
        with tf.Graph().as_default():
            rows, columns = make(*(tf.constant(array) for array in arrays)).shape.as_list()[-2:]
        x = RNG.normal(size=(columns, 2)) + (1j * RNG.normal(size=(columns, 2)) if is_complex else 0)
        y = RNG.normal(size=(rows, 2)) + (1j * RNG.normal(size=(rows, 2)) if is_complex else 0)
        whole = RNG.normal(size=(2, rows, columns)) + (0j if is_complex else 0)

        def parts(*given, make=make):
            operator = make(*given)
            return [operator.to_dense(), operator.diag_part(), operator.trace()]

        def sizes(*given, make=make):
            operator = make(*given)
            return [
                tf.constant(operator.shape.as_list()),
                operator.shape_tensor(),
                operator.batch_shape_tensor(),
                operator.domain_dimension_tensor(),
                operator.range_dimension_tensor(),
                operator.tensor_rank_tensor(),
                tf.constant(bool(operator.is_square)),
                tf.constant(str([operator.is_non_singular, operator.is_self_adjoint])),
                tf.constant(str(operator.is_positive_definite)),
            ]

        def products(u, v, *given, make=make):
            operator = make(*given)
            return [
                operator.matmul(u),
                operator.matmul(v, adjoint=True),
                operator.matmul(tf.linalg.adjoint(u), adjoint_arg=True),
                operator.matvec(u[:, 0]),
                operator.matvec(v[:, 1], adjoint=True),
            ]

        def solutions(v, *given, make=make):
            operator = make(*given)
            return [
                operator.solve(v),
                operator.solve(v, adjoint=True),
                operator.solve(tf.linalg.adjoint(v), adjoint_arg=True),
                operator.solvevec(v[:, 0]),
                operator.log_abs_determinant(),
            ]

        def others(u, *given, make=make, is_circulant="circulant" in name):
            operator = make(*given)
            found = [
                operator.adjoint().to_dense(),
                operator.adjoint().diag_part(),
                operator.inverse().matmul(u),
                operator.inverse().to_dense(),
                operator.inverse().log_abs_determinant(),
                operator.matmul(operator).to_dense(),
                operator.matmul(operator, adjoint=True).to_dense(),
                operator.H.matmul(operator, adjoint_arg=True).trace(),
            ]
            if not is_circulant:
                return found
            # TensorFlow 2.21 forgets input_output_dtype in adjoints and products, which are complex64 then;
            # 1.15 does so in those of LinearOperatorCirculant. Here they have the operator's dtype.
            return [tf.cast(each, tf.complex128) if each.dtype == tf.complex64 else each for each in found]

        found[f"{name}_parts"] = (parts, *arrays)
        found[f"{name}_sizes_value"] = (sizes, *arrays)
        found[f"{name}_products"] = (products, x, y, *arrays)
        found[f"{name}_added"] = (lambda w, *given, make=make: make(*given).add_to_tensor(w), whole, *arrays)
        if rows == columns and name != "composition_wide":
            found[f"{name}_solutions"] = (solutions, y, *arrays)
            found[f"{name}_others"] = (others, x, *arrays)
            # TensorFlow's gradient of complex determinants lacks a conjugate
            key = f"{name}_determinant_value" if is_complex else f"{name}_determinant"
            found[key] = (lambda *given, make=make: make(*given).determinant(), *arrays)
        if name.endswith("definite") and "house" not in name:
            found[f"{name}_cholesky"] = (
                lambda *given, make=make: make(*given).cholesky().to_dense(),
                *arrays,
            )
    zeros = tf.linalg.LinearOperatorZeros
    found["zeros"] = (
        lambda t: [
            zeros(2, 3, [4], tf.float64, is_square=False, is_self_adjoint=None).matmul(t),
            zeros(3, dtype=tf.float64).add_to_tensor(tf.matmul(t, t, transpose_b=True)),
            zeros(3, dtype=tf.float64).to_dense(),
        ],
        RNG.normal(size=(3, 2)),
    )
    diag = RNG.uniform(1, 2, size=3)
    found["products_of_kinds"] = (
        lambda d, m: [
            tf.linalg.LinearOperatorDiag(d).matmul(tf.linalg.LinearOperatorLowerTriangular(m)).to_dense(),
            tf.linalg.LinearOperatorLowerTriangular(m).matmul(tf.linalg.LinearOperatorDiag(d)).to_dense(),
            tf.linalg.LinearOperatorDiag(d).solve(tf.linalg.LinearOperatorLowerTriangular(m)).to_dense(),
            tf.linalg.LinearOperatorDiag(d).solve(tf.linalg.LinearOperatorFullMatrix(m)).to_dense(),
            tf.linalg.LinearOperatorDiag(d)
            .matmul(tf.linalg.LinearOperatorScaledIdentity(3, d[0]))
            .to_dense(),
        ],
        diag,
        definite(3, 3),
    )
    return found
