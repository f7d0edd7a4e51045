"""executor knows time: when each kernel runs, on which buffers, and who waits for whom.

The way of a step, in the order of the modules:

    session       `Session.run`: (fetches, fed tensors) -> `Request`, feed shapes -> `Plan`, both cached
    fetches, feeds             what the caller asks for and gives, checked and converted
    plan          compiles once (the passes of flowrt.graph), keeps instances, runs a step on one
    streams       one device's subgraph -> which stream runs each node, and who waits for whom
    lifetimes, places, memory_plan   who reads a tensor last; where it is; where in the arena
    fused_program, fused_kernel, update_kernel   a group's, an update's compiled loop, bound to its arrays
    bind          -> `Program`: the arena is taken, each instruction gets its arguments
    arguments, sized_call, cost      what an instruction reads, who brings its memory, how long it takes
    program       straight stretches of bound calls, and a wait where a tensor must arrive
    runner        drives the programs: in turn, a thread a device, or in a seeded order
    step_stats    what a traced step records
    tiers         when loops are compiled, and by whom
    partial_run, config        a step in several calls; ConfigProto and RunOptions

Invariants: on the cached way nothing is decided an op at a time; a program runs one step at a time and an
instance that failed is thrown away; what a fetch returns is the caller's; the result does not depend on who
drives.
"""
