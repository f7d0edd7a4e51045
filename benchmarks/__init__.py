"""The side-by-side benchmarks: ``python -m benchmarks [--peers ENVIRONMENT] [case …]``.

`cases` holds the work, written once against TensorFlow 1's names; `worker` times one case on one module in a
process of its own; `__main__` runs flowrt and the peer in turn and prints the table.
"""
