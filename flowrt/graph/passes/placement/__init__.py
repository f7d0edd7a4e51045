"""Placement, and partitioning into one subgraph per device.

place              one device per node
placement_reasons  why each node is where it is
split              a loop on several devices -> one loop per device
partition          one subgraph per device, _Send/_Recv on cut edges
"""
