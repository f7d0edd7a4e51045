"""Decision trees as arrays: pure functions of NumPy, without operations.

traversal   nodes as arrays; the leaf of each example
quantiles   a stream of numbers in little memory, and the boundaries of its buckets
forest      random trees that grow while examples stream by
boosting    boosted trees: statistics of a layer, its splits, pruning, contributions of features
"""
