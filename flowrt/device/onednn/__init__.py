"""oneDNN (extra ``onednn``).

onednn          its C API (the only module that loads it)
primitives      convolution, average pooling and products on arrays
primitive_call  primitives called by machine code, in one sequence with compiled loops
onednn_blas     large matrix products
"""
