"""Binding: instructions get their arguments and their memory.

bind_streams    the stream of each instruction, and waits between streams
bind_kernel     kernels, views, compiled calls and loops, updates of variables
bind_transfer   feeds, receives and sends
bind_fetches    outputs that belong to the caller
bind_control    loops and branches
verify_program  every read finds the value that the graph says it reads: `node_accesses` by the graph,
                `memory_contents` by the instructions, in an order that `stream_clocks` prove; and what is
                called are the instructions: `verify_calls`
bind            `Binder`: a partition -> `Program`
capture         programs that a device can launch as one unit
awaited_loops   loops that are compiled while their program runs
extend_program  incremental compilation: a larger request reuses a bound program
"""
