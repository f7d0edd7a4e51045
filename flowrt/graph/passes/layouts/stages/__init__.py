"""Passes for stages of a pipeline and its micro-batches, before and after layouts are lowered.

assign_stages      the stage of each operation of a pipeline
cut_stages         the same by costs, for scripts that name none
sizes_of_nothing   results that a branch does not have, in the shape that they have in another
sizes_of_lists     lists in the sizes of the elements that are written first
split_branches     branches of one stage in place of one that updates variables of several
wait_for_effects   effects of the whole batch, for which only later effects wait
recompute_stages   the forward pass of a stage once more, for its backward pass
order_actions      the order of a step with turns: for each device that of its schedule
"""
