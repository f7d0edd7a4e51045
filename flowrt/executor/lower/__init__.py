"""From a placed subgraph to what each device runs.

schedule  partitions, fused and spread over streams; the abilities of this package's compiler of loops
"""
