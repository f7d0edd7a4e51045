"""The ops, by family. Each module defines ops with `define_op`, and the public functions that build them.

A family imports only from families above it:

    base          constants, identities, shapes, filling
    elementwise   arithmetic, comparison, math
    array         slicing, joining, reductions, gathering, sorting
    text          strings, summaries, Python functions
    ragged        rows of different lengths
    lists         lists of tensors
    state         variables, optimizer updates, queues, iterators
    linalg        matrices
    random        random draws
    nn            activations, losses, normalization, convolution, pooling
    collective    collectives and transfers
    trees         decision trees
    surface       Python's operators; the import of every op
"""
