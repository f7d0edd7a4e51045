"""``flowrt.linalg``: TensorFlow's names of this namespace."""

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
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("linalg")
