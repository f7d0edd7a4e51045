"""Lowering of a placed subgraph to scheduled partitions.

schedule    partitions, fused and spread over streams; the abilities of this package's compiler of loops
part_class  parts that are equal but for names, for which one analysis is enough
"""
