"""The ops, by family. Each module defines ops with `define_op` and the public functions that build them.

Order (a module imports only from the lines above it, and in a line from its left):

    delivery                                            where results lie
    constant, identities, shaping, filling              values, types, shapes
    comparison, arithmetic, division, bitwise           elementwise, two operands
    scans, reductions, statistics                       along axes
    math, complex_parts, special                        elementwise, one operand
    slicing, padding, joining, arranging, generating    arrays
    segments, gathering, selecting, ordering, counting  arrays by index
    linalg, matrix_parts, norms, decompositions, spectral, einsum
    random, sampling
    activations, bias, softmax, losses                  networks
    windows, conv, depthwise_conv, convolution, pooling, moments, batch_norm, normalization
    state, update_loops, training, iterators, staged_iterators   what a session keeps
    collective_shapes, collective_gradients, collectives, group_transfer
    script, assertions, strings, formatting, summaries  the host's: Python, text, printing
    operators                                           `Tensor`'s +, [] and so on

`all` imports every one of them.
"""
