"""Handlers of operations, by kind. Importing this package registers all.

elementwise      arithmetic, comparisons, activations, conversion
shaping          shapes and where elements are; padding
indexing         gathers, scatters, choices by value
reductions       over dimensions; softmax
linear           products of matrices
convolution      convolutions, their transposes, columns back to images
pooling          windows and regions
sampling         images between their elements
resize           Resize and Upsample
detection        boxes of detectors
normalization    normalizations, dropout, random draws
recurrent        RNN, GRU, LSTM
quantized        whole numbers with a scale and a zero point
spectral         Fourier transforms and windows
control_flow     If, Loop, Scan
sequences        sequences and optionals
text             strings
learning         steps of optimizers; small operations of ai.onnx.ml
"""

from flowrt.onnx.ops import (
    control_flow,
    convolution,
    detection,
    elementwise,
    indexing,
    learning,
    linear,
    normalization,
    pooling,
    quantized,
    recurrent,
    reductions,
    resize,
    sampling,
    sequences,
    shaping,
    spectral,
    text,
)
