"""From a request to what each device runs.

loop_factors  transposed factors of products, laid out row-major in front of a loop
row_slices    ``x[t]`` with a computed ``t``, as a gather
schedule      a placed subgraph -> partitions, fused and spread over streams
compile_step  the passes from a request to the placed subgraph, timed
"""
