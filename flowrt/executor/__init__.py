"""executor knows time: when each kernel runs, on which buffers, and who waits for whom.

The way of a step, in the order of the modules:

    session       `Session.run`: (fetches, fed tensors) -> `Request`, feed shapes -> `Plan`, both cached
    session_variables, default_session   what is not on that way: variables read and set without operations;
                              which session is the default one
    request, fetches, feeds, elements         what the caller asks for and gives, checked and converted
    compile_step  a request -> a placed subgraph: the passes of flowrt.graph, with their times
    plan          compiles that once, keeps instances, runs a step on one
    streams       one device's subgraph -> which stream runs each node, and who waits for whom
    lifetimes, places, memory_plan   who reads a tensor last; where it is; where in the arena
    fused_program, fused_kernel, update_kernel   a group's, an update's compiled loop, bound to its arrays
    cuda_kernel, cuda_update  the same on a GPU; loop_layout, loop_operands: how the arrays of both lie
    host_kernels              operations that the host has its own kernels for: by oneDNN (onednn_kernels), by
                              compiled loops (conv_kernels, pool_kernels)
    bind          -> `Program`: each instruction gets its arguments; bound_tensors takes the arena
    strand        the instructions of one program as they are bound
    bind_streams, bind_transfer, keys         waits between streams; feeds, sends and receives; their keys
    bind_control, open_lists, bind_fetches    loops and branches, lists open in them; what is given out
    iterated_program, compiled_body, pace     nests of loops and branches that are machine code; their pauses
    small_calls, list_rows, indexed_rows      what stands in them beside elementwise loops
    loop_factors, row_slices, relocation      how their weights lie; `x[t]`; what lies elsewhere in each step
    arguments, sized_call, cost      what an instruction reads, who brings its memory, how long it takes
    program       straight stretches of bound calls, and a wait where a tensor must arrive
    turns         programs that one thread runs, laid end to end: one program without waits
    runner        drives the programs: in turn, a thread a device, or in a seeded order; relay: one program,
                  by whoever brings what it waits for
    step_stats    what a traced step records; stream_times: when devices that work by themselves did it
    current_operation         what a thread is computing, read from its frames when somebody asks
    recent_steps  the last steps of the process, kept if that is asked for
    tiers         when loops are compiled, and by whom
    collector     Python's garbage collector, paused while a plan is compiled
    partial_run, partial_step, config   a step in several calls; ConfigProto and RunOptions

Invariants: on the cached way nothing is decided an op at a time; a program runs one step at a time and an
instance that failed is thrown away; what a fetch returns is the caller's; the result does not depend on who
drives.
"""
