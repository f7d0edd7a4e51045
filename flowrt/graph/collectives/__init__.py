"""What a collective does, step by step, and what that takes: data and arithmetic, without graph or device.

    algorithms   (p ranks, root, tasks) -> `Schedule`: who sends which chunks to whom, in which step
    ends         which chunks a rank has before a collective and after it, by kind
    cost         (`Schedule`, payload bytes, links) -> seconds; the choice of the cheapest algorithm

`flowrt.graph.passes.collective.lower_collectives` makes operations of a schedule. Nothing here knows a
tensor: a payload is
cut into chunks, chunks have numbers, and a transfer moves an interval of numbers.
"""
