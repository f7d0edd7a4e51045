"""Fusion: groups of operations that one compiled loop can compute.

group          what may be in a group
loop_budget    how many different loops are worth compiling
fuse           finds groups by scheduling, which keeps the graph acyclic
accumulated_products  sums of matrix products, to which the library adds each product
channels_last  convolutions with their channels last, and what is between them
fold_factors   factors by channel that follow a convolution, in its filter
result_functions  functions of one number that follow convolutions
epilogues      convolutions with the elementwise operations that follow
loop_compiler  what the compiler of loops can do, and which loops are small
loop_factors   transposed factors of products, laid out row-major in front of a loop
row_slices     ``x[t]`` with a computed ``t``, as a gather
"""
