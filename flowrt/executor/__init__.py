"""Execution: compiles requests to plans, and schedules kernels, memory and synchronization.

The stages of a step. The first run of a request compiles; later runs start at `plan`.

    session    `Session.run`: (fetches, feeds) -> `Request` -> `Plan`, both cached
    ends       fetches, feeds and configuration, checked and converted
    lower      a request -> placed, partitioned and fused subgraphs
    analysis   cost, streams, trip counts
    buffers    buffer assignment and the memory plan
    bind       subgraph + buffers -> `Program`: every instruction gets its arguments
    verify     a program against its graph: every read finds the right value
    kernels    compiled loops and library calls that replace an op's kernel
    lists      lists of tensors in loops, and loop bodies as machine code
    plan       program instances with their memory, and tiered compilation
    program    basic blocks and their drivers: inline, threads, continuations
    partial    one step in several calls
    observe    traces, recent steps, compile times

Invariants: the cached path makes no decisions per op; a program runs one step at a time, and a failed
instance is discarded; fetched values belong to the caller; the result does not depend on the driver of the
programs.
"""
