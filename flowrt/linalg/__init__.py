"""``flowrt.linalg``: matrices: products, decompositions, and operators that stand for them.

linear_operator  `LinearOperator`, and operators of operators
structured       operators of one matrix with a structure
compound         operators made of several
circulant        operators applied by Fourier transforms
matrix_functions exponential, pseudo-inverse, least squares, rank
"""

from flowrt.graph.ops.base.shape_manipulation import matrix_transpose
from flowrt.graph.ops.base.shape_manipulation import matrix_transpose as transpose
from flowrt.graph.ops.linalg.decompositions import cholesky, cholesky_solve, logdet, qr, slogdet
from flowrt.graph.ops.linalg.decompositions import matrix_determinant as det
from flowrt.graph.ops.linalg.decompositions import matrix_inverse as inv
from flowrt.graph.ops.linalg.decompositions import matrix_solve as solve
from flowrt.graph.ops.linalg.decompositions import matrix_triangular_solve as triangular_solve
from flowrt.graph.ops.linalg.einsum import einsum
from flowrt.graph.ops.linalg.matmul import cross, matmul, matvec, tensordot
from flowrt.graph.ops.linalg.matrix_parts import adjoint, eye, trace
from flowrt.graph.ops.linalg.matrix_parts import diag as tensor_diag
from flowrt.graph.ops.linalg.matrix_parts import diag_part as tensor_diag_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_band_part as band_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag as diag
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag_part as diag_part
from flowrt.graph.ops.linalg.matrix_parts import matrix_set_diag as set_diag
from flowrt.graph.ops.linalg.spectral import self_adjoint_eig as eigh
from flowrt.graph.ops.linalg.spectral import self_adjoint_eigvals as eigvalsh
from flowrt.graph.ops.linalg.spectral import svd
from flowrt.graph.ops.nn.moments import l2_normalize
from flowrt.graph.ops.nn.norms import global_norm, norm
from flowrt.linalg.circulant import (
    LinearOperatorCirculant,
    LinearOperatorCirculant2D,
    LinearOperatorCirculant3D,
    LinearOperatorToeplitz,
)
from flowrt.linalg.compound import (
    LinearOperatorBlockDiag,
    LinearOperatorKronecker,
    LinearOperatorLowRankUpdate,
)
from flowrt.linalg.linear_operator import (
    LinearOperator,
    LinearOperatorAdjoint,
    LinearOperatorComposition,
    LinearOperatorInversion,
    LinearOperatorLowerTriangular,
)
from flowrt.linalg.matrix_functions import matrix_exponential as expm
from flowrt.linalg.matrix_functions import matrix_rank, normalize, pinv
from flowrt.linalg.matrix_functions import matrix_solve_ls as lstsq
from flowrt.linalg.structured import (
    LinearOperatorDiag,
    LinearOperatorFullMatrix,
    LinearOperatorHouseholder,
    LinearOperatorIdentity,
    LinearOperatorScaledIdentity,
    LinearOperatorZeros,
)
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("linalg")
