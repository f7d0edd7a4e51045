"""Matrices.

matmul                                 products, tensordot
matrix_parts                           diagonals, bands
decompositions, spectral               inverses, solves, QR; SVD, eigenvalues
lu, matrix_powers                      LU decompositions; square roots, logarithms
tridiagonal                            products and solutions of tridiagonal matrices
fourier                                Fourier transforms
einsum                                 sums of products over labelled axes
"""
