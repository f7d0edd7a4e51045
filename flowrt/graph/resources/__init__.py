"""Run-time state behind handles, with its locks. Nothing here adds operations to a graph.

step_context                        the deadline of the step that a thread is running
variables                           `VariableResource`
unit_memory                         memory that several variables have together
random_stream                       counter-based random streams, one per random op
parts_of_draws                      the elements of one block of a draw, without the rest
tensor_list                         run-time values of list tensors
element_stores, element_queue       element order of queues; fair blocking queues
file_reader                         records of files that a queue names
transfer_queue                      queues between steps and host threads (infeed, outfeed)
gradient_accumulator                conditional accumulators
parameter_shard, shard_service      a parameter server's pure state machine; the same behind a lock
groups, step_groups                 collective groups that this process has joined
exchange                            a text from every rank of such a group to all
"""
