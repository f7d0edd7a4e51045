"""executor knows time: when each kernel runs, on which memory, and what waits for what.

A step takes this path. The first run of a request compiles; later runs start at `plan`.

    session    `Session.run`: (fetches, feeds) -> `Request` -> `Plan`, both cached
    ends       fetches, feeds and configuration, checked and converted
    lower      a request -> placed, partitioned and fused subgraphs
    analysis   cost, streams, trip counts
    buffers    buffer assignment and the memory plan
    bind       subgraph + buffers -> `Program`: every instruction gets its arguments
    kernels    compiled loops and library calls that replace an op's kernel
    lists      lists of tensors in loops, and loop bodies as machine code
    plan       programs on their memory, and tiered compilation
    program    basic blocks and what drives them: inline, threads, continuations
    partial    one step in several calls
    observe    traces, recent steps, compile times

Invariants: on the cached path nothing is decided per op; a program runs one step at a time, and an instance
that failed is discarded; fetched values belong to the caller; the result does not depend on what drives the
programs.
"""
