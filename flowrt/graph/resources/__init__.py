"""Run-time state behind handles, with its locks. Nothing here builds graph.

step_context                        the deadline of the step that a thread runs
variables                           `VariableResource`
random_stream                       counter-based random streams, one per random op
tensor_list                         run-time values of list tensors
element_stores, element_queue       queues: order of elements; blocking, fair
transfer_queue                      queues between steps and host threads (infeed, outfeed)
gradient_accumulator                conditional accumulators
parameter_shard, shard_service      a parameter server's decisions, pure; the same behind a lock
groups, step_groups                 collective groups that this process has joined
"""
