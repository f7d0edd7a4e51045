"""``flowrt.linalg``: matrices: products, decompositions, and operators that stand for them.

linear_operator  `LinearOperator`, and operators of operators
structured       operators of one matrix with a structure
compound         operators made of several
circulant        operators applied by Fourier transforms
matrix_functions exponential, pseudo-inverse, least squares, rank
"""

import importlib as _importlib
from typing import Any

from flowrt.graph.ops.base.shape_manipulation import matrix_transpose
from flowrt.graph.ops.base.shape_manipulation import matrix_transpose as transpose
from flowrt.graph.ops.linalg.decompositions import cholesky, cholesky_solve, logdet, qr, slogdet
from flowrt.graph.ops.linalg.decompositions import matrix_determinant as det
from flowrt.graph.ops.linalg.decompositions import matrix_inverse as inv
from flowrt.graph.ops.linalg.decompositions import matrix_solve as solve
from flowrt.graph.ops.linalg.decompositions import matrix_triangular_solve as triangular_solve
from flowrt.graph.ops.linalg.einsum import einsum
from flowrt.graph.ops.linalg.lu import lu, lu_matrix_inverse, lu_reconstruct, lu_solve
from flowrt.graph.ops.linalg.matmul import cross, matmul, matvec, tensordot
from flowrt.graph.ops.linalg.matrix_parts import adjoint, eye, trace
from flowrt.graph.ops.linalg.matrix_parts import diag as tensor_diag
from flowrt.graph.ops.linalg.matrix_parts import diag_part as tensor_diag_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_band_part as band_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag as diag
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag_part as diag_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_set_diag as set_diag
from flowrt.graph.ops.linalg.matrix_powers import matrix_logarithm as logm
from flowrt.graph.ops.linalg.matrix_powers import matrix_square_root as sqrtm
from flowrt.graph.ops.linalg.spectral import self_adjoint_eig as eigh
from flowrt.graph.ops.linalg.spectral import self_adjoint_eigvals as eigvalsh
from flowrt.graph.ops.linalg.spectral import svd
from flowrt.graph.ops.linalg.tridiagonal import tridiagonal_matmul, tridiagonal_solve
from flowrt.graph.ops.nn.moments import l2_normalize
from flowrt.graph.ops.nn.norms import global_norm, norm
from flowrt.linalg.matrix_functions import matrix_exponential as expm
from flowrt.linalg.matrix_functions import matrix_rank, normalize, pinv
from flowrt.linalg.matrix_functions import matrix_solve_ls as lstsq
from flowrt.tf1.missing_names import missing_name

_OPERATORS = {
    "circulant": (
        "LinearOperatorCirculant", "LinearOperatorCirculant2D", "LinearOperatorCirculant3D",
        "LinearOperatorToeplitz",
    ),
    "compound": (
        "LinearOperatorBlockDiag", "LinearOperatorKronecker", "LinearOperatorLowRankUpdate",
    ),
    "linear_operator": (
        "LinearOperator", "LinearOperatorAdjoint", "LinearOperatorComposition",
        "LinearOperatorInversion", "LinearOperatorLowerTriangular",
    ),
    "structured": (
        "LinearOperatorDiag", "LinearOperatorFullMatrix", "LinearOperatorHouseholder",
        "LinearOperatorIdentity", "LinearOperatorScaledIdentity", "LinearOperatorZeros",
    ),
}  # fmt: skip
"""The linear operators by their module, loaded on first use: few programs need them."""


def __getattr__(name: str) -> Any:
    for module, names in _OPERATORS.items():
        if name in names:
            found = globals()[name] = getattr(_importlib.import_module(f"flowrt.linalg.{module}"), name)
            return found
    raise missing_name("linalg", name)


def __dir__() -> list[str]:
    operators = (name for names in _OPERATORS.values() for name in names)
    return sorted({*globals(), *operators})
