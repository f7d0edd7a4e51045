"""Binding: instructions get their arguments and their memory.

bind_streams    the stream of each instruction, and waits between streams
bind_kernel     kernels, views, compiled calls and loops, updates of variables
bind_transfer   feeds, receives and sends
bind_fetches    outputs that belong to the caller
bind_control    loops and branches
bind            `Binder`: a partition -> `Program`
capture         programs that a device can launch as one unit
awaited_loops   loops that are compiled while their program runs
extend_program  incremental compilation: a larger request reuses a bound program
"""
