"""Basic operations used by all other families.

kernel_output       results written to an output buffer
axes                sharding rules from ranks and host inputs
identities          identity, stop_gradient, cast
shape_manipulation  reshape, expand_dims, squeeze, transpose, shape
indexed_slices      `IndexedSlices`: sparse gradients
sparse_tensor       `SparseTensor`: values and their places
filling             fill, zeros, ones, broadcast_to
indexing            checked reads and writes at computed indices
"""
