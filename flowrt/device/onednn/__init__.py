"""oneDNN (extra ``onednn``).

onednn       its C API (the only module that loads it)
primitives   convolution, average pooling and products on arrays
onednn_blas  large matrix products
"""
