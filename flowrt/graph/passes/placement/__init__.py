"""Placement, and partitioning into one subgraph per device.

place              one device per node
placement_reasons  why each node is where it is
split              a loop on several devices -> one loop per device
exchange_order     on each device, a receive waits for what the device sends to get its answer
lent_reads         reads of variables that other devices may use where they are
partition          one subgraph per device, _Send/_Recv on cut edges
"""
