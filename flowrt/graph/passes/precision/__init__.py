"""Mixed precision: products in a narrower dtype than the script's.

    precision_class    which operations may be narrowed, from the facts of their ops
    mixed_precision    the pass: narrowed operations, and casts between them and the others

A subgraph in which no variable has a `flowrt.graph.precision.Precision` passes as the same object.
"""
