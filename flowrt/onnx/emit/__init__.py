"""Emitters of operations, by kind: flowrt's as ONNX's. Importing this package registers all.

call           `Call`, and `emits`
absent         what ONNX cannot say, and what to do instead
elementwise    arithmetic, comparisons, activations and their derivatives
shaping        shapes, and where elements are
indexing       gathers, scatters, segments, choices by value
reductions     over dimensions, and along one
linear         products and parts of matrices
convolution    convolutions and their derivatives
pooling        windows
normalization  normalizations, softmax, cross-entropies
control_flow   branches and loops
lists          lists of tensors, as tensors with one more dimension
"""

from flowrt.onnx.emit import (
    absent,
    call,
    control_flow,
    convolution,
    elementwise,
    indexing,
    linear,
    lists,
    normalization,
    pooling,
    reductions,
    shaping,
)
