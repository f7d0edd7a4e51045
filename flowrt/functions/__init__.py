"""Functions of tensors.

tensor_array                  `TensorArray`
function                      `function`: a Python function as an operation
recompute                     activation checkpointing
jacobians, autodiff           Jacobians of tensors; jvp, vjp, hvp of functions
functional_ops                map_fn, scan, foldl, foldr
vectorization                 `vectorized_map`
arrangements                  image patches, space and batch, unravelled indices
"""
