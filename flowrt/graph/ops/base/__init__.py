"""What all other families are built on.

kernel_output       results written to the memory that a kernel was given
identities          identity, stop_gradient, cast
shape_manipulation  reshape, expand_dims, squeeze, transpose, shape
indexed_slices      `IndexedSlices`: sparse gradients
filling             fill, zeros, ones, broadcast_to
indexing            checked reads and writes at computed indices
"""
