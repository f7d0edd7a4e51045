"""Emitters of operations, by kind: flowrt's as ONNX's. Importing this package registers all.

call                `Call`, and `emits`
absent              what ONNX cannot say, and what to do instead
emit_elementwise    arithmetic, comparisons, activations and their derivatives
emit_shaping        shapes, and where elements are
emit_indexing       gathers, scatters, segments, choices by value
emit_reductions     over dimensions, and along one
emit_linear         products and parts of matrices
emit_convolution    convolutions and their derivatives
emit_pooling        windows
emit_normalization  normalizations, softmax, cross-entropies
emit_control_flow   branches and loops
emit_lists          lists of tensors, as tensors with one more dimension
"""

from flowrt.onnx.emit import (
    absent,
    call,
    emit_control_flow,
    emit_convolution,
    emit_elementwise,
    emit_indexing,
    emit_linear,
    emit_lists,
    emit_normalization,
    emit_pooling,
    emit_reductions,
    emit_shaping,
)
