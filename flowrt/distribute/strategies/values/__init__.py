"""Values that differ per replica, and how they are reduced.

reduce_op, communication_options  what is asked of a reduction
distributed_values                `PerReplica`, `Mirrored`
reduced_values                    reductions as graph
buckets                           gradient buckets
"""
