"""The ops, by family. Each module defines ops with `define_op` and the public functions that build them.

Order (a module imports only from its left): constant, shaping, arithmetic, reductions, math, slicing, arranging, gathering,
linalg, random, activations, losses, conv, pooling, normalization, state, training, script, operators.
"""
