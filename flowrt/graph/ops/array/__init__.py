"""Arrays: parts, order, reductions.

slicing, padding             parts of a tensor; margins around it
scans, reductions            cumsum, cumprod; sum, mean, extremes
statistics                   variance, logsumexp, argmax
batching_axes, batching_indices   what their rules for batches are made of
concat_and_split             concat, split, stack, unstack
tile_and_reverse             tile, reverse, roll, meshgrid, space and depth
ranges                       range, linspace, one_hot, sequence_mask
scatter_rows                 rows added at ids that may repeat
segments                     segment reductions
gather_scatter               gather, scatter
selection                    boolean_mask, dynamic_partition, embedding_lookup
sorting, counting            top_k, sort, unique; bincount, histograms
"""
