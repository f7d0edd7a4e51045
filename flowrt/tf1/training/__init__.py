"""Training loops of older programs.

input_producers          queues filled with the parts of a tensor
input_batches            `batch`, `shuffle_batch` and their variants
supervisor               `Supervisor`
sync_replicas_optimizer  `SyncReplicasOptimizer`
"""
