"""Datasets: a global batch, split among replicas.

replica_batches    the split
distributed_input  distributed datasets and iterators
"""
