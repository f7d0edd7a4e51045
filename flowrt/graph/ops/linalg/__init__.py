"""Matrices.

matmul                                 products, tensordot
matrix_parts                           diagonals, bands
decompositions, spectral               inverses, solves, QR; SVD, eigenvalues
fourier                                Fourier transforms
einsum                                 sums of products over labelled axes
"""
