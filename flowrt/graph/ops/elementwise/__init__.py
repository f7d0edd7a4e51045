"""One element at a time.

comparison                      comparison, logic, where
arithmetic, division            sums, products, powers; quotients and remainders
bitwise                         bits of integers
math, complex_parts             functions of one number; complex numbers
narrow_cast                     conversion to and from dtypes of a byte and less
special_kernels, special        erf, lgamma, zeta and their like: on arrays, as ops
incomplete_kernels, incomplete  the incomplete gamma and beta functions: on arrays, as ops
"""
