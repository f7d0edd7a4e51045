"""Collective schedules and their cost: pure data and arithmetic, independent of graphs and devices.

    algorithms   (p ranks, root, tasks) -> `Schedule`: senders, receivers and chunks of each step
    ends         chunks that a rank holds before and after a collective, by kind
    cost         (`Schedule`, payload bytes, links) -> seconds; the choice of the cheapest algorithm
    buckets      tensors that travel together

`flowrt.graph.passes.collective.lower_collectives` lowers a schedule to operations. No tensors appear here: a
payload is split into numbered chunks, and a transfer moves an interval of chunk numbers.
"""
