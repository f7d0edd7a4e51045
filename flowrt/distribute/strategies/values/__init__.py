"""Values that differ per replica, and their reductions.

reduce_op, communication_options  options of a reduction
distributed_values                `PerReplica`, `Mirrored`
reduced_values                    reductions as graph operations
buckets                           gradient buckets
"""
