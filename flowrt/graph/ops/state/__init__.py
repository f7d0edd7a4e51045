"""State kept by a session.

variable_ops                            handles, reads, assignments, sparse updates
update_loops, optimizer_updates         optimizer updates as scalar programs; as ops
session_tensors                         values that stay on their device between steps
queues, accumulators                    queues; conditional accumulators
readers                                 records of files that a queue names
iterators, staged_iterators             elements of datasets; copied to a device one step ahead
lookup                                  lookup tables
infeed                                  infeed and outfeed
parameter_shards                        a worker's step with a parameter server
"""
