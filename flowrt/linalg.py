"""``flowrt.linalg``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.decompositions import cholesky, cholesky_solve, logdet, qr, slogdet
from flowrt.graph.ops.einsum import einsum
from flowrt.graph.ops.linalg import cross, matmul, matvec, tensordot
from flowrt.graph.ops.math import inv
from flowrt.graph.ops.matrix_parts import diag, diag_part, eye, trace
from flowrt.graph.ops.moments import l2_normalize
from flowrt.graph.ops.norms import global_norm, norm
from flowrt.graph.ops.shaping import matrix_transpose, transpose
from flowrt.graph.ops.spectral import svd
from flowrt.graph.ops.decompositions import cholesky as cholesky
from flowrt.graph.ops.decompositions import matrix_determinant as det
from flowrt.graph.ops.decompositions import matrix_inverse
from flowrt.graph.ops.decompositions import matrix_solve as solve
from flowrt.graph.ops.decompositions import matrix_triangular_solve as triangular_solve
from flowrt.graph.ops.matrix_parts import matrix_band_part as band_part
from flowrt.graph.ops.matrix_parts import matrix_set_diag as set_diag
from flowrt.graph.ops.spectral import self_adjoint_eig as eigh
from flowrt.graph.ops.spectral import self_adjoint_eigvals as eigvalsh
