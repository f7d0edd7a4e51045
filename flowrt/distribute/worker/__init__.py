"""Worker: a task's part in the steps of masters.

gang_turns                            order of steps with collectives of joined groups
kept_tensors                          values kept between the calls of a partial run
part                                  `CompiledPart`: one task's part of a callable
step_progress, step_trace, describe   progress as text; traces; compiled parts
inspection                            metrics of a task, for watchers of the cluster
local_steps                           steps of the process's own sessions
step_profiles                         traces of the next steps, for watchers
steps                                 running steps and their tensors
worker                                `Worker`: a pure state machine
"""
