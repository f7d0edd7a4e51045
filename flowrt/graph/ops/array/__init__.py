"""Array operations: slicing, ordering, reductions.

slicing, padding             slices of a tensor; padding
scans, reductions            cumsum, cumprod; sum, mean, extremes
statistics                   variance, logsumexp, argmax; bincount, histograms
batch_axis                   building blocks of batching rules, and some of these
concat_and_split             concat, split, stack, unstack
tile_and_reverse             tile, reverse, roll, meshgrid, space and depth
ranges                       range, linspace, one_hot, sequence_mask
scatter_rows                 rows reduced into a table at repeatable ids
segments                     segment reductions
parts                        positions in a dimension that is cut; gather from a part
gather_scatter               gather, scatter
selection                    boolean_mask, dynamic_partition, embedding_lookup
bitcast                      bytes as another dtype
sparse_rows                  sparse tensors as three
sets                         sets in the rows of sparse tensors
sorting                      top_k, sort, unique
"""
