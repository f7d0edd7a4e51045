"""Operations that own functions: their derivatives, and functions applied to a batch.

control_flow        the ops If, Case, While, Call
batching            a function's graph, rewritten for a batch
known_values        values known in all calls of a function
function_gradients  derivatives of functions, shared by branches, calls and loops
recomputation       derivatives that recompute a function instead of keeping its values
branch_gradients    derivatives of branches and calls
loop_gradients      derivatives of loops
"""
