"""Buffer assignment: where each tensor of a partition lives, and for how long.

lifetimes          last readers of each tensor; variables that change under their readers
buffer_assignment  each tensor is a constant, a buffer, a view or a register
memory_plan        offsets of the buffers in one arena (best fit)
bound_tensors      the arrays themselves, once the arena is allocated
"""
