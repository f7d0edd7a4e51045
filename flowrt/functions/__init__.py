"""Functions of tensors.

tensor_array                  `TensorArray`
function                      `function`: a Python function as an operation
recompute                     activation checkpointing
jacobians, autodiff           Jacobians of tensors; jvp, vjp, hvp of functions
functional_ops                map_fn, scan, foldl, foldr
vectorization                 `vectorized_map`
parsing                       `parse_example` and the kinds of features
sequence_examples             `parse_single_sequence_example`
sparse_functions              functions of sparse tensors
sparse_arithmetic             their sums, extremes, softmax and parts
sparse_reductions             their reductions along axes and by segment
sparse_forms                  sparse tensors from dense ones, merged, split, masked
sparse_embeddings             rows of tables for rows of sparse tensors
arrangements                  image patches, space and batch, unravelled indices
"""
