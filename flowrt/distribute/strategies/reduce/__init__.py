"""Reduction of the gradients of all replicas.

cross_device_ops  copies to one device, or to each
all_reduce_ops    by collectives between devices of one process
group_ops         by collectives between workers
"""
