"""Decision trees: operations around `flowrt.graph.trees`. The trees are arrays, which variables keep.

on_host            arrays between the host and a device
quantile_buckets   boundaries of buckets by a stream of numbers; the buckets of numbers
random_forest      growth and predictions of random forests
boosted_trees      predictions, statistics and growth of boosted trees
"""
